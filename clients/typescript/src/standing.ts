/** State of a replica, read from its store. */

import type { CollectionShape } from "./protocol.js";
import { rowKey, type Own, type Reading, type RefusedEdit } from "./store.js";

/** State of a replica. */
export interface ReplicaState {
  /** Its collections and their row counts. */
  collections: { name: string; rows: number }[];
  /** Number of rows with unsent edits. */
  edited: number;
  /** Number of edits being uploaded. */
  sending: number;
  /** Refused edits. */
  refused: RefusedEdit[];
  /** Time up to which the replica is complete; `undefined` before the first sync. */
  seen: Date | undefined;
}

/** Low bits of a stamp: counter within a millisecond. */
const COUNT_BITS = 15n;

export async function own(transaction: Reading): Promise<Own> {
  const fresh = { cursor: null, seen: "0", last: 0, edited: 0, after: null, point: null, refusals: 0, sentLength: 0 };
  // A store of an older version lacks some members.
  return { ...fresh, ...(await transaction.get("own", "replica")) };
}

export async function shapes(transaction: Reading): Promise<CollectionShape[]> {
  return (await transaction.list("collections")).map(([, shape]) => shape);
}

export async function standing(transaction: Reading): Promise<ReplicaState> {
  const { seen } = await own(transaction);
  const collections = [];
  for (const { name } of await shapes(transaction)) {
    collections.push({ name, rows: await transaction.count("rows", rowKey(name, "")) });
  }
  return {
    collections,
    edited: await transaction.count("pending"),
    sending: await transaction.count("outbox"),
    refused: (await transaction.list("refused")).map(([, refused]) => refused),
    seen: seen === "0" ? undefined : new Date(Number(BigInt(seen) >> COUNT_BITS)),
  };
}
