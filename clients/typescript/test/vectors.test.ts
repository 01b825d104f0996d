/** The cases that every client passes. */

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

import { LinkError, ProtocolError, Replica, UnfitError, WipedError, type BeginRequest, type BeginResponse, type CollectionShape, type Fields, type Link, type Uploaded } from "../src/index.js";
import { withEach } from "./stores_for_tests.js";

const FOLDER = new URL("../../../../testdata/replica/", import.meta.url);

interface Call {
  begin?: BeginRequest;
  upload?: unknown[];
  download?: string;
  end?: true;
  answer?: unknown;
  broken?: true;
  over?: true;
  busy?: number;
  refused?: string;
}

interface Step {
  sync?: Call[];
  summary?: Record<string, unknown>;
  put?: [collection: string, id: string, fields: Fields];
  remove?: [collection: string, id: string];
  rows?: Record<string, Record<string, Fields>>;
  names?: string[];
  standing?: Record<string, unknown>;
  error?: string;
}

interface Case {
  name: string;
  steps: Step[];
}

/** A server that expects these calls. */
class Script implements Link {
  calls: Call[] = [];
  /** The ids of batches, in the order in which they were sent first. A case calls them `b1`, `b2`. */
  readonly #batches: string[] = [];
  #session = "";

  constructor(private readonly collections: CollectionShape[]) {}

  async begin(begin: BeginRequest): Promise<BeginResponse> {
    const scripted = this.#next({ begin }) as Partial<BeginResponse>;
    const begun = { session: "s", uploaded: 0, anew: false, wipe: false, collections: this.collections, cursor: "", ...scripted };
    begun.restored = begun.restored?.map(([name, upto]) => [this.#batches[Number(name.slice(1)) - 1]!, upto]) ?? null;
    this.#session = begun.session;
    return begun;
  }

  async upload(session: string, lines: string): Promise<Uploaded> {
    assert.equal(session, this.#session);
    const edits = lines.trimEnd().split("\n").map((line) => JSON.parse(line) as unknown);
    return { applied: 0, conflicts: [], refused: [], ...(this.#next({ upload: edits }) as Pick<Uploaded, "uploaded">) };
  }

  async download(session: string, cursor: string): Promise<string> {
    assert.equal(session, this.#session);
    return (this.#next({ download: cursor }) as unknown[]).map((line) => JSON.stringify(line) + "\n").join("");
  }

  async end(session: string): Promise<void> {
    assert.equal(session, this.#session);
    this.#next({ end: true });
  }

  /** Names batches as the case does. What the case says nothing of is left out: the log of edits, and the batch of an edit. */
  #leaveOut(made: Call, call: Call): void {
    if (made.begin) {
      const { edits, ...begin } = made.begin;
      made.begin = begin;
      if (call.begin?.edits && edits) made.begin.edits = { ...edits, after: this.#name(edits.after), batch: this.#name(edits.batch) };
    }
    if (!made.upload) return;
    made.upload = made.upload.map((edit, at) => {
      const { batch, ...rest } = edit as { batch: string };
      const name = this.#name(batch);
      return (call.upload?.[at] as { batch?: string } | undefined)?.batch === undefined ? rest : { ...rest, batch: name };
    });
  }

  #name(id: string | null): string | null {
    if (id === null) return null;
    if (!this.#batches.includes(id)) this.#batches.push(id);
    return `b${this.#batches.indexOf(id) + 1}`;
  }

  #next(made: Call): unknown {
    const call = this.calls.shift();
    assert.ok(call, `one call too many: ${JSON.stringify(made)}`);
    const { answer, broken, over, busy, refused, ...expected } = call;
    this.#leaveOut(made, expected);
    assert.deepEqual(made, expected);
    if (broken) throw new LinkError("broken", "on purpose");
    if (over) throw new LinkError("over", "on purpose");
    if (busy !== undefined) throw new LinkError("busy", "on purpose", busy * 1_000);
    if (refused !== undefined) throw new LinkError("refused", refused);
    return answer;
  }
}

function word(error: unknown): string {
  if (error instanceof LinkError) return error.kind;
  if (error instanceof WipedError) return "wiped";
  if (error instanceof ProtocolError) return "protocol";
  if (error instanceof UnfitError) return "unfit";
  throw error;
}

/** Does something that may be expected to fail. */
async function attempt<T>(step: Step, work: () => Promise<T>): Promise<T | undefined> {
  const done = await work().then(
    (value) => ({ value, error: undefined }),
    (error: unknown) => ({ value: undefined, error: word(error) }),
  );
  assert.equal(done.error, step.error);
  return done.value;
}

async function take(replica: Replica, script: Script, step: Step): Promise<void> {
  if (step.sync) {
    script.calls = [...step.sync];
    const summary = await attempt(step, () => replica.sync());
    assert.deepEqual(script.calls, [], "calls that were not made");
    for (const [name, value] of Object.entries(step.summary ?? {})) {
      // The names of the cases are those of the protocol.
      const own = name === "sent_again" ? "sentAgain" : name;
      assert.equal((summary as unknown as Fields)[own], value, name);
    }
  } else if (step.put) {
    await attempt(step, () => replica.put(...step.put!));
  } else if (step.remove) {
    await replica.remove(...step.remove);
  } else if (step.rows) {
    for (const [collection, rows] of Object.entries(step.rows)) {
      assert.deepEqual(Object.fromEntries(await replica.rows(collection)), rows);
    }
  } else if (step.names) {
    assert.deepEqual((await replica.collections()).map((shape) => shape.name), step.names);
  } else if (step.standing) {
    const { edited, sending, refused } = await replica.standing();
    assert.deepEqual({ edited, sending, refused: refused.map(({ values: _, ...one }) => one) }, step.standing);
  } else {
    assert.fail(`an unknown step: ${JSON.stringify(step)}`);
  }
}

for (const file of readdirSync(FOLDER).filter((name) => name.endsWith(".json"))) {
  const { collections, cases } = JSON.parse(readFileSync(new URL(file, FOLDER), "utf8")) as { collections: CollectionShape[]; cases: Case[] };
  for (const { name, steps } of cases) {
    test(`${file}: ${name}`, () =>
      withEach(async (store, kind) => {
        const script = new Script(collections);
        const replica = new Replica(store, script);
        for (const [at, step] of steps.entries()) {
          await take(replica, script, step).catch((error: Error) => {
            error.message = `${kind}, step ${at}: ${error.message}`;
            throw error;
          });
        }
      }));
  }
}
