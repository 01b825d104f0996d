// The navigation, in the order of the data flow.
import type { IconName } from "../components/icon";
import type { MessageKey } from "../locales";
import { pages } from "../pages";
import type { Session } from "../api/session";

export interface NavigationEntry {
  to: string;
  text: MessageKey;
  icon: IconName;
  /** Letter of the shortcut `g` and letter. */
  key?: string;
  scope?: string;
  /** Count shown beside the entry. */
  badge?: "attention" | "suspended";
  when?: (server: Session["server"]) => boolean;
}

export interface NavigationGroup {
  text: MessageKey | null;
  entries: NavigationEntry[];
}

const all: NavigationGroup[] = [
  {
    text: null,
    entries: [
      { to: "/", text: "common.nav.overview", icon: "overview", key: "o", scope: "operations:read" },
      { to: "/explain", text: "common.nav.explain", icon: "explain", key: "x", scope: "operations:read" },
    ],
  },
  {
    text: "common.nav.flow",
    entries: [
      { to: "/sources", text: "common.nav.sources", icon: "sources", scope: "operations:read" },
      { to: "/events", text: "common.nav.events", icon: "events", key: "e", scope: "operations:read" },
      { to: "/rules", text: "common.nav.rules", icon: "rules", key: "r", scope: "operations:read" },
      {
        to: "/notifications",
        text: "common.nav.notifications",
        icon: "notifications",
        key: "n",
        scope: "operations:read",
      },
      { to: "/channels", text: "common.nav.channels", icon: "channels", key: "c", scope: "operations:read" },
    ],
  },
  {
    text: "common.nav.people",
    entries: [
      {
        to: "/subscribers",
        text: "common.nav.subscribers",
        icon: "subscribers",
        key: "s",
        scope: "subscribers:read",
      },
      { to: "/segments", text: "common.nav.segments", icon: "segments", scope: "subscribers:read" },
      { to: "/directory", text: "common.nav.directory", icon: "directory", key: "d", scope: "subscribers:read" },
      { to: "/inbox", text: "common.nav.inbox", icon: "inbox", key: "i", scope: "inbox:read" },
      { to: "/suppressions", text: "common.nav.suppressions", icon: "suppressions", scope: "subscribers:read" },
    ],
  },
  {
    text: "common.nav.systems",
    entries: [
      { to: "/exchanges", text: "common.nav.exchanges", icon: "exchanges", key: "h", scope: "operations:read" },
      { to: "/sync", text: "common.nav.sync", icon: "sync", scope: "sync:read" },
    ],
  },
  {
    text: "common.nav.build",
    entries: [
      {
        to: "/applications",
        text: "common.nav.applications",
        icon: "applications",
        key: "a",
        scope: "applications:read",
      },
      { to: "/templates", text: "common.nav.templates", icon: "templates", scope: "applications:read" },
    ],
  },
  {
    text: "common.nav.operate",
    entries: [
      {
        to: "/attention",
        text: "common.nav.attention",
        icon: "attention",
        key: "t",
        scope: "operations:read",
        badge: "attention",
      },
      {
        to: "/suspended",
        text: "common.nav.suspended",
        icon: "suspended",
        key: "u",
        scope: "operations:read",
        badge: "suspended",
      },
      { to: "/schedules", text: "common.nav.schedules", icon: "schedules", scope: "operations:read" },
      { to: "/reports", text: "common.nav.reports", icon: "reports", scope: "operations:read" },
      { to: "/capacity", text: "common.nav.capacity", icon: "capacity", scope: "operations:read" },
      {
        to: "/maintenance",
        text: "common.nav.maintenance",
        icon: "maintenance",
        key: "m",
        scope: "operations:read",
      },
    ],
  },
  {
    text: null,
    entries: [{ to: "/admin", text: "common.nav.admin", icon: "admin", scope: "users:read" }],
  },
];

const paths = new Set(pages.map((page) => page.path));

/** The entries whose pages exist. */
export const navigation: NavigationGroup[] = all
  .map((group) => ({ ...group, entries: group.entries.filter((entry) => paths.has(entry.to)) }))
  .filter((group) => group.entries.length > 0);
