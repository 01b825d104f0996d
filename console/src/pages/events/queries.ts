import type { Page } from "../../api/client";
import { useRead, useRows } from "../../api/query";
import { reportPage, tableOf } from "../../api/report";
import type { JsonValue } from "../../components/json/model";

/** Row of the report `event-batch-list`. */
export interface BatchRow {
  event_batch: string;
  application: string;
  class: string;
  source: string;
  version: number;
  status: "accepted" | "matched" | "failed";
  events: number;
  collection_started_at: string;
  collection_ended_at: string;
  collection_ms: number;
  matched_at: string | null;
  generation_ms: number | null;
  reason: string | null;
}

/** Row of the notification batches of `event-batch-details`. */
export interface MadeBatchRow {
  notification_batch: string;
  class: string;
  rule: string;
  channel: string;
  notifications: number;
  status: string;
  generation_ms: number | null;
  wait_ms: number | null;
  delivery_ms: number | null;
  delivered: number;
  failed: number;
  open: number;
}

export interface EventRow {
  event: string;
  fields: Record<string, JsonValue>;
}

/** An event of `/v1/events`. */
export interface FoundEvent {
  id: string;
  batch: string;
  application: string;
  class: string;
  source: string;
  version: number;
  accepted_at: string;
  state: "accepted" | "matched" | "failed";
  event: Record<string, JsonValue>;
}

export interface FoundEvents extends Page<FoundEvent> {
  scanned: { batches: number; events: number };
  scanned_to?: string;
  errors?: number;
  counts?: { field: string; values: { value: JsonValue; count: number }[]; other: number };
}

export interface BatchFilter {
  application?: string | undefined;
  class?: string | undefined;
  status?: string | undefined;
  from: string;
  to?: string;
}

export function useBatches(query: BatchFilter, enabled: boolean) {
  return useRows<BatchRow>("/v1/reports/event-batch-list", {
    query: { ...query },
    topics: ["batches"],
    id: (row) => row.event_batch,
    cursor: "before",
    page: reportPage<BatchRow>("event_batches"),
    enabled,
  });
}

export interface EventFilter {
  application?: string | undefined;
  class?: string | undefined;
  where?: string | undefined;
  from: string;
  to?: string;
}

export function useEvents(query: EventFilter, enabled: boolean) {
  return useRows<FoundEvent>("/v1/events", {
    query: { ...query },
    topics: ["batches"],
    id: (row) => row.id,
    enabled,
  });
}

/** Most frequent values of a field. */
export function useCounts(query: EventFilter, field: string | undefined) {
  return useRead<FoundEvents>("/v1/events", {
    query: { ...query, count_by: field, limit: 12 },
    enabled: field !== undefined,
  });
}

export interface BatchDetails {
  batch: BatchRow;
  notificationBatches: MadeBatchRow[];
  events: EventRow[];
  next: string | null;
}

/** A batch with its notification batches and its first events. */
export function useBatch(id: string) {
  return useRead<Parameters<typeof tableOf>[0]>("/v1/reports/event-batch-details", {
    query: { id, limit: 1000 },
    topics: ["batches", "notifications"],
  });
}

export function detailsOf(answer: Parameters<typeof tableOf>[0]): BatchDetails | null {
  const batch = tableOf<BatchRow>(answer, "event_batch")[0];
  if (batch === undefined) return null;
  return {
    batch,
    notificationBatches: tableOf<MadeBatchRow>(answer, "notification_batches"),
    events: tableOf<EventRow>(answer, "events"),
    next: answer.next ?? null,
  };
}
