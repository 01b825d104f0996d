/** Why something was not done, as far as the caller can do something about it. */

/** Why the server did not answer with what was asked for. */
export type LinkTrouble =
  /** The way to it is broken; try again when there is one. */
  | "broken"
  /** It has too much to do; come again after `retryAfter`. */
  | "busy"
  /** The session is over, or what the device may see changed: begin again. */
  | "over"
  /** The device may not do this. */
  | "refused";

/** The server, or the way to it. */
export class LinkError extends Error {
  override name = "LinkError";

  /** `retryAfter` is in milliseconds. */
  constructor(
    readonly trouble: LinkTrouble,
    message: string,
    readonly retryAfter = 0,
  ) {
    super(message);
  }
}

/** The replica cannot hold this: a collection or field that it does not have, or a value of another type. */
export class UnfitError extends Error {
  override name = "UnfitError";
}

/** The server says something that is not of the protocol. */
export class ProtocolError extends Error {
  override name = "ProtocolError";
}

/** The server told the replica to drop all that it had, and it did. */
export class WipedError extends Error {
  override name = "WipedError";

  constructor() {
    super("the server told this replica to drop all that it had");
  }
}
