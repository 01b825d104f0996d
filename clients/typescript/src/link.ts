/** Connection to the server: the port, and its implementation over HTTP. */

import { LinkError, type LinkErrorKind } from "./errors.js";
import type { BeginRequest, BeginResponse, Uploaded } from "./protocol.js";

/** Connection to the server. Every call is idempotent and can be repeated after a failure. */
export interface Link {
  /** Begins a session. */
  begin(begin: BeginRequest, signal?: AbortSignal): Promise<BeginResponse>;
  /** Sends edits, a line for each. */
  upload(session: string, lines: string, signal?: AbortSignal): Promise<Uploaded>;
  /** Downloads the block after a cursor: a line for each row, and the end line. */
  download(session: string, cursor: string, signal?: AbortSignal): Promise<string>;
  /** Ends a session. */
  end(session: string, signal?: AbortSignal): Promise<void>;
  /**
   * Long poll: waits up to `seconds` until there may be changes after a cursor. Returns whether there may be. Without this method
   * the replica polls.
   */
  wait?(cursor: string, seconds: number, signal?: AbortSignal): Promise<boolean>;
}

/** Server of a replica. */
export interface Home {
  /** The address of the server. */
  url: string;
  /** The token of the device. */
  token: string;
}

/** Options of an `HttpLink`. */
export interface HttpOptions {
  /** Replacement for the `fetch` of the platform. */
  fetch?: typeof fetch;
  /** Response timeout, in milliseconds. */
  patience?: number;
}

const PATIENCE = 60_000;
/** Additional timeout of a long poll, in milliseconds. */
const WAIT_PATIENCE = 10_000;
/** Delay after a busy response without `Retry-After`, in milliseconds. */
const BUSY_FOR = 5_000;
/** Upper bound of `Retry-After`, in milliseconds. */
const WAIT_MAX = 3_600_000;

/** Connection over HTTP. Uploads are compressed with gzip where the platform supports it; `fetch` decompresses responses. */
export class HttpLink implements Link {
  readonly #base: string;
  readonly #token: string;
  readonly #fetch: typeof fetch;
  readonly #patience: number;

  constructor(home: Home, options: HttpOptions = {}) {
    this.#base = home.url.replace(/\/+$/, "") + "/v1/sync";
    this.#token = home.token;
    this.#fetch = options.fetch ?? (globalThis.fetch.bind(globalThis) as typeof fetch);
    this.#patience = options.patience ?? PATIENCE;
  }

  async begin(begin: BeginRequest, signal?: AbortSignal): Promise<BeginResponse> {
    const headers = { "content-type": "application/json" };
    const asked = this.#ask("POST", "/sessions", { headers, body: JSON.stringify(begin), signal });
    // No session exists yet, so none can have ended.
    const answer = await asked.catch((error: unknown) => {
      throw error instanceof LinkError && error.kind === "over" ? new LinkError("refused", error.message, 0, error.code) : error;
    });
    return parsed<BeginResponse>(answer);
  }

