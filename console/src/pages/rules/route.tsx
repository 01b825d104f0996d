import { withParts } from "../../components/parts";
import { definePage, oneOf, text } from "../../page";

export const rulesPage = definePage({
  path: "/rules",
  page: "rules",
  title: "rules.title",
  scope: "operations:read",
  search: (raw) => ({
    application: text(raw.application),
    rule: text(raw.rule),
    view: oneOf(raw.view, ["rules", "missed", "slow"]) ?? "rules",
  }),
  load: () => withParts(() => import("./page")),
});

export default [rulesPage];
