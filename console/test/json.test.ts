import assert from "node:assert/strict";
import { test } from "node:test";
import { childPath, literal, summaryOf } from "../src/components/json/model";

test("a closed collection is summarised in one line", () => {
  assert.equal(summaryOf({ a: 1, b: [1, 2], c: "x" }, 60), '{a: 1, b: […], c: "x"}');
  assert.equal(
    summaryOf(
      Array.from({ length: 1000 }, () => "abcdefgh"),
      20,
    ).length,
    20,
  );
});

test("a path names members and items", () => {
  assert.equal(childPath(childPath(childPath("", "event"), "tags"), "0"), "event.tags[0]");
  assert.equal(childPath("event", "a b"), 'event["a b"]');
});

test("a scalar is shown as JSON", () => {
  assert.deepEqual(literal("a\n"), { text: '"a\\n"', type: "string" });
  assert.deepEqual(literal(null), { text: "null", type: "null" });
});
