/** The cases that every client passes. */

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

import { LinkError, ProtocolError, Replica, UnfitError, WipedError, type Begin, type Begun, type CollectionShape, type Fields, type Link, type Uploaded } from "../src/index.js";
import { withEach } from "./stores_for_tests.js";

const FOLDER = new URL("../../../../testdata/replica/", import.meta.url);

interface Call {
  begin?: Begin;
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
  #session = "";

  constructor(private readonly collections: CollectionShape[]) {}

  async begin(begin: Begin): Promise<Begun> {
    const told = this.#next({ begin }) as Partial<Begun>;
    const begun = { session: "s", uploaded: 0, anew: false, wipe: false, collections: this.collections, cursor: "", ...told };
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

  #next(made: Call): unknown {
    const call = this.calls.shift();
    assert.ok(call, `one call too many: ${JSON.stringify(made)}`);
    const { answer, broken, over, busy, refused, ...expected } = call;
    assert.deepEqual(made, expected);
    if (broken) throw new LinkError("broken", "on purpose");
    if (over) throw new LinkError("over", "on purpose");
    if (busy !== undefined) throw new LinkError("busy", "on purpose", busy * 1_000);
    if (refused !== undefined) throw new LinkError("refused", refused);
    return answer;
  }
}

function word(error: unknown): string {
  if (error instanceof LinkError) return error.trouble;
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
    for (const [name, value] of Object.entries(step.summary ?? {})) assert.equal((summary as unknown as Fields)[name], value, name);
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
    assert.deepEqual({ edited, sending, refused }, step.standing);
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
