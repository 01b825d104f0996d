/** Storage port of a replica: values by text keys, in spaces, with transactions. */

import type { CollectionShape, Edit, Fields, Stamp } from "./protocol.js";

/** Value types by space. The keys of rows are `rowKey`s, those of edits `editKey`s, those of collections their names. */
export interface Spaces {
  /** State of the replica; its only key is `replica`. */
  own: Own;
  /** The collections as the server defines them. */
  collections: CollectionShape;
  /** Rows as the program reads them. */
  rows: StoredRow;
  /** Rows edited since their last upload. */
  pending: EditedRow;
  /** The server's version of edited rows, until both are equal. */
  server: ServerRow;
  /** Edits in order, until the server confirms them. */
  outbox: Edit;
  /** The newest confirmed edits, in case the server is restored from a backup. */
  sent: Edit;
  /** Rows not yet received during a full download. */
  unseen: true;
  /** Edits, or fields of edits, refused here or by the server, oldest first. */
  refused: RefusedEdit;
}

/** Name of a space. */
export type Space = keyof Spaces;

/** All spaces. */
export const SPACES = ["own", "collections", "rows", "pending", "server", "outbox", "sent", "unseen", "refused"] as const;

/** State of a replica. */
export interface Own {
  /** Cursor of the last download; `null` requests a full download. */
  cursor: string | null;
  /** Stamp up to which the replica is complete. */
  seen: Stamp;
  /** Number of its last edit. */
  last: number;
  /** Counter of edited rows; edits are sent in its order. */
  edited: number;
  /** The last batch of edits that the server confirmed as a whole. */
  after: string | null;
  /** The point in the server's history that was confirmed last. */
  point: string | null;
  /** Counts refused edits. */
  refusals: number;
  /** About how many characters the confirmed edits have. */
  sentLength: number;
}

/** A row. */
export interface StoredRow {
  version: Stamp;
  fields: Fields;
}

/** An edited row: its order, the version it is based on, and its fields before the edit. */
export interface EditedRow {
  order: number;
  was: Fields | null;
  base: Stamp;
  seen: Stamp;
}

/** The server's version of a row; `fields: null` means deleted. */
export interface ServerRow {
  version: Stamp;
  fields: Fields | null;
}

/**
 * An edit, or fields of one, refused here or by the server. A later edit that deletes the row or sets these fields removes the
 * refusal.
 */
export interface RefusedEdit {
  /** Its number; `null` if it was not sent. */
  n: number | null;
  collection: string;
  id: string;
  why: string;
  /** Values of the refused fields; empty if the whole row was refused. */
  values?: Fields;
}

/** Range of a list: keys that begin with `prefix`, at most `limit`. */
export interface Range {
  prefix?: string;
  limit?: number;
}

/** Read transaction. */
export interface Reading {
  get<S extends Space>(space: S, key: string): Promise<Spaces[S] | undefined>;
  /** Entries in the order of their keys. */
  list<S extends Space>(space: S, range?: Range): Promise<[string, Spaces[S]][]>;
  /** Number of keys that begin with `prefix`. */
  count(space: Space, prefix?: string): Promise<number>;
}

/** Write transaction: all of it is committed, or nothing. */
export interface Writing extends Reading {
  put<S extends Space>(space: S, key: string, value: Spaces[S]): Promise<void>;
  delete(space: Space, key: string): Promise<void>;
}

/**
 * Store of a replica. A transaction does not see uncommitted changes of others. `work` awaits only the promises of the transaction,
 * because some stores (IndexedDB) commit a transaction that waits for anything else.
 */
export interface Store {
  read<T>(work: (transaction: Reading) => Promise<T>): Promise<T>;
  /** Rolls back if `work` throws. */
  write<T>(work: (transaction: Writing) => Promise<T>): Promise<T>;
  /** Runs one `work` at a time: a lock over all users of this store, where the platform has one. */
  alone<T>(work: () => Promise<T>): Promise<T>;
  /** Closes the store. */
  close(): Promise<void>;
}

/** The key of a row. Names of collections and ids of rows have no `/`. */
export function rowKey(collection: string, id: string): string {
  return `${collection}/${id}`;
}

/** The key of an edit, so that the order of keys is that of numbers. */
export function editKey(n: number): string {
  return String(n).padStart(16, "0");
}

/** The first key after all keys that begin with a non-empty prefix. */
export function behind(prefix: string): string {
  return prefix.slice(0, -1) + String.fromCharCode(prefix.charCodeAt(prefix.length - 1) + 1);
}

/** Mutual exclusion in order of arrival. */
export class Turns {
  #last: Promise<unknown> = Promise.resolve();

  take<T>(work: () => Promise<T>): Promise<T> {
    const mine = this.#last.then(work, work);
    this.#last = mine.catch(() => undefined);
    return mine;
  }
}
