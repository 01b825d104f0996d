// Where a problem is solved: the page of its kind.
import type { MessageKey } from "../../locales";

export interface Target {
  to: string;
  text: MessageKey;
}

const targets: Record<string, Target> = {
  "blocked-mail": { to: "/channels", text: "overview.open.channels" },
  complaints: { to: "/suppressions", text: "overview.open.suppressions" },
  "disk-space": { to: "/maintenance", text: "overview.open.maintenance" },
  "expiring-key": { to: "/admin?tab=keys", text: "overview.open.keys" },
  "failed-batches": { to: "/events?state=failed", text: "overview.open.events" },
  "failed-broadcasts": { to: "/inbox", text: "overview.open.broadcasts" },
  "failing-endpoints": { to: "/channels?tab=endpoints", text: "overview.open.channels" },
  "mail-held-back": { to: "/channels", text: "overview.open.channels" },
  "missed-firings": { to: "/rules", text: "overview.open.rules" },
  full: { to: "/capacity", text: "overview.open.capacity" },
  "nearly-full": { to: "/capacity", text: "overview.open.capacity" },
  "not-running": { to: "/applications", text: "overview.open.applications" },
  "paused-broadcasts": { to: "/inbox", text: "overview.open.broadcasts" },
  "paused-destinations": { to: "/channels", text: "overview.open.channels" },
  refused: { to: "/notifications?outcome=refused", text: "overview.open.notifications" },
  "slow-distribution": { to: "/channels", text: "overview.open.channels" },
  "slow-generation": { to: "/rules", text: "overview.open.rules" },
  "slow-pickup": { to: "/events?state=waiting", text: "overview.open.events" },
  "slow-records": { to: "/capacity", text: "overview.open.capacity" },
  "stalled-destinations": { to: "/channels", text: "overview.open.channels" },
  "stopped-rules": { to: "/rules", text: "overview.open.rules" },
  suspended: { to: "/suspended", text: "overview.open.suspended" },
  "suspended-messages": { to: "/exchanges", text: "overview.open.exchanges" },
  "switched-off": { to: "/maintenance", text: "overview.open.maintenance" },
  "undefined-channel": { to: "/suspended", text: "overview.open.suspended" },
  "unreadable-store": { to: "/maintenance", text: "overview.open.maintenance" },
  "unwritable-store": { to: "/maintenance", text: "overview.open.maintenance" },
};

export function targetOf(what: string): Target | null {
  return targets[what] ?? null;
}

export function knownProblems(): string[] {
  return Object.keys(targets);
}
