/**
 * Converts a trace of `/v1/trace/{id}` to lanes of bars: one lane for each object, one bar for each step of it.
 *
 * A step ends where the next point of the same object begins. Its activity follows from the two points; a step that
 * has no end yet is open. All times are microseconds since 1970, as the server reports them.
 */

export interface TracePoint {
  at: string;
  what: string;
  id: string;
  text: string;
}

export interface Trace {
  id: string;
  kind: string;
  timeline: TracePoint[];
  notifications: Record<string, number>;
  latencies: { generation_ms?: number | null; wait_ms?: number | null; delivery_ms?: number | null };
  context?: { trace_id: string; parent_span_id?: string | null; sampled: boolean; tracestate?: string } | null;
  truncated: boolean;
}

export type Activity = "accept" | "match" | "wait" | "send" | "retry" | "held";

export interface Bar {
  activity: Activity;
  /** Whether the server works, and does not wait for capacity, a due time or an operator. */
  working: boolean;
  from: number;
  /** End; of an open bar, the time of the request or its due time. */
  to: number;
  open: boolean;
  /** Outcome of an attempt, if the bar is one. */
  outcome: string | null;
  attempt: number | null;
  /** Response of the receiver, or the text of the step that ends the bar. */
  text: string;
}

export interface Mark {
  at: number;
  what: string;
  text: string;
}

export interface Lane {
  id: string;
  kind: ObjectKind;
  bars: Bar[];
  marks: Mark[];
  /** Last outcome; null while there is none. */
  outcome: string | null;
}

export interface Journey {
  lanes: Lane[];
  from: number;
  to: number;
}

export type ObjectKind =
  | "event"
  | "event_batch"
  | "notification"
  | "notification_batch"
  | "message"
  | "delayed"
  | "subscription"
  | "suspension"
  | "other";

/** Outcomes of an attempt, and of a whole message. */
const OUTCOMES = new Set([
  "delivered",
  "deferred",
  "refused",
  "expired",
  "suspended",
  "ended",
  "failed",
  "retry",
  "last answered",
  "over",
  "replied",
]);

/** Microseconds since 1970 of an RFC 3339 time; fractions below a microsecond are cut. */
export function micros(time: string): number {
  const match = /^(.*?:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)$/.exec(time);
  if (match === null) return Number.NaN;
  const seconds = Date.parse(`${match[1]}${match[3]}`);
  return seconds * 1000 + Number((match[2] ?? "").padEnd(6, "0").slice(0, 6));
}

/** The kind of an object, by the form of its id. */
export function objectKind(id: string): ObjectKind {
  if (/^e-\d+-\d+$/.test(id)) return "event";
  if (/^eb-\d+$/.test(id)) return "event_batch";
  if (/^n-\d+-\d+$/.test(id)) return "notification";
  if (/^nb-\d+$/.test(id)) return "notification_batch";
  if (/^m-\d+$/.test(id)) return "message";
  if (/^s-\d+$/.test(id)) return "subscription";
  if (/^delayed /.test(id)) return "delayed";
  if (/^su?p?-\d+$/.test(id)) return "suspension";
  return "other";
}

/** Builds the lanes of a trace; `now` is the end of open bars, in microseconds. */
export function buildJourney(trace: Trace, now: number): Journey {
  const byObject = new Map<string, { at: number; point: TracePoint }[]>();
  for (const point of trace.timeline) {
    const at = micros(point.at);
    if (Number.isNaN(at)) continue;
    const id = laneOf(trace, point);
    const list = byObject.get(id);
    if (list === undefined) byObject.set(id, [{ at, point }]);
    else list.push({ at, point });
  }
  const firstMatch = trace.timeline
    .filter((point) => point.what === "matched" || point.what === "batched")
    .map((point) => micros(point.at))
    .reduce((first, at) => Math.min(first, at), Number.POSITIVE_INFINITY);
  const lanes = [...byObject].map(([id, points]) => lane(id, points, firstMatch, now));
  const times = lanes.flatMap((each) => [
    ...each.bars.flatMap((bar) => [bar.from, bar.to]),
    ...each.marks.map((mark) => mark.at),
  ]);
  if (times.length === 0) return { lanes, from: now, to: now };
  return { lanes, from: least(times), to: most(times) };
}

