/** Where a replica keeps what it has: values by text keys, in spaces, with transactions. */

import type { CollectionShape, Edit, Fields, Stamp } from "./protocol.js";

/** What each space holds. The keys of rows are `rowKey`s, those of edits `editKey`s, those of collections their names. */
export interface Spaces {
  /** How the replica stands; its one key is `replica`. */
  own: Own;
  /** The collections as the server told them. */
  collections: CollectionShape;
  /** Rows as a program sees them. */
  rows: Kept;
  /** Rows that were edited since they were sent last. */
  pending: Pending;
  /** What the server says of rows that were edited, until they say the same. */
  server: Told;
  /** Edits in their order, until the server has them. */
  outbox: Edit;
  /** Edits that the server confirmed, the newest of them, in case that it is restored from a backup. */
  sent: Edit;
  /** Rows that were not told again while all is read anew. */
  unseen: true;
  /** Edits, or fields of edits, that were refused here or by the server; in the order in which that happened. */
  refused: RefusedEdit;
}

/** The name of a space. */
export type Space = keyof Spaces;

/** All spaces. */
export const SPACES = ["own", "collections", "rows", "pending", "server", "outbox", "sent", "unseen", "refused"] as const;

/** How a replica stands. */
export interface Own {
  /** How far it has read; `null`: all anew. */
  cursor: string | null;
  /** Up to when it knows all. */
  seen: Stamp;
  /** The number of its last edit. */
  last: number;
  /** Counts rows as they are edited, so that edits are sent in that order. */
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
export interface Kept {
  version: Stamp;
  fields: Fields;
}

/** A row that was edited: when, on what, and what it said before. */
export interface Pending {
  order: number;
  was: Fields | null;
  base: Stamp;
  seen: Stamp;
}

/** What the server says of a row; without fields it is gone. */
export interface Told {
  version: Stamp;
  fields: Fields | null;
}

/**
 * An edit, or fields of one, that was refused here or by the server. A later edit of the row that removes it or sets these fields
 * ends the refusal.
 */
export interface RefusedEdit {
  /** Its number; `null` if it was not sent. */
  n: number | null;
  collection: string;
  id: string;
  why: string;
  /** What the fields were given; none: the row as a whole. */
  values?: Fields;
}

/** What is wanted of a list: keys that begin with `prefix`, at most `limit`. */
export interface Range {
  prefix?: string;
  limit?: number;
}

/** A transaction that reads. */
export interface Reading {
  get<S extends Space>(space: S, key: string): Promise<Spaces[S] | undefined>;
  /** Entries in the order of their keys. */
  list<S extends Space>(space: S, range?: Range): Promise<[string, Spaces[S]][]>;
  /** How many keys begin with `prefix`. */
  count(space: Space, prefix?: string): Promise<number>;
}

/** A transaction that writes: all of it stays, or nothing. */
export interface Writing extends Reading {
  put<S extends Space>(space: S, key: string, value: Spaces[S]): Promise<void>;
  delete(space: Space, key: string): Promise<void>;
}

/**
 * A place for a replica. A transaction sees nothing of others that are not done, and `work` waits for nothing but what the
 * transaction gives, for some stores end one that waits for something else.
 */
export interface Store {
  read<T>(work: (transaction: Reading) => Promise<T>): Promise<T>;
  /** What `work` throws undoes all that it wrote. */
  write<T>(work: (transaction: Writing) => Promise<T>): Promise<T>;
  /** Runs one such work at a time, across all that use this place where the platform can tell. */
  alone<T>(work: () => Promise<T>): Promise<T>;
  /** Lets the place go. */
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

/** What comes right after all keys that begin with a prefix, which is not empty. */
export function behind(prefix: string): string {
  return prefix.slice(0, -1) + String.fromCharCode(prefix.charCodeAt(prefix.length - 1) + 1);
}

/** Lets works run one after the other, in the order in which they came. */
export class Turns {
  #last: Promise<unknown> = Promise.resolve();

  take<T>(work: () => Promise<T>): Promise<T> {
    const mine = this.#last.then(work, work);
    this.#last = mine.catch(() => undefined);
    return mine;
  }
}
