/** Explanations of `POST /v1/explain`. */
import type { JsonValue } from "../../components/json/model";
import type { Condition, ReadValue } from "../../components/verdict/model";

export interface Gate {
  gate: string;
  verdict: "passed" | "blocked" | "unknown";
  deciding: boolean;
  as_of: "event" | "now" | "recorded";
  /** Absent for a gate that passed. */
  code?: string;
  parameters?: Record<string, JsonValue>;
  text: string;
  values: ReadValue[];
  until?: string | null;
  conditions?: Condition[] | null;
  object?: { kind: string; id: string; application?: string | null } | null;
}

export interface Path {
  rule: string;
  class: string;
  subscription: string;
  decision: "sent" | "waiting" | "not_sent" | "would_send" | "unknown";
  deciding: string | null;
  notification: string | null;
  outcome: string | null;
  gates: Gate[];
}

export interface Explanation {
  application: string;
  class: string;
  event: { id: string | null; time: string; state: string; version: number; fields: Record<string, JsonValue> };
  subscriber: string | null;
  basis: "snapshot" | "now";
  truncated: boolean;
  gates: Gate[];
  paths: Path[];
}

export interface Question {
  event: string;
  subscriber?: string;
  subscription?: string;
  rule?: string;
}

/** The question of the address; null while it is incomplete. */
export function questionOf(search: {
  event?: string | undefined;
  subscriber?: string | undefined;
  subscription?: string | undefined;
  rule?: string | undefined;
}): Question | null {
  const { event, subscriber, subscription, rule } = search;
  if (event === undefined || (subscriber === undefined && subscription === undefined)) return null;
  return {
    event,
    // The server takes exactly one of the two; a subscription names its subscriber.
    ...(subscription === undefined ? { subscriber: subscriber as string } : { subscription }),
    ...(rule === undefined ? {} : { rule }),
  };
}

/** The paths in the order of interest: those that were sent, then those that came furthest. */
export function orderPaths(paths: readonly Path[]): Path[] {
  const rank: Record<Path["decision"], number> = { sent: 0, waiting: 1, would_send: 2, unknown: 3, not_sent: 4 };
  const reached = (path: Path) => {
    const at = path.gates.findIndex((gate) => gate.deciding);
    return at < 0 ? path.gates.length : at;
  };
  return [...paths].sort((left, right) => rank[left.decision] - rank[right.decision] || reached(right) - reached(left));
}
