// Timeline of an event, batch, notification, message or subscriber: bars of its steps, and the steps as a list.
import { useState, type ReactNode } from "react";
import { useRead } from "../../api/query";
import type { Topic } from "../../api/live";
import { formatTime } from "../../format";
import { hasMessage, presentLanguage, T, useT } from "../../locales";
import { useTimeZone } from "../../settings";
import { StateBadge } from "../badge";
import { Segmented } from "../controls";
import { Icon, type IconName } from "../icon";
import { Id } from "../id";
import { Empty, Loaded } from "../states";
import { Duration } from "../values";
import {
  buildJourney,
  idsIn,
  micros,
  needsCompression,
  rowsOf,
  scaleOf,
  timesOf,
  type Bar,
  type Journey as Lanes,
  type Row,
  type Trace,
} from "./model";
import "./journey.css";

const ROWS_MAX = 60;
const STEPS_MAX = 200;

/** Reads the trace of an id and shows it. */
export function JourneyOf({ id, topics = ["batches", "notifications"] }: { id: string; topics?: readonly Topic[] }) {
  const trace = useRead<Trace>(`/v1/trace/${encodeURIComponent(id)}`, { topics });
  return <Loaded query={trace}>{(found) => <Journey trace={found} at={trace.dataUpdatedAt} />}</Loaded>;
}

/** Shows a trace; `at` is the time at which it was read, the end of open steps. */
export function Journey({ trace, at }: { trace: Trace; at: number }) {
  const t = useT();
  const journey = buildJourney(trace, at * 1000);
  const compresses = needsCompression(journey);
  const [mode, setMode] = useState<"proportional" | "compressed" | null>(null);
  const shown = mode ?? (compresses ? "compressed" : "proportional");
  if (trace.timeline.length === 0)
    return <Empty icon="clock" title={t("parts.journey.empty")} text={t("parts.journey.emptyText")} />;
  return (
    <div className="journey">
      <Summary trace={trace} journey={journey} />
      <div className="journey-tools">
        <Legend />
        {compresses && (
          <Segmented
            label={t("parts.journey.scale")}
            value={shown}
            onValue={setMode}
            options={[
              { value: "compressed", text: t("parts.journey.compressed") },
              { value: "proportional", text: t("parts.journey.proportional") },
            ]}
          />
        )}
      </div>
      <Diagram trace={trace} journey={journey} mode={shown} />
      <Steps trace={trace} from={journey.from} />
    </div>
  );
}

function Summary({ trace, journey }: { trace: Trace; journey: Lanes }) {
  const t = useT();
  const { working, waiting } = timesOf(journey);
  const outcomes = Object.entries(trace.notifications);
  const { generation_ms: generation, wait_ms: wait, delivery_ms: delivery } = trace.latencies;
  const facts: [string, ReactNode][] = [
    [t("parts.journey.working"), <Duration ms={working / 1000} />],
    [t("parts.journey.waiting"), <Duration ms={waiting / 1000} />],
  ];
  if (generation != null) facts.push([t("parts.journey.generation"), <Duration ms={generation} />]);
  if (wait != null) facts.push([t("parts.journey.wait"), <Duration ms={wait} />]);
  if (delivery != null) facts.push([t("parts.journey.delivery"), <Duration ms={delivery} />]);
  return (
    <div className="journey-summary">
      <dl className="journey-facts">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {outcomes.length > 0 && (
        <ul className="journey-outcomes" aria-label={t("parts.journey.outcomes")}>
          {outcomes.map(([outcome, count]) => (
            <li key={outcome}>
              <StateBadge state={outcome} /> <span className="num">{count.toLocaleString(presentLanguage())}</span>
            </li>
          ))}
        </ul>
      )}
      {trace.context != null && (
        <p className="journey-context">
          <span className="muted">{t("parts.journey.traceContext")}</span>{" "}
          <Id value={trace.context.trace_id} to={null} />
        </p>
      )}
    </div>
  );
}

function Legend() {
  const t = useT();
  return (
    <ul className="journey-legend">
      {(["work", "wait", "good", "late", "bad"] as const).map((kind) => (
        <li key={kind}>
          <span className="journey-swatch" data-look={kind} aria-hidden="true" />
          {t(`parts.journey.legend.${kind}`)}
        </li>
      ))}
    </ul>
  );
}

function Diagram({ trace, journey, mode }: { trace: Trace; journey: Lanes; mode: "proportional" | "compressed" }) {
  const t = useT();
  const [all, setAll] = useState(false);
  const scale = scaleOf(journey, mode);
  const { rows, omitted } = rowsOf(journey, trace.kind, all ? Number.POSITIVE_INFINITY : ROWS_MAX);
  if (rows.length === 0) return null;
  return (
    <section className="journey-diagram" aria-label={t("parts.journey.diagram")}>
      <div className="journey-axis" aria-hidden="true">
        <span />
        <div className="journey-ticks">
          {scale.ticks.map((tick) => (
            <span key={tick} style={{ insetInlineStart: `${scale.place(tick) * 100}%` }}>
              +<Duration ms={(tick - journey.from) / 1000} />
            </span>
          ))}
        </div>
        <span />
      </div>
      <ol className="journey-rows">
        {rows.map((row, index) => (
          <DiagramRow key={row.key} row={row} previous={rows[index - 1]} place={scale.place} />
        ))}
      </ol>
      {omitted > 0 && (
        <button type="button" className="button button-quiet journey-more" onClick={() => setAll(true)}>
          {t("parts.journey.moreRows", { count: omitted })}
        </button>
      )}
    </section>
  );
}

