import { definePage, text } from "../../page";

export const loginPage = definePage({
  path: "/login",
  page: "session",
  title: "session.login.title",
  bare: true,
  search: (raw) => ({ next: text(raw.next) }),
  load: () => import("./login"),
});

export const setupPage = definePage({
  path: "/setup",
  page: "session",
  title: "session.setup.title",
  bare: true,
  load: () => import("./setup"),
});

export const profilePage = definePage({
  path: "/profile",
  page: "session",
  title: "session.profile.title",
  load: () => import("./profile"),
});

export default [loginPage, setupPage, profilePage];
