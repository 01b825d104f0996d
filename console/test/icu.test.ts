// ICU messages: the forms, and the equality of the languages.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { format, formatParts, parse, placeholders } from "../src/locales/icu";

const check = (
  message: string,
  values: Record<string, string | number | Date | boolean | null>,
  expected: string,
  locale = "en",
) => assert.equal(format(message, locale, values), expected);

test("values, numbers and dates", () => {
  check("from {source}", { source: "api" }, "from api");
  check("{count}", { count: 12345.678 }, "12,345.68");
  check("{count}", { count: 12345 }, "12.345", "de");
  check("{share, number, percent}", { share: 0.256 }, "25.6%");
  check("{day, date}", { day: new Date(2026, 10, 29, 12) }, "Nov 29, 2026");
  check("{gone}", { gone: null }, "");
});

test("plurals: exact, by rule, with offset, and their number", () => {
  const message = "{n, plural, =0 {no rows} one {# row} other {# rows}}";
  check(message, { n: 0 }, "no rows");
  check(message, { n: 1 }, "1 row");
  check(message, { n: 1200 }, "1,200 rows");
  check("{n, plural, one {# ligne} other {# lignes}}", { n: 0 }, "0 ligne", "fr");
  check("{n, plural, offset:1 =1 {you} one {you and # other} other {you and # others}}", { n: 3 }, "you and 2 others");
  check("{n, selectordinal, one {#st} two {#nd} few {#rd} other {#th}}", { n: 22 }, "22nd");
});

test("choices, nesting and quotes", () => {
  check("{kind, select, key {a key} other {a user}}", { kind: "key" }, "a key");
  check("{kind, select, key {a key} other {a user}}", { kind: "x" }, "a user");
  check("{k, select, a {{n, plural, one {# a} other {# as}}} other {}}", { k: "a", n: 2 }, "2 as");
  check("it''s '{literal}' # here", {}, "it's {literal} # here");
});

test("elements keep their places", () => {
  const element = { type: "b" };
  assert.deepEqual(
    formatParts("{count, plural, one {one {what}} other {# {what}!}}", "en", { count: 2, what: element }),
    ["2 ", element, "!"],
  );
});

test("a malformed message is an error that names the place", () => {
  for (const message of ["{", "{a", "a}", "{a, plural, one {x}}", "{a, select, b {x}"])
    assert.throws(() => parse(message), SyntaxError, message);
});

test("all languages have the keys and placeholders of English", () => {
  const root = join(process.cwd(), "src/locales");
  const read = (language: string, file: string) =>
    JSON.parse(readFileSync(join(root, language, file), "utf8")) as Record<string, string>;
  const files = readdirSync(join(root, "en"));
  assert.ok(files.length > 0);
  for (const file of files) {
    const english = read("en", file);
    for (const key of Object.keys(english))
      assert.ok(key.startsWith(`${file.replace(".json", "")}.`), `${file}: ${key} has another beginning`);
    for (const language of ["de", "fr"]) {
      const other = read(language, file);
      assert.deepEqual(Object.keys(other).sort(), Object.keys(english).sort(), `${language}/${file}`);
      for (const [key, message] of Object.entries(english))
        assert.deepEqual(
          [...placeholders(other[key]!)].sort(),
          [...placeholders(message)].sort(),
          `${language}: ${key}`,
        );
    }
  }
});

test("components have no literal text", () => {
  const root = join(process.cwd(), "src");
  const found: string[] = [];
  for (const name of readdirSync(root, { recursive: true, encoding: "utf8" })) {
    if (!name.endsWith(".tsx")) continue;
    readFileSync(join(root, name), "utf8")
      .split("\n")
      .forEach((line, number) => {
        // Two letters or more between tags, or in an attribute that is shown.
        const inTag = /<(?!code|kbd|T\b)[A-Za-z][^<>]*[^=<>]>([^<>{}]*[A-Za-zÀ-ÿ]{2,}[^<>{}]*)<\//.exec(line)?.[1];
        const inAttribute = /\s(?:aria-label|title|placeholder|alt|label|data-tip)="([^"{}]*[a-z]{2,}[^"{}]*)"/.exec(
          line,
        )?.[1];
        const text = (inTag ?? inAttribute)?.trim();
        if (text !== undefined && !allowed.has(text)) found.push(`${name}:${number + 1}: ${text}`);
      });
  }
  assert.deepEqual(found, []);
});

/** The product, keys of the keyboard, and terms that are the same in all languages. */
const allowed = new Set(["event.magnitude > 5.0", "Tocsin", "Ctrl K", "Esc", "p50", "p95", "p99", "tocsin", "curl"]);
