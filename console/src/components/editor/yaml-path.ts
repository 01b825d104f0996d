/**
 * The place of the cursor in a YAML document: the keys around it, and whether a key or a value is written there.
 *
 * Reads lines and their indentation, since a document is incomplete while it is written, and a parser then loses the
 * structure behind the first error. Supports block mappings and sequences, block scalars and flow collections.
 */

export interface Place {
  /** Keys from the root to the mapping of the cursor, or to the key of the value; `-` is an item of a list. */
  path: string[];
  part: "key" | "value";
  /** Text of the key or value before the cursor. */
  typed: string;
  /** Offset of `typed` in the document. */
  from: number;
  /** Keys that the mapping has already. */
  siblings: string[];
  /** Whether the cursor is in a flow collection. */
  flow: boolean;
  /** Whether the cursor is in a block scalar (`|` or `>`); `typed` is then its text before the cursor. */
  block: boolean;
  /** Indentation of the line of the cursor. */
  indent: number;
}

/** A key or a dash that is open at a line. */
interface Opener {
  column: number;
  /** Name of a key; `-` of an item. */
  name: string;
  isItem: boolean;
  /** Keys of the mapping below it, with their lines. */
  keys: { name: string; line: number }[];
}

/** A key: in double quotes, in single quotes, or plain. */
const KEY = new RegExp(
  String.raw`^(?:"((?:[^"\\]|\\.)*)"|'((?:[^']|'')*)'` +
    String.raw`|([^\s#'"[\]{},&*!|>%@\x60:-](?:[^:#\n]|:(?=\S)|(?<=\S)#)*?|-[^\s:#][^:#\n]*?)` +
    String.raw`)[ \t]*:(?=\s|$)`,
);
const SCALAR = /^[|>][+-]?\d?[+-]?\s*(?:#.*)?$/;

/** The place of an offset; null in a comment. */
export function placeAt(document: string, offset: number): Place | null {
  const lines = document.split("\n");
  const before = document.slice(0, offset).split("\n");
  const cursorLine = before.length - 1;
  const typedLine = before[cursorLine] ?? "";
  const root: Opener = { column: -1, name: "", isItem: false, keys: [] };
  const stack: Opener[] = [root];
  let scalar: { column: number; lines: string[] } | null = null;
  let flow: string | null = null;
  let found: { place: Place; parent: Opener } | null = null;

  for (let number = 0; number < lines.length; number += 1) {
    const isCursor = number === cursorLine;
    const whole = (lines[number] ?? "").replace(/\r$/, "");
    const line = isCursor ? typedLine : whole;
    let text = line.trimStart();
    let column = line.length - text.length;
    if (scalar !== null) {
      if ((whole.trim() === "" && !isCursor) || column > scalar.column) {
        if (isCursor) {
          const inside = [...scalar.lines, text].join("\n");
          found = {
            place: place(stack, "value", inside, offset, { block: true, indent: column }),
            parent: root,
          };
          break;
        }
        scalar.lines.push(text);
        continue;
      }
      scalar = null;
    }
    if (flow !== null) {
      flow += ` ${text}`;
      const inFlow = flowPlace(flow);
      if (isCursor) {
        if (inFlow !== null) found = { place: flowed(stack, inFlow, offset, column), parent: root };
        break;
      }
      if (inFlow === null) flow = null;
      continue;
    }
    if (!isCursor && (text === "" || text.startsWith("#"))) continue;
    if (isCursor && isComment(line)) return null;
    const indent = column;
    for (let dash = /^-(\s+|$)/.exec(text); dash !== null; dash = /^-(\s+|$)/.exec(text)) {
      while (top(stack).column > column || (top(stack).column === column && top(stack).isItem)) stack.pop();
      stack.push({ column, name: "-", isItem: true, keys: [] });
      column += dash[0].length;
      text = text.slice(dash[0].length);
    }
    const key = KEY.exec(text);
    if (key === null) {
      if (isCursor) {
        while (top(stack).column >= column && !(top(stack).isItem && top(stack).column < column)) stack.pop();
        const inFlow = flowPlace(text);
        if (inFlow !== null) {
          found = { place: flowed(stack, inFlow, offset, indent), parent: root };
          break;
        }
        found = { place: place(stack, "key", text, offset, { indent }), parent: top(stack) };
        flow = null;
        continue;
      }
      if (flowPlace(text) !== null) flow = text;
      continue;
    }
    while (top(stack).column >= column) stack.pop();
    const name = key[1] ?? key[2] ?? key[3]?.trim() ?? "";
    top(stack).keys.push({ name, line: number });
    stack.push({ column, name, isItem: false, keys: [] });
    const value = text.slice(key[0].length).trimStart();
    const inFlow = flowPlace(value);
    if (isCursor) {
      found =
        inFlow === null
          ? { place: place(stack, "value", value, offset, { indent }), parent: root }
          : { place: flowed(stack, inFlow, offset, indent), parent: root };
      break;
    }
    if (SCALAR.test(value)) scalar = { column, lines: [] };
    else if (inFlow !== null) flow = value;
  }
  if (found === null) return null;
  const { place: result, parent } = found;
  if (result.part === "key" && !result.flow) {
    result.siblings = parent.keys.filter((one) => one.line !== cursorLine).map((one) => one.name);
  }
  return result;
}

const top = (stack: Opener[]): Opener => stack[stack.length - 1] as Opener;

function place(
  stack: Opener[],
  part: "key" | "value",
  typed: string,
  offset: number,
  more: { block?: boolean; indent: number },
): Place {
  const path = stack.slice(1).map((opener) => opener.name);
  return {
    path,
    part,
    typed,
    from: offset - typed.length,
    siblings: [],
    flow: false,
    block: more.block ?? false,
    indent: more.indent,
  };
}

function flowed(stack: Opener[], inner: FlowPlace, offset: number, indent: number): Place {
  const path = [...stack.slice(1).map((opener) => opener.name), ...inner.path];
  return { ...inner, path, from: offset - inner.typed.length, flow: true, block: false, indent };
}

type FlowPlace = Pick<Place, "path" | "part" | "typed" | "siblings">;

/** The place at the end of a flow collection that is not closed; null if the value is none. */
function flowPlace(value: string): FlowPlace | null {
  const stack: { close: string; keys: string[]; key: string | null }[] = [];
  let token = "";
  let quote = "";
  for (const letter of value) {
    const level = stack[stack.length - 1];
    if (quote !== "") {
      token += letter;
      if (letter === quote) quote = "";
    } else if (level === undefined) {
      if (letter !== "{" && letter !== "[") return null;
      if (stack.length === 0 && token !== "") return null;
      stack.push({ close: letter === "{" ? "}" : "]", keys: [], key: null });
    } else if ((letter === "'" || letter === '"') && token.trim() === "") {
      quote = letter;
      token += letter;
    } else if ((letter === "{" || letter === "[") && token.trim() === "") {
      stack.push({ close: letter === "{" ? "}" : "]", keys: [], key: null });
      token = "";
    } else if (letter === level.close) {
      stack.pop();
      if (stack.length === 0) return null;
      token = "";
    } else if (letter === ",") {
      level.key = null;
      token = "";
    } else if (letter === ":" && level.close === "}" && level.key === null) {
      level.key = token.trim().replace(/^(["'])(.*)\1$/, "$2");
      level.keys.push(level.key);
      token = "";
    } else token += letter;
  }
  const level = stack[stack.length - 1];
  if (level === undefined) return null;
  const path = stack.slice(0, -1).map((outer) => (outer.close === "]" ? "-" : (outer.key ?? "")));
  const typed = token.trimStart();
  if (level.close === "]") return { path: [...path, "-"], part: "value", typed, siblings: [] };
  if (level.key !== null) return { path: [...path, level.key], part: "value", typed, siblings: [] };
  return { path, part: "key", typed, siblings: level.keys };
}

/** Whether the end of a line is in a comment. */
function isComment(line: string): boolean {
  let quote = "";
  for (let at = 0; at < line.length; at += 1) {
    const letter = line[at] ?? "";
    if (quote !== "") {
      if (letter === quote) quote = "";
    } else if ((letter === "'" || letter === '"') && /(?:^|[\s:[{,])$/.test(line.slice(0, at))) quote = letter;
    else if (letter === "#" && (at === 0 || /\s/.test(line[at - 1] ?? ""))) return true;
  }
  return false;
}
