/**
 * Applies downloaded rows to the replica. A row with unsent edits keeps its local values; the server's version is stored beside it
 * until the edits are uploaded and answered.
 */

import { ProtocolError } from "./errors.js";
import { type BlockEnd, type CollectionShape, type RowLine, type Stamp } from "./protocol.js";
import { own, shapes } from "./standing.js";
import { noteRefused } from "./edits.js";
import { rowKey, type RefusedEdit, type ServerRow, type Writing } from "./store.js";
import { ofTheirTypes, present, same } from "./values.js";

/** A parsed block of a download. */
export interface Block {
  rows: RowLine[];
  end: BlockEnd;
}

/** Parses the lines of a block. */
export function readBlock(text: string): Block {
  const lines = text.split("\n").filter((line) => line !== "");
  const read = (line: string): unknown => {
    try {
      return JSON.parse(line);
    } catch {
      throw new ProtocolError(`a line of a block is not JSON: ${line.slice(0, 80)}`);
    }
  };
  const end = lines.length ? (read(lines.pop()!) as BlockEnd | RowLine) : undefined;
  if (!end || Array.isArray(end) || typeof end.cursor !== "string") throw new ProtocolError("the block has no end line");
  const rows = lines.map((line) => {
    const row = read(line);
    if (!Array.isArray(row) || row.length < 4) throw new ProtocolError(`a line of a block is not a row: ${line.slice(0, 80)}`);
    return row as RowLine;
  });
  return { rows, end };
}

/** Stores a block and its cursor. Returns the numbers of received and deleted rows. */
export async function apply(transaction: Writing, block: Block): Promise<{ rows: number; removed: number }> {
  const known = new Map((await shapes(transaction)).map((shape) => [shape.name, shape]));
  const edited = new Set((await transaction.list("server")).map(([key]) => key));
  const areUnseen = (await transaction.count("unseen")) > 0;
  const counts = { rows: 0, removed: 0 };
  const writes: Promise<void>[] = [];
  for (const [collection, id, version, fields] of block.rows) {
    fields === null ? counts.removed++ : counts.rows++;
    // A collection created after the session began is read by the next session.
    const shape = known.get(collection);
    if (!shape) continue;
    const key = rowKey(collection, id);
    if (areUnseen) writes.push(transaction.delete("unseen", key));
    writes.push(take(transaction, key, serverRow(shape, version, fields), edited.has(key)));
  }
  await Promise.all(writes);
  await transaction.put("own", "replica", { ...(await own(transaction)), cursor: block.end.cursor });
  return counts;
}

function serverRow(shape: CollectionShape, version: Stamp, fields: RowLine[3]): ServerRow {
  return { version, fields: fields && present(shape, ofTheirTypes(shape, fields)) };
}

/** Stores the server's version of a row. */
function take(transaction: Writing, key: string, { version, fields }: ServerRow, isEdited: boolean): Promise<void> {
  if (isEdited) return transaction.put("server", key, { version, fields });
  return fields === null ? transaction.delete("rows", key) : transaction.put("rows", key, { version, fields });
}

/** Begins a full download. Rows that it does not contain are deleted at its end. */
export async function beginAnew(transaction: Writing, cursor: string): Promise<void> {
  for (const [key] of await transaction.list("unseen")) await transaction.delete("unseen", key);
  const keys = [...(await transaction.list("rows")), ...(await transaction.list("server"))].map(([key]) => key);
  for (const key of keys) await transaction.put("unseen", key, true);
  await transaction.put("own", "replica", { ...(await own(transaction)), cursor });
}

/** Ends a download: deletes rows that a full download did not contain, and applies the server's version of rows without unsent edits. */
export async function settle(transaction: Writing, seen: Stamp): Promise<void> {
  const standing = await own(transaction);
  await transaction.put("own", "replica", { ...standing, seen });
  for (const [key] of await transaction.list("unseen")) {
    const isEdited = (await transaction.get("server", key)) !== undefined;
    await take(transaction, key, { version: "0", fields: null }, isEdited);
    await transaction.delete("unseen", key);
  }
  const sending = new Set((await transaction.list("outbox")).map(([, edit]) => rowKey(edit.collection, edit.id)));
  for (const [key, row] of await transaction.list("server")) {
    if (sending.has(key) || (await transaction.get("pending", key))) continue;
    await transaction.delete("server", key);
    await take(transaction, key, row, false);
  }
}

