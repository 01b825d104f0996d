// States of things: one word, one colour and one symbol each, defined once.
import type { ReactNode } from "react";
import { hasMessage, useT } from "../locales";
import { Icon, type IconName } from "./icon";

export type Tone = "success" | "pending" | "error" | "info" | "neutral";

export function Badge({
  tone = "neutral",
  icon,
  children,
  className,
}: {
  tone?: Tone;
  icon?: IconName;
  children: ReactNode;
  className?: string;
}) {
  return (
    <span className={`badge badge-${tone}${className === undefined ? "" : ` ${className}`}`}>
      <Icon name={icon ?? tone} size={14} />
      <span>{children}</span>
    </span>
  );
}

const states: Record<string, { tone: Tone; icon?: IconName }> = {
  accepted: { tone: "pending" },
  active: { tone: "success" },
  alert: { tone: "error", icon: "attention" },
  cancelled: { tone: "neutral", icon: "suppressions" },
  closed: { tone: "neutral" },
  connecting: { tone: "pending" },
  deferred: { tone: "pending", icon: "refresh" },
  degraded: { tone: "pending", icon: "attention" },
  delivered: { tone: "success" },
  disabled: { tone: "neutral", icon: "suppressions" },
  done: { tone: "success" },
  down: { tone: "error" },
  enabled: { tone: "success" },
  ended: { tone: "neutral", icon: "suppressions" },
  expired: { tone: "neutral", icon: "clock" },
  failed: { tone: "error" },
  failing: { tone: "error", icon: "attention" },
  matched: { tone: "success" },
  note: { tone: "info" },
  now: { tone: "error", icon: "attention" },
  off: { tone: "pending", icon: "pause" },
  open: { tone: "pending" },
  paused: { tone: "pending", icon: "pause" },
  pending: { tone: "pending" },
  queued: { tone: "pending" },
  ready: { tone: "success" },
  refused: { tone: "error" },
  rejected: { tone: "error" },
  running: { tone: "info", icon: "play" },
  soon: { tone: "pending", icon: "attention" },
  stopped: { tone: "pending", icon: "pause" },
  suspended: { tone: "pending", icon: "suspended" },
  unroutable: { tone: "error", icon: "attention" },
  waiting: { tone: "pending" },
  warning: { tone: "pending", icon: "attention" },
};

/** Badge of a state as the API names it. */
export function StateBadge({ state, children }: { state: string; children?: ReactNode }) {
  const t = useT();
  const known = states[state] ?? { tone: "neutral" as const };
  const key = `common.state.${state}`;
  return (
    <Badge tone={known.tone} {...(known.icon === undefined ? {} : { icon: known.icon })}>
      {children ?? (hasMessage(key) ? t(key) : state.replaceAll("_", " "))}
    </Badge>
  );
}

export function knownStates(): string[] {
  return Object.keys(states);
}