/** The due time and the suspension of a notification have ids of their own, and belong to its lane. */
function laneOf(trace: Trace, point: TracePoint): string {
  const isOfNotification = trace.kind === "notification" && (point.what === "due" || point.what === "suspended");
  return isOfNotification ? trace.id : point.id;
}

function lane(id: string, points: { at: number; point: TracePoint }[], firstMatch: number, now: number): Lane {
  const kind = objectKind(id);
  const bars: Bar[] = [];
  let outcome: string | null = null;
  points.forEach(({ at, point }, index) => {
    if (OUTCOMES.has(point.what)) outcome = point.what;
    const next = points[index + 1];
    if (next !== undefined) {
      const activity = between(point.what, next.point.what);
      if (activity !== null) bars.push(bar(activity, at, next.at, next.point));
      return;
    }
    const activity = following(point.what);
    if (activity === null) return;
    const isMatchedElsewhere = activity === "match" && Number.isFinite(firstMatch);
    const open = !isMatchedElsewhere;
    const to = isMatchedElsewhere ? Math.max(firstMatch, at) : Math.max(now, at);
    bars.push({
      activity,
      working: isWork(activity),
      from: at,
      to,
      open,
      outcome: null,
      attempt: null,
      text: point.text,
    });
  });
  const marks = points.map(({ at, point }) => ({ at, what: point.what, text: point.text }));
  return { id, kind, bars, marks, outcome: readableOutcome(outcome) };
}

function bar(activity: Activity, from: number, to: number, end: TracePoint): Bar {
  const isAttempt = activity === "send";
  return {
    activity,
    working: isWork(activity),
    from,
    to: Math.max(from, to),
    open: end.what === "due",
    outcome: isAttempt ? readableOutcome(end.what) : null,
    attempt: attemptOf(end.text),
    text: end.text,
  };
}

const isWork = (activity: Activity) => activity === "accept" || activity === "match" || activity === "send";

/** `last answered` belongs to a batch, whose notifications have outcomes of their own. */
const readableOutcome = (what: string | null) => (what === "last answered" || what === "over" ? null : what);

function attemptOf(text: string): number | null {
  const match = /\battempt (\d+)\b/.exec(text);
  return match === null ? null : Number(match[1]);
}

/** What an object does between two points; null if nothing is in progress. */
function between(from: string, to: string): Activity | null {
  if (from === "suspended") return to === "feedback" || to === "suspended" ? null : "held";
  if (from === "deferred" || from === "retry") return "retry";
  switch (to) {
    case "accepted":
      return "accept";
    case "matched":
    case "batched":
      return from === "accepted" ? "match" : null;
    case "failed":
      return from === "accepted" ? "match" : "send";
    case "formatted":
    case "sent":
    case "first sent":
    case "due":
      return isEnd(from) ? null : "wait";
    case "feedback":
    case "tracked":
      return null;
    default:
      if (from === "sent" || from === "first sent") return "send";
      if (from === "received" || from === "asked" || from === "replied") return OUTCOMES.has(to) ? "send" : null;
      if (from === "matched" || from === "formatted" || from === "batched" || from === "resumed") return "wait";
      return null;
  }
}

/** What an object does after its last point; null if it is finished. */
function following(what: string): Activity | null {
  switch (what) {
    case "received":
      return "accept";
    case "accepted":
      return "match";
    case "batched":
    case "formatted":
    case "resumed":
      return "wait";
    case "sent":
    case "first sent":
      return "send";
    case "deferred":
    case "retry":
      return "retry";
    case "suspended":
      return "held";
    default:
      return null;
  }
}

const isEnd = (what: string) => what === "delivered" || what === "refused" || what === "expired" || what === "ended";

/** A row of the diagram: all bars of an object, or one step of it. */
export interface Row {
  key: string;
  lane: Lane;
  /** The only step of the row; null for a row with all steps of an object. */
  step: Bar | null;
  bars: Bar[];
}

/** Objects whose steps have a row each. The other traces have many objects, with one row for each. */
const ROW_OF_EACH_STEP = new Set(["notification", "message"]);

