/** Replica API and HTTP link. */

import assert from "node:assert/strict";
import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { gunzipSync } from "node:zlib";

import { HttpLink, LinkError, MemoryStore, Replica, type BeginResponse, type Link } from "../src/index.js";
import { retryAfter } from "../src/link.js";

const NOTES = { name: "notes", direction: "both" as const, fields: [{ name: "text", type: "string" as const }] };
const BEGUN: BeginResponse = { session: "s", uploaded: 0, anew: true, cursor: "c0", wipe: false, collections: [NOTES] };

/** A server without changes that accepts everything. */
function quiet(changes: Partial<Link> = {}): Link {
  return {
    begin: async ({ cursor }) => ({ ...BEGUN, anew: cursor === null, cursor: cursor ?? "c0" }),
    upload: async (_, lines) => ({ uploaded: lines.trimEnd().split("\n").length, applied: 1, conflicts: [], refused: [] }),
    download: async () => JSON.stringify({ cursor: "c1", seen: "55705600000000100", more: false }),
    end: async () => {},
    ...changes,
  };
}

test("listeners are called on changes, and the state is readable", async () => {
  const replica = new Replica<{ notes: { text?: string } }>(new MemoryStore(), quiet());
  let changes = 0;
  const stop = replica.onChange(() => changes++);
  assert.equal((await replica.standing()).seen, undefined);
  await replica.sync();
  await replica.put("notes", "a", { text: "one" });
  assert.deepEqual(await replica.row("notes", "a"), { text: "one" });
  assert.equal(changes, 2);
  stop();
  assert.equal(await replica.remove("notes", "a"), true);
  assert.equal(await replica.remove("notes", "a"), false);
  assert.equal(changes, 2);
  assert.deepEqual((await replica.standing()).collections, [{ name: "notes", rows: 0 }]);
  assert.equal((await replica.standing()).seen?.getTime(), Number(55705600000000100n >> 15n));
  await assert.rejects(replica.put("notes", "a/b", {}), /has no `\/`/);
});

test("a cancelled sync rejects with its reason and keeps completed blocks", async () => {
  const store = new MemoryStore();
  const cancel = new AbortController();
  const link = quiet({
    download: async (_, cursor) => {
      if (cursor === "c1") {
        cancel.abort(new Error("enough"));
        cancel.signal.throwIfAborted();
      }
      return `["notes","a","5",{"text":"one"}]\n{"cursor":"c1","seen":"0","more":true}`;
    },
  });
  const replica = new Replica(store, link);
  const received: number[] = [];
  const syncing = replica.sync({ signal: cancel.signal, progress: (progress) => received.push(progress.received) });
  await assert.rejects(syncing, /enough/);
  assert.deepEqual(received, [0, 1]);
  assert.deepEqual(await replica.row("notes", "a"), { text: "one" });
});

test("a watch retries after failures, honours Retry-After, and ends when aborted or refused", async () => {
  const end = new AbortController();
  const errors = [new LinkError("busy", "full", 1), undefined, undefined];
  const link = quiet({
    begin: async ({ cursor }) => {
      const error = errors.shift();
      if (error) throw error;
      return { ...BEGUN, anew: cursor === null, cursor: cursor ?? "c0" };
    },
  });
  const calls: string[] = [];
  await new Replica(new MemoryStore(), link).watch({
    every: 1,
    signal: end.signal,
    failed: (error) => calls.push(error.kind),
    synced: () => {
      calls.push("synced");
      if (errors.length === 0) end.abort();
    },
  });
  assert.deepEqual(calls, ["busy", "synced", "synced"]);
  const refusing = quiet({ begin: () => Promise.reject(new LinkError("refused", "revoked")) });
  await assert.rejects(new Replica(new MemoryStore(), refusing).watch(), /revoked/);
});

