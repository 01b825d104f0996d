// The stream of changes of an inbox. The tabs of a browser share one: the tab that holds a lock reads it, and passes
// its events to the others.

import type { Api } from "./api";

/** An event of the stream, parsed. */
export interface Change {
  readonly name: "new" | "changed" | "deleted" | "unread" | "reset";
  readonly data: unknown;
}

/** State of the connection. */
export type Connection = "live" | "waiting" | "refused" | "removed";

type Message = { readonly change: Change; readonly id: string } | { readonly connection: Connection } | "hello";

const NAMES = ["new", "changed", "deleted", "unread", "reset"] as const;
/** Pauses before a new connection, in milliseconds: doubled after each failure. */
const PAUSE_MIN = 1_000;
const PAUSE_MAX = 60_000;

/** Follows the changes of an inbox until it is stopped. */
export class Stream {
  readonly #api: Api;
  readonly #receive: (change: Change) => void;
  readonly #report: (connection: Connection) => void;
  readonly #stopped = new AbortController();
  #channel: BroadcastChannel | undefined;
  #source: EventSource | undefined;
  #lastEventId = "";
  #connection: Connection = "waiting";
  #failures = 0;

  /**
   * @param name identifies the inbox for all tabs of the origin
   * @param receive takes each change
   * @param report takes each change of the connection
   */
  constructor(
    api: Api,
    name: string,
    receive: (change: Change) => void,
    report: (connection: Connection) => void,
  ) {
    this.#api = api;
    this.#receive = receive;
    this.#report = report;
    // Without locks (an insecure context), each tab reads a stream of its own.
    if (navigator.locks === undefined || typeof BroadcastChannel === "undefined") {
      this.#open();
      return;
    }
    this.#channel = new BroadcastChannel(name);
    this.#channel.onmessage = (event: MessageEvent<Message>) => this.#heard(event.data);
    this.#channel.postMessage("hello" satisfies Message);
    navigator.locks
      .request(name, { signal: this.#stopped.signal }, () => {
        this.#open();
        // The lock is held until this tab stops or is closed.
        return new Promise<void>((done) => this.#stopped.signal.addEventListener("abort", () => done()));
      })
      .catch(() => undefined);
  }

  /** Ends the stream. */
  stop(): void {
    this.#stopped.abort();
    this.#source?.close();
    this.#source = undefined;
    this.#channel?.close();
  }

  #heard(message: Message): void {
    if (message === "hello") {
      if (this.#source !== undefined) this.#channel?.postMessage({ connection: this.#connection } satisfies Message);
    } else if ("change" in message) {
      this.#lastEventId = message.id;
      this.#receive(message.change);
    } else {
      this.#report(message.connection);
    }
  }

  #open(): void {
    if (this.#stopped.signal.aborted) return;
    const source = new EventSource(this.#api.streamUrl(this.#lastEventId));
    this.#source = source;
    source.onopen = () => {
      this.#failures = 0;
      this.#connected("live");
    };
    for (const name of NAMES) {
      source.addEventListener(name, (event: MessageEvent<string>) => {
        this.#lastEventId = event.lastEventId;
        const change: Change = { name, data: JSON.parse(event.data) };
        this.#receive(change);
        this.#channel?.postMessage({ change, id: event.lastEventId } satisfies Message);
      });
    }
    source.addEventListener("end", (event: MessageEvent<string>) => {
      source.close();
      void this.#ended((JSON.parse(event.data) as { reason: string }).reason);
    });
    source.onerror = () => {
      // While it is `CONNECTING`, the browser tries again by itself.
      this.#connected("waiting");
      if (source.readyState === EventSource.CLOSED) void this.#ended("refused");
    };
  }

  async #ended(reason: string): Promise<void> {
    if (reason === "removed") return this.#connected("removed");
    if (reason === "time") return this.#open();
    this.#connected("waiting");
    const isCredential = ["expired", "revoked", "changed", "refused"].includes(reason);
    if (isCredential && !(await this.#api.renew()) && !(await this.#isAuthorized())) return this.#connected("refused");
    const pause = Math.min(PAUSE_MAX, PAUSE_MIN * 2 ** this.#failures) * (0.5 + Math.random() / 2);
    this.#failures += 1;
    setTimeout(() => this.#open(), pause);
  }

  /** Whether the token is accepted. A network error is no refusal. */
  async #isAuthorized(): Promise<boolean> {
    try {
      await this.#api.unread();
      return true;
    } catch (error) {
      const status = (error as { status?: number }).status;
      return status === undefined || status >= 500 || status === 429;
    }
  }

  #connected(connection: Connection): void {
    this.#connection = connection;
    this.#report(connection);
    this.#channel?.postMessage({ connection } satisfies Message);
  }
}
