/** How a replica stands, as its store says. */

import type { CollectionShape } from "./protocol.js";
import { rowKey, type Own, type Reading, type RefusedEdit } from "./store.js";

/** How a replica stands. */
export interface Standing {
  /** Its collections, with how many rows it has of each. */
  collections: { name: string; rows: number }[];
  /** Rows with edits that were not sent. */
  edited: number;
  /** Edits that are on their way. */
  sending: number;
  /** Edits that were refused. */
  refused: RefusedEdit[];
  /** Up to when it knows all; `undefined` before its first sync. */
  seen: Date | undefined;
}

/** The bits of a stamp that count within a millisecond. */
const COUNT_BITS = 15n;

export async function own(transaction: Reading): Promise<Own> {
  const fresh = { cursor: null, seen: "0", last: 0, edited: 0, after: null, point: null, refusals: 0, sentLength: 0 };
  // A store of an older version lacks some of them.
  return { ...fresh, ...(await transaction.get("own", "replica")) };
}

export async function shapes(transaction: Reading): Promise<CollectionShape[]> {
  return (await transaction.list("collections")).map(([, shape]) => shape);
}

export async function standing(transaction: Reading): Promise<Standing> {
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
