import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { completionsAt, PROTOCOLS } from "../src/components/editor/completion";
import { namesOf, templateKeys } from "../src/components/editor/names";
import type { JsonSchema } from "../src/components/editor/schema";
import { placeAt } from "../src/components/editor/yaml-path";

const schema = JSON.parse(readFileSync("../docs/reference/application.schema.json", "utf8")) as JsonSchema;

/** The document without its `|`, and the offset of it. */
function cut(marked: string): [string, number] {
  const at = marked.lastIndexOf("¦");
  assert.ok(at >= 0, "the cursor is marked");
  return [marked.slice(0, at) + marked.slice(at + 1), at];
}

const place = (marked: string) => {
  const found = placeAt(...cut(marked));
  return found === null ? null : `${found.part} ${found.path.join(".")} <${found.typed}>`;
};

const labels = (marked: string) => {
  const found = completionsAt(...cut(marked), schema);
  return found === null ? null : found.options.map((option) => option.label);
};

test("keys are found by indentation", () => {
  assert.equal(place("ru¦"), "key  <ru>");
  assert.equal(place("rules:\n  near:\n    o¦"), "key rules.near <o>");
  assert.equal(place("rules:\n  near:\n    on: quake\n    ¦"), "key rules.near <>");
  assert.equal(place("rules:\n  near:\n    on: quake\n  ¦"), "key rules <>");
  assert.equal(place("rules:\n  near:\n    on: qu¦"), "value rules.near.on <qu>");
  assert.equal(place("rules:\n\n  # a comment: here\n  near:\n    on:¦"), "value rules.near.on <>");
});

test("items of lists are steps of the path", () => {
  assert.equal(place("channels:\n  email:\n    retry:\n      - 1¦"), "key channels.email.retry.- <1>");
  assert.equal(place("rules:\n  a:\n    changed:\n    - field: x\n      b¦"), "key rules.a.changed.- <b>");
  assert.equal(place("rules:\n  a:\n    changed:\n    - field: x\n    - b¦"), "key rules.a.changed.- <b>");
  assert.equal(place("rules:\n  a:\n    changed:\n    - field: x\n    not¦"), "key rules.a <not>");
});

test("flow collections have keys and values", () => {
  assert.equal(
    place("events:\n  quake:\n    fields:\n      id: {type: string, req¦"),
    "key events.quake.fields.id <req>",
  );
  assert.equal(place("events:\n  quake:\n    fields:\n      id: {type: st¦"), "value events.quake.fields.id.type <st>");
  assert.equal(place("sources:\n  feed: {kind: http, events: [qu¦"), "value sources.feed.events.- <qu>");
  assert.equal(place("sources:\n  feed: {kind: http,\n    ev¦"), "key sources.feed <ev>");
  assert.equal(place("sources:\n  feed: {kind: http}\n  ¦"), "key sources <>");
});

test("block scalars are one value", () => {
  assert.equal(
    place("rules:\n  near:\n    when: >-\n      event.a >= 1 &&\n      ev¦"),
    "value rules.near.when <event.a >= 1 &&\nev>",
  );
  assert.equal(place("rules:\n  near:\n    when: >-\n      event.a\n    no¦"), "key rules.near <no>");
});

test("comments have no completion, and a # in a text is none", () => {
  assert.equal(place("rules: # and the re¦"), null);
  assert.equal(place("# rul¦"), null);
  assert.equal(place("description: 'a # b¦"), "value description <'a # b>");
});

test("keys of the schema are offered without those that exist", () => {
  const all = labels("application: a\n¦");
  assert.ok(all?.includes("rules"));
  assert.ok(!all?.includes("application"));
  const inFlow = labels("events:\n  quake:\n    fields:\n      id: {type: string, ¦");
  assert.deepEqual(inFlow?.slice().sort(), ["default", "description", "required"]);
  assert.ok(!labels("rules:\n  near:\n    ¦\n    on: quake\n")?.includes("on"), "keys behind the cursor count, too");
});

test("values of the schema are offered", () => {
  assert.ok(labels("events:\n  quake:\n    fields:\n      id: ¦")?.includes("timestamp"));
  assert.ok(labels("channels:\n  email:\n    protocol: ¦")?.includes("smtp"));
  assert.deepEqual(labels("events:\n  q:\n    fields:\n      id: {required: ¦"), ["true", "false"]);
});

test("the protocols are those of the reference", () => {
  const headings = readFileSync("../docs/reference/channels.md", "utf8").matchAll(/^## ([a-z]+)$/gm);
  assert.deepEqual([...headings].map((heading) => heading[1]).sort(), [...PROTOCOLS].sort());
});

const definition = `application: quakes
events:
  quake:
    fields:
      magnitude: number
      place: {type: string, required: true}
      detail:
        type: map
        description: more
  calm: {fields: {level: number, at: {type: timestamp}}}
subscriptions:
  nearby:
    fields: {magnitude_min: number}
attributes:
  region: string
notifications:
  alarm: {fields: {magnitude: number}}
functions:
  strong: {parameters: [m], expression: 'm > 6.0'}
channels:
  email: {protocol: smtp}
rules:
  near:
    on: quake
    subscription: nearby
`;

test("names of the definition are read", () => {
  const names = namesOf(definition);
  assert.deepEqual(names.events.get("quake"), ["magnitude", "place", "detail"]);
  assert.deepEqual(names.events.get("calm"), ["level", "at"]);
  assert.deepEqual(names.subscriptions.get("nearby"), ["magnitude_min"]);
  assert.deepEqual(names.channels, ["email"]);
  assert.deepEqual(names.rules.get("near"), { on: "quake", subscription: "nearby", notify: "" });
  assert.equal(names.lines.get("rules.near"), definition.split("\n").indexOf("  near:") + 1);
});

test("names of the definition are offered as values", () => {
  assert.deepEqual(labels(`${definition}    notify: ¦`), ["alarm"]);
  assert.deepEqual(labels("events:\n  quake: {fields: {a: number}}\nrules:\n  near:\n    on: ¦"), ["quake"]);
});

test("fields are offered in expressions", () => {
  assert.deepEqual(labels(`${definition}    when: event.¦`), ["magnitude", "place", "detail"]);
  assert.deepEqual(labels(`${definition}    when: event.magnitude >= sub.¦`), ["magnitude_min"]);
  assert.deepEqual(labels(`${definition}    when: >-\n      event.magnitude >= 1 &&\n      subscriber.attributes.r¦`), [
    "region",
  ]);
  assert.ok(labels(`${definition}    when: s¦`)?.includes("strong"));
});

test("every place of the example gives a result or none, never an error", () => {
  for (let offset = 0; offset <= definition.length; offset += 1) completionsAt(definition, offset, schema);
});

test("the keys of templates are read", () => {
  const text = [
    "notifications:",
    "  alarm:",
    "    content:",
    "      templates:",
    "        base:",
    "          text: |",
    "            a: b",
    "        de/email: {text: x}",
  ].join("\n");
  assert.deepEqual(templateKeys(text), ["base", "de/email"]);
  assert.deepEqual(
    templateKeys("notifications:\n  a:\n    content:\n      templates: {base: {text: x}, fr: {text: y}}\n"),
    ["base", "fr"],
  );
});
