/** Errors that a caller can handle. */

import type { DocumentCode } from "./error_codes.js";

/** Class of a failed request. */
export type LinkErrorKind =
  /** The connection failed; retry when there is one. */
  | "broken"
  /** The server is busy; retry after `retryAfter`. */
  | "busy"
  /** The session ended, or the access of the device changed: begin a new session. */
  | "over"
  /** The server refuses the request; a retry does not help. */
  | "refused";

/** A request to the server failed. */
export class LinkError extends Error {
  override name = "LinkError";

  /** `retryAfter` is in milliseconds; `code` is that of the server's problem document, if there is one. */
  constructor(
    readonly kind: LinkErrorKind,
    message: string,
    readonly retryAfter = 0,
    readonly code: DocumentCode | (string & {}) | undefined = undefined,
  ) {
    super(message);
  }
}

/** Invalid edit: unknown collection or field, or a value of the wrong type. */
export class UnfitError extends Error {
  override name = "UnfitError";
}

/** The response of the server violates the protocol. */
export class ProtocolError extends Error {
  override name = "ProtocolError";
}

/** The server ordered a wipe, and the replica has deleted its data. */
export class WipedError extends Error {
  override name = "WipedError";

  constructor() {
    super("the server ordered a wipe; the replica has deleted its data");
  }
}
