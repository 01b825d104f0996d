/** One sync: uploads edits first, so that none is lost in a full download. */

import { apply, beginAnew, followShapes, readBlock, settle, wipe } from "./apply.js";
import { acknowledge, editLog, nextBlock, noteOutcome, numberEdits, pruneSent, sendAgain } from "./edits.js";
import { LinkError, WipedError } from "./errors.js";
import type { Link } from "./link.js";
import { own } from "./standing.js";
import type { Store } from "./store.js";

/** Maximum number of sessions of one sync: the access of a device can change during a download. */
const SESSIONS_MAX = 8;

/** Result of a sync. */
export interface Summary {
  /** Edits that the server applied. */
  applied: number;
  /** Edits that met a conflict. */
  conflicts: number;
  /** Edits refused here or by the server, as a whole or in some fields. */
  refused: number;
  /** Rows received. */
  rows: number;
  /** Rows deleted. */
  removed: number;
  /** Blocks, both ways. */
  blocks: number;
  /** Whether it was a full download. */
  anew: boolean;
  /** Edits sent again because the server was restored from a backup without them. */
  sentAgain: number;
}

/** Progress of a sync. */
export interface Progress {
  /** Edits uploaded. */
  sent: number;
  /** Rows received or deleted. */
  received: number;
}

/** Options of a sync. */
export interface SyncOptions {
  /** Called after each block. */
  progress?: (progress: Progress) => void;
  /** Cancels the sync; completed blocks stay. */
  signal?: AbortSignal;
}

/** Synchronizes. If it fails, completed blocks stay and the next sync continues from there. */
export async function sync(store: Store, link: Link, options: SyncOptions): Promise<Summary> {
  const summary: Summary = { applied: 0, conflicts: 0, refused: 0, rows: 0, removed: 0, blocks: 0, anew: false, sentAgain: 0 };
  for (let session = 0; session < SESSIONS_MAX; session++) {
    try {
      const { isWhole } = await new Run(store, link, options, summary).run();
      if (isWhole) return summary;
    } catch (error) {
      if (!(error instanceof LinkError && error.kind === "over")) throw error;
    }
  }
  throw new LinkError("broken", "the access of this device changes during every sync");
}

class Run {
  readonly #progress: Progress = { sent: 0, received: 0 };

  constructor(
    private readonly store: Store,
    private readonly link: Link,
    private readonly options: SyncOptions,
    private readonly summary: Summary,
  ) {}

  async run(): Promise<{ isWhole: boolean }> {
    const { begun, isWhole } = await this.#begin();
    this.options.progress?.(this.#progress);
    await this.#send(begun.session);
    this.summary.anew ||= begun.anew;
    await this.#receive(begun.session, begun.cursor);
    await this.store.write(pruneSent);
    await this.link.end(begun.session, this.options.signal).catch((error: unknown) => {
      // All blocks are done; the server ends the session by its timeout.
      if (!(error instanceof LinkError) || error.kind === "refused") throw error;
    });
    return { isWhole };
  }

  async #begin() {
    const { store, link } = this;
    const { signal } = this.options;
    const { cursor, edits } = await store.read(async (transaction) => ({
      cursor: (await own(transaction)).cursor,
      edits: await editLog(transaction),
    }));
    // Edits that an older version numbered without batches are sent in a separate session.
    const log = edits && { edits };
    let begun = await link.begin({ cursor, wiped: false, ...log }, signal);
    if (begun.wipe) {
      await store.write(wipe);
      await link.begin({ cursor: null, wiped: true }, signal);
      throw new WipedError();
    }
    const hasNewShapes = await store.write((transaction) => followShapes(transaction, begun.collections));
    await store.write(async (transaction) => {
      if (!edits) await acknowledge(transaction, undefined, begun.uploaded);
      else if (edits.batch !== null) await acknowledge(transaction, edits.batch, begun.uploaded);
      if (edits && begun.restored) this.summary.sentAgain += await sendAgain(transaction, begun.restored);
      if (edits) this.summary.refused += await numberEdits(transaction);
    });
    // Rows that were downloaded before lack the new fields.
    if (hasNewShapes && cursor !== null) begun = await link.begin({ cursor: null, wiped: false, ...log }, signal);
    if (begun.anew) {
      await store.write(async (transaction) => {
        if ((await own(transaction)).cursor !== begun.cursor) await beginAnew(transaction, begun.cursor);
      });
    }
    return { begun, isWhole: edits !== undefined };
  }

  async #send(session: string): Promise<void> {
    for (;;) {
      const { lines, edits } = await this.store.read(nextBlock);
      if (edits === 0) return;
      const outcome = await this.link.upload(session, lines, this.options.signal);
      await this.store.write((transaction) => noteOutcome(transaction, outcome));
      this.summary.applied += outcome.applied;
      this.summary.conflicts += outcome.conflicts.length;
      this.summary.refused += outcome.refused.length;
      this.summary.blocks++;
      this.#progress.sent += edits;
      this.options.progress?.(this.#progress);
    }
  }

  async #receive(session: string, from: string): Promise<void> {
    let cursor = from;
    for (;;) {
      const block = readBlock(await this.link.download(session, cursor, this.options.signal));
      const { rows, removed } = await this.store.write((transaction) => apply(transaction, block));
      this.summary.rows += rows;
      this.summary.removed += removed;
      this.summary.blocks++;
      this.#progress.received += rows + removed;
      this.options.progress?.(this.#progress);
      if (!block.end.more) return this.store.write((transaction) => settle(transaction, block.end.seen));
      cursor = block.end.cursor;
    }
  }
}
