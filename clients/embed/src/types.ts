// Types of the inbox API, and of the options and events of this library.

/** An action of an item. */
export interface Action {
  readonly label: string;
  readonly link: string;
}

/** An item of an inbox, as `GET /v1/subscribers/{id}/inbox` returns it. Times are RFC 3339. */
export interface Item {
  readonly id: string;
  readonly application: string;
  readonly class?: string;
  readonly subject?: string;
  readonly text?: string;
  readonly html?: string;
  readonly data?: unknown;
  readonly link?: string;
  readonly actions: readonly Action[];
  readonly created_at: string;
  readonly read_at?: string | null;
  readonly archived_at?: string | null;
  readonly expires_at?: string | null;
}

/** Part of an inbox: `current` is everything that is not archived. */
export type View = "current" | "unread" | "archived";

/** State of a feed. */
export interface State {
  readonly view: View;
  /** Newest first. */
  readonly items: readonly Item[];
  readonly unread: number;
  /** Whether older items can be loaded. */
  readonly hasMore: boolean;
  /**
   * `loading`: nothing was received yet. `live`: changes arrive. `waiting`: the connection is interrupted and will be
   * made again. `refused`: the token is not valid, and there is no other. `removed`: the subscriber does not exist.
   */
  readonly connection: "loading" | "live" | "waiting" | "refused" | "removed";
}

/** Options of a feed. */
export interface Options {
  /** URL of the server, without a path, such as `https://notify.example.org`. */
  readonly server: string;
  /** Id of the subscriber. */
  readonly subscriber: string;
  /** An inbox token of this subscriber. */
  readonly token: string;
  /** Returns a new token when the present one has expired. */
  readonly renew?: () => Promise<string>;
}
