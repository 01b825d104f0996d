/**
 * Edit log: edited rows become edits, numbered in batches, sent in order and kept until the server confirms them. Batch ids are
 * random, so a copied or restored store never reuses the number of an edit.
 */

import { EDIT_BYTES_AT_ONCE, EDITS_AT_ONCE, type CollectionShape, type Edit, type EditLog, type Fields, type Uploaded } from "./protocol.js";
import { own, shapes } from "./standing.js";
import { editKey, rowKey, type StoredRow, type Reading, type RefusedEdit, type Writing } from "./store.js";
import { fitting, fittingRow, objectionToValue, present, same } from "./values.js";

/** Number of confirmed edits kept in case the server is restored from a backup. */
const SENT_KEPT = 1_000;
/** Maximum total length of these, in characters. */
const SENT_LENGTH_KEPT = 4 << 20;
/** Number of refused edits kept; older ones are deleted. */
const REFUSED_KEPT = 1_000;

/** Sets fields of a row, and creates it if it does not exist. */
export async function put(transaction: Writing, shape: CollectionShape, id: string, fields: Fields): Promise<void> {
  fitting(shape, fields);
  const key = rowKey(shape.name, id);
  const row = await transaction.get("rows", key);
  await note(transaction, key, row);
  const version = row?.version ?? "0";
  const changed = present(shape, { ...row?.fields, ...fields });
  fittingRow(id, changed);
  await transaction.put("rows", key, { version, fields: changed });
}

/** Deletes a row. Returns whether it existed. */
export async function remove(transaction: Writing, shape: CollectionShape, id: string): Promise<boolean> {
  const key = rowKey(shape.name, id);
  const row = await transaction.get("rows", key);
  if (!row) return false;
  await note(transaction, key, row);
  await transaction.delete("rows", key);
  return true;
}

/** Stores the fields that a row had before its first unsent edit. */
async function note(transaction: Writing, key: string, row: StoredRow | undefined): Promise<void> {
  const [was, base] = [row?.fields ?? null, row?.version ?? "0"];
  if (!(await transaction.get("server", key))) await transaction.put("server", key, { version: base, fields: was });
  if (await transaction.get("pending", key)) return;
  const standing = await own(transaction);
  const order = standing.edited + 1;
  await transaction.put("pending", key, { order, was, base, seen: standing.seen });
  await transaction.put("own", "replica", { ...standing, edited: order });
}

/** State of the edit log for the server; `undefined` while edits without batches (of an older version) are unsent. */
export async function editLog(transaction: Reading): Promise<EditLog | undefined> {
  const [first] = await transaction.list("outbox", { limit: 1 });
  if (first && first[1].batch === undefined) return undefined;
  const { after, point } = await own(transaction);
  return { after, batch: first?.[1].batch ?? null, point };
}

/**
 * Numbers the edited rows as one batch. It does not change any more; later edits form another batch. Returns the number of fields
 * that were refused because they cannot be sent.
 */
export async function numberEdits(transaction: Writing): Promise<number> {
  const known = new Map((await shapes(transaction)).map((shape) => [shape.name, shape]));
  const standing = await own(transaction);
  const batch = randomId();
  const refused: RefusedEdit[] = [];
  const pending = (await transaction.list("pending")).sort(([, one], [, other]) => one.order - other.order);
  for (const [key, { was, base, seen }] of pending) {
    await transaction.delete("pending", key);
    const at = key.indexOf("/");
    const [collection, id] = [key.slice(0, at), key.slice(at + 1)];
    const shape = known.get(collection);
    const is = (await transaction.get("rows", key))?.fields ?? null;
    const change = shape && difference(shape, was, is);
    if (!change) continue;
    // A store of an older version may hold values that cannot be sent. They are refused, and the others are sent.
    for (const [name, value] of Object.entries(change.set ?? {})) {
      const field = shape.fields.find((field) => field.name === name);
      const wanted = field && objectionToValue(field.type, value);
      if (!wanted) continue;
      refused.push({ n: null, collection, id, why: `${name}: should be ${wanted}`, values: { [name]: value } });
      delete change.set![name];
      delete change.was?.[name];
    }
    if (was !== null && change.set && Object.keys(change.set).length === 0) continue;
    await clearRefused(transaction, collection, id, change.set);
    const n = ++standing.last;
    await transaction.put("outbox", editKey(n), { n, batch, collection, id, base, seen, ...change });
  }
  await transaction.put("own", "replica", standing);
  await noteRefused(transaction, refused);
  return refused.length;
}

/** Changed fields with old and new values; `undefined` if nothing changed. */
function difference(shape: CollectionShape, was: Fields | null, is: Fields | null): Pick<Edit, "set" | "was"> | undefined {
  if (is === null) return was === null ? undefined : { set: null, was };
  if (was === null) return { set: { ...is } };
  const value = (fields: Fields, name: string) => (Object.hasOwn(fields, name) ? fields[name]! : null);
  const changed = shape.fields.map(({ name }) => name).filter((name) => !same(value(was, name), value(is, name)));
  const of = (fields: Fields) => Object.fromEntries(changed.map((name) => [name, value(fields, name)]));
  return changed.length ? { set: of(is), was: of(was) } : undefined;
}

