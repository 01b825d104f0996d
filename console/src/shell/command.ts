// The same call as a `tocsin` command and as `curl`.
import { queryString, type Query } from "../api/client";

export interface Call {
  method: string;
  path: string;
  query?: Query;
  body?: unknown;
}

export interface CommandForms {
  /** Arguments after `tocsin`, if there is a command for it. */
  tocsin?: string;
  curl?: Call;
}

/** Quotes a word for a POSIX shell where needed. */
export function shellQuote(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/** Options of a command for the values that are set: `--class quake`. */
export function optionsOf(values: Record<string, string | undefined>): string {
  return Object.entries(values)
    .flatMap(([name, value]) => (value === undefined || value === "" ? [] : [` --${name} ${shellQuote(value)}`]))
    .join("");
}

export function curlCommand(call: Call, origin: string): string {
  const url = `${origin}${call.path}${queryString(call.query)}`;
  const parts = ["curl", "-fsS"];
  if (call.method !== "GET") parts.push("-X", call.method);
  parts.push("-H", '"Authorization: Bearer $TOCSIN_KEY"');
  if (call.body !== undefined)
    parts.push("-H", "'Content-Type: application/json'", "-d", shellQuote(JSON.stringify(call.body)));
  parts.push(shellQuote(url));
  return parts.join(" ");
}

export function commandLines(forms: CommandForms, origin: string): { name: "tocsin" | "curl"; text: string }[] {
  return [
    ...(forms.tocsin === undefined ? [] : [{ name: "tocsin" as const, text: `tocsin ${forms.tocsin}` }]),
    ...(forms.curl === undefined ? [] : [{ name: "curl" as const, text: curlCommand(forms.curl, origin) }]),
  ];
}
