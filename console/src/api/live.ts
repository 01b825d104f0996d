// Live updates: one event stream per browser. The visible tab that holds a Web Lock reads it and shares it by a
// BroadcastChannel.
//
// A hidden tab gives the lock up, so no stream is open while no tab is visible. Without Web Locks (no secure context)
// each visible tab reads its own.
// Without a stream, topics are reported every 10 s, so that lists are read again.
import { useEffect, useRef, useSyncExternalStore } from "react";

export const topics = [
  "status",
  "attention",
  "batches",
  "notifications",
  "suspensions",
  "firings",
  "messages",
  "sync",
  "audit",
] as const;
export type Topic = (typeof topics)[number];

export type LiveState = "connecting" | "live" | "reconnecting" | "polling" | "paused";

/** What a topic reports; `null` where something may have changed, without a summary. */
export type Report = { topic: Topic; data: unknown };
type Listener = (data: unknown) => void;

type Shared = { kind: "report"; topic: Topic; data: unknown } | { kind: "state"; state: LiveState } | { kind: "ask" };

const pollMs = 10_000;
const releaseMs = 3_000;

const listeners = new Map<Topic, Set<Listener>>();
const stateListeners = new Set<() => void>();
const last = new Map<Topic, string | null>();
let state: LiveState = "connecting";
let paused = false;
let source: EventSource | null = null;
let stopLeading: (() => void) | null = null;
let pollTimer: ReturnType<typeof setInterval> | undefined;
let retryTimer: ReturnType<typeof setTimeout> | undefined;
let hideTimer: ReturnType<typeof setTimeout> | undefined;
let failures = 0;
let channel: BroadcastChannel | null = null;
let started = false;

function setState(next: LiveState, share: boolean) {
  const shown = paused ? "paused" : next;
  if (share) channel?.postMessage({ kind: "state", state: next } satisfies Shared);
  clearInterval(pollTimer);
  if (shown === "polling" || shown === "reconnecting") pollTimer = setInterval(reportAll, pollMs);
  if (shown === state) return;
  state = shown;
  stateListeners.forEach((listener) => listener());
}

function report(topic: Topic, data: unknown) {
  if (paused) return;
  // Each message is the whole state of its topic: one that is equal to the last changes nothing.
  const text = data === null ? null : JSON.stringify(data);
  if (text !== null && text === last.get(topic)) return;
  last.set(topic, text);
  listeners.get(topic)?.forEach((listener) => listener(data));
}

function reportAll() {
  if (document.visibilityState === "visible") topics.forEach((topic) => report(topic, null));
}

function open() {
  if (source !== null) return;
  // Without a list, the server sends the topics that the user may read; a topic that it may not is an error.
  const stream = new EventSource("/v1/stream");
  source = stream;
  stream.onopen = () => {
    // What was reported while there was no stream is unknown.
    if (failures > 0) reset();
    failures = 0;
    setState("live", true);
  };
  stream.onerror = () => {
    failures += 1;
    if (stream.readyState === EventSource.CLOSED) {
      close();
      setState("polling", true);
      retryTimer = setTimeout(open, Math.min(60_000, 2_000 * 2 ** Math.min(failures, 5)));
    } else setState(failures > 5 ? "polling" : "reconnecting", true);
  };
  stream.addEventListener("reset", reset);
  for (const topic of topics)
    stream.addEventListener(topic, (event) => {
      const data = parsed((event as MessageEvent<string>).data);
      report(topic, data);
      channel?.postMessage({ kind: "report", topic, data } satisfies Shared);
    });
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function reset() {
  for (const topic of topics) {
    report(topic, null);
    channel?.postMessage({ kind: "report", topic, data: null } satisfies Shared);
  }
}

function close() {
  clearTimeout(retryTimer);
  source?.close();
  source = null;
}

function lead() {
  if (stopLeading !== null) return;
  if (navigator.locks === undefined) {
    open();
    stopLeading = close;
    return;
  }
  const giveUp = new AbortController();
  let release: () => void = () => {};
  stopLeading = () => {
    giveUp.abort();
    release();
    close();
  };
  channel?.postMessage({ kind: "ask" } satisfies Shared);
  navigator.locks
    .request("tocsin-live", { signal: giveUp.signal }, () => {
      open();
      return new Promise<void>((resolve) => {
        release = resolve;
      });
    })
    .catch(() => {});
}

function follow() {
  stopLeading?.();
  stopLeading = null;
}

/** Starts live updates of this tab. Called once there is a session. */
export function startLive() {
  if (started) return;
  started = true;
  channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("tocsin-live");
  if (channel !== null)
    channel.onmessage = ({ data }: MessageEvent<Shared>) => {
      if (data.kind === "report") report(data.topic, data.data);
      else if (data.kind === "state") setState(data.state, false);
      else if (source !== null)
        channel?.postMessage({ kind: "state", state: paused ? "live" : state } satisfies Shared);
    };
  document.addEventListener("visibilitychange", onVisibility);
  onVisibility();
}

function onVisibility() {
  clearTimeout(hideTimer);
  if (document.visibilityState === "hidden") hideTimer = setTimeout(follow, releaseMs);
  else {
    const wasAway = stopLeading === null && state !== "connecting";
    lead();
    if (wasAway) reportAll();
  }
}

export function stopLive() {
  if (!started) return;
  started = false;
  document.removeEventListener("visibilitychange", onVisibility);
  clearInterval(pollTimer);
  follow();
  channel?.close();
  channel = null;
  state = "connecting";
}

export function toggleLive() {
  paused = !paused;
  if (paused) setState("paused", false);
  else {
    setState(source === null ? "live" : source.readyState === EventSource.OPEN ? "live" : "reconnecting", false);
    reportAll();
  }
}

export function useLiveState(): LiveState {
  return useSyncExternalStore(
    (listener) => {
      stateListeners.add(listener);
      return () => stateListeners.delete(listener);
    },
    () => state,
  );
}

export function listen(topic: Topic, listener: Listener): () => void {
  const set = listeners.get(topic) ?? new Set();
  listeners.set(topic, set.add(listener));
  return () => set.delete(listener);
}

/** Calls a handler when one of the topics reports, while the component is mounted. */
export function useTopics(names: readonly Topic[] | undefined, handler: (report: Report) => void) {
  const latest = useRef(handler);
  latest.current = handler;
  const key = names?.join(",") ?? "";
  useEffect(() => {
    const stops =
      key === ""
        ? []
        : (key.split(",") as Topic[]).map((topic) => listen(topic, (data) => latest.current({ topic, data })));
    return () => stops.forEach((stop) => stop());
  }, [key]);
}
