/** Values of fields: which fit, and which are the same. */

import { UnfitError } from "./errors.js";
import type { CollectionShape, FieldType, Fields, Json } from "./protocol.js";

/** The fields of a row that are set to a value, each checked against its type. */
export function fitting(shape: CollectionShape, fields: Fields): Fields {
  for (const [name, value] of Object.entries(fields)) {
    const field = shape.fields.find((field) => field.name === name);
    if (!field) throw new UnfitError(`\`${shape.name}\` has no field \`${name}\``);
    const wanted = objection(field.type, value);
    if (wanted) throw new UnfitError(`\`${name}\` should be ${wanted}, not ${JSON.stringify(value)}`);
  }
  return fields;
}

/** What a value should be that it is not. */
function objection(type: FieldType, value: Json): string | undefined {
  const unless = (fits: boolean, wanted: string) => (fits ? undefined : wanted);
  if (value === null) return undefined;
  switch (type) {
    case "boolean":
      return unless(typeof value === "boolean", "true or false");
    case "integer":
      return unless(Number.isSafeInteger(value), "an integer of at most 53 bits");
    case "number":
      return unless(Number.isFinite(value), "a number");
    case "string":
      return unless(typeof value === "string", "a text");
    case "timestamp":
      return unless(typeof value === "string" && !Number.isNaN(Date.parse(value)), "an instant as text of RFC 3339");
    case "list":
      return unless(Array.isArray(value), "a list");
    case "map":
      return unless(typeof value === "object" && !Array.isArray(value), "an object");
    default:
      // A type of a newer server: it knows what fits.
      return undefined;
  }
}

/** Whether two values are the same, whatever the order of names. */
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

/** Without the fields that are null, and without those that the collection does not have. */
export function present(shape: CollectionShape, fields: Fields): Fields {
  const kept = shape.fields.filter(({ name }) => (fields[name] ?? null) !== null);
  return Object.fromEntries(kept.map(({ name }) => [name, fields[name]!]));
}
