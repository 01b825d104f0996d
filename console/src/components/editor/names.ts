/**
 * Names that a definition declares: classes, fields, channels, functions. Read line by line, so that an incomplete
 * document still offers the names of its intact parts.
 */

export interface Names {
  events: Map<string, string[]>;
  subscriptions: Map<string, string[]>;
  notifications: Map<string, string[]>;
  attributes: string[];
  channels: string[];
  functions: string[];
  sources: string[];
  /** `on`, `subscription` and `notify` of each rule. */
  rules: Map<string, { on: string; subscription: string; notify: string }>;
  /** Line of each object, from 1, such as that of `rules.near`. */
  lines: Map<string, number>;
}

/** Names of a definition in YAML. */
export function namesOf(document: string): Names {
  const names: Names = {
    events: new Map(),
    subscriptions: new Map(),
    notifications: new Map(),
    attributes: [],
    channels: [],
    functions: [],
    sources: [],
    rules: new Map(),
    lines: new Map(),
  };
  let section = "";
  let object = "";
  let objectIndent = 0;
  let fieldsIndent: number | null = null;
  let fieldIndent: number | null = null;
  let scalarIndent: number | null = null;
  let number = 0;
  for (const line of document.split(/\r?\n/)) {
    number += 1;
    const text = line.trimStart();
    const indent = line.length - text.length;
    if (text === "" || text.startsWith("#")) continue;
    if (scalarIndent !== null) {
      if (indent > scalarIndent) continue;
      scalarIndent = null;
    }
    const key = /^(?:"([^"]*)"|'([^']*)'|([A-Za-z_][\w-]*))\s*:(?:\s+(.*))?$/.exec(text);
    if (key === null) continue;
    const name = key[1] ?? key[2] ?? key[3] ?? "";
    const value = (key[4] ?? "").replace(/\s+#.*$/, "").trim();
    if (/^[|>][+-]?\d?$/.test(value)) scalarIndent = indent;
    if (indent === 0) {
      section = name;
      object = "";
      fieldsIndent = null;
      continue;
    }
    if (object === "" || indent <= objectIndent) {
      object = name;
      objectIndent = indent;
      fieldsIndent = null;
      declare(names, section, name);
      names.lines.set(`${section}.${name}`, number);
      inline(names, section, name, value);
      continue;
    }
    if (fieldsIndent !== null && indent <= fieldsIndent) fieldsIndent = null;
    if (fieldsIndent === null) {
      if (name === "fields") {
        if (value === "") {
          fieldsIndent = indent;
          fieldIndent = null;
        } else fieldsOf(names, section, object)?.push(...flowKeys(value));
      }
      const rule = section === "rules" ? names.rules.get(object) : undefined;
      if (rule !== undefined && (name === "on" || name === "subscription" || name === "notify"))
        rule[name] = value.replace(/^["']|["']$/g, "");
    } else {
      // Fields have the first indentation below `fields`; deeper keys are options of a field.
      fieldIndent ??= indent;
      if (indent === fieldIndent) fieldsOf(names, section, object)?.push(name);
    }
  }
  return names;
}

function declare(names: Names, section: string, name: string) {
  if (section === "events" || section === "subscriptions" || section === "notifications") names[section].set(name, []);
  else if (section === "attributes" || section === "channels" || section === "functions" || section === "sources")
    names[section].push(name);
  else if (section === "rules") names.rules.set(name, { on: "", subscription: "", notify: "" });
}

function inline(names: Names, section: string, name: string, value: string) {
  const fields = /\bfields:\s*(\{.*)/.exec(value);
  if (fields?.[1] !== undefined) fieldsOf(names, section, name)?.push(...flowKeys(fields[1]));
  const rule = section === "rules" ? names.rules.get(name) : undefined;
  if (rule !== undefined) {
    rule.on = /\bon:\s*([\w-]+)/.exec(value)?.[1] ?? "";
    rule.subscription = /\bsubscription:\s*([\w-]+)/.exec(value)?.[1] ?? "";
    rule.notify = /\bnotify:\s*([\w-]+)/.exec(value)?.[1] ?? "";
  }
}

const fieldsOf = (names: Names, section: string, object: string) =>
  section === "events" || section === "subscriptions" || section === "notifications"
    ? names[section].get(object)
    : undefined;

/** Keys of the outer level of a flow mapping. */
function flowKeys(value: string): string[] {
  const keys: string[] = [];
  let depth = 0;
  let token = "";
  for (const letter of value) {
    if (letter === "{" || letter === "[") depth += 1;
    else if (letter === "}" || letter === "]") depth -= 1;
    else if (depth === 1 && letter === ",") token = "";
    else if (depth === 1 && letter === ":") {
      const key = token.trim().replace(/^["']|["']$/g, "");
      if (/^[A-Za-z_][\w-]*$/.test(key)) keys.push(key);
      token = "#";
    } else if (depth === 1 && token !== "#") token += letter;
    if (depth === 0 && letter === "}") break;
  }
  return keys;
}

/** Keys of the templates of a definition: `base`, a locale, a channel, or `locale/channel`. */
export function templateKeys(document: string): string[] {
  const found = new Set<string>();
  const stack: { indent: number; name: string }[] = [];
  let scalarIndent: number | null = null;
  for (const line of document.split(/\r?\n/)) {
    const text = line.trimStart();
    const indent = line.length - text.length;
    if (text === "" || text.startsWith("#")) continue;
    if (scalarIndent !== null && indent > scalarIndent) continue;
    scalarIndent = null;
    const key = /^(?:"([^"]*)"|'([^']*)'|([A-Za-z_][\w/-]*))\s*:(?:\s+(.*))?$/.exec(text);
    if (key === null) continue;
    const name = key[1] ?? key[2] ?? key[3] ?? "";
    while (stack.length > 0 && (stack[stack.length - 1]?.indent ?? 0) >= indent) stack.pop();
    const path = stack.map((open) => open.name);
    if (path.length === 4 && path[0] === "notifications" && path[2] === "content" && path[3] === "templates")
      found.add(name);
    stack.push({ indent, name });
    if (/^[|>][+-]?\d?$/.test((key[4] ?? "").trim())) scalarIndent = indent;
    if (name === "templates" && path.length === 3) flowKeys((key[4] ?? "").trim()).forEach((one) => found.add(one));
  }
  return [...found];
}