test("a watch is woken by the server and by edits, and comes now and then where the server cannot wake it", async () => {
  const end = new AbortController();
  const waits: ((news: boolean) => void)[] = [];
  const cursors: string[] = [];
  const link = quiet({
    begin: async ({ cursor }) => ({ ...BEGUN, anew: cursor === null, cursor: cursor ?? "c0" }),
    wait: (cursor, _seconds, signal) =>
      new Promise((resolve, reject) => {
        cursors.push(cursor);
        waits.push(resolve);
        signal?.addEventListener("abort", () => reject(new Error("cancelled")));
      }),
  });
  const replica = new Replica(new MemoryStore(), link);
  let syncs = 0;
  const arrived = async (count: number) => {
    while (syncs < count || waits.length < count) await new Promise((resolve) => setImmediate(resolve));
  };
  const watching = replica.watch({ every: 3_600_000, signal: end.signal, synced: () => syncs++ });
  await arrived(1);
  waits[0]!(true);
  await arrived(2);
  await replica.remove(BEGUN.collections[0]!.name, "not there");
  await arrived(3);
  end.abort();
  await watching;
  assert.equal(new Set(cursors).size, 1);
  const plain = quiet({ begin: async ({ cursor }) => ({ ...BEGUN, anew: cursor === null, cursor: cursor ?? "c0" }) });
  const other = new AbortController();
  syncs = 0;
  await new Replica(new MemoryStore(), plain).watch({
    every: 1,
    signal: other.signal,
    synced: () => {
      if (++syncs === 3) other.abort();
    },
  });
});

type Heard = { method: string; path: string; headers: IncomingMessage["headers"]; body: Buffer };

