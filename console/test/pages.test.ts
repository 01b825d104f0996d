import assert from "node:assert/strict";
import { test } from "node:test";
import { orderPaths, questionOf, type Path } from "../src/pages/explain/model";
import { canResend, draftOf } from "../src/pages/notifications/model";
import { candidatesOf, methodOf, rowsOf, type Branch, type RulePlan } from "../src/pages/rules/model";
import { CELLS_MAX, cellId, cellsOf, previewBody } from "../src/pages/templates/model";

const branch = (more: Partial<Branch>): Branch => ({
  event_guards: [],
  subscription_guards: [],
  keys: [],
  range: [],
  residual: [],
  filters: false,
  ...more,
});
const plan = (rule: string, branches: Branch[], more: Partial<RulePlan> = {}): RulePlan => ({
  rule,
  branches,
  remembers: [],
  query: [],
  warnings: [],
  ...more,
});

test("a rule without key or sorted column in one branch scans", () => {
  assert.equal(
    methodOf(plan("a", [branch({ keys: ["event.a == sub.a"] }), branch({ range: ["event.b > sub.b"] })])),
    "index",
  );
  assert.equal(
    methodOf(plan("a", [branch({ keys: ["event.a == sub.a"] }), branch({ residual: ["f(event, sub)"] })])),
    "scan",
  );
  assert.equal(methodOf(plan("a", [], { query: ["SCAN events"] })), "sql");
});

test("candidates are known only if all branches have figures", () => {
  assert.equal(candidatesOf(plan("a", [branch({ candidates: 3 }), branch({ candidates: 4 })])), 7);
  assert.equal(candidatesOf(plan("a", [branch({ candidates: 3 }), branch({})])), null);
  assert.equal(candidatesOf(plan("a", [])), null);
});

test("stopped rules and missed batches belong to the rule of their application", () => {
  const rows = rowsOf(
    new Map([
      ["doors", [plan("near", [])]],
      ["quakes", [plan("near", [])]],
    ]),
    [{ application: "quakes", rule: "near" }],
    [1, 2].map((id) => ({
      id,
      application: "quakes",
      rule: "near",
      status: "failed" as const,
      reason: "",
      first: "eb-1",
      last: "eb-2",
      batches: id,
      since: "",
    })),
    [],
  );
  assert.deepEqual(
    rows.map((row) => [row.application, row.stopped !== null, row.missed]),
    [
      ["doors", false, 0],
      ["quakes", true, 3],
    ],
  );
});

test("a question needs an event and a recipient; a subscription has precedence", () => {
  assert.equal(questionOf({ event: "e-1-0" }), null);
  assert.equal(questionOf({ subscriber: "ada" }), null);
  assert.deepEqual(questionOf({ event: "e-1-0", subscriber: "ada" }), { event: "e-1-0", subscriber: "ada" });
  assert.deepEqual(questionOf({ event: "e-1-0", subscriber: "ada", subscription: "s-1", rule: "near" }), {
    event: "e-1-0",
    subscription: "s-1",
    rule: "near",
  });
});

test("paths that were sent come first, then those that came furthest", () => {
  const gate = (deciding: boolean) => ({
    gate: "rule",
    verdict: "passed" as const,
    deciding,
    as_of: "now" as const,
    text: "",
    values: [],
  });
  const path = (rule: string, decision: Path["decision"], at: number): Path => ({
    rule,
    class: "c",
    subscription: "s-1",
    decision,
    deciding: null,
    notification: null,
    outcome: null,
    gates: [0, 1, 2].map((index) => gate(index === at)),
  });
  const ordered = orderPaths([
    path("early", "not_sent", 0),
    path("late", "not_sent", 2),
    path("sent", "sent", 2),
    path("open", "waiting", 1),
  ]);
  assert.deepEqual(
    ordered.map(({ rule }) => rule),
    ["sent", "open", "late", "early"],
  );
});

test("a delivered notification is not sent again", () => {
  assert.deepEqual(
    ["refused", "suspended", "expired", "delivered", "waiting"].map((state) => canResend(state, false)),
    [true, true, false, false, false],
  );
  assert.deepEqual(
    ["refused", "suspended", "expired", "delivered", "ended"].map((state) => canResend(state, true)),
    [true, false, true, false, true],
  );
});

test("the selection of a resend has the filters of the list", () => {
  assert.deepEqual(
    draftOf({
      application: "quakes",
      channel: "email",
      reason: "503",
      outcome: ["refused"],
      from: "2026-11-29T00:00:00Z",
      to: "2026-11-30T00:00:00Z",
    }),
    {
      application: "quakes",
      channel: "email",
      reason: "503",
      outcomes: ["refused"],
      since: "2026-11-29T00:00:00Z",
      until: "2026-11-30T00:00:00Z",
    },
  );
});

test("the matrix has the default and the locales of the templates, for each channel", () => {
  const { locales, cells } = cellsOf(["base", "de", "de/email", "email", "fr/sms"], ["email", "sms"]);
  assert.deepEqual(locales, [null, "de", "fr"]);
  assert.deepEqual(cells.map(cellId), ["/email", "/sms", "de/email", "de/sms", "fr/email", "fr/sms"]);
  assert.equal(
    cellsOf(
      Array.from({ length: 50 }, (_, at) => `l${at}`),
      ["a", "b"],
    ).cells.length,
    CELLS_MAX,
  );
  assert.deepEqual(previewBody({ application: "a", event: "e-1-0" }, { locale: null, channel: "email" }), {
    event: "e-1-0",
    channel: "email",
    address: "preview",
  });
});
