import { withParts } from "../../components/parts";
import { definePage, text } from "../../page";

export const explainPage = definePage({
  path: "/explain",
  page: "explain",
  title: "explain.title",
  scope: "operations:read",
  search: (raw) => ({
    event: text(raw.event),
    subscriber: text(raw.subscriber),
    subscription: text(raw.subscription),
    rule: text(raw.rule),
  }),
  load: () => withParts(() => import("./page")),
});

export default [explainPage];
