// An inbox without a user interface: its items, marks and changes. The components use it, and so can a framework.

import { Api } from "./api";
import { type Change, Stream } from "./stream";
import type { Item, Options, State, View } from "./types";

/** Items of a page. */
const PAGE = 30;
/** Items kept for a start without a connection. */
const STORED = 30;

/**
 * The inbox of a subscriber.
 *
 * Events: `change` after each change of {@link TocsinFeed.state}; `new`, a `CustomEvent` with the item that arrived.
 */
export class TocsinFeed extends EventTarget {
  readonly #api: Api;
  readonly #key: string;
  #stream: Stream | undefined;
  #state: State = { view: "current", items: [], unread: 0, hasMore: false, connection: "loading" };
  #next: string | undefined;
  /** Number of the newest request of a page; answers to older ones are ignored. */
  #turn = 0;

  constructor(options: Options) {
    super();
    this.#api = new Api(options);
    this.#key = `tocsin:${options.server}:${options.subscriber}`;
  }

  /** The present state. A new object after each change. */
  get state(): State {
    return this.#state;
  }

  /** Shows the stored items, loads the first page and follows the changes. */
  start(): void {
    if (this.#stream !== undefined) return;
    const stored = this.#stored();
    if (stored.length > 0) this.#set({ items: stored, unread: stored.filter((item) => item.read_at == null).length });
    this.#stream = new Stream(
      this.#api,
      this.#key,
      (change) => this.#apply(change),
      (connection) => {
        const wasLive = this.#state.connection === "live";
        this.#set({ connection });
        if (connection === "live" && !wasLive) void this.reload();
      },
    );
    void this.reload();
  }

  /** Stops following. The state stays. */
  stop(): void {
    this.#stream?.stop();
    this.#stream = undefined;
  }

  /** Stops, and deletes the items stored in this browser. Call it when the user signs out. */
  forget(): void {
    this.stop();
    storage()?.removeItem(this.#key);
    this.#set({ items: [], unread: 0, hasMore: false });
  }

  /** Changes the view and loads its first page. */
  async show(view: View): Promise<void> {
    this.#next = undefined;
    this.#set({ view, items: [], hasMore: false });
    await this.reload();
  }

  /** Loads the first page of the view. */
  async reload(): Promise<void> {
    this.#turn += 1;
    const turn = this.#turn;
    try {
      const [page, unread] = await Promise.all([this.#api.page(this.#state.view, undefined, PAGE), this.#api.unread()]);
      if (turn !== this.#turn) return;
      this.#next = page.next ?? undefined;
      this.#set({ items: page.items, unread, hasMore: this.#next !== undefined });
    } catch (error) {
      this.#failed(error);
    }
  }

  /** Loads the next page. */
  async more(): Promise<void> {
    const { turn, after } = { turn: this.#turn, after: this.#next };
    if (after === undefined) return;
    try {
      const page = await this.#api.page(this.#state.view, after, PAGE);
      if (turn !== this.#turn || after !== this.#next) return;
      this.#next = page.next ?? undefined;
      const known = new Set(this.#state.items.map((item) => item.id));
      const items = [...this.#state.items, ...page.items.filter((item) => !known.has(item.id))];
      this.#set({ items, hasMore: this.#next !== undefined });
    } catch (error) {
      this.#failed(error);
    }
  }

  /** Marks an item as read or unread. It is shown at once, and undone if the server refuses it. */
  read(id: string, isRead = true): Promise<void> {
    return this.#mark(id, "read", isRead);
  }

  /** Archives an item, or moves it back. */
  archive(id: string, isArchived = true): Promise<void> {
    return this.#mark(id, "archived", isArchived);
  }

  /** Marks all items as read that this feed has seen. Later ones stay unread. */
  async readAll(): Promise<void> {
    const newest = this.#state.items[0]?.id;
    await this.#api.markAllRead(newest);
    await this.reload();
  }

  /** Deletes an item permanently. */
  async remove(id: string): Promise<void> {
    await this.#api.remove(id);
    this.#set({ items: this.#state.items.filter((item) => item.id !== id) });
  }

  async #mark(id: string, mark: "read" | "archived", isSet: boolean): Promise<void> {
    const before = this.#state.items.find((item) => item.id === id);
    if (before !== undefined) {
      this.#put({ ...before, [`${mark}_at`]: isSet ? new Date().toISOString() : null });
    }
    try {
      await this.#api.mark(id, mark, isSet);
    } catch (error) {
      if (before !== undefined) this.#put(before);
      throw error;
    }
  }

  #apply(change: Change): void {
    switch (change.name) {
      case "new":
      case "changed":
        this.#put(change.data as Item);
        if (change.name === "new") this.dispatchEvent(new CustomEvent("new", { detail: change.data }));
        break;
      case "deleted": {
        const { id } = change.data as { id: string };
        this.#set({ items: this.#state.items.filter((item) => item.id !== id) });
        break;
      }
      case "unread":
        this.#set({ unread: (change.data as { unread: number }).unread });
        break;
      case "reset":
        void this.reload();
    }
  }

  /** Replaces or inserts an item, if the view has it. */
  #put(item: Item): void {
    const { view, items } = this.#state;
    const known = items.findIndex((other) => other.id === item.id);
    const isArchived = item.archived_at != null;
    // A read item stays in the view of unread ones until it is loaded again: it would vanish under the reader.
    const belongs = view === "archived" ? isArchived : !isArchived && (view === "current" || item.read_at == null || known >= 0);
    if (!belongs) {
      if (known >= 0) this.#set({ items: items.filter((other) => other.id !== item.id) });
      return;
    }
    if (known >= 0) {
      this.#set({ items: items.with(known, item) });
      return;
    }
    const place = items.findIndex((other) => other.created_at <= item.created_at);
    // An item beyond the loaded pages is loaded with its page.
    if (place < 0 && this.#next !== undefined) return;
    this.#set({ items: items.toSpliced(place < 0 ? items.length : place, 0, item) });
  }

  #failed(error: unknown): void {
    const status = (error as { status?: number }).status;
    if (status === 401 || status === 403) this.#set({ connection: "refused" });
    else if (status === 404) this.#set({ connection: "removed" });
    else if (this.#state.connection === "loading") this.#set({ connection: "waiting" });
  }

  #set(change: Partial<State>): void {
    this.#state = { ...this.#state, ...change };
    if (change.items !== undefined && this.#state.view === "current" && this.#state.connection === "live") this.#store();
    this.dispatchEvent(new Event("change"));
  }

  #store(): void {
    try {
      storage()?.setItem(this.#key, JSON.stringify(this.#state.items.slice(0, STORED)));
    } catch {
      // The storage is full: the next start needs a connection.
    }
  }

  #stored(): Item[] {
    try {
      const items: unknown = JSON.parse(storage()?.getItem(this.#key) ?? "[]");
      return Array.isArray(items) ? (items as Item[]) : [];
    } catch {
      return [];
    }
  }
}

/** The storage of the origin. A browser can forbid it. */
function storage(): Storage | undefined {
  try {
    return localStorage;
  } catch {
    return undefined;
  }
}
