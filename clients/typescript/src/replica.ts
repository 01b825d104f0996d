/** A replica of one's own rows: read and edited whether there is a link or not, synchronised when there is one. */

import { put, remove } from "./edits.js";
import { LinkError, UnfitError } from "./errors.js";
import { HttpLink, type Home, type Link } from "./link.js";
import type { CollectionShape, Fields } from "./protocol.js";
import { own, shapes, standing, type Standing } from "./standing.js";
import { rowKey, type Reading, type Store } from "./store.js";
import { objectionToId } from "./values.js";
import { sync, type Summary, type SyncOptions } from "./sync.js";

/** What the rows of each collection are, for programs that know: `Replica<{ notes: { text?: string } }>`. */
export type Collections = Record<string, object>;

/** How a replica is kept in step. */
export interface WatchOptions extends SyncOptions {
  /** How long it rests between two syncs where the server cannot be asked to wake it, in milliseconds. */
  every?: number;
  /** Is told after each sync. */
  synced?: (summary: Summary) => void;
  /** Is told when a sync broke off; it is tried again. */
  failed?: (error: LinkError) => void;
}

const EVERY = 30_000;
/** How long the server is asked to wait at a time: shorter than what most ways to it bear. */
const WAIT_SECONDS = 50;
/** A rest takes this long at least, so that many changes come by one sync, in milliseconds. */
const SHORTEST = 100;
/** How long one waits after the first failure, and at most after many, in milliseconds. */
const [RETRY_MIN, RETRY_MAX] = [1_000, 300_000];

/** A replica in a store. */
export class Replica<C extends Collections = Record<string, Fields>> {
  readonly #link: Link;
  readonly #listeners = new Set<() => void>();
  /** Ends a rest, if there is one. */
  #edited: () => void = () => {};

  /** Opens the replica of a store, which is of one device for ever. */
  constructor(
    private readonly store: Store,
    home: Home | Link,
  ) {
    this.#link = "url" in home ? new HttpLink(home) : home;
  }

  /** The collections that it has; none before its first sync. */
  collections(): Promise<CollectionShape[]> {
    return this.store.read(shapes);
  }

  /** A row; `undefined` if it is not there. */
  async row<N extends keyof C & string>(collection: N, id: string): Promise<C[N] | undefined> {
    return this.store.read(async (transaction) => {
      await shape(transaction, collection);
      return (await transaction.get("rows", rowKey(collection, id)))?.fields as C[N] | undefined;
    });
  }

  /** The rows of a collection by their ids. */
  async rows<N extends keyof C & string>(collection: N): Promise<Map<string, C[N]>> {
    const prefix = rowKey(collection, "");
    return this.store.read(async (transaction) => {
      await shape(transaction, collection);
      const rows = await transaction.list("rows", { prefix });
      return new Map(rows.map(([key, row]) => [key.slice(prefix.length), row.fields as C[N]]));
    });
  }

  /** Writes some fields of a row, which is made if it is not there; `null` empties one. All or, with an `UnfitError`, none. */
  async put<N extends keyof C & string>(collection: N, id: string, fields: Partial<{ [F in keyof C[N]]: C[N][F] | null }>): Promise<void> {
    const objection = objectionToId(id);
    if (objection) throw new UnfitError(objection);
    await this.store.write(async (transaction) => put(transaction, await shape(transaction, collection), id, fields as Fields));
    this.#tell();
    this.#edited();
  }

  /** Removes a row. Gives whether it was there. */
  async remove<N extends keyof C & string>(collection: N, id: string): Promise<boolean> {
    const removed = await this.store.write(async (transaction) => remove(transaction, await shape(transaction, collection), id));
    this.#tell();
    this.#edited();
    return removed;
  }

  /** Calls `listener` after each change of rows, by an edit or by a sync. Gives what ends that. */
  onChange(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /**
   * Synchronises. What was done before it breaks off, with a `LinkError`, or with the reason of `signal`, is done; the next one
   * goes on there. `WipedError`: the server told the replica to drop all, and it did.
   */
  async sync(options: SyncOptions = {}): Promise<Summary> {
    try {
      return await this.store.alone(() => sync(this.store, this.#link, options));
    } finally {
      this.#tell();
    }
  }

  /** Synchronises whenever the server has something new or rows were edited here, until `signal` ends it or the server refuses. */
  async watch(options: WatchOptions = {}): Promise<void> {
    const { signal, every = EVERY } = options;
    let failures = 0;
    while (!signal?.aborted) {
      let rest: number | undefined;
      try {
        const summary = await this.sync(options);
        options.synced?.(summary);
        failures = 0;
      } catch (error) {
        if (signal?.aborted) return;
        if (!(error instanceof LinkError) || error.trouble === "refused") throw error;
        options.failed?.(error);
        // Those whose link broke together do not come back together.
        const growing = Math.min(RETRY_MIN * 2 ** failures++, RETRY_MAX) * (0.5 + Math.random() / 2);
        rest = error.retryAfter || growing;
      }
      if (rest === undefined) await this.#rest(every, signal);
      else await pause(rest, signal);
    }
  }

  /** Rests after a sync until the server may have something new, or rows were edited here. */
  async #rest(every: number, signal: AbortSignal | undefined): Promise<void> {
    const end = new AbortController();
    const stop = () => end.abort();
    signal?.addEventListener("abort", stop);
    if (signal?.aborted) stop();
    this.#edited = stop;
    try {
      const { edited, sending } = await this.standing();
      if (edited + sending > 0) return;
      await Promise.all([this.#news(every, end.signal), pause(SHORTEST, end.signal)]);
    } finally {
      this.#edited = () => {};
      signal?.removeEventListener("abort", stop);
    }
  }

  /** Until the server may have something new; where it cannot be asked, until the time is over. */
  async #news(every: number, signal: AbortSignal): Promise<void> {
    const cursor = await this.store.read(async (transaction) => (await own(transaction)).cursor);
    while (!signal.aborted) {
      const asked = Date.now();
      try {
        if (!this.#link.wait || cursor === null) return await pause(every, signal);
        if (await this.#link.wait(cursor, WAIT_SECONDS, signal)) return;
        // A server that ends lets go of all who wait.
        if (Date.now() - asked < 1_000) return await pause(every, signal);
      } catch (error) {
        if (signal.aborted) return;
        return await pause(Math.max(error instanceof LinkError ? error.retryAfter : 0, every), signal);
      }
    }
  }

  /** How it stands. */
  standing(): Promise<Standing> {
    return this.store.read(standing);
  }

  /** Forgets the edits that were refused. */
  async forgetRefused(): Promise<void> {
    await this.store.write(async (transaction) => {
      for (const [key] of await transaction.list("refused")) await transaction.delete("refused", key);
    });
  }

  #tell(): void {
    for (const listener of this.#listeners) listener();
  }
}

async function shape(transaction: Reading, collection: string): Promise<CollectionShape> {
  const known = await transaction.get("collections", collection);
  if (known) return known;
  const names = (await shapes(transaction)).map(({ name }) => name).join(", ") || "none before its first sync";
  throw new UnfitError(`this replica has no collection \`${collection}\`; it has ${names}`);
}

/** Until the time is over, `signal` says so, or a browser that had no link has one. */
function pause(milliseconds: number, signal: AbortSignal | undefined): Promise<void> {
  const target: EventTarget | undefined = typeof globalThis.addEventListener === "function" ? globalThis : undefined;
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      target?.removeEventListener("online", end);
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    signal?.addEventListener("abort", end);
    target?.addEventListener("online", end);
    if (signal?.aborted) end();
  });
}
