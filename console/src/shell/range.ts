// The time range of all pages: `?range=24h`, or `?from=…&to=…`.
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useCallback, useEffect, useMemo, useReducer } from "react";

export const ranges = ["15m", "1h", "24h", "7d", "30d"] as const;
export type RangeKey = (typeof ranges)[number];

const rangeMs: Record<RangeKey, number> = {
  "15m": 900_000,
  "1h": 3_600_000,
  "24h": 86_400_000,
  "7d": 604_800_000,
  "30d": 2_592_000_000,
};
export const initialRange: RangeKey = "24h";

export interface Range {
  key: RangeKey | "absolute";
  from: Date;
  to: Date;
  ms: number;
  /** Step of a series that shows the range with at most 300 points. */
  step: "10s" | "1m" | "15m" | "1h" | "1d";
  /** Members for a request. */
  query: { from: string; to: string };
}

export interface RangeSearch {
  range?: RangeKey;
  from?: string;
  to?: string;
}

export function readRange(raw: Record<string, unknown>): RangeSearch {
  const from = moment(raw.from);
  const to = moment(raw.to);
  if (from !== null && to !== null && from < to) return { from: from.toISOString(), to: to.toISOString() };
  const key = ranges.find((known) => known === raw.range);
  return key === undefined || key === initialRange ? {} : { range: key };
}

function moment(raw: unknown): Date | null {
  if (typeof raw !== "string") return null;
  const time = new Date(raw);
  return Number.isNaN(time.getTime()) ? null : time;
}

export function stepOf(ms: number): Range["step"] {
  if (ms <= 3_000_000) return "10s";
  if (ms <= 18_000_000) return "1m";
  if (ms <= 270_000_000) return "15m";
  if (ms <= 1_080_000_000) return "1h";
  return "1d";
}

export function resolveRange(search: RangeSearch, now: number): Range {
  const absolute = search.from !== undefined && search.to !== undefined;
  const key = absolute ? "absolute" : (search.range ?? initialRange);
  const to = absolute ? new Date(search.to!) : new Date(now);
  const from = absolute ? new Date(search.from!) : new Date(now - rangeMs[key as RangeKey]);
  const ms = to.getTime() - from.getTime();
  return { key, from, to, ms, step: stepOf(ms), query: { from: from.toISOString(), to: to.toISOString() } };
}

/** The range that follows (1) or precedes (-1), of the same length; none of it is in the future. */
export function shiftRange(range: Range, by: 1 | -1, now: number): RangeSearch {
  const to = range.to.getTime() + by * range.ms;
  if (to >= now) return { range: closest(range.ms) };
  return { from: new Date(to - range.ms).toISOString(), to: new Date(to).toISOString() };
}

function closest(ms: number): RangeKey {
  return ranges.reduce((best, key) => (Math.abs(rangeMs[key] - ms) < Math.abs(rangeMs[best] - ms) ? key : best));
}

/** The present range. A relative one moves on once a minute, so that reads keep their keys in between. */
export function useRange(): Range {
  const raw = useSearch({ strict: false }) as Record<string, unknown>;
  const [tick, next] = useReducer((count: number) => count + 1, 0);
  const search = readRange(raw);
  const isRelative = search.from === undefined;
  useEffect(() => {
    if (!isRelative) return;
    const timer = setInterval(next, 60_000);
    return () => clearInterval(timer);
  }, [isRelative]);
  const minute = Math.floor(Date.now() / 60_000 + 1) * 60_000;
  return useMemo(
    () => resolveRange(search, minute),
    // `tick` is in the list so that a new minute is read.
    [search.range, search.from, search.to, minute, tick],
  );
}

export function useSetRange(): (search: RangeSearch) => void {
  const navigate = useNavigate();
  return useCallback(
    (search: RangeSearch) => {
      void navigate({
        to: ".",
        resetScroll: false,
        search: ((previous: Record<string, unknown>) => {
          const { range: _range, from: _from, to: _to, ...rest } = previous;
          // Named even if it is the initial one: a link without a range would keep the present one.
          return {
            ...rest,
            ...(search.from === undefined ? { range: search.range ?? initialRange } : search),
          };
        }) as never,
      });
    },
    [navigate],
  );
}
