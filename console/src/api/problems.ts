// Problem details of the server (RFC 9457), and what the console does about them.
import type { components } from "./schema";

export interface Problem {
  type: string;
  code: string;
  title: string;
  status: number;
  detail: string;
  problems?: components["schemas"]["ProblemItem"][] | null;
  /** Members of its kind. */
  [member: string]: unknown;
}

/** A request that failed: by the answer of the server, or without one (`status` 0). */
export class ProblemError extends Error {
  readonly problem: Problem;
  readonly requestId: string | null;
  /** Seconds after which the server asks to repeat. */
  readonly retryAfter: number | null;
  readonly method: string;
  readonly path: string;

  constructor(
    problem: Problem,
    at: { method: string; path: string; requestId?: string | null; retryAfter?: number | null; cause?: unknown },
  ) {
    super(problem.detail === "" ? problem.title : `${problem.title}: ${problem.detail}`, { cause: at.cause });
    this.name = "ProblemError";
    this.problem = problem;
    this.method = at.method;
    this.path = at.path;
    this.requestId = at.requestId ?? null;
    this.retryAfter = at.retryAfter ?? null;
  }

  get status(): number {
    return this.problem.status;
  }

  get code(): string {
    return this.problem.code;
  }
}

export function asProblem(error: unknown): ProblemError {
  if (error instanceof ProblemError) return error;
  const detail = error instanceof Error ? error.message : String(error);
  return new ProblemError(
    { type: "about:blank", code: "client", title: "Unexpected error", status: 0, detail },
    { method: "", path: "", cause: error },
  );
}

/** Reads a problem from an answer; an answer of a proxy may have another form. */
export async function readProblem(response: Response, method: string, path: string): Promise<ProblemError> {
  const at = {
    method,
    path,
    requestId: response.headers.get("x-request-id"),
    retryAfter: retryAfterSeconds(response.headers.get("retry-after"), Date.now()),
  };
  if (/json/.test(response.headers.get("content-type") ?? "")) {
    const body: unknown = await response.json().catch(() => null);
    if (typeof body === "object" && body !== null && "status" in body && "title" in body) {
      const problem = { code: "", detail: "", type: "about:blank", ...body } as Problem;
      return new ProblemError(problem, at);
    }
  }
  const title = response.statusText === "" ? `HTTP ${response.status}` : response.statusText;
  return new ProblemError({ type: "about:blank", code: "http", title, status: response.status, detail: "" }, at);
}

export function retryAfterSeconds(header: string | null, now: number): number | null {
  if (header === null) return null;
  const seconds = /^\d+$/.test(header.trim()) ? Number(header) : (Date.parse(header) - now) / 1000;
  return Number.isFinite(seconds) ? Math.max(0, seconds) : null;
}

/** Whether a read is repeated: no answer, too many requests, or a server that is not ready; three times. */
export function retries(failures: number, error: unknown): boolean {
  const { status, code } = asProblem(error);
  if (code === "client") return false;
  return failures < 3 && (status === 0 || status === 429 || status === 502 || status === 503 || status === 504);
}

/** Exponential back-off with jitter, or what the server asks for. */
export function retryDelay(failures: number, error: unknown, random: () => number = Math.random): number {
  const { retryAfter } = asProblem(error);
  if (retryAfter !== null) return Math.min(retryAfter, 30) * 1000;
  return Math.min(8_000, 500 * 2 ** failures) * (0.5 + random() / 2);
}
