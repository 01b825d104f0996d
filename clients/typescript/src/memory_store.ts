/** A store in memory: for tests, and for pages that want nothing kept. */

import { SPACES, Turns, type Range, type Reading, type Space, type Spaces, type Store, type Writing } from "./store.js";

type Values = { [S in Space]: Map<string, Spaces[S]> };

/** Keeps a replica as long as the program runs. */
export class MemoryStore implements Store {
  #values = Object.fromEntries(SPACES.map((space) => [space, new Map()])) as unknown as Values;
  readonly #turns = new Turns();
  readonly #syncs = new Turns();

  read<T>(work: (transaction: Reading) => Promise<T>): Promise<T> {
    return this.#turns.take(() => work(new Draft(this.#values)));
  }

  write<T>(work: (transaction: Writing) => Promise<T>): Promise<T> {
    return this.#turns.take(async () => {
      const draft = new Draft(this.#values);
      const done = await work(draft);
      draft.commit();
      return done;
    });
  }

  alone<T>(work: () => Promise<T>): Promise<T> {
    return this.#syncs.take(work);
  }

  async close(): Promise<void> {}
}

/** What a transaction changes, beside what there is. */
class Draft implements Writing {
  readonly #changes = new Map<Space, Map<string, unknown>>();

  constructor(private readonly values: Values) {}

  async get<S extends Space>(space: S, key: string): Promise<Spaces[S] | undefined> {
    const changes = this.#changes.get(space);
    const found = changes?.has(key) ? changes.get(key) : this.values[space].get(key);
    // A copy, so that nobody changes what is kept by changing what was given.
    return found === undefined ? undefined : (structuredClone(found) as Spaces[S]);
  }

  async list<S extends Space>(space: S, { prefix = "", limit = Infinity }: Range = {}): Promise<[string, Spaces[S]][]> {
    const keys = this.#keys(space, prefix).sort().slice(0, limit);
    return Promise.all(keys.map(async (key) => [key, (await this.get(space, key))!] as [string, Spaces[S]]));
  }

  async count(space: Space, prefix = ""): Promise<number> {
    return this.#keys(space, prefix).length;
  }

  async put<S extends Space>(space: S, key: string, value: Spaces[S]): Promise<void> {
    this.#change(space, key, structuredClone(value));
  }

  async delete(space: Space, key: string): Promise<void> {
    this.#change(space, key, undefined);
  }

  commit(): void {
    for (const [space, changes] of this.#changes) {
      const kept = this.values[space] as Map<string, unknown>;
      for (const [key, value] of changes) value === undefined ? kept.delete(key) : kept.set(key, value);
    }
  }

  #keys(space: Space, prefix: string): string[] {
    const changes = this.#changes.get(space) ?? new Map<string, unknown>();
    const kept = [...this.values[space].keys()].filter((key) => !changes.has(key));
    const changed = [...changes].filter(([, value]) => value !== undefined).map(([key]) => key);
    return [...kept, ...changed].filter((key) => key.startsWith(prefix));
  }

  #change(space: Space, key: string, value: unknown): void {
    let changes = this.#changes.get(space);
    if (!changes) this.#changes.set(space, (changes = new Map()));
    changes.set(key, value);
  }
}
