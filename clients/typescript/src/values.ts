/** Validation and comparison of field values. */

import { UnfitError } from "./errors.js";
import { ROW_BYTES_MAX, ROW_ID_CHARS_MAX, type CollectionShape, type FieldType, type Fields, type Json } from "./protocol.js";

/** Maximum nesting of lists and maps. */
const DEPTH_MAX = 100;

/** Validates fields against their types. */
export function fitting(shape: CollectionShape, fields: Fields): Fields {
  for (const [name, value] of Object.entries(fields)) {
    const field = shape.fields.find((field) => field.name === name);
    if (!field) throw new UnfitError(`\`${shape.name}\` has no field \`${name}\``);
    const wanted = objectionToValue(field.type, value);
    if (wanted) throw new UnfitError(`\`${name}\` should be ${wanted}, not ${shown(value)}`);
  }
  return fields;
}

/** Validates the size of a row. */
export function fittingRow(id: string, fields: Fields): void {
  const bytes = new TextEncoder().encode(JSON.stringify(fields)).length;
  if (bytes > ROW_BYTES_MAX) throw new UnfitError(`the row \`${id}\` would have ${bytes} bytes as JSON; at most ${ROW_BYTES_MAX} fit`);
}

/** Reason why a text is not a valid row id; `undefined` if it is valid. */
export function objectionToId(id: string): string | undefined {
  const length = typeof id === "string" ? [...id].length : 0;
  const fits = length >= 1 && length <= ROW_ID_CHARS_MAX && !/[\/\p{Cc}\p{Cs}]/u.test(id);
  return fits ? undefined : `the id of a row has 1 to ${ROW_ID_CHARS_MAX} characters, has no \`/\` and no control characters`;
}

/** Expected type of an invalid value; `undefined` if it is valid. */
export function objectionToValue(type: FieldType, value: Json): string | undefined {
  const unless = (fits: boolean, wanted: string) => (fits ? undefined : wanted);
  if (value === null) return undefined;
  switch (type) {
    case "boolean":
      return unless(typeof value === "boolean", "true or false");
    case "integer":
      return unless(Number.isSafeInteger(value), "an integer of at most 53 bits");
    case "number":
      return unless(Number.isFinite(value), "a finite number");
    case "string":
      return unless(typeof value === "string", "a text") ?? objectionToJson(value, 0);
    case "timestamp":
      return unless(typeof value === "string" && isInstant(value), "an instant as text of RFC 3339");
    case "list":
      return unless(Array.isArray(value), "a list") ?? objectionToJson(value, 0);
    case "map":
      return unless(typeof value === "object" && !Array.isArray(value), "an object") ?? objectionToJson(value, 0);
    default:
      // A type of a newer server, which validates it.
      return objectionToJson(value, 0);
  }
}

/** Reason why JSON cannot carry a value unchanged. */
function objectionToJson(value: unknown, depth: number): string | undefined {
  if (value === null || typeof value === "boolean") return undefined;
  if (typeof value === "string") return /\p{Cs}/u.test(value) ? "text without lone surrogates" : undefined;
  if (typeof value === "number") return Number.isFinite(value) ? undefined : "JSON, which has finite numbers only";
  if (typeof value !== "object") return "JSON";
  if (depth >= DEPTH_MAX) return `JSON of at most ${DEPTH_MAX} levels`;
  if (Array.isArray(value)) {
    for (let at = 0; at < value.length; at++) {
      const objection = objectionToJson(value[at], depth + 1);
      if (objection) return objection;
    }
    return undefined;
  }
  const prototype: unknown = Object.getPrototypeOf(value);
  if (prototype !== null && Object.getPrototypeOf(prototype) !== null) return "a plain object";
  for (const [name, one] of Object.entries(value)) {
    const objection = objectionToJson(name, depth) ?? objectionToJson(one, depth + 1);
    if (objection) return objection;
  }
  return undefined;
}

/** Whether a text is an instant of RFC 3339, of a day that exists. */
function isInstant(text: string): boolean {
  const parts = /^(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.\d+)?(?:[Zz]|[+-](\d\d):(\d\d))$/.exec(text);
  if (!parts) return false;
  const [year, month, day, hour, minute, second, hours = 0, minutes = 0] = parts.slice(1).map((part) => Number(part ?? 0)) as number[];
  const isLeap = year! % 4 === 0 && (year! % 100 !== 0 || year! % 400 === 0);
  const days = [31, isLeap ? 29 : 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month! - 1] ?? 0;
  return day! >= 1 && day! <= days && hour! <= 23 && minute! <= 59 && second! <= 60 && hours <= 23 && minutes <= 59;
}

/** A value in a message. */
function shown(value: unknown): string {
  if (typeof value === "string" || (typeof value === "object" && value !== null)) {
    try {
      return JSON.stringify(value).slice(0, 80);
    } catch {
      return "a value that JSON cannot represent";
    }
  }
  return String(value);
}

/** Deep equality; the order of names is irrelevant. */
export function same(one: Json, other: Json): boolean {
  if (typeof one !== "object" || typeof other !== "object" || one === null || other === null) return Object.is(one, other);
  if (Array.isArray(one) || Array.isArray(other)) {
    if (!Array.isArray(one) || !Array.isArray(other) || one.length !== other.length) return false;
    return one.every((value, at) => same(value, other[at]!));
  }
  const names = Object.keys(one);
  return (
    names.length === Object.keys(other).length &&
    names.every((name) => Object.hasOwn(other, name) && same(one[name]!, other[name]!))
  );
}

/** Values of a server's row that are of the type of their field; others were stored under an earlier version and count as missing. */
export function ofTheirTypes(shape: CollectionShape, fields: Fields): Fields {
  const kept = shape.fields.filter(({ name, type }) => Object.hasOwn(fields, name) && isOfType(type, fields[name] ?? null));
  return Object.fromEntries(kept.map(({ name }) => [name, fields[name]!]));
}

function isOfType(type: FieldType, value: Json): boolean {
  switch (type) {
    case "boolean":
    case "number":
    case "string":
      return typeof value === type;
    case "integer":
      return typeof value === "number";
    case "timestamp":
      return typeof value === "string" || typeof value === "number";
    case "list":
      return Array.isArray(value);
    case "map":
      return typeof value === "object" && value !== null && !Array.isArray(value);
    default:
      // A type of a newer server.
      return true;
  }
}

/** The fields that are not null and belong to the collection. */
export function present(shape: CollectionShape, fields: Fields): Fields {
  // A field can have the name of an inherited property, such as `constructor`.
  const kept = shape.fields.filter(({ name }) => Object.hasOwn(fields, name) && (fields[name] ?? null) !== null);
  return Object.fromEntries(kept.map(({ name }) => [name, fields[name]!]));
}
