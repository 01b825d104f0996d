import assert from "node:assert/strict";
import { test } from "node:test";
import { breakable, decidingOf, joined, nodesOf } from "../src/components/verdict/model";

const condition = (verdict: string, more = {}) => ({ text: verdict, verdict, values: [], ...more });

test("the first false condition decides a conjunction", () => {
  assert.equal(decidingOf(["true", "error", "false", "false"], "all"), 2);
  assert.equal(decidingOf(["true", "true"], "all"), -1);
  assert.equal(decidingOf(["unknown", "error"], "all"), 1);
  assert.equal(decidingOf(["false", "true"], "any"), 1);
});

test("truth values join as in CEL", () => {
  assert.equal(joined(["error", "false"], "all"), "false");
  assert.equal(joined(["error", "true"], "any"), "true");
  assert.equal(joined(["true", "unknown"], "all"), "unknown");
  assert.equal(joined([], "all"), "true");
  assert.equal(joined([], "any"), "false");
});

test("conditions without a named decision get one", () => {
  const nodes = nodesOf([condition("holds"), condition("fails"), condition("fails")]);
  assert.deepEqual(
    nodes.map((node) => [node.truth, node.decides]),
    [
      ["true", false],
      ["false", true],
      ["false", false],
    ],
  );
});

test("the decision that the server names is kept, on every level", () => {
  const [node] = nodesOf([
    condition("fails", {
      decides: true,
      operator: "any",
      parts: [condition("fails", { decides: false }), condition("unknown", { decides: true })],
    }),
  ]);
  assert.equal(node?.decides, true);
  assert.equal(node?.operator, "any");
  assert.deepEqual(
    node?.parts.map((part) => part.decides),
    [false, true],
  );
  assert.equal(node?.parts[1]?.key, "0.1");
});

test("a field that is read twice is shown once", () => {
  const values = [
    { field: "event.a", value: "1" },
    { field: "event.a", value: "1" },
    { field: "sub.b", value: "2" },
  ];
  assert.deepEqual(
    nodesOf([condition("holds", { values })])[0]?.values.map(({ field }) => field),
    ["event.a", "sub.b"],
  );
});

test("a long condition is broken at its outer operators", () => {
  assert.deepEqual(breakable("a == 'x && y' && f(b || c) || d"), ["a == 'x && y'", "&& f(b || c)", "|| d"]);
});
