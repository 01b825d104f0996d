/**
 * What the server says comes into the rows. A row that was edited here keeps what it says until its edits were sent and
 * answered; what the server says of it waits beside it.
 */

import { ProtocolError } from "./errors.js";
import { type BlockEnd, type CollectionShape, type RowLine, type Stamp } from "./protocol.js";
import { own, shapes } from "./standing.js";
import { noteRefused } from "./edits.js";
import { rowKey, type RefusedEdit, type Told, type Writing } from "./store.js";
import { present, same } from "./values.js";

/** What a block says. */
export interface Block {
  rows: RowLine[];
  end: BlockEnd;
}

/** Reads the lines of a block. */
export function readBlock(text: string): Block {
  const lines = text.split("\n").filter((line) => line !== "");
  const read = (line: string): unknown => {
    try {
      return JSON.parse(line);
    } catch {
      throw new ProtocolError(`a line of a block is no JSON: ${line.slice(0, 80)}`);
    }
  };
  const end = lines.length ? (read(lines.pop()!) as BlockEnd | RowLine) : undefined;
  if (!end || Array.isArray(end) || typeof end.cursor !== "string") throw new ProtocolError("a block without its end");
  const rows = lines.map((line) => {
    const row = read(line);
    if (!Array.isArray(row) || row.length < 4) throw new ProtocolError(`this is no row: ${line.slice(0, 80)}`);
    return row as RowLine;
  });
  return { rows, end };
}

/** Writes a block and the cursor behind it. Gives how many rows came and went. */
export async function apply(transaction: Writing, block: Block): Promise<{ rows: number; removed: number }> {
  const known = new Map((await shapes(transaction)).map((shape) => [shape.name, shape]));
  const edited = new Set((await transaction.list("server")).map(([key]) => key));
  const areUnseen = (await transaction.count("unseen")) > 0;
  const counts = { rows: 0, removed: 0 };
  const writes: Promise<void>[] = [];
  for (const [collection, id, version, fields] of block.rows) {
    fields === null ? counts.removed++ : counts.rows++;
    // A collection that came into being after the session began is read by the next one.
    const shape = known.get(collection);
    if (!shape) continue;
    const key = rowKey(collection, id);
    if (areUnseen) writes.push(transaction.delete("unseen", key));
    writes.push(take(transaction, key, told(shape, version, fields), edited.has(key)));
  }
  await Promise.all(writes);
  await transaction.put("own", "replica", { ...(await own(transaction)), cursor: block.end.cursor });
  return counts;
}

function told(shape: CollectionShape, version: Stamp, fields: RowLine[3]): Told {
  return { version, fields: fields && present(shape, fields) };
}

/** Takes what the server says of a row. */
function take(transaction: Writing, key: string, { version, fields }: Told, isEdited: boolean): Promise<void> {
  if (isEdited) return transaction.put("server", key, { version, fields });
  return fields === null ? transaction.delete("rows", key) : transaction.put("rows", key, { version, fields });
}

/** Begins to read all anew: what is not told again will go at the end. */
export async function beginAnew(transaction: Writing, cursor: string): Promise<void> {
  for (const [key] of await transaction.list("unseen")) await transaction.delete("unseen", key);
  const keys = [...(await transaction.list("rows")), ...(await transaction.list("server"))].map(([key]) => key);
  for (const key of keys) await transaction.put("unseen", key, true);
  await transaction.put("own", "replica", { ...(await own(transaction)), cursor });
}

/** After the last block: rows that were not told again go, and rows whose edits were all sent say what the server says. */
export async function settle(transaction: Writing, seen: Stamp): Promise<void> {
  const standing = await own(transaction);
  await transaction.put("own", "replica", { ...standing, seen });
  for (const [key] of await transaction.list("unseen")) {
    const isEdited = (await transaction.get("server", key)) !== undefined;
    await take(transaction, key, { version: "0", fields: null }, isEdited);
    await transaction.delete("unseen", key);
  }
  const sending = new Set((await transaction.list("outbox")).map(([, edit]) => rowKey(edit.collection, edit.id)));
  for (const [key, told] of await transaction.list("server")) {
    if (sending.has(key) || (await transaction.get("pending", key))) continue;
    await transaction.delete("server", key);
    await take(transaction, key, told, false);
  }
}

/** Makes the collections what the server says they are. Gives whether rows have to be read anew for it. */
export async function followShapes(transaction: Writing, told: CollectionShape[]): Promise<boolean> {
  const before = await shapes(transaction);
  for (const gone of before.filter((old) => told.every((shape) => shape.name !== old.name))) {
    const unsent = await unsentOfCollection(transaction, gone.name);
    await dropCollection(transaction, gone.name);
    await noteRefused(transaction, unsent);
  }
  let anew = false;
  for (const shape of told) {
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

/** Edits of a collection that goes. They are kept among the refused ones. */
async function unsentOfCollection(transaction: Writing, name: string): Promise<RefusedEdit[]> {
  const why = `the collection \`${name}\` is not there any more for this device`;
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

/** Edits of fields that go, or become of another type. */
async function unsentOfFields(transaction: Writing, old: CollectionShape, shape: CollectionShape): Promise<RefusedEdit[]> {
  const gone = old.fields.filter(({ name, type }) => shape.fields.every((field) => field.name !== name || field.type !== type));
  const prefix = rowKey(old.name, "");
  const unsent: RefusedEdit[] = [];
  for (const [key, { was }] of await transaction.list("pending", { prefix })) {
    const is = (await transaction.get("rows", key))?.fields ?? {};
    for (const { name } of gone) {
      const value = Object.hasOwn(is, name) ? is[name]! : null;
      if (value === null || same(value, was && Object.hasOwn(was, name) ? was[name]! : null)) continue;
      const why = `${name}: is not a field of \`${old.name}\` any more, or of another type`;
      unsent.push({ n: null, collection: old.name, id: key.slice(prefix.length), why, values: { [name]: value } });
    }
  }
  return unsent;
}

/** Fields that went, and those of another type, are empty from now on. */
async function changeRows(transaction: Writing, old: CollectionShape, shape: CollectionShape): Promise<void> {
  const stays = (name: string) =>
    shape.fields.some((field) => field.name === name && old.fields.some((old) => old.name === name && old.type === field.type));
  for (const [key, row] of await transaction.list("rows", { prefix: rowKey(shape.name, "") })) {
    const fields = Object.fromEntries(Object.entries(row.fields).filter(([name]) => stays(name)));
    await transaction.put("rows", key, { ...row, fields });
  }
}

/** Drops a collection with all that is known of it. */
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

/** Drops all that the replica has. */
export async function wipe(transaction: Writing): Promise<void> {
  for (const shape of await shapes(transaction)) await dropCollection(transaction, shape.name);
  await transaction.put("own", "replica", { ...(await own(transaction)), cursor: null, seen: "0", after: null, point: null });
}
