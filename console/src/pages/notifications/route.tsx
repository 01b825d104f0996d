import { withParts } from "../../components/parts";
import { definePage, list, oneOf, text } from "../../page";

export const outcomes = ["waiting", "delivered", "deferred", "refused", "expired", "suspended", "ended"] as const;

export const notificationsPage = definePage({
  path: "/notifications",
  page: "notifications",
  title: "notifications.title",
  scope: "operations:read",
  search: (raw) => ({
    view: oneOf(raw.view, ["notifications", "batches"]) ?? "notifications",
    application: text(raw.application),
    class: text(raw.class),
    rule: text(raw.rule),
    channel: text(raw.channel),
    subscriber: text(raw.subscriber),
    address: text(raw.address),
    outcome: list(raw.outcome).filter((word) => (outcomes as readonly string[]).includes(word)),
    reason: text(raw.reason),
  }),
  load: () => withParts(() => import("./page")),
});

export const notificationPage = definePage({
  path: "/notifications/$id",
  page: "notifications",
  title: "notifications.one",
  scope: "operations:read",
  search: (raw) => ({ tab: oneOf(raw.tab, ["journey", "content", "fields"]) ?? "journey" }),
  load: () => withParts(() => import("./notification")),
});

export const notificationBatchPage = definePage({
  path: "/notifications/batches/$id",
  page: "notifications",
  title: "notifications.batch",
  scope: "operations:read",
  load: () => withParts(() => import("./batch")),
});

export default [notificationsPage, notificationPage, notificationBatchPage];
