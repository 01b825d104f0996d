// Forms of numbers, sizes, times and durations, by language and time zone.

const cache = new Map<string, Intl.NumberFormat | Intl.DateTimeFormat | Intl.RelativeTimeFormat>();

function cached<Format extends Intl.NumberFormat | Intl.DateTimeFormat | Intl.RelativeTimeFormat>(
  key: string,
  make: () => Format,
): Format {
  let found = cache.get(key);
  if (found === undefined) {
    found = make();
    cache.set(key, found);
  }
  return found as Format;
}

export function formatCount(value: number, locale: string): string {
  return cached(`count/${locale}`, () => new Intl.NumberFormat(locale, { maximumFractionDigits: 0 })).format(value);
}

/** Short form of a large number, such as `1.2M`. */
export function formatCompact(value: number, locale: string): string {
  return cached(
    `compact/${locale}`,
    () => new Intl.NumberFormat(locale, { notation: "compact", maximumFractionDigits: 1 }),
  ).format(value);
}

/** A rate or another fraction: three significant digits below 100, none behind the point above. */
export function formatRate(value: number, locale: string): string {
  const digits = value === 0 || Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  if (Math.abs(value) >= 100_000) return formatCompact(value, locale);
  return cached(
    `rate/${locale}/${digits}`,
    () => new Intl.NumberFormat(locale, { maximumFractionDigits: digits }),
  ).format(value);
}

export function formatPercent(fraction: number, locale: string): string {
  const digits = fraction !== 0 && Math.abs(fraction) < 0.1 ? 1 : 0;
  return cached(
    `percent/${locale}/${digits}`,
    () => new Intl.NumberFormat(locale, { style: "percent", maximumFractionDigits: digits }),
  ).format(fraction);
}

export function formatBytes(bytes: number, locale: string): string {
  const units = ["byte", "kilobyte", "megabyte", "gigabyte", "terabyte"];
  const step = bytes < 1000 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(bytes) / 3));
  const value = bytes / 1000 ** step;
  const digits = step === 0 || value >= 100 ? 0 : 1;
  return cached(
    `bytes/${locale}/${step}/${digits}`,
    () =>
      new Intl.NumberFormat(locale, {
        style: "unit",
        unit: units[step]!,
        unitDisplay: "short",
        maximumFractionDigits: digits,
      }),
  ).format(value);
}

type DurationUnit = "millisecond" | "second" | "minute" | "hour" | "day";
const durationUnits: [DurationUnit, number][] = [
  ["day", 86_400_000],
  ["hour", 3_600_000],
  ["minute", 60_000],
  ["second", 1_000],
  ["millisecond", 1],
];

/** Parts of a duration in at most two units: `[[3, "hour"], [12, "minute"]]`. */
export function durationParts(ms: number): [number, DurationUnit][] {
  const size = Math.abs(ms);
  if (size < 1) return [[Number(ms.toFixed(2)), "millisecond"]];
  if (size < 100) return [[Number(ms.toFixed(size < 10 ? 1 : 0)), "millisecond"]];
  if (size < 1_000) return [[Math.round(ms), "millisecond"]];
  if (size < 60_000) return [[Number((ms / 1000).toFixed(size < 9_950 ? 1 : 0)), "second"]];
  // Rounds to the smaller unit of the two first, so that 59 min 59.9 s is 1 h and not 60 min.
  for (let index = 0; index < 3; index += 1) {
    const [unit, unitMs] = durationUnits[index]!;
    const [lower, lowerMs] = durationUnits[index + 1]!;
    const rounded = Math.round(size / lowerMs) * lowerMs;
    if (rounded >= unitMs) {
      const whole = Math.floor(rounded / unitMs);
      const rest = Math.round((rounded - whole * unitMs) / lowerMs);
      const parts: [number, DurationUnit][] = [[whole, unit]];
      if (rest > 0) parts.push([rest, lower]);
      if (ms < 0) parts[0]![0] *= -1;
      return parts;
    }
  }
  return [[Math.round(ms / 1000), "second"]];
}

export function formatDuration(ms: number, locale: string): string {
  return durationParts(ms)
    .map(([value, unit]) =>
      cached(
        `unit/${locale}/${unit}`,
        () =>
          new Intl.NumberFormat(locale, {
            style: "unit",
            unit,
            unitDisplay: "short",
            maximumFractionDigits: 2,
          }),
      ).format(value),
    )
    .join(" ");
}

/** Time from now: `3 min. ago`, `in 2 hr.`. */
export function formatAgo(time: Date, now: number, locale: string): string {
  const ms = time.getTime() - now;
  const format = cached(
    `ago/${locale}`,
    () => new Intl.RelativeTimeFormat(locale, { numeric: "auto", style: "short" }),
  );
  const size = Math.abs(ms);
  if (size < 5_000) return format.format(0, "second");
  if (size < 60_000) return format.format(Math.round(ms / 1000), "second");
  if (size < 3_570_000) return format.format(Math.round(ms / 60_000), "minute");
  if (size < 84_600_000) return format.format(Math.round(ms / 3_600_000), "hour");
  return format.format(Math.round(ms / 86_400_000), "day");
}

/** Milliseconds after which the relative form of a time changes. */
export function agoChangesIn(time: Date, now: number): number {
  const size = Math.abs(now - time.getTime());
  return size < 60_000 ? 5_000 : size < 3_600_000 ? 30_000 : 600_000;
}

export type TimeForm = "date-time" | "time" | "date" | "exact";

/** A moment in a time zone; `exact` has milliseconds and the offset. */
export function formatTime(time: Date, form: TimeForm, locale: string, timeZone: string | undefined): string {
  const options: Record<TimeForm, Intl.DateTimeFormatOptions> = {
    "date-time": {
      year: "numeric",
      month: "short",
      day: "numeric",
      hour: "2-digit",
      minute: "2-digit",
      second: "2-digit",
      hourCycle: "h23",
    },
    time: { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" },
    date: { year: "numeric", month: "short", day: "numeric" },
    exact: {
      year: "numeric",
      month: "short",
      day: "numeric",
      hour: "2-digit",
      minute: "2-digit",
      second: "2-digit",
      fractionalSecondDigits: 3,
      timeZoneName: "short",
      hourCycle: "h23",
    },
  };
  return cached(
    `time/${form}/${locale}/${timeZone ?? ""}`,
    () => new Intl.DateTimeFormat(locale, { ...options[form], ...(timeZone === undefined ? {} : { timeZone }) }),
  ).format(time);
}
