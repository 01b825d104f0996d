// Pure functions of the shell and its values.
import assert from "node:assert/strict";
import { test } from "node:test";
import { retries, retryAfterSeconds, retryDelay, ProblemError } from "../src/api/problems";
import { agoChangesIn, durationParts, formatAgo, formatBytes, formatDuration, formatRate } from "../src/format";
import { auditObject, idPath, linkPath, objectPath } from "../src/ids";
import { sparkPath, summarize } from "../src/components/chart/scale";
import { toTsv } from "../src/components/grid/tsv";
import { flag, list, oneOf, text, whole, withoutEmpty } from "../src/page";
import { messageValues } from "../src/pages/overview/attention-text";
import { addSample, drainOf, ratesAt, type Sample } from "../src/pages/overview/rates";
import { agentName } from "../src/pages/session/agent";
import { commandLines, curlCommand, shellQuote } from "../src/shell/command";
import { readRange, resolveRange, shiftRange, stepOf } from "../src/shell/range";
import { score } from "../src/shell/score";
import { parseSearch, stringifySearch } from "../src/shell/search";
import { keyName } from "../src/shell/shortcuts";
import { zoneOffsetMs } from "../src/shell/zone";

test("search parameters are plain texts and survive a round trip", () => {
  assert.deepEqual(parseSearch("?class=quake&id=12&state=a&state=b"), {
    class: "quake",
    id: "12",
    state: ["a", "b"],
  });
  assert.equal(
    stringifySearch({ class: "quake", none: undefined, no: false, empty: "", id: "12" }),
    "?class=quake&id=12",
  );
  for (const search of [{ q: "a&b=c d+é/ü:1,2@x" }, { dn: "cn=Ada Lovelace,ou=people" }, { state: ["a", "b c"] }])
    assert.deepEqual(parseSearch(stringifySearch(search)), search);
  assert.equal(text(12), "12");
  assert.equal(whole("12"), 12);
  assert.equal(whole("1.5"), undefined);
  assert.equal(flag("true"), true);
  assert.equal(oneOf("b", ["a", "b"]), "b");
  assert.equal(oneOf("c", ["a", "b"]), undefined);
  assert.deepEqual(list("a,b"), ["a", "b"]);
  assert.deepEqual(list(["a", 1]), ["a", "1"]);
  assert.deepEqual(withoutEmpty({ a: "", b: [], c: 0, d: null, e: "x" }), { c: 0, e: "x" });
});

test("time ranges: relative, absolute, malformed, shifted", () => {
  const now = Date.parse("2026-11-29T12:00:00Z");
  assert.deepEqual(readRange({ range: "24h" }), {});
  assert.deepEqual(readRange({ range: "7d" }), { range: "7d" });
  assert.deepEqual(readRange({ range: "9y", from: "x", to: "y" }), {});
  assert.deepEqual(readRange({ from: "2026-11-29T11:00:00Z", to: "2026-11-29T10:00:00Z" }), {});
  const day = resolveRange({}, now);
  assert.equal(day.key, "24h");
  assert.equal(day.query.from, "2026-11-28T12:00:00.000Z");
  assert.equal(day.step, "15m");
  const earlier = shiftRange(day, -1, now);
  assert.deepEqual(earlier, { from: "2026-11-27T12:00:00.000Z", to: "2026-11-28T12:00:00.000Z" });
  assert.deepEqual(shiftRange(resolveRange(earlier, now), 1, now), { range: "24h" });
  for (const ms of [900_000, 3_600_000, 86_400_000, 604_800_000, 2_592_000_000, 31_536_000_000]) {
    const seconds = { "10s": 10, "1m": 60, "15m": 900, "1h": 3_600, "1d": 86_400 }[stepOf(ms)];
    assert.ok(ms / 1000 / seconds <= 366, `${ms} ms in steps of ${seconds} s`);
  }
});

test("durations have at most two units and never sixty of one", () => {
  const check = (ms: number, expected: string) => assert.equal(formatDuration(ms, "en"), expected);
  check(0.25, "0.25 ms");
  check(6.143, "6.1 ms");
  check(229.4, "229 ms");
  check(3_670, "3.7 sec");
  check(59_400, "59 sec");
  check(59_999, "60 sec");
  check(3_599_900, "1 hr");
  check(5_400_000, "1 hr 30 min");
  check(86_399_999, "1 day");
  check(90_000_000, "1 day 1 hr");
  assert.deepEqual(durationParts(-5_400_000), [
    [-1, "hour"],
    [30, "minute"],
  ]);
  for (let ms = 60_000; ms < 200_000_000; ms = Math.ceil(ms * 1.0137)) {
    const parts = durationParts(ms);
    assert.ok(
      parts.length <= 2 &&
        parts.every(
          ([value, unit]) => value < { millisecond: 1000, second: 60, minute: 60, hour: 24, day: Infinity }[unit],
        ),
      `${ms}: ${JSON.stringify(parts)}`,
    );
  }
});

