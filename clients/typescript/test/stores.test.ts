/** What every store promises. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { rowKey } from "../src/store.js";
import { own } from "../src/standing.js";
import { withEach } from "./stores_for_tests.js";

const row = (text: string) => ({ version: "1", fields: { text } });

test("a transaction sees what it wrote, and stays as a whole", () =>
  withEach(async (store) => {
    await store.write(async (transaction) => {
      await transaction.put("rows", "notes/a", row("one"));
      await transaction.put("rows", "notes/b", row("two"));
      await transaction.delete("rows", "notes/b");
      assert.deepEqual(await transaction.get("rows", "notes/a"), row("one"));
      assert.equal(await transaction.get("rows", "notes/b"), undefined);
    });
    assert.deepEqual(await store.read((transaction) => transaction.list("rows")), [["notes/a", row("one")]]);
  }));

test("what throws undoes all that it wrote", () =>
  withEach(async (store) => {
    await store.write((transaction) => transaction.put("rows", "notes/a", row("one")));
    const failing = store.write(async (transaction) => {
      await transaction.put("rows", "notes/a", row("two"));
      await transaction.put("outbox", "1", { n: 1, collection: "notes", id: "a", base: "0", seen: "0", set: null });
      throw new Error("on purpose");
    });
    await assert.rejects(failing, /on purpose/);
    await store.read(async (transaction) => {
      assert.deepEqual(await transaction.get("rows", "notes/a"), row("one"));
      assert.equal(await transaction.count("outbox"), 0);
    });
  }));

test("a list has the keys of its prefix in their order, whatever characters follow", () =>
  withEach(async (store) => {
    const ids = ["", "a", "a b", "z", "é", "\u{1f642}", "\ud7ff"];
    await store.write(async (transaction) => {
      for (const id of ids) await transaction.put("unseen", rowKey("notes", id), true);
      for (const other of ["note/a", "notes0", "notes.x/a", "notesx/a"]) await transaction.put("unseen", other, true);
    });
    await store.read(async (transaction) => {
      const keys = (await transaction.list("unseen", { prefix: "notes/" })).map(([key]) => key.slice("notes/".length));
      assert.deepEqual(keys.sort(), ids.sort());
      assert.equal(await transaction.count("unseen", "notes/"), ids.length);
      assert.equal(await transaction.count("unseen"), ids.length + 4);
      assert.deepEqual((await transaction.list("unseen", { prefix: "notes/", limit: 2 })).map(([key]) => key), ["notes/", "notes/a"]);
    });
  }));

test("transactions that come together do not see halves of each other", () =>
  withEach(async (store) => {
    const add = () =>
      store.write(async (transaction) => {
        const standing = await own(transaction);
        await transaction.put("own", "replica", { ...standing, last: standing.last + 1 });
      });
    await Promise.all(Array.from({ length: 20 }, add));
    assert.equal((await store.read((transaction) => transaction.get("own", "replica")))?.last, 20);
  }));

test("one sync at a time", () =>
  withEach(async (store) => {
    const steps: string[] = [];
    const work = (name: string) => async () => {
      steps.push(`${name} begins`);
      await store.read((transaction) => transaction.count("rows"));
      steps.push(`${name} ends`);
    };
    await Promise.all([store.alone(work("one")), store.alone(work("two"))]);
    assert.deepEqual(steps, ["one begins", "one ends", "two begins", "two ends"]);
  }));
