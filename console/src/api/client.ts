// HTTP requests of the console: problem details, CSRF header.
import { ProblemError, readProblem } from "./problems";
import type { components } from "./schema";

export type Schema<Name extends keyof components["schemas"]> = components["schemas"][Name];

export interface Page<Item> {
  items: Item[];
  next?: string | null;
  count?: number | { count: number; exact: boolean };
}

export type Query = Record<string, string | number | boolean | readonly string[] | null | undefined>;

export interface RequestOptions {
  query?: Query;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

let csrf: string | null = null;
let unauthenticated: (error: ProblemError) => void = () => {};
let renewCsrf: () => Promise<unknown> = () => Promise.resolve();

export function setCsrf(token: string | null) {
  csrf = token;
}

/** Registers how the token is read again. */
export function onCsrfRejected(renew: () => Promise<unknown>) {
  renewCsrf = renew;
}

/** Registers what happens when a request is refused because the session ended. */
export function onUnauthenticated(handler: (error: ProblemError) => void) {
  unauthenticated = handler;
}

const safe = new Set(["GET", "HEAD", "OPTIONS"]);

/** Adds to a request what every request of the console carries. */
export function withSession(request: Request, token: string | null): Request {
  if (!safe.has(request.method) && token !== null) request.headers.set("X-Tocsin-CSRF", token);
  return request;
}

/** Sends a request with the session of the console; a failure is thrown as [`ProblemError`]. */
export async function send(request: Request): Promise<Response> {
  const again = safe.has(request.method) || csrf === null ? null : request.clone();
  try {
    return await sendOnce(request);
  } catch (error) {
    // Another tab proved the identity again, which replaced the token.
    if (again === null || !(error instanceof ProblemError) || error.code !== "csrf_token") throw error;
    await renewCsrf();
    return sendOnce(again);
  }
}

async function sendOnce(request: Request): Promise<Response> {
  const path = new URL(request.url).pathname;
  let response: Response;
  try {
    response = await fetch(withSession(request, csrf));
  } catch (cause) {
    if (request.signal.aborted) throw cause;
    throw new ProblemError(
      { type: "about:blank", code: "no_answer", title: "The server does not answer", status: 0, detail: "" },
      { method: request.method, path, cause },
    );
  }
  if (response.ok || response.status === 304) return response;
  const error = await readProblem(response, request.method, path);
  if (error.status === 401 && error.code.startsWith("credentials_")) unauthenticated(error);
  throw error;
}

/** One request by method and path, for callers that know the type of the answer. */
export async function request<Answer = unknown>(
  method: string,
  path: string,
  options: RequestOptions = {},
): Promise<Answer> {
  return (await exchange<Answer>(method, path, options)).body;
}

/** The same with the head of the response, for `ETag` and `Location`. */
export async function exchange<Answer = unknown>(
  method: string,
  path: string,
  { query, body, headers = {}, signal }: RequestOptions = {},
): Promise<{ body: Answer; headers: Headers }> {
  const isText = typeof body === "string" || body instanceof Blob;
  const response = await send(
    new Request(new URL(path + queryString(query), location.origin), {
      method,
      credentials: "same-origin",
      headers: {
        Accept: "application/json",
        ...(body === undefined || isText ? {} : { "Content-Type": "application/json" }),
        ...headers,
      },
      ...(body === undefined ? {} : { body: isText ? body : JSON.stringify(body) }),
      ...(signal === undefined ? {} : { signal }),
    }),
  );
  const isJson = /json/.test(response.headers.get("content-type") ?? "");
  const text = response.status === 204 ? "" : await response.text();
  return {
    body: (isJson && text !== "" ? JSON.parse(text) : text === "" ? undefined : text) as Answer,
    headers: response.headers,
  };
}

/** Header with the reason of a change, for the audit log. */
export function reasonHeader(reason: string | undefined): Record<string, string> {
  return reason === undefined || reason === "" ? {} : { "X-Tocsin-Reason": encodeURIComponent(reason) };
}

/** Query of an address, without empty parameters; a list repeats its parameter. */
export function queryString(query: Query | undefined): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value === undefined || value === null || value === "") continue;
    if (Array.isArray(value)) for (const item of value) search.append(name, item);
    else search.append(name, String(value));
  }
  const text = search.toString();
  return text === "" ? "" : `?${text}`;
}
