/** A store in SQLite: for Node, over whichever binding a program has. */

import { behind, Turns, type Range, type Reading, type Space, type Spaces, type Store, type Writing } from "./store.js";

/** What is needed of a binding. */
export interface SqliteDatabase {
  /** Runs a statement with these values at its `?`, and gives its rows. */
  all(sql: string, values: (string | number)[]): Record<string, unknown>[];
  close(): void;
}

/** A statement of `node:sqlite` or `better-sqlite3`. */
interface Prepared {
  all(...values: (string | number)[]): unknown[];
  run(...values: (string | number)[]): unknown;
}

/** Makes the databases of `node:sqlite` and of `better-sqlite3` fit. */
export function prepared(database: { prepare(sql: string): Prepared; close(): void }): SqliteDatabase {
  const statements = new Map<string, Prepared>();
  const prepare = (sql: string) => {
    const known = statements.get(sql) ?? database.prepare(sql);
    statements.set(sql, known);
    return known;
  };
  return {
    all(sql, values) {
      if (/^\s*(SELECT|PRAGMA)\b/i.test(sql)) return prepare(sql).all(...values) as Record<string, unknown>[];
      prepare(sql).run(...values);
      return [];
    },
    close: () => database.close(),
  };
}

const TABLE = "CREATE TABLE IF NOT EXISTS replica (space TEXT, key TEXT, value TEXT NOT NULL, PRIMARY KEY (space, key)) WITHOUT ROWID";

/** Keeps a replica in a SQLite file. */
export class SqliteStore implements Store {
  readonly #turns = new Turns();
  readonly #syncs = new Turns();

  constructor(private readonly database: SqliteDatabase) {
    database.all("PRAGMA busy_timeout = 10000", []);
    database.all(TABLE, []);
  }

  read<T>(work: (transaction: Reading) => Promise<T>): Promise<T> {
    return this.#run("BEGIN", work);
  }

  write<T>(work: (transaction: Writing) => Promise<T>): Promise<T> {
    return this.#run("BEGIN IMMEDIATE", work);
  }

  alone<T>(work: () => Promise<T>): Promise<T> {
    return this.#syncs.take(work);
  }

  close(): Promise<void> {
    return this.#turns.take(async () => this.database.close());
  }

  #run<T>(begin: string, work: (transaction: Writing) => Promise<T>): Promise<T> {
    return this.#turns.take(async () => {
      this.database.all(begin, []);
      try {
        const result = await work(new SqliteTransaction(this.database));
        this.database.all("COMMIT", []);
        return result;
      } catch (error) {
        this.database.all("ROLLBACK", []);
        throw error;
      }
    });
  }
}

class SqliteTransaction implements Writing {
  constructor(private readonly database: SqliteDatabase) {}

  async get<S extends Space>(space: S, key: string): Promise<Spaces[S] | undefined> {
    const [row] = this.database.all("SELECT value FROM replica WHERE space = ? AND key = ?", [space, key]);
    return row && (JSON.parse(row["value"] as string) as Spaces[S]);
  }

  async list<S extends Space>(space: S, { prefix = "", limit = -1 }: Range = {}): Promise<[string, Spaces[S]][]> {
    const [condition, values] = within(space, prefix);
    const rows = this.database.all(`SELECT key, value FROM replica WHERE ${condition} ORDER BY key LIMIT ?`, [...values, limit]);
    return rows.map((row) => [row["key"] as string, JSON.parse(row["value"] as string) as Spaces[S]]);
  }

  async count(space: Space, prefix = ""): Promise<number> {
    const [condition, values] = within(space, prefix);
    return Number(this.database.all(`SELECT count(*) AS count FROM replica WHERE ${condition}`, values)[0]?.["count"]);
  }

  async put<S extends Space>(space: S, key: string, value: Spaces[S]): Promise<void> {
    this.database.all("INSERT OR REPLACE INTO replica VALUES (?, ?, ?)", [space, key, JSON.stringify(value)]);
  }

  async delete(space: Space, key: string): Promise<void> {
    this.database.all("DELETE FROM replica WHERE space = ? AND key = ?", [space, key]);
  }
}

function within(space: Space, prefix: string): [condition: string, values: string[]] {
  return prefix === "" ? ["space = ?", [space]] : ["space = ? AND key >= ? AND key < ?", [space, prefix, behind(prefix)]];
}
