// ICU messages: {name}, {name, number}, {name, date|time}, {name, plural|selectordinal|select, …} and # inside plurals.

export type Value = string | number | boolean | Date | null | undefined;

type Node =
  | string
  | { kind: "value"; name: string; format: string | null; style: string | null }
  | { kind: "count" }
  | {
      kind: "choice";
      name: string;
      by: "cardinal" | "ordinal" | "select";
      offset: number;
      branches: Map<string, Node[]>;
    };

const parsed = new Map<string, Node[]>();

/** Parts of a formatted message: texts, and the values that are not texts (such as elements) in their places. */
export function formatParts<Other>(
  message: string,
  locale: string,
  values: Record<string, Value | Other>,
): (string | Other)[] {
  let nodes = parsed.get(message);
  if (nodes === undefined) {
    nodes = parse(message);
    parsed.set(message, nodes);
  }
  const parts: (string | Other)[] = [];
  write(nodes, locale, values, null, parts);
  return parts;
}

export function format(message: string, locale: string, values: Record<string, Value>): string {
  return formatParts<never>(message, locale, values).join("");
}

/** Names of the values that a message uses. */
export function placeholders(message: string): Set<string> {
  const names = new Set<string>();
  const visit = (nodes: Node[]) => {
    for (const node of nodes) {
      if (typeof node === "string" || node.kind === "count") continue;
      names.add(node.name);
      if (node.kind === "choice") for (const branch of node.branches.values()) visit(branch);
    }
  };
  visit(parse(message));
  return names;
}

export function parse(message: string): Node[] {
  let at = 0;

  function fail(expected: string): never {
    throw new SyntaxError(`message ${JSON.stringify(message)}: expected ${expected} at ${at}`);
  }

  function space() {
    while (at < message.length && /\s/.test(message[at]!)) at += 1;
  }

  function word(): string {
    space();
    const start = at;
    while (at < message.length && /[^\s{},#]/.test(message[at]!)) at += 1;
    if (at === start) fail("a word");
    const found = message.slice(start, at);
    space();
    return found;
  }

  function expect(sign: string) {
    if (message[at] !== sign) fail(`"${sign}"`);
    at += 1;
  }

  function nodes(depth: number, inPlural: boolean): Node[] {
    const out: Node[] = [];
    let run = "";
    const flush = () => {
      if (run !== "") out.push(run);
      run = "";
    };
    while (at < message.length) {
      const sign = message[at]!;
      if (sign === "'" && message[at + 1] === "'") {
        run += "'";
        at += 2;
      } else if (sign === "'" && /[{}#]/.test(message[at + 1] ?? "")) {
        const end = message.indexOf("'", at + 1);
        run += message.slice(at + 1, end === -1 ? message.length : end);
        at = end === -1 ? message.length : end + 1;
      } else if (sign === "}") {
        if (depth === 0) fail("no closing brace");
        break;
      } else if (sign === "#" && inPlural) {
        flush();
        out.push({ kind: "count" });
        at += 1;
      } else if (sign === "{") {
        flush();
        at += 1;
        out.push(argument(depth, inPlural));
      } else {
        run += sign;
        at += 1;
      }
    }
    flush();
    return out;
  }

  function argument(depth: number, inPlural: boolean): Node {
    const name = word();
    if (message[at] === "}") {
      at += 1;
      return { kind: "value", name, format: null, style: null };
    }
    expect(",");
    const kind = word();
    if (kind !== "plural" && kind !== "selectordinal" && kind !== "select") {
      let style: string | null = null;
      if (message[at] === ",") {
        at += 1;
        style = word();
      }
      expect("}");
      return { kind: "value", name, format: kind, style };
    }
    expect(",");
    let offset = 0;
    const branches = new Map<string, Node[]>();
    space();
    while (message[at] !== "}") {
      const key = word();
      if (key.startsWith("offset:")) {
        offset = Number(key.slice("offset:".length));
        continue;
      }
      expect("{");
      branches.set(key, nodes(depth + 1, inPlural || kind !== "select"));
      expect("}");
      space();
      if (at >= message.length) fail('"}"');
    }
    expect("}");
    if (!branches.has("other")) fail("a branch `other`");
    return {
      kind: "choice",
      name,
      by: kind === "select" ? "select" : kind === "plural" ? "cardinal" : "ordinal",
      offset,
      branches,
    };
  }

  const out = nodes(0, false);
  if (at < message.length) fail("the end");
  return out;
}

function write<Other>(
  nodes: Node[],
  locale: string,
  values: Record<string, Value | Other>,
  count: number | null,
  parts: (string | Other)[],
) {
  const add = (piece: string | Other) => {
    const last = parts.length - 1;
    if (typeof piece === "string" && typeof parts[last] === "string") parts[last] = (parts[last] as string) + piece;
    else parts.push(piece);
  };
  for (const node of nodes) {
    if (typeof node === "string") add(node);
    else if (node.kind === "count") add(numbers(locale).format(count ?? 0));
    else if (node.kind === "value") add(one(values[node.name], node.format, node.style, locale));
    else {
      const value = values[node.name];
      const number = Number(value);
      const branch =
        node.by === "select"
          ? (node.branches.get(String(value)) ?? node.branches.get("other")!)
          : (node.branches.get(`=${number}`) ??
            node.branches.get(rules(locale, node.by).select(number - node.offset)) ??
            node.branches.get("other")!);
      const inner: (string | Other)[] = [];
      write(branch, locale, values, node.by === "select" ? count : number - node.offset, inner);
      inner.forEach(add);
    }
  }
}

function one<Other>(value: Value | Other, format: string | null, style: string | null, locale: string): string | Other {
  if (value === null || value === undefined) return "";
  if (value instanceof Date) {
    const size = (style ?? "medium") as "short" | "medium" | "long";
    return new Intl.DateTimeFormat(locale, format === "time" ? { timeStyle: size } : { dateStyle: size }).format(value);
  }
  if (typeof value === "number") return numbers(locale, style === "percent" ? "percent" : undefined).format(value);
  if (typeof value === "string") return value;
  if (typeof value === "boolean") return String(value);
  return value;
}

const numberFormats = new Map<string, Intl.NumberFormat>();
const pluralRules = new Map<string, Intl.PluralRules>();

function numbers(locale: string, style?: "percent"): Intl.NumberFormat {
  const key = `${locale}/${style ?? ""}`;
  let found = numberFormats.get(key);
  if (found === undefined) {
    found = new Intl.NumberFormat(
      locale,
      style === undefined ? { maximumFractionDigits: 2 } : { style, maximumFractionDigits: 1 },
    );
    numberFormats.set(key, found);
  }
  return found;
}

function rules(locale: string, type: "cardinal" | "ordinal"): Intl.PluralRules {
  const key = `${locale}/${type}`;
  let found = pluralRules.get(key);
  if (found === undefined) {
    found = new Intl.PluralRules(locale, { type });
    pluralRules.set(key, found);
  }
  return found;
}
