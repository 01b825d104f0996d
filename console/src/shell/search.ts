// Search parameters in the address: plain texts, a list repeats its parameter. So a link stays readable, and `12`
// stays a text.

export function parseSearch(text: string): Record<string, string | string[]> {
  const out: Record<string, string | string[]> = {};
  for (const [name, value] of new URLSearchParams(text)) {
    const before = out[name];
    if (before === undefined) out[name] = value;
    else if (Array.isArray(before)) before.push(value);
    else out[name] = [before, value];
  }
  return out;
}

export function stringifySearch(search: Record<string, unknown>): string {
  const out = new URLSearchParams();
  for (const [name, value] of Object.entries(search)) {
    if (value === undefined || value === null || value === "" || value === false) continue;
    if (Array.isArray(value)) for (const item of value) out.append(name, String(item));
    else out.append(name, value instanceof Date ? value.toISOString() : String(value));
  }
  const text = out
    .toString()
    .replaceAll("%3A", ":")
    .replaceAll("%2C", ",")
    .replaceAll("%40", "@")
    .replaceAll("%2F", "/");
  return text === "" ? "" : `?${text}`;
}
