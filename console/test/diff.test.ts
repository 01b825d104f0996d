import assert from "node:assert/strict";
import { test } from "node:test";
import { changedPart, compare, counts, hunks, linesOf } from "../src/components/diff/lines";

const show = (before: string, after: string) =>
  compare(before, after)
    .map((line) => `${{ same: " ", added: "+", removed: "-" }[line.kind]}${line.text}`)
    .join("\n");

test("unchanged, added and removed lines stay in order", () => {
  assert.equal(show("a\nb\nc\n", "a\nx\nc\n"), " a\n-b\n+x\n c");
  assert.equal(show("", "a\n"), "+a");
  assert.equal(show("a\n", ""), "-a");
  assert.equal(show("a\nb\n", "a\nb\n"), " a\n b");
});

test("line numbers refer to both documents", () => {
  const lines = compare("a\nb\nc\n", "b\nc\nd\n");
  assert.deepEqual(
    lines.map((line) => [line.old, line.new]),
    [
      [1, null],
      [2, 1],
      [3, 2],
      [null, 3],
    ],
  );
});

test("any two documents can be restored from their comparison", () => {
  const seed = Number(process.env.SEED ?? Date.now() % 1_000_000);
  let state = seed;
  const random = (below: number) => {
    state = (state * 1_103_515_245 + 12_345) % 2_147_483_648;
    return Math.floor((state / 2_147_483_648) * below);
  };
  for (let round = 0; round < 300; round += 1) {
    const make = () => Array.from({ length: random(12) }, () => "abcd"[random(4)] ?? "a");
    const [before, after] = [make(), make()];
    const lines = compare(before.map((line) => `${line}\n`).join(""), after.map((line) => `${line}\n`).join(""));
    const old = lines.filter((line) => line.kind !== "added").map((line) => line.text);
    const now = lines.filter((line) => line.kind !== "removed").map((line) => line.text);
    assert.deepEqual([old, now], [before, after], `SEED=${seed}, round ${round}`);
  }
});

test("documents with more differences than the bound are compared as wholes", () => {
  const document = (letter: string) => Array.from({ length: 3000 }, (_, index) => `${letter}${index}`).join("\n");
  const lines = compare(document("a"), document("b"));
  assert.deepEqual(counts(lines), { added: 3000, removed: 3000 });
});

test("hunks have context and count what they skip", () => {
  const before = Array.from({ length: 20 }, (_, index) => `${index}`);
  const after = before.map((line) => (line === "10" ? "ten" : line));
  const { hunks: found, rest } = hunks(compare(before.join("\n"), after.join("\n")), 2);
  assert.equal(found.length, 1);
  assert.equal(found[0]?.skipped, 8);
  assert.deepEqual(
    found[0]?.lines.map((line) => line.text),
    ["8", "9", "10", "ten", "11", "12"],
  );
  assert.equal(rest, 7);
});

test("the changed part of a line is the middle", () => {
  assert.deepEqual(changedPart("magnitude: 4", "magnitude: 4.5"), { start: 12, beforeEnd: 12, afterEnd: 14 });
  assert.deepEqual(changedPart("aa", "aaa"), { start: 2, beforeEnd: 2, afterEnd: 3 });
  assert.deepEqual(linesOf("a\r\nb\n"), ["a", "b"]);
});
