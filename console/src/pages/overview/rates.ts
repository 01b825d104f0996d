// Rates of the stages, by difference of the counters of successive states.

export interface Sample {
  /** Milliseconds of the clock of the server. */
  at: number;
  waitingEvents: number;
  waitingNotifications: number;
  workItems: number;
  suspended: number;
  failedBatches: number;
  oldestEvent: string | null;
  events: number;
  eventBatches: number;
  notifications: number;
  notificationBatches: number;
  attempts: Record<string, number>;
}

export interface StageRates {
  events: number | null;
  matched: number | null;
  notifications: number | null;
  /** Notifications that left the queue of the delivery. */
  closed: number | null;
  attempts: Record<string, number>;
}

/** Seconds over which a rate is taken: long enough to be calm, short enough to show a change. */
const windowMs = 10_000;
export const samplesMost = 600;

/** Adds a sample; one from another start of the server, with lower counters, begins anew. */
export function addSample(samples: readonly Sample[], sample: Sample): Sample[] {
  const last = samples.at(-1);
  if (last !== undefined && sample.at <= last.at) return [...samples];
  if (last !== undefined && (sample.events < last.events || sample.notifications < last.notifications)) return [sample];
  return [...samples.slice(-(samplesMost - 1)), sample];
}

/** The rates at a sample, over the window that ends with it; null where there is no earlier sample. */
export function ratesAt(samples: readonly Sample[], index: number): StageRates {
  const none: StageRates = { events: null, matched: null, notifications: null, closed: null, attempts: {} };
  const now = samples[index];
  if (now === undefined) return none;
  let from = index;
  while (from > 0 && now.at - samples[from - 1]!.at <= windowMs) from -= 1;
  if (from === index) from = index - 1;
  const before = samples[from];
  if (before === undefined) return none;
  const seconds = (now.at - before.at) / 1000;
  if (seconds <= 0) return none;
  const per = (later: number, earlier: number) => Math.max(0, (later - earlier) / seconds);
  const events = per(now.events, before.events);
  const notifications = per(now.notifications, before.notifications);
  return {
    events,
    matched: Math.max(0, events - (now.waitingEvents - before.waitingEvents) / seconds),
    notifications,
    closed: Math.max(0, notifications - (now.waitingNotifications - before.waitingNotifications) / seconds),
    attempts: Object.fromEntries(
      Object.entries(now.attempts).map(([outcome, count]) => [outcome, per(count, before.attempts[outcome] ?? 0)]),
    ),
  };
}

export type Drain =
  | { state: "empty" }
  | { state: "drains"; ms: number }
  | { state: "grows"; perSecond: number }
  | { state: "steady" }
  | { state: "unknown" };

/** When a queue is empty at the present rates. */
export function drainOf(waiting: number, rateIn: number | null, rateOut: number | null): Drain {
  if (waiting === 0) return { state: "empty" };
  if (rateIn === null || rateOut === null) return { state: "unknown" };
  const net = rateOut - rateIn;
  if (net > 0.01) return { state: "drains", ms: (waiting / net) * 1000 };
  if (net < -0.01) return { state: "grows", perSecond: -net };
  return { state: "steady" };
}