function DiagramRow({ row, previous, place }: { row: Row; previous: Row | undefined; place: (at: number) => number }) {
  const t = useT();
  const bars = row.bars;
  const length = bars.reduce((sum, bar) => sum + bar.to - bar.from, 0);
  return (
    <li className="journey-row" data-first={previous?.lane.id === row.lane.id ? undefined : ""}>
      <span className="journey-label">
        {row.step === null ? (
          <Id value={row.lane.id} copies={false} />
        ) : (
          <span>
            {t(`parts.journey.activity.${row.step.activity}`)}
            {attemptText(row.step, t)}
          </span>
        )}
      </span>
      <span className="journey-track">
        {bars.map((bar, index) => (
          <span
            key={index}
            className="journey-bar"
            data-look={lookOf(bar)}
            data-open={bar.open ? "" : undefined}
            style={{
              insetInlineStart: `${place(bar.from) * 100}%`,
              inlineSize: `${Math.max(0, place(bar.to) - place(bar.from)) * 100}%`,
            }}
          >
            <span className="visually-hidden">
              {t(`parts.journey.activity.${bar.activity}`)}
              {attemptText(bar, t)} <Duration ms={(bar.to - bar.from) / 1000} />{" "}
              {bar.open ? t("parts.journey.open") : ""} {bar.outcome ?? ""}
            </span>
          </span>
        ))}
      </span>
      <span className="journey-length">
        <Duration ms={length / 1000} />
      </span>
    </li>
  );
}

function attemptText(bar: Bar, t: ReturnType<typeof useT>): string {
  return bar.attempt === null || bar.activity !== "send"
    ? ""
    : ` ${t("parts.journey.attempt", { number: bar.attempt })}`;
}

function lookOf(bar: Bar): string {
  if (bar.activity === "send") {
    if (bar.outcome === null) return "work";
    if (bar.outcome === "delivered" || bar.outcome === "replied") return "good";
    return bar.outcome === "deferred" || bar.outcome === "retry" ? "late" : "bad";
  }
  if (bar.activity === "held") return "held";
  return bar.working ? "work" : "wait";
}

/** Icon of a step; its word stands beside it. */
function iconOf(what: string): { icon: IconName; tone: string } {
  switch (what) {
    case "delivered":
    case "last answered":
    case "replied":
      return { icon: "success", tone: "success" };
    case "refused":
    case "failed":
      return { icon: "error", tone: "error" };
    case "suspended":
      return { icon: "suspended", tone: "pending" };
    case "expired":
    case "due":
      return { icon: "clock", tone: "neutral" };
    case "deferred":
    case "retry":
      return { icon: "refresh", tone: "pending" };
    case "sent":
    case "first sent":
      return { icon: "arrow-right", tone: "neutral" };
    case "matched":
    case "batched":
      return { icon: "rules", tone: "neutral" };
    case "received":
    case "asked":
      return { icon: "download", tone: "neutral" };
    case "accepted":
      return { icon: "check", tone: "neutral" };
    default:
      return { icon: "neutral", tone: "neutral" };
  }
}

function Steps({ trace, from }: { trace: Trace; from: number }) {
  const t = useT();
  const zone = useTimeZone();
  const [all, setAll] = useState(false);
  const steps = all ? trace.timeline : trace.timeline.slice(0, STEPS_MAX);
  const omitted = trace.timeline.length - steps.length;
  return (
    <section className="journey-steps">
      <h2>{t("parts.journey.steps")}</h2>
      <ol>
        {steps.map((step, index) => {
          const key = `parts.journey.what.${step.what.replaceAll(" ", "_")}`;
          const { icon, tone } = iconOf(step.what);
          return (
            <li key={index} className="journey-step" data-tone={tone}>
              <time
                className="num journey-time"
                dateTime={step.at}
                data-tip={formatTime(new Date(step.at), "exact", presentLanguage(), zone)}
              >
                {exactTime(step.at, zone)}
              </time>
              <span className="num muted journey-offset">
                +<Duration ms={(micros(step.at) - from) / 1000} />
              </span>
              <span className="journey-what">
                <Icon name={icon} size={14} />
                {hasMessage(key) ? t(key) : step.what}
              </span>
              <span className="journey-id">
                <Id value={step.id} copies={false} />
              </span>
              <span className="journey-text">
                <StepText text={step.text} />
              </span>
            </li>
          );
        })}
      </ol>
      {omitted > 0 && (
        <button type="button" className="button button-quiet journey-more" onClick={() => setAll(true)}>
          {t("parts.journey.moreSteps", { count: omitted })}
        </button>
      )}
      {trace.truncated && (
        <p className="muted">
          <T k="parts.journey.truncated" />
        </p>
      )}
    </section>
  );
}

function exactTime(at: string, zone: string | undefined): string {
  return new Intl.DateTimeFormat(presentLanguage(), {
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    fractionalSecondDigits: 3,
    hourCycle: "h23",
    ...(zone === undefined ? {} : { timeZone: zone }),
  }).format(new Date(at));
}

/** Text of a step, with links for ids and code for what is between backticks. */
export function StepText({ text }: { text: string }) {
  const parts = text.split(/(`[^`]*`)/);
  return (
    <>
      {parts.map((part, index) =>
        part.startsWith("`") && part.endsWith("`") && part.length > 1 ? (
          <code key={index}>{part.slice(1, -1)}</code>
        ) : (
          <Linked key={index} text={part} />
        ),
      )}
    </>
  );
}

function Linked({ text }: { text: string }) {
  const pieces: ReactNode[] = [];
  let from = 0;
  for (const { id, at } of idsIn(text)) {
    pieces.push(text.slice(from, at), <Id key={at} value={id} copies={false} />);
    from = at + id.length;
  }
  pieces.push(text.slice(from));
  return <>{pieces}</>;
}
