import { definePage, oneOf } from "../../page";
import { loadMessages } from "../../locales";

export const attentionPage = definePage({
  path: "/attention",
  page: "attention",
  title: "common.nav.attention",
  scope: "operations:read",
  search: (raw) => ({ urgency: oneOf(raw.urgency, ["now", "soon", "note"]) }),
  // The list of problems and its texts are those of the overview.
  load: async () => (await Promise.all([import("./page"), loadMessages("overview")]))[0],
});

export default [attentionPage];
