/** A store in IndexedDB: for browsers. */

import { behind, SPACES, Turns, type Range, type Reading, type Space, type Spaces, type Store, type Writing } from "./store.js";

const LAYOUT = 2;

/** Keeps a replica in a database of the browser. */
export class IndexedDbStore implements Store {
  readonly #syncs = new Turns();

  private constructor(
    private readonly name: string,
    private readonly database: IDBDatabase,
  ) {}

  /** Opens the database of this name, which is made if it is not there. */
  static async open(name: string, factory: IDBFactory = indexedDB): Promise<IndexedDbStore> {
    const opening = factory.open(name, LAYOUT);
    opening.onupgradeneeded = () => {
      const known = opening.result.objectStoreNames;
      SPACES.filter((space) => !known.contains(space)).forEach((space) => opening.result.createObjectStore(space));
    };
    const database = await done(opening);
    // Another page wants to delete or change the database; one that holds it open would keep it waiting.
    database.onversionchange = () => database.close();
    return new IndexedDbStore(name, database);
  }

  /** Deletes the database of this name. */
  static async delete(name: string, factory: IDBFactory = indexedDB): Promise<void> {
    await done(factory.deleteDatabase(name));
  }

  read<T>(work: (transaction: Reading) => Promise<T>): Promise<T> {
    return this.#run("readonly", work);
  }

  write<T>(work: (transaction: Writing) => Promise<T>): Promise<T> {
    return this.#run("readwrite", work);
  }

  /** Pages of one origin wait for each other. */
  alone<T>(work: () => Promise<T>): Promise<T> {
    const locks = (globalThis.navigator as Navigator | undefined)?.locks;
    if (!locks) return this.#syncs.take(work);
    return locks.request(`tocsin-replica:${this.name}`, work) as Promise<T>;
  }

  async close(): Promise<void> {
    this.database.close();
  }

  async #run<T>(mode: IDBTransactionMode, work: (transaction: Writing) => Promise<T>): Promise<T> {
    // An edit whose number the server has seen must not be forgotten by a power cut: the number would be given again.
    const transaction = this.database.transaction([...SPACES], mode, { durability: "strict" });
    const ended = new Promise<void>((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error ?? new Error("the transaction was undone"));
    });
    // Who waits for it is the last line; until then nobody listens.
    ended.catch(() => undefined);
    try {
      const result = await work(new IndexedDbTransaction(transaction));
      transaction.commit?.();
      await ended;
      return result;
    } catch (error) {
      try {
        transaction.abort();
      } catch {
        // It is over already; `error` says why.
      }
      throw error;
    }
  }
}

class IndexedDbTransaction implements Writing {
  constructor(private readonly transaction: IDBTransaction) {}

  get<S extends Space>(space: S, key: string): Promise<Spaces[S] | undefined> {
    return done(this.transaction.objectStore(space).get(key)) as Promise<Spaces[S] | undefined>;
  }

  async list<S extends Space>(space: S, { prefix = "", limit }: Range = {}): Promise<[string, Spaces[S]][]> {
    const store = this.transaction.objectStore(space);
    // Both are asked before either answers, and both are in the order of the keys.
    const [keys, values] = await Promise.all([
      done(store.getAllKeys(within(prefix), limit)),
      done(store.getAll(within(prefix), limit)),
    ]);
    return keys.map((key, at) => [key as string, values[at] as Spaces[S]]);
  }

  count(space: Space, prefix = ""): Promise<number> {
    return done(this.transaction.objectStore(space).count(within(prefix)));
  }

  async put<S extends Space>(space: S, key: string, value: Spaces[S]): Promise<void> {
    await done(this.transaction.objectStore(space).put(value, key));
  }

  async delete(space: Space, key: string): Promise<void> {
    await done(this.transaction.objectStore(space).delete(key));
  }
}

function within(prefix: string): IDBKeyRange | undefined {
  return prefix === "" ? undefined : IDBKeyRange.bound(prefix, behind(prefix), false, true);
}

function done<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new Error("IndexedDB does not do it"));
  });
}
