/** The part of JSON Schema 2020-12 that the schema of an application uses, and the lookup of a place in it. */

export interface JsonSchema {
  type?: string | string[];
  description?: string;
  properties?: Record<string, JsonSchema>;
  additionalProperties?: JsonSchema | boolean;
  items?: JsonSchema;
  anyOf?: JsonSchema[];
  oneOf?: JsonSchema[];
  allOf?: JsonSchema[];
  if?: JsonSchema;
  then?: JsonSchema;
  else?: JsonSchema;
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
  required?: string[];
  $ref?: string;
  $defs?: Record<string, JsonSchema>;
}

/** All schemas that a value at `path` may have. */
export function schemasAt(root: JsonSchema, path: string[]): JsonSchema[] {
  return path.reduce<JsonSchema[]>(
    (schemas, step) => schemas.flatMap((schema) => below(root, schema, step)),
    variants(root, root),
  );
}

/** A schema with all its alternatives. */
function variants(root: JsonSchema, schema: JsonSchema, depth = 0): JsonSchema[] {
  if (depth > 8) return [];
  const target = resolve(root, schema);
  const inner = [...(target.anyOf ?? []), ...(target.oneOf ?? []), ...(target.allOf ?? [])];
  if (target.then !== undefined) inner.push(target.then);
  if (target.else !== undefined) inner.push(target.else);
  return [target, ...inner.flatMap((one) => variants(root, one, depth + 1))];
}

function resolve(root: JsonSchema, schema: JsonSchema): JsonSchema {
  if (schema.$ref === undefined) return schema;
  const steps = schema.$ref
    .replace(/^#\/?/, "")
    .split("/")
    .filter((step) => step !== "");
  let target: unknown = root;
  for (const step of steps) target = (target as Record<string, unknown> | undefined)?.[step];
  return (target as JsonSchema | undefined) ?? schema;
}

function below(root: JsonSchema, schema: JsonSchema, step: string): JsonSchema[] {
  if (step === "-") return schema.items === undefined ? [] : variants(root, schema.items);
  const property = schema.properties?.[step];
  if (property !== undefined) return variants(root, property);
  const others = schema.additionalProperties;
  return typeof others === "object" ? variants(root, others) : [];
}

export interface KeyOption {
  name: string;
  description: string;
  required: boolean;
  /** What the value is: a collection is continued on the next line. */
  kind: "mapping" | "list" | "scalar";
}

/** Keys that a mapping may have. */
export function keysOf(schemas: JsonSchema[]): KeyOption[] {
  const found = new Map<string, KeyOption>();
  for (const schema of schemas) {
    for (const [name, property] of Object.entries(schema.properties ?? {})) {
      if (found.has(name)) continue;
      found.set(name, {
        name,
        description: describe(property),
        required: schema.required?.includes(name) ?? false,
        kind: kindOf(property),
      });
    }
  }
  return [...found.values()];
}

/** Values that a schema names. */
export function valuesOf(schemas: JsonSchema[]): { value: string; isDefault: boolean }[] {
  const found = new Map<string, boolean>();
  for (const schema of schemas) {
    const given = schema.const === undefined ? (schema.enum ?? []) : [schema.const];
    const values = schema.type === "boolean" && given.length === 0 ? [true, false] : given;
    for (const value of values) {
      const text = typeof value === "string" ? value : JSON.stringify(value);
      found.set(text, (found.get(text) ?? false) || schema.default === value);
    }
    const fallback = schema.default;
    if (typeof fallback === "string" || typeof fallback === "number") found.set(String(fallback), true);
  }
  return [...found].map(([value, isDefault]) => ({ value, isDefault }));
}

/** Description of the first schema that has one. */
export function descriptionOf(schemas: JsonSchema[]): string {
  return schemas.find((schema) => schema.description !== undefined)?.description ?? "";
}

const describe = (schema: JsonSchema) =>
  schema.description ?? schema.anyOf?.find((one) => one.description !== undefined)?.description ?? "";

function kindOf(schema: JsonSchema): KeyOption["kind"] {
  const all = [schema, ...(schema.anyOf ?? []), ...(schema.oneOf ?? [])];
  const isScalar = all.some(
    (one) =>
      one.enum !== undefined ||
      one.const !== undefined ||
      ["string", "number", "integer", "boolean"].includes(String(one.type)),
  );
  if (isScalar) return "scalar";
  if (all.some((one) => one.type === "object" || one.properties !== undefined)) return "mapping";
  return all.some((one) => one.type === "array") ? "list" : "scalar";
}
