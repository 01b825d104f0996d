import assert from "node:assert/strict";
import { test } from "node:test";
import {
  buildJourney,
  idsIn,
  micros,
  needsCompression,
  objectKind,
  rowsOf,
  scaleOf,
  timesOf,
  type Trace,
} from "../src/components/journey/model";

const trace = (kind: string, timeline: [string, string, string, string?][]): Trace => ({
  id: timeline[0]?.[2] ?? "",
  kind,
  notifications: {},
  latencies: {},
  truncated: false,
  timeline: timeline.map(([time, what, id, text]) => ({
    at: `2026-11-29T12:00:${time}Z`,
    what,
    id,
    text: text ?? "",
  })),
});

const start = micros("2026-11-29T12:00:00Z");

/** Bars of a journey, a line each: lane, activity, start and end in milliseconds. */
const bars = (given: Trace, now = "2026-11-29T12:00:59Z") =>
  buildJourney(given, micros(now)).lanes.flatMap((lane) =>
    lane.bars.map((bar) =>
      [
        lane.id,
        bar.activity,
        (bar.from - start) / 1000,
        (bar.to - start) / 1000,
        bar.outcome ?? (bar.open ? "open" : ""),
      ]
        .join(" ")
        .trim(),
    ),
  );

test("a time keeps its microseconds", () => {
  assert.equal(micros("2026-11-29T12:00:00.000001Z") - start, 1);
  assert.equal(micros("2026-11-29T13:00:00.5+01:00") - start, 500_000);
  assert.ok(Number.isNaN(micros("yesterday")));
});

test("a notification has a bar for each step and attempt", () => {
  const given = trace("notification", [
    ["00.000", "received", "eb-1"],
    ["00.001", "accepted", "eb-1"],
    ["00.021", "matched", "n-1-0"],
    ["01", "formatted", "n-1-0", "for attempt 1"],
    ["02", "sent", "n-1-0", "attempt 1"],
    ["02.5", "deferred", "n-1-0", "451 try later"],
    ["10", "formatted", "n-1-0", "for attempt 2"],
    ["10.1", "sent", "n-1-0", "attempt 2"],
    ["10.2", "delivered", "n-1-0", "250 ok"],
  ]);
  assert.deepEqual(bars(given), [
    "eb-1 accept 0 1",
    "eb-1 match 1 21",
    "n-1-0 wait 21 1000",
    "n-1-0 wait 1000 2000",
    "n-1-0 send 2000 2500 deferred",
    "n-1-0 retry 2500 10000",
    "n-1-0 wait 10000 10100",
    "n-1-0 send 10100 10200 delivered",
  ]);
  const journey = buildJourney(given, start);
  assert.equal(journey.lanes[1]?.outcome, "delivered");
  assert.equal(rowsOf(journey, "notification", 100).rows.length, 8, "a row for each step");
});

test("an event batch has a lane for each notification batch", () => {
  const given = trace("event batch", [
    ["00.000", "received", "eb-1"],
    ["00.001", "accepted", "eb-1"],
    ["00.021", "matched", "eb-1"],
    ["00.021", "batched", "nb-1"],
    ["02", "first sent", "nb-1", "attempt 1"],
    ["03", "last answered", "nb-1", "13 delivered of 13"],
  ]);
  assert.deepEqual(bars(given), ["eb-1 accept 0 1", "eb-1 match 1 21", "nb-1 wait 21 2000", "nb-1 send 2000 3000"]);
  const { rows } = rowsOf(buildJourney(given, start), "event batch", 100);
  assert.deepEqual(
    rows.map((row) => row.key),
    ["eb-1 0", "eb-1 1", "nb-1"],
  );
});

test("a step without an end is open until now", () => {
  assert.deepEqual(
    bars(
      trace("event batch", [
        ["00", "received", "eb-1"],
        ["01", "accepted", "eb-1"],
      ]),
    ),
    ["eb-1 accept 0 1000", "eb-1 match 1000 59000 open"],
  );
  assert.deepEqual(
    bars(
      trace("notification", [
        ["01", "sent", "n-1-0"],
        ["02", "suspended", "n-1-0"],
      ]),
    ),
    ["n-1-0 send 1000 2000 suspended", "n-1-0 held 2000 59000 open"],
  );
  assert.deepEqual(
    bars(
      trace("notification", [
        ["01", "deferred", "n-1-0"],
        ["40", "due", "w-7"],
      ]),
    ),
    ["n-1-0 retry 1000 40000 open"],
    "a due time ends the wait of the notification, though it has the id of a work item",
  );
  assert.deepEqual(
    bars(
      trace("notification", [
        ["01", "suspended", "n-1-0"],
        ["02", "suspended", "su-1"],
      ]),
    ),
    ["n-1-0 held 2000 59000 open"],
    "an attempt that suspends and its suspension are one",
  );
});

