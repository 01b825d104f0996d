// Figures of charts: tidy numbers for axes and summaries.
import { formatBytes, formatCount, formatDuration, formatPercent, formatRate } from "../../format";

export type Unit = "count" | "rate" | "ms" | "seconds" | "percent" | "fraction" | "bytes";

export function formatUnit(value: number | null | undefined, unit: Unit, locale: string): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  switch (unit) {
    case "count":
      return formatCount(value, locale);
    case "rate":
      return formatRate(value, locale);
    case "ms":
      return formatDuration(value, locale);
    case "seconds":
      return formatDuration(value * 1000, locale);
    case "percent":
      return formatPercent(value / 100, locale);
    case "fraction":
      return formatPercent(value, locale);
    case "bytes":
      return formatBytes(value, locale);
  }
}

export interface Summary {
  last: number | null;
  min: number | null;
  max: number | null;
}

export function summarize(values: readonly (number | null)[]): Summary {
  let last: number | null = null;
  let min: number | null = null;
  let max: number | null = null;
  for (const value of values) {
    if (value === null) continue;
    last = value;
    if (min === null || value < min) min = value;
    if (max === null || value > max) max = value;
  }
  return { last, min, max };
}

/** Points of a path in a box, with breaks where a value is missing. */
export function sparkPath(values: readonly (number | null)[], width: number, height: number, most: number): string {
  if (values.length === 0) return "";
  const step = values.length === 1 ? 0 : width / (values.length - 1);
  let pen = false;
  let path = "";
  values.forEach((value, index) => {
    if (value === null) {
      pen = false;
      return;
    }
    const y = most <= 0 ? height - 1 : height - 1 - (value / most) * (height - 2);
    path += `${pen ? "L" : "M"}${round(index * step)} ${round(y)}`;
    pen = true;
  });
  return path;
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}
