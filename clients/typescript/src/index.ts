/**
 * Offline-first replica of the rows of one device. Rows are read and edited in a local store; a sync uploads the edits and downloads
 * changes, over connections that can fail at any time.
 */

export { Replica, type Collections, type WatchOptions } from "./replica.js";
export { HttpLink, type Home, type HttpOptions, type Link } from "./link.js";
export { LinkError, ProtocolError, UnfitError, WipedError, type LinkErrorKind } from "./errors.js";
export type { Progress, Summary, SyncOptions } from "./sync.js";
export type { ReplicaState } from "./standing.js";
export { MemoryStore } from "./memory_store.js";
export { IndexedDbStore } from "./indexeddb_store.js";
export { prepared, SqliteStore, type SqliteDatabase } from "./sqlite_store.js";
export type { Reading, Space, Spaces, Store, Writing } from "./store.js";
export type * from "./protocol.js";
export { DOCUMENT_CODES, PROBLEM_CODES, type DocumentCode, type ProblemCode } from "./error_codes.js";
