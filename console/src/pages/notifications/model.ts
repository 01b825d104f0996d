/** Filters of the list, and selections of a resend. */
import type { Schema } from "../../api/client";

export interface Filter {
  application?: string | undefined;
  class?: string | undefined;
  rule?: string | undefined;
  channel?: string | undefined;
  subscriber?: string | undefined;
  address?: string | undefined;
  outcome?: string | undefined;
  reason?: string | undefined;
  from: string;
  to?: string;
}

export type Resend = Omit<Schema<"ResendDraft">, "all"> & { all?: boolean };

/** Outcomes that a resend repeats; with new ids, also what has expired. */
export function canResend(state: string, asNew: boolean): boolean {
  return asNew
    ? state === "refused" || state === "expired" || state === "ended"
    : state === "refused" || state === "suspended";
}

/** Draft for the present filters of the list; the channel and the reason are those of the failure. */
export function draftOf(filter: Omit<Filter, "address" | "rule" | "outcome"> & { outcome: readonly string[] }): Resend {
  const failed = filter.outcome.filter((word) => word === "refused" || word === "suspended");
  return {
    ...(filter.application === undefined ? {} : { application: filter.application }),
    ...(filter.class === undefined ? {} : { class: filter.class }),
    ...(filter.channel === undefined ? {} : { channel: filter.channel }),
    ...(filter.subscriber === undefined ? {} : { subscriber: filter.subscriber }),
    ...(filter.reason === undefined ? {} : { reason: filter.reason }),
    ...(failed.length === 0 ? {} : { outcomes: failed }),
    since: filter.from,
    ...(filter.to === undefined ? {} : { until: filter.to }),
  } as Resend;
}
