/** What was edited becomes edits: numbered, sent in order, and kept until the server has them. */

import { EDIT_BYTES_AT_ONCE, EDITS_AT_ONCE, type CollectionShape, type Edit, type Fields, type Uploaded } from "./protocol.js";
import { own, shapes } from "./standing.js";
import { editKey, rowKey, type Kept, type Reading, type Writing } from "./store.js";
import { fitting, present, same } from "./values.js";

/** Writes some fields of a row, which is made if it is not there. */
export async function put(transaction: Writing, shape: CollectionShape, id: string, fields: Fields): Promise<void> {
  fitting(shape, fields);
  const key = rowKey(shape.name, id);
  const row = await transaction.get("rows", key);
  await note(transaction, key, row);
  const version = row?.version ?? "0";
  await transaction.put("rows", key, { version, fields: present(shape, { ...row?.fields, ...fields }) });
}

/** Removes a row. Gives whether it was there. */
export async function remove(transaction: Writing, shape: CollectionShape, id: string): Promise<boolean> {
  const key = rowKey(shape.name, id);
  const row = await transaction.get("rows", key);
  if (!row) return false;
  await note(transaction, key, row);
  await transaction.delete("rows", key);
  return true;
}

/** What a row said when it was edited first stays noted until it is sent. */
async function note(transaction: Writing, key: string, row: Kept | undefined): Promise<void> {
  const [was, base] = [row?.fields ?? null, row?.version ?? "0"];
  if (!(await transaction.get("server", key))) await transaction.put("server", key, { version: base, fields: was });
  if (await transaction.get("pending", key)) return;
  const standing = await own(transaction);
  const order = standing.edited + 1;
  await transaction.put("pending", key, { order, was, base, seen: standing.seen });
  await transaction.put("own", "replica", { ...standing, edited: order });
}

/** Makes numbered edits of what was edited. From now on they do not change; what is edited later is another edit. */
export async function numberEdits(transaction: Writing): Promise<void> {
  const known = new Map((await shapes(transaction)).map((shape) => [shape.name, shape]));
  const standing = await own(transaction);
  const pending = (await transaction.list("pending")).sort(([, one], [, other]) => one.order - other.order);
  for (const [key, { was, base, seen }] of pending) {
    await transaction.delete("pending", key);
    const at = key.indexOf("/");
    const [collection, id] = [key.slice(0, at), key.slice(at + 1)];
    const shape = known.get(collection);
    const is = (await transaction.get("rows", key))?.fields ?? null;
    const change = shape && difference(shape, was, is);
    if (!change) continue;
    const n = ++standing.last;
    await transaction.put("outbox", editKey(n), { n, collection, id, base, seen, ...change });
  }
  await transaction.put("own", "replica", standing);
}

/** What an edit sets and what that was; `undefined` if nothing changed. */
function difference(shape: CollectionShape, was: Fields | null, is: Fields | null): Pick<Edit, "set" | "was"> | undefined {
  if (is === null) return was === null ? undefined : { set: null, was };
  if (was === null) return { set: is };
  const changed = shape.fields.map(({ name }) => name).filter((name) => !same(was[name] ?? null, is[name] ?? null));
  const of = (fields: Fields) => Object.fromEntries(changed.map((name) => [name, fields[name] ?? null]));
  return changed.length ? { set: of(is), was: of(was) } : undefined;
}

/** The lines of the next block to send, and how many edits are in it. */
export async function nextBlock(transaction: Reading): Promise<{ lines: string; edits: number }> {
  let [lines, edits] = ["", 0];
  for (const [, edit] of await transaction.list("outbox", { limit: EDITS_AT_ONCE })) {
    const line = JSON.stringify(edit) + "\n";
    if (edits > 0 && lines.length + line.length > EDIT_BYTES_AT_ONCE) break;
    lines += line;
    edits++;
  }
  return { lines, edits };
}

/** Notes what the server has. A store that was put back to an earlier state counts on from there. */
export async function acknowledge(transaction: Writing, uploaded: number): Promise<void> {
  for (const [key, { n }] of await transaction.list("outbox")) {
    if (n > uploaded) break;
    await transaction.delete("outbox", key);
  }
  const standing = await own(transaction);
  if (standing.last < uploaded) await transaction.put("own", "replica", { ...standing, last: uploaded });
}

/** Notes what became of a block. */
export async function noteOutcome(transaction: Writing, outcome: Uploaded): Promise<void> {
  for (const { n, problems } of outcome.refused) {
    const edit = await transaction.get("outbox", editKey(n));
    if (!edit) continue;
    const why = problems.map(({ path, message }) => (path ? `${path}: ${message}` : message)).join("; ");
    await transaction.put("refused", editKey(n), { n, collection: edit.collection, id: edit.id, why });
  }
  await acknowledge(transaction, outcome.uploaded);
}
