/**
 * Replicas of every kind against a server: `TOCSIN_URL` with `TOCSIN_KEY`. Random edits over a link that breaks, and at the end all
 * have what the server has. `SEED` repeats a run.
 */

import assert from "node:assert/strict";
import { copyFileSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { IDBFactory } from "fake-indexeddb";

import { HttpLink, IndexedDbStore, LinkError, MemoryStore, Replica, SqliteStore, type Fields, type Store } from "../src/index.js";
import { sqlite } from "./stores_for_tests.js";

const URL_OF_SERVER = process.env["TOCSIN_URL"];
const APPLICATION = "typescript";
const RESOLVERS = ["server", "client", "first", "last"];
const TEAMS = ["red", "green", "blue"];
const OWNERS = ["ann", "bob", "cid"];

type Note = { owner?: string; team?: string; text?: string; total?: number; high?: number; tags?: string[] };

const definition = [
  `application: ${APPLICATION}`,
  "collections:",
  ...RESOLVERS.map(
    (resolver, at) => `
  notes_${resolver}:
    fields: { owner: string, team: string, text: string, total: integer, high: integer, tags: list }
    may_leave: true
    partition:
      - match: { owner: subscriber.id }
      - match: { team: attributes.teams }
    conflicts: { track: ${at % 2 ? "row" : "column"}, resolver: ${resolver}, fields: { total: sum, high: max } }`,
  ),
].join("\n");

async function ask(method: string, path: string, body?: unknown, type = "application/json"): Promise<any> {
  const init: RequestInit = { method, headers: { authorization: `Bearer ${process.env["TOCSIN_KEY"]}`, "content-type": type } };
  if (body !== undefined) init.body = typeof body === "string" ? body : JSON.stringify(body);
  const response = await fetch(URL_OF_SERVER + path, init);
  const text = await response.text();
  assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`);
  return text === "" ? undefined : JSON.parse(text);
}

/** Numbers that a seed repeats: mulberry32. */
function random(seed: number): (below: number) => number {
  let state = seed >>> 0;
  return (below) => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) % below;
  };
}

interface Actor {
  replica: Replica<Record<string, Note>>;
  owner: string;
  /** Of a hundred requests, how many break. */
  breaks: number;
}

function teamsOf(owner: string): string[] {
  return TEAMS.filter((_, at) => at !== OWNERS.indexOf(owner));
}

async function actor(store: Store, owner: string, draw: (below: number) => number): Promise<Actor> {
  const { token } = await ask("POST", "/v1/sync/devices", { application: APPLICATION, subscriber: owner, name: "test" });
  const made: Partial<Actor> = { owner, breaks: 0 };
  const breaking: typeof fetch = async (input, init) => {
    if (draw(100) < made.breaks!) throw new TypeError("broken before the server heard of it");
    const response = await fetch(input, init);
    if (draw(100) < made.breaks!) throw new TypeError("broken after the server answered");
    return response;
  };
  const home = { url: URL_OF_SERVER!, token: token as string };
  made.replica = new Replica(store, new HttpLink(home, { fetch: breaking }));
  return made as Actor;
}

async function edit({ replica, owner }: Actor, draw: (below: number) => number, made: number): Promise<void> {
  const collection = `notes_${RESOLVERS[draw(RESOLVERS.length)]}`;
  const rows = [...(await replica.rows(collection))];
  const [id, row] = rows[draw(rows.length || 1)] ?? [];
  const text = ["milk", "bread", "tea"].slice(draw(3)).join(" ");
  const kind = draw(10);
  if (kind < 2 || id === undefined || row === undefined) {
    await replica.put(collection, `${owner}-${made}`, { owner, team: TEAMS[draw(3)]!, text, total: 0 });
  } else if (kind === 2) {
    await replica.remove(collection, id);
  } else if (kind === 3) {
    await replica.put(collection, id, { team: TEAMS[draw(3)]! });
  } else if (kind < 6) {
    await replica.put(collection, id, { text, tags: [text, String(made)] });
  } else {
    await replica.put(collection, id, { total: (row.total ?? 0) + 1, high: draw(50) });
  }
}

/** What the server has of a collection, as far as it is for this owner. */
async function expected(collection: string, owner: string): Promise<Map<string, Note>> {
  const page = await ask("GET", `/v1/applications/${APPLICATION}/collections/${collection}/rows?limit=1000`);
  assert.ok(!page.next, "all rows are on one page");
  const rows = (page.items as { id: string; row: Note }[]).filter(({ row }) => row.owner === owner || teamsOf(owner).includes(row.team!));
  return new Map(rows.map(({ id, row }) => [id, row]));
}

async function play(stores: Store[]): Promise<void> {
  const seed = Number(process.env["SEED"] ?? Math.floor(Math.random() * 2 ** 31));
  console.log(`SEED=${seed}`);
  const draw = random(seed);
  await ask("PUT", `/v1/applications/${APPLICATION}`, definition, "application/yaml");
  for (const owner of OWNERS) await ask("POST", "/v1/subscribers", { id: owner, attributes: { teams: teamsOf(owner) } });
  const actors: Actor[] = [];
  for (const [at, store] of stores.entries()) actors.push(await actor(store, OWNERS[at % OWNERS.length]!, draw));
  for (const { replica } of actors) await replica.sync();
  for (const actor of actors) actor.breaks = 12;
  for (let made = 0; made < 300; made++) {
    const actor = actors[draw(actors.length)]!;
    await edit(actor, draw, made);
    if (draw(6) > 0) continue;
    await actor.replica.sync().catch((error: unknown) => {
      if (!(error instanceof LinkError)) throw error;
    });
  }
  for (const actor of actors) actor.breaks = 0;
  // The first round sends what is left, the second brings it to all.
  for (let round = 0; round < 2; round++) for (const { replica } of actors) await replica.sync();
  for (const { replica, owner } of actors) {
    for (const resolver of RESOLVERS) {
      const collection = `notes_${resolver}`;
      const sorted = (rows: Map<string, Fields | Note>) => Object.fromEntries([...rows].sort(([one], [other]) => (one < other ? -1 : 1)));
      assert.deepEqual(sorted(await replica.rows(collection)), sorted(await expected(collection, owner)));
    }
    const { edited, sending } = await replica.standing();
    assert.deepEqual([edited, sending], [0, 0]);
  }
}

test("a replica at rest is woken by what is new for it, and by edits of its own", { skip: !URL_OF_SERVER && "no TOCSIN_URL" }, async () => {
  await ask("PUT", `/v1/applications/${APPLICATION}`, definition, "application/yaml");
  const owner = "dan";
  await ask("POST", "/v1/subscribers", { id: owner });
  const store = new MemoryStore();
  const { replica } = await actor(store, owner, () => 100);
  const stop = new AbortController();
  const resting = async (): Promise<void> => {
    while ((await ask("GET", "/v1/sync/status")).resting !== 1);
  };
  const path = `/v1/applications/${APPLICATION}/collections/notes_server/rows`;
  const applied: number[] = [];
  const done = new Promise<void>((resolve, reject) => {
    // Nobody comes back by the clock: it would be after an hour.
    const watching = replica.watch({
      every: 3_600_000,
      signal: stop.signal,
      failed: reject,
      synced: (summary) => {
        applied.push(summary.applied);
        const acts = [
          () => resting().then(() => ask("PUT", `${path}/woken`, { owner, text: "milk" })),
          () => resting().then(() => replica.put("notes_server", "woken", { text: "tea" })),
          async () => stop.abort(),
        ];
        acts[applied.length - 1]?.().catch(reject);
      },
    });
    watching.then(resolve, reject);
  });
  await done;
  assert.deepEqual(applied, [0, 0, 1]);
  assert.equal((await ask("GET", `${path}/woken`)).row.text, "tea");
  await store.close();
});

test("replicas of every kind converge over links that break", { skip: !URL_OF_SERVER && "no TOCSIN_URL" }, async () => {
  const folder = mkdtempSync(join(tmpdir(), "replica-"));
  const factory = new IDBFactory() as unknown as globalThis.IDBFactory;
  const stores = [
    new MemoryStore(),
    await IndexedDbStore.open("one", factory),
    new SqliteStore(sqlite(join(folder, "one.db"))),
    new SqliteStore(sqlite(join(folder, "two.db"))),
    await IndexedDbStore.open("two", factory),
    new MemoryStore(),
  ];
  await play(stores);
  for (const store of stores) await store.close();
  rmSync(folder, { recursive: true });
});

/** A device of its own on an application of two notes. Gives a replica over a SQLite file, which can be opened again. */
async function ofFile(folder: string, resolver = "last") {
  const application = `copies-${resolver}`;
  const text = `application: ${application}\ncollections: { notes: { fields: { text: string, count: integer }, partition: everyone, conflicts: { resolver: ${resolver} } } }`;
  await ask("PUT", `/v1/applications/${application}`, text, "application/yaml");
  await ask("PUT", `/v1/applications/${application}/collections/notes/rows/a`, { text: "milk", count: 1 });
  await ask("POST", "/v1/subscribers", { id: application });
  const { token } = await ask("POST", "/v1/sync/devices", { application, subscriber: application, name: "phone" });
  const path = join(folder, "replica.db");
  const open = (at = path) => {
    const store = new SqliteStore(sqlite(at));
    return { store, replica: new Replica<{ notes: { text?: string; count?: number } }>(store, { url: URL_OF_SERVER!, token }) };
  };
  const row = async () => (await ask("GET", `/v1/applications/${application}/collections/notes/rows/a`)).row as Fields;
  return { path, open, row };
}

test("b2: an edit of a store that was put back to an earlier state is not lost", { skip: !URL_OF_SERVER }, async () => {
  const folder = mkdtempSync(join(tmpdir(), "copies-"));
  try {
    const { path, open, row } = await ofFile(folder);
    let { store, replica } = open();
    await replica.sync();
    await replica.put("notes", "a", { count: 2 });
    await replica.sync();
    await store.close();
    copyFileSync(path, join(folder, "backup.db"));
    ({ store, replica } = open());
    for (let count = 3; count < 8; count++) {
      await replica.put("notes", "a", { count });
      await replica.sync();
    }
    await store.close();
    copyFileSync(join(folder, "backup.db"), path);
    ({ store, replica } = open());
    await replica.put("notes", "a", { text: "bread" });
    assert.equal((await replica.sync()).applied, 1);
    assert.deepEqual(await row(), { text: "bread", count: 7 });
    assert.deepEqual(await replica.row("notes", "a"), { text: "bread", count: 7 });
    await store.close();
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("b2: two copies of a store in use at once meet each other like two devices", { skip: !URL_OF_SERVER }, async () => {
  const folder = mkdtempSync(join(tmpdir(), "copies-"));
  try {
    const { path, open, row } = await ofFile(folder, "server");
    const first = open();
    await first.replica.sync();
    await first.replica.put("notes", "a", { count: 2 });
    await first.replica.sync();
    await first.store.close();
    copyFileSync(path, join(folder, "second.db"));
    const [one, two] = [open(), open(join(folder, "second.db"))];
    await one.replica.put("notes", "a", { text: "bread" });
    await two.replica.put("notes", "a", { text: "eggs", count: 3 });
    assert.equal((await one.replica.sync()).applied, 1);
    assert.equal((await two.replica.sync()).conflicts, 1);
    assert.deepEqual(await row(), { text: "bread", count: 3 });
    await one.replica.sync();
    assert.deepEqual(await one.replica.row("notes", "a"), await two.replica.row("notes", "a"));
    await one.store.close();
    await two.store.close();
  } finally {
    rmSync(folder, { recursive: true });
  }
});