test("times from now, sizes and rates", () => {
  const now = Date.parse("2026-11-29T12:00:00Z");
  const ago = (ms: number) => formatAgo(new Date(now - ms), now, "en");
  assert.equal(ago(1_000), "now");
  assert.equal(ago(42_000), "42 sec. ago");
  assert.equal(ago(200_000), "3 min. ago");
  assert.equal(ago(7_300_000), "2 hr. ago");
  assert.equal(ago(-7_300_000), "in 2 hr.");
  assert.equal(ago(86_400_000), "yesterday");
  assert.equal(agoChangesIn(new Date(now - 30_000), now), 5_000);
  assert.equal(formatBytes(999, "en"), "999 byte");
  assert.equal(formatBytes(110_956, "en"), "111 kB");
  assert.equal(formatBytes(1_250_000, "en"), "1.3 MB");
  assert.equal(formatRate(0, "en"), "0");
  assert.equal(formatRate(0.034, "en"), "0.03");
  assert.equal(formatRate(1234.5, "en"), "1,235");
});

test("ids lead to their pages", () => {
  assert.equal(idPath("eb-12"), "/events/eb-12");
  assert.equal(idPath(" e-12-7 "), "/events/eb-12?event=e-12-7");
  assert.equal(idPath("n-3-41"), "/notifications/n-3-41");
  assert.equal(idPath("nb-3"), "/notifications/batches/nb-3");
  assert.equal(idPath("ada@example.org"), null);
  assert.equal(idPath("n-3"), null);
  assert.equal(linkPath("/v1/subscribers/ada/devices/phone"), "/subscribers/ada");
  assert.equal(linkPath("/v1"), null);
  assert.equal(auditObject("/v1/subscribers/a%2Fb"), "subscriber:a/b");
  assert.equal(auditObject("/v1/status"), null);
  assert.equal(objectPath({ kind: "subscriber", id: "a/b" }), "/subscribers/a%2Fb");
  assert.equal(objectPath({ kind: "rule", id: "near", application: "quakes" }), "/rules?application=quakes&rule=near");
});

test("copy as command quotes for the shell", () => {
  assert.equal(shellQuote("a-b/c"), "a-b/c");
  assert.equal(shellQuote("it's"), `'it'\\''s'`);
  assert.equal(
    curlCommand({ method: "POST", path: "/v1/switches/off", body: { component: "role:match" } }, "http://h"),
    `curl -fsS -X POST -H "Authorization: Bearer $TOCSIN_KEY" -H 'Content-Type: application/json' -d '{"component":"role:match"}' http://h/v1/switches/off`,
  );
  assert.deepEqual(
    commandLines({ tocsin: "status", curl: { method: "GET", path: "/v1/status", query: { a: "b c" } } }, "http://h"),
    [
      { name: "tocsin", text: "tocsin status" },
      { name: "curl", text: `curl -fsS -H "Authorization: Bearer $TOCSIN_KEY" 'http://h/v1/status?a=b+c'` },
    ],
  );
});

test("retries: what may pass by itself, after what the server asks", () => {
  const problem = (status: number, retryAfter: number | null = null) =>
    new ProblemError({ type: "", code: "x", title: "", status, detail: "" }, { method: "GET", path: "/", retryAfter });
  for (const status of [0, 429, 502, 503, 504]) assert.equal(retries(2, problem(status)), true, String(status));
  for (const status of [400, 401, 403, 404, 409, 422, 500])
    assert.equal(retries(0, problem(status)), false, String(status));
  assert.equal(retries(3, problem(503)), false);
  assert.equal(retries(0, new Error("a fault of the console")), false);
  assert.equal(retryDelay(0, problem(429, 7)), 7_000);
  assert.equal(
    retryDelay(0, problem(503), () => 1),
    500,
  );
  assert.equal(
    retryDelay(9, problem(503), () => 1),
    8_000,
  );
  const now = Date.parse("2026-11-29T12:00:00Z");
  assert.equal(retryAfterSeconds("5", now), 5);
  assert.equal(retryAfterSeconds("Sun, 29 Nov 2026 12:00:30 GMT", now), 30);
  assert.equal(retryAfterSeconds("soon", now), null);
});

test("the palette ranks beginnings before parts", () => {
  assert.ok(score("ev", "Events") > score("ev", "All events"));
  assert.ok(score("ev", "All events") > score("ev", "Devices are: seven"));
  assert.ok(score("sbs", "Subscribers") > 0);
  assert.equal(score("xyz", "Events"), 0);
  assert.ok(score("ubersicht", "Übersicht") > 50);
  assert.equal(score("", "Events"), 1);
});

