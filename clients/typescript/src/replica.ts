/** Offline-first replica of the rows of one device: read and edited locally, synchronized when the server is reachable. */

import { put, remove } from "./edits.js";
import { LinkError, UnfitError } from "./errors.js";
import { HttpLink, type Home, type Link } from "./link.js";
import type { CollectionShape, Fields } from "./protocol.js";
import { own, shapes, standing, type ReplicaState } from "./standing.js";
import { rowKey, type Reading, type Store } from "./store.js";
import { objectionToId } from "./values.js";
import { sync, type Summary, type SyncOptions } from "./sync.js";

/** Row types by collection, for typed access: `Replica<{ notes: { text?: string } }>`. */
export type Collections = Record<string, object>;

/** Options of `watch`. */
export interface WatchOptions extends SyncOptions {
  /** Interval between syncs if the link has no long poll, in milliseconds. */
  every?: number;
  /** Called after each sync. */
  synced?: (summary: Summary) => void;
  /** Called when a sync fails; it is retried. */
  failed?: (error: LinkError) => void;
}

const EVERY = 30_000;
/** Duration of one long poll, in seconds: shorter than the idle timeout of most proxies. */
const WAIT_SECONDS = 50;
/** Shortest time between two syncs, so that one sync fetches many changes, in milliseconds. */
const SHORTEST = 100;
/** Back-off with jitter: first and longest delay, in milliseconds. */
const [RETRY_MIN, RETRY_MAX] = [1_000, 300_000];

/** A replica in a store. */
export class Replica<C extends Collections = Record<string, Fields>> {
  readonly #link: Link;
  readonly #listeners = new Set<() => void>();
  /** Ends the pause between two syncs, if there is one. */
  #edited: () => void = () => {};

  /** Opens the replica of a store. A store belongs to one device permanently. */
  constructor(
    private readonly store: Store,
    home: Home | Link,
  ) {
    this.#link = "url" in home ? new HttpLink(home) : home;
  }

  /** Its collections; none before the first sync. */
  collections(): Promise<CollectionShape[]> {
    return this.store.read(shapes);
  }

  /** A row, or `undefined` if it does not exist. */
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

  /** Sets fields of a row, and creates it if it does not exist; `null` clears a field. On an `UnfitError` nothing is changed. */
  async put<N extends keyof C & string>(collection: N, id: string, fields: Partial<{ [F in keyof C[N]]: C[N][F] | null }>): Promise<void> {
    const objection = objectionToId(id);
    if (objection) throw new UnfitError(objection);
    await this.store.write(async (transaction) => put(transaction, await shape(transaction, collection), id, fields as Fields));
    this.#notify();
    this.#edited();
  }

  /** Deletes a row. Returns whether it existed. */
  async remove<N extends keyof C & string>(collection: N, id: string): Promise<boolean> {
    const removed = await this.store.write(async (transaction) => remove(transaction, await shape(transaction, collection), id));
    this.#notify();
    this.#edited();
    return removed;
  }

  /** Calls `listener` after each change of rows, by an edit or by a sync. Returns a function that removes it. */
  onChange(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /**
   * Synchronizes. If it fails with a `LinkError`, or with the reason of `signal`, completed blocks stay and the next sync continues
   * from there. `WipedError`: the server ordered a wipe, and the replica has deleted its data.
   */
  async sync(options: SyncOptions = {}): Promise<Summary> {
    try {
      return await this.store.alone(() => sync(this.store, this.#link, options));
    } finally {
      this.#notify();
    }
  }

  /** Synchronizes on every change of the server or of the replica, until `signal` is aborted or the server refuses. */
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
        if (!(error instanceof LinkError) || error.kind === "refused") throw error;
        options.failed?.(error);
        // Jitter: clients that failed at the same time do not return at the same time.
        const growing = Math.min(RETRY_MIN * 2 ** failures++, RETRY_MAX) * (0.5 + Math.random() / 2);
        rest = error.retryAfter || growing;
      }
      if (rest === undefined) await this.#rest(every, signal);
      else await pause(rest, signal);
    }
  }

  /** Pauses after a sync until the server may have changes, or rows are edited here. */
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

  /** Waits until the server may have changes; without a long poll, until `every` has passed. */
  async #news(every: number, signal: AbortSignal): Promise<void> {
    const cursor = await this.store.read(async (transaction) => (await own(transaction)).cursor);
    while (!signal.aborted) {
      const asked = Date.now();
      try {
        if (!this.#link.wait || cursor === null) return await pause(every, signal);
        if (await this.#link.wait(cursor, WAIT_SECONDS, signal)) return;
        // A server that shuts down answers all long polls.
        if (Date.now() - asked < 1_000) return await pause(every, signal);
      } catch (error) {
        if (signal.aborted) return;
        return await pause(Math.max(error instanceof LinkError ? error.retryAfter : 0, every), signal);
      }
    }
  }

  /** Its state. */
  standing(): Promise<ReplicaState> {
    return this.store.read(standing);
  }

  /** Deletes the refused edits. */
  async forgetRefused(): Promise<void> {
    await this.store.write(async (transaction) => {
      for (const [key] of await transaction.list("refused")) await transaction.delete("refused", key);
    });
  }

  #notify(): void {
    for (const listener of this.#listeners) listener();
  }
}

async function shape(transaction: Reading, collection: string): Promise<CollectionShape> {
  const known = await transaction.get("collections", collection);
  if (known) return known;
  const names = (await shapes(transaction)).map(({ name }) => name).join(", ") || "none before its first sync";
  throw new UnfitError(`this replica has no collection \`${collection}\`; it has ${names}`);
}

/** Resolves after the time, when `signal` is aborted, or when a browser comes back online. */
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
