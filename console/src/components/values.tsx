// Forms of single values: times, durations, numbers.
import { useEffect, useReducer } from "react";
import {
  agoChangesIn,
  formatAgo,
  formatBytes,
  formatCompact,
  formatCount,
  formatDuration,
  formatPercent,
  formatRate,
  formatTime,
  type TimeForm,
} from "../format";
import { presentLanguage, useT } from "../locales";
import { useTimeZone } from "../settings";

/** A moment: relative by default, with the exact one on hover and focus. */
export function Time({
  value,
  form = "ago",
}: {
  value: string | number | Date | null | undefined;
  form?: TimeForm | "ago";
}) {
  useT();
  const zone = useTimeZone();
  const time = value === null || value === undefined ? null : new Date(value);
  const valid = time !== null && !Number.isNaN(time.getTime());
  useTick(valid && form === "ago" ? agoChangesIn(time, Date.now()) : null);
  if (!valid) return <span className="muted">–</span>;
  const locale = presentLanguage();
  const shown = form === "ago" ? formatAgo(time, Date.now(), locale) : formatTime(time, form, locale, zone);
  const exact = formatTime(time, "exact", locale, zone);
  const other =
    zone === "UTC" ? formatTime(time, "exact", locale, undefined) : formatTime(time, "exact", locale, "UTC");
  return (
    <time className="time" dateTime={time.toISOString()} data-tip={`${exact}\n${other}`}>
      {shown}
    </time>
  );
}

function useTick(ms: number | null) {
  const [, tick] = useReducer((count: number) => count + 1, 0);
  useEffect(() => {
    if (ms === null) return;
    const timer = setInterval(tick, ms);
    return () => clearInterval(timer);
  }, [ms]);
}

export function Duration({ ms }: { ms: number | null | undefined }) {
  useT();
  return <span className="num">{ms === null || ms === undefined ? "–" : formatDuration(ms, presentLanguage())}</span>;
}

export function Count({ value, compact = false }: { value: number | null | undefined; compact?: boolean }) {
  useT();
  if (value === null || value === undefined) return <span className="num">–</span>;
  const full = formatCount(value, presentLanguage());
  return compact && Math.abs(value) >= 10_000 ? (
    <span className="num" data-tip={full}>
      {formatCompact(value, presentLanguage())}
    </span>
  ) : (
    <span className="num">{full}</span>
  );
}

export function Rate({ value }: { value: number | null | undefined }) {
  useT();
  return (
    <span className="num">{value === null || value === undefined ? "–" : formatRate(value, presentLanguage())}</span>
  );
}

export function Percent({ value }: { value: number | null | undefined }) {
  useT();
  return (
    <span className="num">{value === null || value === undefined ? "–" : formatPercent(value, presentLanguage())}</span>
  );
}

export function Bytes({ value }: { value: number | null | undefined }) {
  useT();
  return (
    <span className="num">{value === null || value === undefined ? "–" : formatBytes(value, presentLanguage())}</span>
  );
}
