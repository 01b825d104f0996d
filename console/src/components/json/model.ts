/** Forms of JSON values for the JSON view. */

export type JsonValue = string | number | boolean | null | JsonValue[] | { [name: string]: JsonValue };

export function isCollection(value: JsonValue): value is JsonValue[] | { [name: string]: JsonValue } {
  return typeof value === "object" && value !== null;
}

export function entriesOf(value: JsonValue[] | { [name: string]: JsonValue }): [string, JsonValue][] {
  return Array.isArray(value) ? value.map((item, index) => [String(index), item]) : Object.entries(value);
}

/** JSON text of a scalar and its type. */
export function literal(value: JsonValue): { text: string; type: "string" | "number" | "boolean" | "null" } {
  if (typeof value === "string") return { text: JSON.stringify(value), type: "string" };
  if (typeof value === "number") return { text: String(value), type: "number" };
  if (typeof value === "boolean") return { text: String(value), type: "boolean" };
  return { text: "null", type: "null" };
}

/** One line of at most `limit` characters for a closed collection. */
export function summaryOf(value: JsonValue, limit: number): string {
  const text = isCollection(value) ? shortened(value, limit) : literal(value).text;
  return text.length <= limit ? text : `${text.slice(0, limit - 1)}…`;
}

function shortened(value: JsonValue[] | { [name: string]: JsonValue }, limit: number): string {
  const parts: string[] = [];
  let length = 2;
  for (const [name, member] of entriesOf(value)) {
    if (length > limit) break;
    const text = isCollection(member) ? (Array.isArray(member) ? "[…]" : "{…}") : literal(member).text;
    const part = Array.isArray(value) ? text : `${name}: ${text}`;
    parts.push(part);
    length += part.length + 2;
  }
  return Array.isArray(value) ? `[${parts.join(", ")}]` : `{${parts.join(", ")}}`;
}

/** Path of a member, such as `event.tags[0]` or `event["a b"]`. */
export function childPath(path: string, name: string): string {
  if (/^\d+$/.test(name)) return `${path}[${name}]`;
  if (!/^[A-Za-z_]\w*$/.test(name)) return `${path}[${JSON.stringify(name)}]`;
  return path === "" ? name : `${path}.${name}`;
}