/** Replaces the collections by those of the server. Returns whether a full download is needed. */
export async function followShapes(transaction: Writing, current: CollectionShape[]): Promise<boolean> {
  const before = await shapes(transaction);
  for (const gone of before.filter((old) => current.every((shape) => shape.name !== old.name))) {
    const unsent = await unsentOfCollection(transaction, gone.name);
    await dropCollection(transaction, gone.name);
    await noteRefused(transaction, unsent);
  }
  let anew = false;
  for (const shape of current) {
    const old = before.find((old) => old.name === shape.name);
    if (old && JSON.stringify(old) === JSON.stringify(shape)) continue;
    anew = true;
    await transaction.put("collections", shape.name, shape);
    if (old) await noteRefused(transaction, await unsentOfFields(transaction, old, shape));
    if (old) await changeRows(transaction, old, shape);
  }
  if (anew) await transaction.put("own", "replica", { ...(await own(transaction)), cursor: null });
  return anew;
}

/** Unsent edits of a removed collection. They become refused edits. */
async function unsentOfCollection(transaction: Writing, name: string): Promise<RefusedEdit[]> {
  const why = `the collection \`${name}\` is no longer available to this device`;
  const unsent: RefusedEdit[] = [];
  for (const [, { n, collection, id, set }] of await transaction.list("outbox")) {
    if (collection === name) unsent.push({ n, collection, id, why, values: set ?? {} });
  }
  const prefix = rowKey(name, "");
  for (const [key] of await transaction.list("pending", { prefix })) {
    const values = (await transaction.get("rows", key))?.fields ?? {};
    unsent.push({ n: null, collection: name, id: key.slice(prefix.length), why, values });
  }
  return unsent;
}

/** Unsent edits of fields that were removed or changed their type. */
async function unsentOfFields(transaction: Writing, old: CollectionShape, shape: CollectionShape): Promise<RefusedEdit[]> {
  const gone = old.fields.filter(({ name, type }) => shape.fields.every((field) => field.name !== name || field.type !== type));
  const prefix = rowKey(old.name, "");
  const unsent: RefusedEdit[] = [];
  for (const [key, { was }] of await transaction.list("pending", { prefix })) {
    const is = (await transaction.get("rows", key))?.fields ?? {};
    for (const { name } of gone) {
      const value = Object.hasOwn(is, name) ? is[name]! : null;
      if (value === null || same(value, was && Object.hasOwn(was, name) ? was[name]! : null)) continue;
      const why = `${name}: was removed from \`${old.name}\` or has another type now`;
      unsent.push({ n: null, collection: old.name, id: key.slice(prefix.length), why, values: { [name]: value } });
    }
  }
  return unsent;
}

/** Clears removed fields and those that changed their type. */
async function changeRows(transaction: Writing, old: CollectionShape, shape: CollectionShape): Promise<void> {
  const stays = (name: string) =>
    shape.fields.some((field) => field.name === name && old.fields.some((old) => old.name === name && old.type === field.type));
  for (const [key, row] of await transaction.list("rows", { prefix: rowKey(shape.name, "") })) {
    const fields = Object.fromEntries(Object.entries(row.fields).filter(([name]) => stays(name)));
    await transaction.put("rows", key, { ...row, fields });
  }
}

/** Deletes a collection and all its data. */
async function dropCollection(transaction: Writing, name: string): Promise<void> {
  for (const space of ["rows", "pending", "server", "unseen"] as const) {
    for (const [key] of await transaction.list(space, { prefix: rowKey(name, "") })) await transaction.delete(space, key);
  }
  for (const space of ["outbox", "sent", "refused"] as const) {
    for (const [key, edit] of await transaction.list(space)) {
      if (edit.collection === name) await transaction.delete(space, key);
    }
  }
  await transaction.delete("collections", name);
}

/** Deletes all data of the replica. */
export async function wipe(transaction: Writing): Promise<void> {
  for (const shape of await shapes(transaction)) await dropCollection(transaction, shape.name);
  await transaction.put("own", "replica", { ...(await own(transaction)), cursor: null, seen: "0", after: null, point: null });
}
