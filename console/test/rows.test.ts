// Rows of a grid: any sequence of scrolls shows the right rows, with a bound on what is held.
import assert from "node:assert/strict";
import { test } from "node:test";
import { RowSource } from "../src/components/grid/rows";

interface Row {
  id: number;
}

function listOf(count: () => number, options: { emptyPages?: boolean } = {}) {
  const asked: (string | null)[] = [];
  const source = new RowSource<Row>({
    id: (row) => String(row.id),
    pageSize: 100,
    rowsMost: 2_000,
    fetch: async (after, limit) => {
      asked.push(after);
      // Newest first: ids count down. A cursor is the last id seen.
      const start = after === null ? count() : Number(after) - 1;
      // A bounded search sometimes answers without rows.
      if (
        options.emptyPages === true &&
        after !== null &&
        asked.filter((cursor) => cursor === after).length === 1 &&
        Number(after) % 300 === 1
      ) {
        return { items: [], next: after };
      }
      const items = Array.from({ length: Math.max(0, Math.min(limit, start)) }, (_, index) => ({
        id: start - index,
      }));
      const last = items.at(-1)?.id ?? 1;
      return { items, next: last > 1 ? String(last) : null };
    },
  });
  return { source, asked };
}

const settled = async () => {
  for (let turn = 0; turn < 60; turn += 1) await new Promise((resolve) => setImmediate(resolve));
};

async function loaded(count: number, options?: { emptyPages?: boolean }) {
  let total = count;
  const list = listOf(() => total, options);
  list.source.start();
  await settled();
  return { ...list, grow: (by: number) => (total += by) };
}

test("any sequence of scrolls shows the right rows, and holds at most 2,000", async () => {
  const seed = Number(process.env.SEED ?? Date.now() % 1_000_000);
  console.log(`SEED=${seed}`);
  let state = seed;
  const random = () => {
    state = (state * 1_103_515_245 + 12_345) % 2_147_483_648;
    return state / 2_147_483_648;
  };
  const total = 6_000;
  const { source } = await loaded(total, { emptyPages: true });
  for (let step = 0; step < 150; step += 1) {
    const end = random() < 0.4;
    const first = end ? Math.max(0, source.count - 20) : Math.floor(random() * source.count);
    source.need(first, first + 30);
    await settled();
    assert.ok(source.held <= 2_000, `SEED=${seed}: ${source.held} rows held`);
    for (let index = first; index < Math.min(first + 30, source.count); index += 1)
      assert.equal(source.at(index)?.id, total - index, `SEED=${seed}: step ${step}, row ${index}`);
  }
  assert.ok(source.count > 2_000, "the scrolls went beyond what is held");
});

test("the end is reached, and no page is read twice without need", async () => {
  const { source, asked } = await loaded(250);
  source.need(90, 99);
  await settled();
  source.need(190, 199);
  await settled();
  assert.equal(source.count, 250);
  assert.equal(source.hasMore, false);
  assert.deepEqual(asked, [null, "151", "51"]);
});

test("newer rows are counted and do not move the list", async () => {
  const { source, grow } = await loaded(500);
  grow(12);
  await source.checkNewer();
  assert.deepEqual(source.newer, { count: 12, isAtLeast: false });
  assert.equal(source.at(0)?.id, 500);
  grow(200);
  await source.checkNewer();
  assert.deepEqual(source.newer, { count: 100, isAtLeast: true });
  await source.showNewer();
  assert.equal(source.at(0)?.id, 712);
  assert.deepEqual(source.newer, { count: 0, isAtLeast: false });
});

test("a failure keeps the rows, and a retry goes on", async () => {
  let fails = false;
  const source = new RowSource<Row>({
    id: (row) => String(row.id),
    pageSize: 10,
    fetch: async (after, limit) => {
      if (fails) throw new Error("no answer");
      const start = after === null ? 0 : Number(after);
      return {
        items: Array.from({ length: limit }, (_, index) => ({ id: start + index })),
        next: start < 50 ? String(start + limit) : null,
      };
    },
  });
  source.start();
  await settled();
  fails = true;
  source.need(9, 10);
  await settled();
  assert.equal(source.status, "ready");
  assert.equal(source.count, 10);
  assert.match(source.error?.message ?? "", /no answer/);
  fails = false;
  source.retry();
  await settled();
  assert.equal(source.error, null);
  assert.equal(source.count, 20);
});
