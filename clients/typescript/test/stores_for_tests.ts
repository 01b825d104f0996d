/** A new store of each kind, for tests that every store passes. */

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { IDBFactory, IDBKeyRange } from "fake-indexeddb";
import wasm from "node-sqlite3-wasm";

import { IndexedDbStore, MemoryStore, prepared, SqliteStore, type SqliteDatabase, type Store } from "../src/index.js";

// A browser has it.
Object.assign(globalThis, { IDBKeyRange });

/** A binding that is WebAssembly, and so is built nowhere. */
export function sqlite(path: string): SqliteDatabase {
  const database = new wasm.Database(path);
  return {
    all: (sql, values) => database.all(sql, values) as Record<string, unknown>[],
    close: () => database.close(),
  };
}

/** The same database in the manner of `node:sqlite` and `better-sqlite3`. */
function statements(path: string): SqliteDatabase {
  const database = new wasm.Database(path);
  return prepared({
    prepare: (sql) => ({ all: (...values) => database.all(sql, values), run: (...values) => database.run(sql, values) }),
    close: () => database.close(),
  });
}

/** Runs `work` with a new store of each kind, and closes it. */
export async function withEach(work: (store: Store, kind: string) => Promise<void>): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), "replica-"));
  const stores: Record<string, Store> = {
    memory: new MemoryStore(),
    IndexedDB: await IndexedDbStore.open("test", new IDBFactory() as unknown as globalThis.IDBFactory),
    SQLite: new SqliteStore(sqlite(join(folder, "one.db"))),
    "prepared SQLite": new SqliteStore(statements(join(folder, "two.db"))),
  };
  try {
    for (const [kind, store] of Object.entries(stores)) {
      await work(store, kind);
      await store.close();
    }
  } finally {
    rmSync(folder, { recursive: true });
  }
}
