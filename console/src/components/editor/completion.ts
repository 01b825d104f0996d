/** What can be written at a place of a definition: keys and values of the schema, and names of the definition. */
import { namesOf, type Names } from "./names";
import { keysOf, schemasAt, valuesOf, type JsonSchema } from "./schema";
import { placeAt, type Place } from "./yaml-path";

export interface Option {
  label: string;
  /** Text to insert, if it differs from the label. */
  apply?: string;
  detail?: string;
  info?: string;
  type: "property" | "enum" | "class" | "variable" | "function" | "keyword";
  boost?: number;
}

export interface Completions {
  from: number;
  options: Option[];
}

/** Expressions in CEL, by the last keys of their path. */
const EXPRESSIONS: RegExp[] = [
  /^rules \S+ (when|rearm|changed|per|key|with \S+)$/,
  /^functions \S+ expression$/,
  /^events \S+ chronicles \S+ (of|when|time)$/,
];

/** Protocols of channels; the schema does not list them. */
export const PROTOCOLS = ["smtp", "http", "file", "inbox", "webpush", "nats", "mqtt", "process", "gotify", "matrix"];

export function completionsAt(document: string, offset: number, root: JsonSchema): Completions | null {
  const place = placeAt(document, offset);
  if (place === null) return null;
  const names = namesOf(document);
  const expression = expressionAt(place, names);
  if (expression !== null) return expression;
  if (place.block) return null;
  const schemas = schemasAt(root, place.path);
  if (place.part === "key") {
    const options = keysOf(schemas)
      .filter((key) => !place.siblings.includes(key.name))
      .map((key): Option => ({
        label: key.name,
        apply: applyOf(key.name, key.kind, place),
        info: key.description,
        type: "property",
        boost: key.required ? 10 : 0,
        ...(key.required ? { detail: "required" } : {}),
      }));
    // A short field or a list of names has values where a key could stand, too.
    const values = place.path[place.path.length - 1] === "-" ? valueOptions(schemas, place, names) : [];
    return { from: place.from, options: [...options, ...values] };
  }
  return { from: place.from, options: valueOptions(schemas, place, names) };
}

function applyOf(name: string, kind: "mapping" | "list" | "scalar", place: Place): string {
  if (place.flow || kind === "scalar") return `${name}: `;
  const indent = " ".repeat(place.indent + 2);
  return kind === "list" ? `${name}:\n${indent}- ` : `${name}:\n${indent}`;
}

function valueOptions(schemas: JsonSchema[], place: Place, names: Names): Option[] {
  const named = namedOptions(place.path, names);
  const values = valuesOf(schemas).map(({ value, isDefault }): Option => ({
    label: value,
    type: "enum",
    ...(isDefault ? { detail: "default" } : {}),
  }));
  return [...named, ...values];
}

/** Names of the definition that a key refers to. */
function namedOptions(path: string[], names: Names): Option[] {
  const joined = path.join(" ");
  const options = (list: Iterable<string>): Option[] => [...list].map((label) => ({ label, type: "class" }));
  if (/^rules \S+ on$/.test(joined) || /^sources \S+ events( -)?$/.test(joined)) return options(names.events.keys());
  if (/^rules \S+ subscription$/.test(joined) || /^events \S+ of( -)?$/.test(joined))
    return options(names.subscriptions.keys());
  if (/^rules \S+ notify$/.test(joined)) return options(names.notifications.keys());
  if (/^rules \S+ cancel_on( -)?$/.test(joined)) return options(names.events.keys());
  if (/^channels \S+ protocol$/.test(joined)) return PROTOCOLS.map((label) => ({ label, type: "enum" }));
  if (/ channels?( -)?$/.test(joined) || /^channels \S+ fallback( -)?$/.test(joined)) return options(names.channels);
  return [];
}

/** Completions within an expression; null if the place is none. */
function expressionAt(place: Place, names: Names): Completions | null {
  const joined = place.path.join(" ");
  if (place.part !== "value" || !EXPRESSIONS.some((pattern) => pattern.test(joined))) return null;
  const word = /([A-Za-z_][\w]*(?:\.[A-Za-z_]\w*)*\.?)$/.exec(place.typed)?.[1] ?? "";
  const end = place.from + place.typed.length;
  const dot = word.lastIndexOf(".");
  const of = dot < 0 ? "" : word.slice(0, dot);
  const from = end - (word.length - dot - 1);
  const fields = (list: string[]): Completions => ({
    from,
    options: list.map((label) => ({ label, type: "variable" })),
  });
  const rule = place.path[0] === "rules" ? names.rules.get(place.path[1] ?? "") : undefined;
  const eventClass = place.path[0] === "events" ? (place.path[1] ?? "") : (rule?.on ?? "");
  switch (of) {
    case "event":
      return fields(names.events.get(eventClass) ?? []);
    case "sub":
      return fields(names.subscriptions.get(rule?.subscription ?? "") ?? []);
    case "subscriber":
      return fields(["id", "locale", "time_zone", "attributes"]);
    case "subscriber.attributes":
      return fields(names.attributes);
    case "": {
      const roots: Option[] =
        rule === undefined
          ? [{ label: "event", apply: "event.", type: "variable" }]
          : ["event", "sub", "subscriber"].map((label) => ({ label, apply: `${label}.`, type: "variable" }));
      const own = names.functions.map((label): Option => ({ label, apply: `${label}(`, type: "function" }));
      return { from, options: [...roots, ...own, ...BUILT_IN] };
    }
    default:
      return { from, options: [] };
  }
}

const BUILT_IN: Option[] = [
  "has",
  "size",
  "distance_km",
  "int",
  "double",
  "string",
  "bool",
  "timestamp",
  "duration",
].map((label) => ({ label, apply: `${label}(`, type: "function" }));