/** A server of HTTP that answers all alike. */
async function answering(status: number, headers: Record<string, string>, text: string, work: (link: HttpLink, heard: Heard[]) => Promise<void>) {
  const heard: Heard[] = [];
  const server = createServer((request, response) => {
    const parts: Buffer[] = [];
    request.on("data", (part: Buffer) => parts.push(part));
    request.on("end", () => {
      heard.push({ method: request.method!, path: request.url!, headers: request.headers, body: Buffer.concat(parts) });
      response.writeHead(status, headers).end(text);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
    await work(new HttpLink({ url, token: "tocsin_device_x" }), heard);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

test("calls are what the protocol says", () =>
  answering(200, {}, '{"uploaded":1}', async (link, heard) => {
    await link.begin({ cursor: "a.b", wiped: false });
    await link.upload("s1", '{"n":1}\n');
    await link.download("s1", "a.b_c-d");
    await link.end("s1");
    assert.deepEqual(heard.map(({ method, path }) => `${method} ${path}`), [
      "POST /v1/sync/sessions",
      "POST /v1/sync/sessions/s1/changes",
      "GET /v1/sync/sessions/s1/changes?cursor=a.b_c-d",
      "DELETE /v1/sync/sessions/s1",
    ]);
    assert.equal(heard[0]!.body.toString(), '{"cursor":"a.b","wiped":false}');
    assert.ok(heard.every(({ headers }) => headers.authorization === "Bearer tocsin_device_x"));
    assert.equal(heard[1]!.headers["content-type"], "application/x-ndjson");
    assert.equal(gunzipSync(heard[1]!.body).toString(), '{"n":1}\n');
  }));

test("a wish for later is read in each form of RFC 9110", () => {
  const now = Date.UTC(2026, 10, 26, 12, 0, 0);
  for (const text of [
    "5",
    " 5 ",
    "5.0",
    "1, 5",
    "Thu, 26 Nov 2026 12:00:05 GMT",
    "Thursday, 26-Nov-26 12:00:05 GMT",
    "Thu Nov 26 12:00:05 2026",
  ]) {
    assert.equal(retryAfter(text, now), 5_000, text);
  }
  assert.equal(retryAfter("Sun Nov  6 08:49:37 1994", now), 0);
  assert.equal(retryAfter("Sunday, 06-Nov-94 08:49:37 GMT", now), 0);
  assert.equal(retryAfter("Fri, 31 Dec 9999 23:59:59 GMT", now), 3_600_000);
  for (const text of [null, "", "-5", "soon", "1e3", "5s", "2026-11-26T12:00:05Z"]) {
    assert.equal(retryAfter(text, now), undefined, String(text));
  }
});

test("each response status maps to an error kind", async () => {
  const problem = '{"title":"No","detail":"the reason"}';
  const check = (status: number, kind: string, retryAfter = 0, headers = {}) =>
    answering(status, headers, problem, async (link) => {
      await assert.rejects(link.download("s", "c"), { name: "LinkError", kind, retryAfter, message: "the reason" });
    });
  await check(401, "refused");
  await check(404, "over");
  await check(410, "over");
  await check(422, "refused");
  await check(429, "busy", 5_000);
  await check(503, "busy", 7_000, { "retry-after": "7" });
  await check(503, "busy", 7_500, { "retry-after": "7.5" });
  await check(503, "busy", 3_600_000, { "retry-after": "99999999999" });
  await check(503, "busy", 0, { "retry-after": "Sun, 06 Nov 1994 08:49:37 GMT" });
  await check(503, "busy", 5_000, { "retry-after": "soon" });
  await check(500, "broken");
  await check(408, "broken");
  await answering(404, {}, problem, async (link) => {
    await assert.rejects(link.begin({ cursor: null, wiped: false }), { kind: "refused" });
  });
  await answering(200, {}, "<html>", async (link) => {
    await assert.rejects(link.begin({ cursor: null, wiped: false }), { kind: "broken" });
  });
  const nobody = new HttpLink({ url: "http://127.0.0.1:1", token: "x" });
  await assert.rejects(nobody.end("s"), { kind: "broken" });
});

test("b4, b5: what JSON would write as something else is refused where it is made", async () => {
  const shape = {
    name: "things",
    direction: "both" as const,
    fields: [
      { name: "text", type: "string" as const },
      { name: "price", type: "number" as const },
      { name: "qty", type: "integer" as const },
      { name: "at", type: "timestamp" as const },
      { name: "tags", type: "list" as const },
      { name: "more", type: "map" as const },
    ],
  };
  const replica = new Replica(new MemoryStore(), quiet({ begin: async () => ({ ...BEGUN, collections: [shape] }) }));
  await replica.sync();
  const bad: unknown[] = [
    { text: "\ud800" },
    { text: "a\udc00b" },
    { text: "x".repeat(300_000) },
    { price: Infinity },
    { price: -Infinity },
    { price: NaN },
    { qty: 2 ** 53 },
    { qty: 1.5 },
    { qty: 7n },
    { at: "2026-02-30T00:00:00Z" },
    { at: "2026-01-02" },
    { at: "2026-01-02T25:00:00Z" },
    { at: new Date(0) },
    { tags: [1, NaN] },
    { tags: ["\ud800"] },
    { tags: [undefined] },
    { tags: new Array(1) },
    { more: { a: { b: Infinity } } },
    { more: new Date(0) },
    { more: new Uint8Array(2) },
    { more: new Map() },
    { more: { "\ud800": 1 } },
    { text: new Uint8Array(2) },
    { unknown: 1 },
  ];
  for (const fields of bad) {
    await assert.rejects(replica.put("things", "a", fields as never), { name: "UnfitError" }, Object.keys(fields as object).join());
  }
  for (const id of ["", "a/b", "k".repeat(129), "a\nb", "\ud800"]) await assert.rejects(replica.put("things", id, {}), { name: "UnfitError" });
  assert.equal((await replica.standing()).edited, 0);
  await replica.put("things", "a", { text: "🙂\0", price: 1e308, qty: 2 ** 53 - 1, at: "2024-02-29T23:59:59.5+01:00", tags: [{ a: null }], more: {} });
  assert.equal((await replica.standing()).edited, 1);
});

test("b5: values that an older version has stored and that cannot be sent are set aside, and stop no others", async () => {
  const store = new MemoryStore();
  const sent: string[] = [];
  const link = quiet({
    upload: async (_, lines) => {
      sent.push(lines);
      return { uploaded: 99, applied: 1, conflicts: [], refused: [] };
    },
  });
  const replica = new Replica(store, link);
  await replica.sync();
  await replica.put("notes", "good", { text: "x" });
  await replica.put("notes", "bad", { text: "y" });
  await store.write((transaction) => transaction.put("rows", "notes/bad", { version: "0", fields: { text: "\ud800" } }));
  assert.equal((await replica.sync()).refused, 1);
  assert.deepEqual(sent.join("").trimEnd().split("\n").map((line) => JSON.parse(line).set), [{ text: "x" }, {}]);
  assert.match((await replica.standing()).refused[0]!.why, /^text: should be text without lone surrogates/);
  await replica.remove("notes", "bad");
  await replica.sync();
  await replica.put("notes", "bad", { text: "z" });
  await replica.sync();
  assert.deepEqual((await replica.standing()).refused, []);
});
