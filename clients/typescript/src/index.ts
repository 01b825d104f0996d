/**
 * A replica of one's own rows on a device that is often away. Rows are read and edited in a store of the device, and a sync
 * sends the edits and brings what is new, over any link that breaks.
 */

export { Replica, type Collections, type WatchOptions } from "./replica.js";
export { HttpLink, type Home, type HttpOptions, type Link } from "./link.js";
export { LinkError, ProtocolError, UnfitError, WipedError, type LinkTrouble } from "./errors.js";
export type { Progress, Summary, SyncOptions } from "./sync.js";
export type { Standing } from "./standing.js";
export { MemoryStore } from "./memory_store.js";
export { IndexedDbStore } from "./indexeddb_store.js";
export { prepared, SqliteStore, type SqliteDatabase } from "./sqlite_store.js";
export type { Reading, Space, Spaces, Store, Writing } from "./store.js";
export type * from "./protocol.js";
