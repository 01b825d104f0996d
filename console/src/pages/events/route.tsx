import { withParts } from "../../components/parts";
import { definePage, oneOf, text } from "../../page";

export const eventsPage = definePage({
  path: "/events",
  page: "events",
  title: "events.title",
  scope: "operations:read",
  search: (raw) => ({
    view: oneOf(raw.view, ["batches", "events"]) ?? "batches",
    application: text(raw.application),
    class: text(raw.class),
    state: oneOf(raw.state, ["accepted", "matched", "failed"]),
    where: text(raw.where),
    by: text(raw.by),
  }),
  load: () => withParts(() => import("./page")),
});

export const eventPage = definePage({
  path: "/events/$id",
  page: "events",
  title: "events.batch",
  scope: "operations:read",
  search: (raw) => ({
    event: text(raw.event),
    tab: oneOf(raw.tab, ["journey", "events", "notifications"]) ?? "journey",
  }),
  load: () => withParts(() => import("./batch")),
});

export default [eventsPage, eventPage];
