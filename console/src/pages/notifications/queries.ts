import type { Page, Schema } from "../../api/client";
import { reasonHeader, request } from "../../api/client";
import { useRead, useRows } from "../../api/query";
import { reportPage } from "../../api/report";
import type { Filter, Resend } from "./model";
import type { JsonValue } from "../../components/json/model";

/** A notification of the list. */
export interface FoundNotification {
  id: string;
  application: string;
  version: number;
  rule: string;
  class: string;
  event_class: string;
  channel: string;
  matched_at: string;
  expires_at?: string | null;
  subscription: string;
  event_id: string;
  state: string;
  attempts: number;
  last_sent_at?: string;
  last_answered_at?: string;
  reply?: string;
  recipient: Schema<"RecipientBody"> | null;
}

export interface FoundNotifications extends Page<FoundNotification> {
  scanned: { batches: number; notifications: number };
  scanned_to?: string;
}

export function useNotifications(query: Filter) {
  return useRows<FoundNotification>("/v1/notifications", {
    query: { ...query },
    topics: ["notifications"],
    id: (row) => row.id,
  });
}

/** Row of the report `notification-batch-list`. */
export interface BatchRow {
  notification_batch: string;
  application: string;
  class: string;
  rule: string;
  channel: string;
  notifications: number;
  status: string;
  generation_ended_at: string;
  wait_ms: number | null;
  delivery_ms: number | null;
  delivered: number;
  failed: number;
  open: number;
}

export function useBatches(query: {
  application?: string | undefined;
  class?: string | undefined;
  rule?: string | undefined;
  channel?: string | undefined;
  from: string;
  to?: string;
}) {
  return useRows<BatchRow>("/v1/reports/notification-batch-list", {
    query: { ...query },
    topics: ["notifications"],
    id: (row) => row.notification_batch,
    cursor: "before",
    page: reportPage<BatchRow>("notification_batches"),
  });
}

export type Notification = Schema<"NotificationBody"> & {
  event?: Record<string, JsonValue> | null;
  fields: Record<string, JsonValue>;
};

export function useNotification(id: string) {
  return useRead<Notification>(`/v1/notifications/${encodeURIComponent(id)}`, { topics: ["notifications"] });
}

export function useNotificationBatch(id: string) {
  return useRead<Schema<"NotificationBatchBody">>(`/v1/notification-batches/${encodeURIComponent(id)}`, {
    topics: ["notifications"],
  });
}

/** Content, rendered again from the version that sent it. */
export interface Content {
  notification: string;
  version: number;
  channel: string;
  device: string | null;
  address: string | null;
  locale: string | null;
  parts: { part: string; header?: string | null; content: string }[];
  html: string | null;
  failure?: string;
}

export function useContent(id: string) {
  return useRead<Content>(`/v1/notifications/${encodeURIComponent(id)}/content`);
}

/** Number of notifications that a resend selects; a preview examines 10,000 batches, and then continues. */
export async function countResend(draft: Resend): Promise<number> {
  let count = 0;
  let after: string | null | undefined;
  for (let pages = 0; pages < 20; pages += 1) {
    const preview = await request<Schema<"ResendPreview">>("POST", "/v1/resends/preview", {
      body: { ...draft, ...(after == null ? {} : { after }) },
    });
    count += preview.notifications;
    after = preview.next;
    if (after == null) break;
  }
  return count;
}

export function resend(draft: Resend, key: string, reason?: string): Promise<Schema<"Resend">> {
  return request("POST", "/v1/resends", {
    body: draft,
    headers: { "Idempotency-Key": key, ...reasonHeader(reason) },
  });
}
