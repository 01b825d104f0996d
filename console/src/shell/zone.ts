/** Offset of a time zone at a moment, in milliseconds: local clock less UTC. */
export function zoneOffsetMs(time: Date, zone: string | undefined): number {
  const parts = new Intl.DateTimeFormat("en-US", {
    ...(zone === undefined ? {} : { timeZone: zone }),
    hourCycle: "h23",
    year: "numeric",
    month: "numeric",
    day: "numeric",
    hour: "numeric",
    minute: "numeric",
    second: "numeric",
  }).formatToParts(time);
  const of = (type: string) => Number(parts.find((part) => part.type === type)?.value);
  const clock = Date.UTC(of("year"), of("month") - 1, of("day"), of("hour"), of("minute"), of("second"));
  return clock - Math.floor(time.getTime() / 1000) * 1000;
}
