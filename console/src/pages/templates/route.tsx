import { withParts } from "../../components/parts";
import { definePage, text } from "../../page";

export const templatesPage = definePage({
  path: "/templates",
  page: "templates",
  title: "templates.title",
  scope: "applications:read",
  search: (raw) => ({
    application: text(raw.application),
    event: text(raw.event),
    subscription: text(raw.subscription),
    rule: text(raw.rule),
    cell: text(raw.cell),
  }),
  load: () => withParts(() => import("./page")),
});

export default [templatesPage];