/** Lines of the next upload, and the number of its edits. */
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

/** Confirms the edits that the server already has of the batch of this session; `undefined` means edits without batches. */
export async function acknowledge(transaction: Writing, batch: string | undefined, uploaded: number): Promise<void> {
  await confirm(transaction, (edit) => edit.batch === batch && edit.n <= uploaded);
  const standing = await own(transaction);
  if (batch === undefined && standing.last < uploaded) await transaction.put("own", "replica", { ...standing, last: uploaded });
}

/** Moves confirmed edits from the front of the outbox to `sent`. */
async function confirm(transaction: Writing, isConfirmed: (edit: Edit) => boolean): Promise<void> {
  const standing = await own(transaction);
  let last: string | undefined;
  let rest: Edit | undefined;
  for (const [key, edit] of await transaction.list("outbox")) {
    if (!isConfirmed(edit)) {
      rest = edit;
      break;
    }
    await transaction.delete("outbox", key);
    last = edit.batch;
    if (edit.batch === undefined) continue;
    await transaction.put("sent", key, edit);
    standing.sentLength += JSON.stringify(edit).length;
  }
  if (last !== undefined && rest?.batch !== last) standing.after = last;
  await transaction.put("own", "replica", standing);
}

/** Stores the result of an upload. */
export async function noteOutcome(transaction: Writing, outcome: Uploaded): Promise<void> {
  const refused: RefusedEdit[] = [];
  for (const { n, problems } of outcome.refused) {
    const edit = await transaction.get("outbox", editKey(n));
    if (!edit) continue;
    const why = problems.map(({ path, message }) => (path ? `${path}: ${message}` : message)).join("; ");
    const named = Object.entries(edit.set ?? {}).filter(([name]) => problems.some(({ path }) => path === name));
    refused.push({ n, collection: edit.collection, id: edit.id, why, values: Object.fromEntries(named) });
  }
  await noteRefused(transaction, refused);
  await confirm(transaction, ({ n }) => n <= outcome.uploaded);
  if (outcome.point) await transaction.put("own", "replica", { ...(await own(transaction)), point: outcome.point });
}

/**
 * After a restore of the server: queues confirmed edits that the server no longer has. `known` lists the batches that it has, each
 * with its last edit. Returns the number of queued edits.
 */
export async function sendAgain(transaction: Writing, known: [batch: string, upto: number][]): Promise<number> {
  const upto = new Map(known);
  const sent = await transaction.list("sent");
  let count = 0;
  // One new batch, so that the server can confirm it as a whole after a broken connection.
  const batch = randomId();
  for (const [key, edit] of sent.reverse()) {
    if (edit.n <= (upto.get(edit.batch!) ?? 0)) break;
    await transaction.delete("sent", key);
    await transaction.put("outbox", key, { ...edit, batch });
    count++;
  }
  await transaction.put("own", "replica", { ...(await own(transaction)), point: null });
  return count;
}

/** Deletes confirmed edits beyond the limits. */
export async function pruneSent(transaction: Writing): Promise<void> {
  const standing = await own(transaction);
  if (standing.sentLength <= SENT_LENGTH_KEPT && (await transaction.count("sent")) <= SENT_KEPT) return;
  let [count, length] = [0, 0];
  for (const [key, edit] of (await transaction.list("sent")).reverse()) {
    const more = JSON.stringify(edit).length;
    // Half of the limit, so that pruning does not run after each sync.
    if (count < SENT_KEPT / 2 && length + more < SENT_LENGTH_KEPT / 2) [count, length] = [count + 1, length + more];
    else await transaction.delete("sent", key);
  }
  await transaction.put("own", "replica", { ...standing, sentLength: length });
}

/** Deletes refusals that an edit supersedes: it deletes the row, or sets the refused fields. */
async function clearRefused(transaction: Writing, collection: string, id: string, set: Fields | null): Promise<void> {
  for (const [key, refused] of await transaction.list("refused")) {
    if (refused.collection !== collection || refused.id !== id) continue;
    const fields = Object.keys(refused.values ?? {});
    if (set === null || fields.length === 0 || fields.some((name) => Object.hasOwn(set, name))) await transaction.delete("refused", key);
  }
}

/** Stores refused edits. */
export async function noteRefused(transaction: Writing, refused: RefusedEdit[]): Promise<void> {
  if (refused.length === 0) return;
  const standing = await own(transaction);
  for (const one of refused) {
    // A separate counter; keys of an older version, numbered by edit, sort first.
    await transaction.put("refused", `r${editKey(++standing.refusals)}`, one);
  }
  await transaction.put("own", "replica", standing);
  const kept = await transaction.list("refused");
  for (const [key] of kept.slice(0, Math.max(0, kept.length - REFUSED_KEPT))) await transaction.delete("refused", key);
}

/** 128 random bits. */
function randomId(): string {
  const bytes = new Uint8Array(16);
  // Node 18 has no global `crypto`. `Math.random` is unique enough between two copies of a store.
  if (globalThis.crypto?.getRandomValues) globalThis.crypto.getRandomValues(bytes);
  else bytes.forEach((_, at) => (bytes[at] = Math.floor(Math.random() * 256)));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