test("keys are named as in the help", () => {
  const key = (name: string, more: Partial<KeyboardEvent> = {}) =>
    keyName({ key: name, ctrlKey: false, metaKey: false, altKey: false, ...more });
  assert.equal(key("k", { ctrlKey: true }), "Ctrl+k");
  assert.equal(key("k", { metaKey: true }), "Ctrl+k");
  assert.equal(key("?"), "?");
  assert.equal(key("ArrowUp", { altKey: true }), "Alt+ArrowUp");
});

test("offsets of time zones follow daylight saving", () => {
  assert.equal(zoneOffsetMs(new Date("2026-01-15T12:00:00Z"), "Europe/Berlin"), 3_600_000);
  assert.equal(zoneOffsetMs(new Date("2026-07-15T12:00:00Z"), "Europe/Berlin"), 7_200_000);
  assert.equal(zoneOffsetMs(new Date("2026-07-15T12:00:00.500Z"), "UTC"), 0);
  assert.equal(zoneOffsetMs(new Date("2026-07-15T12:00:00Z"), "Asia/Kolkata"), 19_800_000);
});

const sample = (at: number, more: Partial<Sample>): Sample => ({
  at,
  waitingEvents: 0,
  waitingNotifications: 0,
  workItems: 0,
  suspended: 0,
  failedBatches: 0,
  oldestEvent: null,
  events: 0,
  eventBatches: 0,
  notifications: 0,
  notificationBatches: 0,
  attempts: {},
  ...more,
});

test("rates come from differences over ten seconds, and time to drain from them", () => {
  let samples: Sample[] = [];
  for (let second = 0; second <= 20; second += 1)
    samples = addSample(
      samples,
      sample(second * 1000, {
        events: second * 50,
        waitingEvents: 1000 - second * 10,
        notifications: second * 200,
        attempts: { delivered: second * 150 },
      }),
    );
  const rates = ratesAt(samples, samples.length - 1);
  assert.deepEqual(rates, { events: 50, matched: 60, notifications: 200, closed: 200, attempts: { delivered: 150 } });
  assert.deepEqual(ratesAt(samples, 0), {
    events: null,
    matched: null,
    notifications: null,
    closed: null,
    attempts: {},
  });
  assert.deepEqual(drainOf(800, rates.events, rates.matched), { state: "drains", ms: 80_000 });
  assert.deepEqual(drainOf(800, 60, 50), { state: "grows", perSecond: 10 });
  assert.deepEqual(drainOf(0, 60, 50), { state: "empty" });
  assert.deepEqual(drainOf(5, 50, 50), { state: "steady" });
  assert.deepEqual(drainOf(5, null, null), { state: "unknown" });
  // Counters begin anew after another start of the server.
  assert.equal(addSample(samples, sample(30_000, { events: 3 })).length, 1);
});

test("charts: summaries, paths with gaps, copies as TSV", () => {
  assert.deepEqual(summarize([null, 3, 1, null]), { last: 1, min: 1, max: 3 });
  assert.deepEqual(summarize([null]), { last: null, min: null, max: null });
  assert.equal(sparkPath([0, 10, null, 5], 30, 12, 10), "M0 11L10 1M30 6");
  assert.equal(sparkPath([], 30, 12, 10), "");
  assert.equal(
    toTsv([{ title: "Id", text: (row: { id: string }) => row.id }, { title: "Icon" }], [{ id: "a\tb\nc" }]),
    "Id\na b c",
  );
});

test("a problem is worded by its parameters, or not at all", () => {
  const size = (bytes: number) => `${bytes} B`;
  assert.deepEqual(messageValues("{free} free of {least}", { free_bytes: 5, least_bytes: 9 }, size), {
    free: "5 B",
    least: "9 B",
  });
  assert.deepEqual(
    messageValues("{count, plural, one {#} other {#}}: {names}", { count: 2, names: ["a", "b"] }, size),
    {
      count: 2,
      names: "a, b",
    },
  );
  assert.equal(messageValues("{count}", undefined, size), null);
  assert.deepEqual(messageValues("plain", undefined, size), {});
});

test("clients of sessions by their user agents", () => {
  assert.equal(
    agentName("Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36"),
    "Chrome · Linux",
  );
  assert.equal(agentName("Mozilla/5.0 (Windows NT 10.0) Gecko/20100101 Firefox/140.0"), "Firefox · Windows");
  assert.equal(agentName("curl/8.5.0"), "curl");
  assert.equal(agentName(null), null);
});
