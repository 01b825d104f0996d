// What the overview reads: the status, its changes by the live stream, and series.
import { useEffect, useSyncExternalStore } from "react";
import type { Schema } from "../../api/client";
import { useLiveState, useTopics } from "../../api/live";
import { useRead, type Read } from "../../api/query";
import type { Range } from "../../shell/range";
import { addSample, type Sample } from "./rates";

export type Status = Schema<"StatusBody">;

export interface AttentionItem {
  urgency: "now" | "soon" | "note";
  what: string;
  text: string;
  cause?: string | null;
  advice: string;
  code?: string;
  parameters?: Record<string, unknown>;
  object?: { kind: string; id: string; application?: string | null } | null;
}

/** A message of the topic `status`. */
interface StatusReport {
  at: string;
  waiting_events: number;
  waiting_event_batches: number;
  waiting_notifications: number;
  work_items: number;
  suspended: number;
  failed_event_batches: number;
  oldest_event: string | null;
  event_batches: number;
  events: number;
  notification_batches: number;
  notifications: number;
  attempts: Record<string, number>;
}

export interface SeriesAnswer {
  from: string;
  to: string;
  step: number;
  times: number[];
  series: { name: string; unit: string; kind: string; values: (number | null)[] }[];
}

// Kept over visits of the page, so that rates are there at once on a return.
let samples: Sample[] = [];
const listeners = new Set<() => void>();

function add(sample: Sample) {
  samples = addSample(samples, sample);
  listeners.forEach((listener) => listener());
}

export function useSamples(): readonly Sample[] {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => samples,
  );
}

/** The status: its figures come once a second by the stream, the rest every 5 s; without a stream, all every 2 s. */
export function useStatus(): Read<Status> {
  const live = useLiveState();
  const status = useRead<Status>("/v1/status", { every: live === "live" ? 5_000 : 2_000 });
  const { data, dataUpdatedAt } = status;
  useEffect(() => {
    if (data !== undefined)
      add({
        at: dataUpdatedAt,
        waitingEvents: data.backlog.events,
        waitingNotifications: data.backlog.notifications,
        workItems: data.backlog.work_items,
        suspended: data.backlog.suspended,
        failedBatches: data.backlog.failed_batches,
        oldestEvent: data.backlog.oldest_event ?? null,
        events: data.totals.events,
        eventBatches: data.totals.event_batches,
        notifications: data.totals.notifications,
        notificationBatches: data.totals.notification_batches,
        attempts: data.totals.attempts as Record<string, number>,
      });
  }, [data, dataUpdatedAt]);
  useTopics(["status"], ({ data: report }) => {
    if (typeof report !== "object" || report === null || !("events" in report)) return;
    const now = report as StatusReport;
    add({
      at: Date.now(),
      waitingEvents: now.waiting_events,
      waitingNotifications: now.waiting_notifications,
      workItems: now.work_items,
      suspended: now.suspended,
      failedBatches: now.failed_event_batches,
      oldestEvent: now.oldest_event,
      events: now.events,
      eventBatches: now.event_batches,
      notifications: now.notifications,
      notificationBatches: now.notification_batches,
      attempts: now.attempts,
    });
  });
  return status;
}

export function useAttention(): Read<{ items: AttentionItem[] }> {
  return useRead<{ items: AttentionItem[] }>("/v1/attention", { topics: ["attention"], every: 15_000 });
}

export function useSeries(names: readonly string[], range: Range): Read<SeriesAnswer> {
  return useRead<SeriesAnswer>("/v1/series", {
    query: { names: names.join(","), ...range.query, step: range.step },
    every: 30_000,
  });
}
