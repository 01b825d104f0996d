// Requests to the inbox API, with the renewal of tokens.

import type { Item, Options, View } from "./types";

/** An answer that is not 2xx. */
export class RequestError extends Error {
  constructor(
    readonly status: number,
    detail: string,
  ) {
    super(detail);
  }
}

/** A page of items. */
export interface Page {
  readonly items: Item[];
  readonly next?: string | null;
}

/** Client of one inbox. */
export class Api {
  readonly #options: Options;
  #token: string;
  #renewing: Promise<boolean> | undefined;

  constructor(options: Options) {
    this.#options = options;
    this.#token = options.token;
  }

  /** URL of a path below the inbox. */
  url(path: string): string {
    const { server, subscriber } = this.#options;
    return `${server.replace(/\/+$/, "")}/v1/subscribers/${encodeURIComponent(subscriber)}/inbox${path}`;
  }

  /** URL of the stream of changes. An `EventSource` can set no header, so the token is in the query. */
  streamUrl(lastEventId: string): string {
    const query = new URLSearchParams({ token: this.#token });
    if (lastEventId !== "") query.set("last_event_id", lastEventId);
    return this.url(`/stream?${query}`);
  }

  /** Replaces the token. Returns whether there is a new one; requests at the same time share one renewal. */
  renew(): Promise<boolean> {
    this.#renewing ??= this.#renewed().finally(() => (this.#renewing = undefined));
    return this.#renewing;
  }

  async #renewed(): Promise<boolean> {
    if (this.#options.renew === undefined) return false;
    try {
      this.#token = await this.#options.renew();
      return true;
    } catch {
      return false;
    }
  }

  /** Reads a page of a view, after a cursor. */
  async page(view: View, after: string | undefined, limit: number): Promise<Page> {
    const query = new URLSearchParams({ state: view, limit: String(limit) });
    if (after !== undefined) query.set("after", after);
    return (await this.#send("GET", `?${query}`)) as Page;
  }

  /** Number of unread items. */
  async unread(): Promise<number> {
    return ((await this.#send("GET", "/unread")) as { unread: number }).unread;
  }

  /** Sets or removes a mark of an item. */
  async mark(id: string, mark: "read" | "archived", isSet: boolean): Promise<void> {
    await this.#send(isSet ? "PUT" : "DELETE", `/${encodeURIComponent(id)}/${mark}`);
  }

  /** Marks all items up to the newest that was seen as read. */
  async markAllRead(newest: string | undefined): Promise<void> {
    await this.#send("POST", "/mark", { mark: "read", all: true, ...(newest === undefined ? {} : { newest }) });
  }

  /** Deletes an item permanently. */
  async remove(id: string): Promise<void> {
    await this.#send("DELETE", `/${encodeURIComponent(id)}`);
  }

  async #send(method: string, path: string, body?: unknown): Promise<unknown> {
    let response = await this.#fetch(method, path, body);
    if (response.status === 401 && (await this.renew())) response = await this.#fetch(method, path, body);
    const text = await response.text();
    if (!response.ok) throw new RequestError(response.status, detailOf(text) ?? `the server answered ${response.status}`);
    return text === "" ? undefined : JSON.parse(text);
  }

  #fetch(method: string, path: string, body: unknown): Promise<Response> {
    const headers: Record<string, string> = { authorization: `Bearer ${this.#token}` };
    if (body !== undefined) headers["content-type"] = "application/json";
    return fetch(this.url(path), {
      method,
      headers,
      credentials: "omit",
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
  }
}

/** The text of a problem (RFC 9457). */
function detailOf(text: string): string | undefined {
  try {
    const problem = JSON.parse(text) as { detail?: string; title?: string };
    return problem.detail ?? problem.title;
  } catch {
    return undefined;
  }
}
