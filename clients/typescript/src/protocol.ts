/** Bodies and lines of the sync protocol. */

import type { ProblemCode } from "./error_codes.js";

/** A JSON value. */
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** Values by the names of their fields. */
export type Fields = { [name: string]: Json };

/** Hybrid timestamp: time of the server and position in the change sequence, in decimal digits (it exceeds 53 bits). */
export type Stamp = string;

/** Type of a field. */
export type FieldType = "boolean" | "integer" | "number" | "string" | "timestamp" | "list" | "map";

/** A collection as a device sees it. */
export interface CollectionShape {
  name: string;
  fields: { name: string; type: FieldType }[];
  direction: "up" | "down" | "both";
}

/** Request that begins a session. */
export interface BeginRequest {
  cursor: string | null;
  wiped: boolean;
  /** The log of edits. Without it, edits are counted as in the first version of the protocol. */
  edits?: EditLog;
}

/** State of the edit log. */
export interface EditLog {
  /** The last batch that the server confirmed as a whole. */
  after: string | null;
  /** The batch of the first edit that the server did not confirm. */
  batch: string | null;
  /** The point in the server's history that was confirmed last. */
  point: string | null;
}

/** Response to `BeginRequest`. */
export interface BeginResponse {
  session: string;
  /** Number of the last edit that the server has of the named batch. */
  uploaded: number;
  /** Whether a full download follows. */
  anew: boolean;
  /** Cursor at which the download continues. */
  cursor: string;
  /** Whether the replica must delete all data. */
  wipe: boolean;
  collections: CollectionShape[];
  /** Set if the server was restored from a backup: the batches that it has, each with its last edit. */
  restored?: [batch: string, upto: number][] | null;
}

/** An edit: one line of an upload. */
export interface Edit {
  n: number;
  /** Its batch; missing in edits of a version without batches. */
  batch?: string;
  collection: string;
  id: string;
  base: Stamp;
  seen: Stamp;
  /** Changed fields; `null` deletes the row. */
  set: Fields | null;
  /** Previous values of these fields. */
  was?: Fields;
}

/** Problem of a request or an edit. */
export interface Problem {
  /** Machine-readable kind; a server of a later version can send codes that this client does not know. */
  code: ProblemCode | (string & {});
  /** Dotted path of the value; empty for the whole. */
  path?: string;
  message: string;
  /** Parameters of the message, such as `limit`. */
  params?: Record<string, unknown>;
  hint?: string;
}

/** Response to an upload. */
export interface Uploaded {
  uploaded: number;
  applied: number;
  conflicts: { n: number; winner: "client" | "server" | "both" }[];
  refused: { n: number; problems: Problem[] }[];
  /** Point in the server's history after this block. */
  point?: string;
}

/** Row of a download: collection, id, version and fields; `null` means deleted. */
export type RowLine = [collection: string, id: string, version: Stamp, fields: Fields | null];

/** The last line of a block of rows. */
export interface BlockEnd {
  cursor: string;
  seen: Stamp;
  more: boolean;
}

/** Stamp before the first change. */
export const NO_STAMP: Stamp = "0";
/** Maximum number of edits of an upload: a quarter of the server's limit. */
export const EDITS_AT_ONCE = 500;
/** Size in bytes from which an upload is full: a quarter of the server's limit. */
export const EDIT_BYTES_AT_ONCE = 1 << 20;

/** Maximum size of a row as JSON, in bytes. */
export const ROW_BYTES_MAX = 256 << 10;
/** Maximum length of a row id, in characters. */
export const ROW_ID_CHARS_MAX = 128;
