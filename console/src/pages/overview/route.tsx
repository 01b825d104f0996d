import { definePage } from "../../page";

export const overviewPage = definePage({
  path: "/",
  page: "overview",
  title: "common.nav.overview",
  scope: "operations:read",
  load: () => import("./page"),
});

export default [overviewPage];