test("feedback after a delivery is a mark without a bar", () => {
  const given = trace("notification", [
    ["01", "sent", "n-1-0"],
    ["02", "delivered", "n-1-0"],
    ["30", "feedback", "n-1-0"],
  ]);
  assert.deepEqual(bars(given), ["n-1-0 send 1000 2000 delivered"]);
  assert.equal(buildJourney(given, start).lanes[0]?.marks.length, 3);
});

test("a message has bars for its attempts", () => {
  const given = trace("message", [
    ["00", "received", "m-1"],
    ["01", "retry", "m-1", "to `a`, attempt 1: 503"],
    ["05", "delivered", "m-1", "to `a`, attempt 2: 200"],
    ["05", "over", "m-1", "delivered"],
  ]);
  assert.deepEqual(bars(given), ["m-1 send 0 1000 retry", "m-1 retry 1000 5000"]);
});

test("an empty trace is no error", () => {
  const journey = buildJourney(trace("subscriber", []), start);
  assert.deepEqual(journey, { lanes: [], from: start, to: start });
  assert.equal(scaleOf(journey, "proportional").place(start), 1);
});

test("the compressed scale shows short and long steps, in order", () => {
  const journey = buildJourney(
    trace("notification", [
      ["00.000", "received", "eb-1"],
      ["00.001", "accepted", "eb-1"],
      ["00.002", "matched", "n-1-0"],
      ["30", "sent", "n-1-0"],
      ["30.001", "delivered", "n-1-0"],
    ]),
    start,
  );
  assert.ok(needsCompression(journey));
  for (const mode of ["proportional", "compressed"] as const) {
    const scale = scaleOf(journey, mode);
    const places = [0, 1, 2, 30_000, 30_001].map((ms) => scale.place(start + ms * 1000));
    assert.equal(places[0], 0);
    assert.equal(places[4], 1);
    places.slice(1).forEach((place, index) => assert.ok(place > (places[index] ?? 1), `${mode}: ${places.join(" ")}`));
  }
  const compressed = scaleOf(journey, "compressed");
  assert.ok(compressed.place(start + 1000) > 0.02);
  assert.ok(scaleOf(journey, "proportional").place(start + 1000) < 0.001);
});

test("labels of the scale have distances", () => {
  const journey = buildJourney(
    trace("notification", [
      ["00", "received", "eb-1"],
      ["00.1", "accepted", "eb-1"],
      ["00.2", "matched", "n-1-0"],
      ["30", "sent", "n-1-0"],
    ]),
    start,
  );
  const scale = scaleOf(journey, "proportional", 0.2);
  const places = scale.ticks.map((tick) => scale.place(tick));
  places.slice(1).forEach((place, index) => assert.ok(place - (places[index] ?? 0) >= 0.2));
});

test("working and waiting time do not count an instant twice", () => {
  const journey = buildJourney(
    trace("event batch", [
      ["00", "received", "eb-1"],
      ["01", "accepted", "eb-1"],
      ["02", "matched", "eb-1"],
      ["02", "batched", "nb-1"],
      ["02", "batched", "nb-2"],
      ["05", "first sent", "nb-1"],
      ["06", "first sent", "nb-2"],
      ["07", "last answered", "nb-1"],
      ["08", "last answered", "nb-2"],
    ]),
    start,
  );
  assert.deepEqual(timesOf(journey), { working: 5_000_000, waiting: 3_000_000 });
});

test("ids in the text of a step are found", () => {
  assert.deepEqual(
    idsIn("rule `near` for s-929, of e-12-7 and nb-3").map(({ id }) => id),
    ["s-929", "e-12-7", "nb-3"],
  );
  assert.deepEqual(idsIn("us-2000, xs-1, s-1x"), []);
  assert.equal(objectKind("nb-3"), "notification_batch");
  assert.equal(objectKind("ada"), "other");
});