  async upload(session: string, lines: string, signal?: AbortSignal): Promise<Uploaded> {
    const headers: Record<string, string> = { "content-type": "application/x-ndjson" };
    const packed = await gzip(lines);
    if (packed) headers["content-encoding"] = "gzip";
    return parsed<Uploaded>(await this.#ask("POST", `/sessions/${session}/changes`, { headers, body: packed ?? lines, signal }));
  }

  download(session: string, cursor: string, signal?: AbortSignal): Promise<string> {
    return this.#ask("GET", `/sessions/${session}/changes?cursor=${encodeURIComponent(cursor)}`, { signal });
  }

  async end(session: string, signal?: AbortSignal): Promise<void> {
    await this.#ask("DELETE", `/sessions/${session}`, { signal });
  }

  async wait(cursor: string, seconds: number, signal?: AbortSignal): Promise<boolean> {
    const patience = seconds * 1_000 + WAIT_PATIENCE;
    const path = `/wait?cursor=${encodeURIComponent(cursor)}&seconds=${seconds}`;
    return parsed<{ news: boolean }>(await this.#ask("GET", path, { signal, patience })).news;
  }

  async #ask(
    method: string,
    path: string,
    {
      headers,
      body,
      signal,
      patience = this.#patience,
    }: { headers?: Record<string, string>; body?: BodyInit; signal: AbortSignal | undefined; patience?: number },
  ): Promise<string> {
    const limit = new AbortController();
    const stop = () => limit.abort(signal?.reason);
    const timer = setTimeout(() => limit.abort(new Error("the server does not answer")), patience);
    signal?.addEventListener("abort", stop);
    try {
      signal?.throwIfAborted();
      const init: RequestInit = {
        method,
        headers: { ...headers, authorization: `Bearer ${this.#token}` },
        signal: limit.signal,
        cache: "no-store",
      };
      if (body !== undefined) init.body = body;
      const response = await this.#fetch(this.#base + path, init);
      const text = await response.text();
      if (response.ok) return text;
      throw linkError(response, text);
    } catch (error) {
      // After a cancellation, its reason is the error.
      signal?.throwIfAborted();
      throw error instanceof LinkError ? error : new LinkError("broken", String((error as Error)?.message ?? error));
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", stop);
    }
  }
}

const MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/** HTTP date in any of its three forms (RFC 9110, 5.6.7), in milliseconds since 1970; `undefined` if it is invalid. */
function httpDate(text: string, now: number): number | undefined {
  const clock = String.raw`(\d{2}):(\d{2}):(\d{2})`;
  const fixed = new RegExp(String.raw`^(?:[a-z]+,? *)?(\d{1,2})[ -]([a-z]{3})[ -](\d{2}|\d{4}) ${clock} (?:GMT|UTC)$`, "i").exec(text);
  const asctime = new RegExp(String.raw`^[a-z]+ ([a-z]{3}) +(\d{1,2}) ${clock} (\d{4})$`, "i").exec(text);
  const parts = fixed
    ? { day: fixed[1], month: fixed[2], year: fixed[3], clock: fixed.slice(4, 7) }
    : asctime
      ? { day: asctime[2], month: asctime[1], year: asctime[6], clock: asctime.slice(3, 6) }
      : undefined;
  const month = MONTHS.indexOf(parts?.month?.toLowerCase() ?? "");
  if (!parts || month < 0) return undefined;
  let year = Number(parts.year);
  if (parts.year?.length === 2) {
    // The latest year that is at most 50 years ahead.
    const latest = new Date(now).getUTCFullYear() + 50;
    year += Math.floor((latest - year) / 100) * 100;
  }
  const [hours, minutes, seconds] = parts.clock.map(Number);
  return Date.UTC(year, month, Number(parts.day), hours, minutes, seconds);
}

/**
 * Delay of a `Retry-After` in milliseconds, at most an hour: seconds, or a date (RFC 9110, 10.2.3). Of several values, separated by
 * commas, the longest counts. `undefined` if no value is valid.
 */
export function retryAfter(value: string | null, now: number): number | undefined {
  const wish = (text: string): number | undefined => {
    if (/^\d+(\.\d+)?$/.test(text)) return Number(text) * 1_000;
    const date = httpDate(text, now);
    return date === undefined ? undefined : Math.max(0, date - now);
  };
  const text = (value ?? "").trim();
  const whole = wish(text);
  const wishes = whole === undefined ? text.split(",", 8).map((part) => wish(part.trim())) : [whole];
  const read = wishes.filter((found) => found !== undefined);
  return read.length > 0 ? Math.min(Math.max(...read), WAIT_MAX) : undefined;
}

function linkError(response: Response, text: string): LinkError {
  const status = response.status;
  const wait = retryAfter(response.headers.get("retry-after"), Date.now()) ?? BUSY_FOR;
  const kind = ((): LinkErrorKind => {
    if (status === 429 || status === 503) return "busy";
    if (status === 404 || status === 410) return "over";
    return status >= 500 || status === 408 ? "broken" : "refused";
  })();
  const { code, reason } = problemOf(text);
  return new LinkError(kind, reason || `the server answers ${status}`, kind === "busy" ? wait : 0, code);
}

/** Code, and detail or title, of a problem document (RFC 9457). */
function problemOf(text: string): { code: string | undefined; reason: string } {
  try {
    const problem = JSON.parse(text) as { code?: string; detail?: string; title?: string };
    return { code: problem.code, reason: problem.detail ?? problem.title ?? text };
  } catch {
    return { code: undefined, reason: text };
  }
}

function parsed<T>(text: string): T {
  try {
    return JSON.parse(text) as T;
  } catch {
    // A proxy truncated the response or answered in place of the server.
    throw new LinkError("broken", "the response is not JSON");
  }
}

async function gzip(text: string): Promise<ArrayBuffer | undefined> {
  if (typeof CompressionStream === "undefined") return undefined;
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}
