/** What a device and the server say to each other: the bodies and lines of the protocol of sync. */

/** A JSON value. */
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** Values by the names of their fields. */
export type Fields = { [name: string]: Json };

/** A moment of the server and a place in the order of all changes: decimal digits, for it is longer than a number can be. */
export type Stamp = string;

/** What a field holds. */
export type FieldType = "boolean" | "integer" | "number" | "string" | "timestamp" | "list" | "map";

/** A collection, as far as a device knows it. */
export interface CollectionShape {
  name: string;
  fields: { name: string; type: FieldType }[];
  direction: "up" | "down" | "both";
}

/** A device begins. */
export interface Begin {
  cursor: string | null;
  wiped: boolean;
  /** The log of edits. Without it, edits are counted as in the first version of the protocol. */
  edits?: EditLog;
}

/** The state of a log of edits. */
export interface EditLog {
  /** The last batch that the server confirmed as a whole. */
  after: string | null;
  /** The batch of the first edit that the server did not confirm. */
  batch: string | null;
  /** The point in the server's history that was confirmed last. */
  point: string | null;
}

/** What a device that begins is told. */
export interface Begun {
  session: string;
  /** The last edit that the server has, of the batch that was named. */
  uploaded: number;
  /** Whether all rows are told. */
  anew: boolean;
  /** Where reading goes on. */
  cursor: string;
  /** Whether to drop all. */
  wipe: boolean;
  collections: CollectionShape[];
  /** The server was restored from a backup. The batches that it has, each with its last edit. */
  restored?: [batch: string, upto: number][] | null;
}

/** An edit: a line of a block that is sent. */
export interface Edit {
  n: number;
  /** Its batch; an edit without one is of a version without batches. */
  batch?: string;
  collection: string;
  id: string;
  base: Stamp;
  seen: Stamp;
  /** The fields that change; `null` in their place removes the row. */
  set: Fields | null;
  /** What these fields were. */
  was?: Fields;
}

/** What became of a block of edits. */
export interface Uploaded {
  uploaded: number;
  applied: number;
  conflicts: { n: number; winner: "client" | "server" | "both" }[];
  refused: { n: number; problems: { path?: string; message: string; hint?: string }[] }[];
  /** The point in the server's history behind this block. */
  point?: string;
}

/** A row that is told: collection, id, version, and what it says; `null`: it is gone. */
export type RowLine = [collection: string, id: string, version: Stamp, fields: Fields | null];

/** The last line of a block of rows. */
export interface BlockEnd {
  cursor: string;
  seen: Stamp;
  more: boolean;
}

/** The stamp of no change at all. */
export const NO_STAMP: Stamp = "0";
/** Edits of a block, at most: a quarter of what the server takes. */
export const EDITS_AT_ONCE = 500;
/** Bytes of a block of edits after which it is full: a quarter of what the server takes. */
export const EDIT_BYTES_AT_ONCE = 1 << 20;

/** Bytes of a row as JSON, at most. */
export const ROW_BYTES_MAX = 256 << 10;
/** Characters of the id of a row, at most. */
export const ROW_ID_CHARS_MAX = 128;