/** Rows of the diagram, at most `limit`, and the number of those that are left out. */
export function rowsOf(journey: Journey, kind: string, limit: number): { rows: Row[]; omitted: number } {
  const rows = journey.lanes.flatMap((each): Row[] => {
    if (each.bars.length === 0) return [];
    const isHead = each.kind === "event_batch";
    if (!ROW_OF_EACH_STEP.has(kind) && !isHead) return [{ key: each.id, lane: each, step: null, bars: each.bars }];
    return each.bars.map((step, index) => ({ key: `${each.id} ${index}`, lane: each, step, bars: [step] }));
  });
  return { rows: rows.slice(0, limit), omitted: Math.max(0, rows.length - limit) };
}

export interface Scale {
  /** Place of a time, 0 to 1. */
  place(at: number): number;
  /** Times with a label, at least `gap` of the width apart. */
  ticks: number[];
}

/**
 * A scale over the times of a journey. The proportional one shows durations as lengths. The compressed one gives each
 * interval a length by its logarithm, so that a step of a millisecond and a wait of an hour are both visible.
 */
export function scaleOf(journey: Journey, mode: "proportional" | "compressed", gap = 0.12): Scale {
  const times = [
    ...new Set(
      journey.lanes.flatMap((each) => [
        ...each.bars.flatMap((one) => [one.from, one.to]),
        ...each.marks.map((mark) => mark.at),
      ]),
    ),
  ].sort((left, right) => left - right);
  const weights = times.slice(1).map((time, index) => {
    const length = time - (times[index] ?? time);
    return mode === "proportional" ? length : Math.log1p(length / 1000) + 0.3;
  });
  const whole = weights.reduce((sum, weight) => sum + weight, 0);
  const places = [0];
  let sum = 0;
  for (const weight of weights) {
    sum += weight;
    places.push(whole === 0 ? 0 : sum / whole);
  }
  const place = (at: number) => {
    const index = lowerBound(times, at);
    if (index >= times.length) return 1;
    const right = times[index] ?? at;
    if (right === at || index === 0) return places[index] ?? 0;
    const left = times[index - 1] ?? right;
    const from = places[index - 1] ?? 0;
    return from + (((places[index] ?? 1) - from) * (at - left)) / (right - left);
  };
  const ticks: number[] = [];
  let last = Number.NEGATIVE_INFINITY;
  times.forEach((time, index) => {
    const at = places[index] ?? 0;
    if (at - last >= gap && at <= 1 - gap * 0.6) {
      ticks.push(time);
      last = at;
    }
  });
  return { place, ticks };
}

/** Whether a proportional scale hides steps: the shortest step is below 1/300 of the whole. */
export function needsCompression(journey: Journey): boolean {
  const whole = journey.to - journey.from;
  const steps = journey.lanes
    .flatMap((each) => each.bars.map((one) => one.to - one.from))
    .filter((length) => length > 0);
  return steps.length > 1 && least(steps) * 300 < whole;
}

/** Working and waiting time of a journey, in microseconds; intervals that overlap count once. */
export function timesOf(journey: Journey): { working: number; waiting: number } {
  const all = journey.lanes.flatMap((each) => each.bars);
  const working = union(all.filter((one) => one.working));
  return { working, waiting: union(all) - working };
}

function union(bars: Bar[]): number {
  let sum = 0;
  let end = Number.NEGATIVE_INFINITY;
  for (const { from, to } of [...bars].sort((left, right) => left.from - right.from)) {
    sum += Math.max(0, to - Math.max(from, end));
    end = Math.max(end, to);
  }
  return sum;
}

/** Ids of a step's text that have a page of their own, such as `s-15` and `e-12-7`, with their places in the text. */
export function idsIn(text: string): { id: string; at: number }[] {
  return [...text.matchAll(/(?<![\w-])(?:(?:e|n)-\d+-\d+|(?:eb|nb|m|s)-\d+)(?![\w-])/g)].map((match) => ({
    id: match[0],
    at: match.index,
  }));
}

function lowerBound(sorted: number[], value: number): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((sorted[middle] ?? 0) < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

const least = (values: number[]) => values.reduce((min, value) => Math.min(min, value), Number.POSITIVE_INFINITY);
const most = (values: number[]) => values.reduce((max, value) => Math.max(max, value), Number.NEGATIVE_INFINITY);
