import { withParts } from "../../components/parts";
import { definePage, oneOf, whole } from "../../page";

export const applicationsPage = definePage({
  path: "/applications",
  page: "applications",
  title: "applications.title",
  scope: "applications:read",
  load: () => withParts(() => import("./page")),
});

// A name of an application begins with a letter, so this path is of none.
export const newApplicationPage = definePage({
  path: "/applications/~new",
  page: "applications",
  title: "applications.new",
  scope: "applications:write",
  load: () => withParts(() => import("./new")),
});

export const applicationPage = definePage({
  path: "/applications/$application",
  page: "applications",
  title: "applications.one",
  scope: "applications:read",
  search: (raw) => ({
    tab: oneOf(raw.tab, ["outline", "definition", "versions"]) ?? "outline",
    line: whole(raw.line),
    version: whole(raw.version),
  }),
  load: () => withParts(() => import("./application")),
});

export default [applicationsPage, newApplicationPage, applicationPage];
