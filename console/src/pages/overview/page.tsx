// Overview: what needs attention, the flow in five stages, headroom, latencies and volumes.
import { lazy, Suspense, useMemo, type ReactNode } from "react";
import { request, type Page as ListPage } from "../../api/client";
import { useRead } from "../../api/query";
import { useCan } from "../../api/session";
import { StateBadge } from "../../components/badge";
import { Sparkline } from "../../components/chart/sparkline";
import { IconButton } from "../../components/controls";
import { Icon } from "../../components/icon";
import { Link } from "../../components/link";
import { Empty, Failed, Loaded, Loading } from "../../components/states";
import { Bytes, Count, Duration, Percent, Rate, Time } from "../../components/values";
import { formatDuration, formatRate } from "../../format";
import { presentLanguage, T, textOr, useT, type MessageKey } from "../../locales";
import { useAct } from "../../shell/act";
import { Page } from "../../shell/page-frame";
import { useRange } from "../../shell/range";
import { AttentionList } from "./attention-list";
import { useAttention, useSamples, useSeries, useStatus, type SeriesAnswer, type Status } from "./queries";
import { drainOf, ratesAt, type Drain, type Sample, type StageRates } from "./rates";
import "./overview.css";

const Chart = lazy(() => import("../../components/chart").then((module) => ({ default: module.Chart })));

export default function Overview() {
  const t = useT();
  const status = useStatus();
  const attention = useAttention();
  const samples = useSamples();
  return (
    <Page
      title={t("common.nav.overview")}
      facts={status.data === undefined ? null : <StateBadge state={status.data.ready ? "ready" : "degraded"} />}
      command={{ tocsin: "status", curl: { method: "GET", path: "/v1/status" } }}
    >
      <Loaded
        query={status}
        empty={(data) => (data.applications.length === 0 && data.totals.event_batches === 0 ? <NoApplication /> : null)}
      >
        {(data) => (
          <>
            <section className="panel" aria-labelledby="overview-attention">
              <div className="panel-head">
                <h2 id="overview-attention">{t("common.nav.attention")}</h2>
                <Link to="/attention" className="overview-more">
                  {t("overview.attention.all")}
                </Link>
              </div>
              <Loaded
                query={attention}
                loading={<Loading lines={2} />}
                empty={(found) => (found.items.length === 0 ? <Calm samples={samples} /> : null)}
              >
                {(found) => <AttentionList items={found.items.slice(0, 4)} more={found.items.length - 4} />}
              </Loaded>
            </section>
            <Flow status={data} samples={samples} />
            <div className="overview-columns">
              <Headroom status={data} />
              <Latencies status={data} />
            </div>
            <Volumes />
            <div className="overview-columns">
              <Applications status={data} />
              <Installation status={data} />
            </div>
          </>
        )}
      </Loaded>
    </Page>
  );
}

function NoApplication() {
  const t = useT();
  const can = useCan("applications:write");
  return (
    <Empty
      title={t("overview.empty.title")}
      text={t("overview.empty.text")}
      icon="applications"
      {...(can
        ? {
            action: (
              <Link to="/applications" className="button button-main">
                {t("overview.empty.action")}
              </Link>
            ),
          }
        : {})}
      command="tocsin demo"
    />
  );
}

function Calm({ samples }: { samples: readonly Sample[] }) {
  const t = useT();
  const newest = useRead<ListPage<{ accepted_at: string }>>("/v1/event-batches", {
    query: { limit: 1 },
    topics: ["batches"],
  });
  const last = newest.data?.items[0];
  return (
    <p className="overview-calm">
      <Icon name="success" />
      <span>{t("overview.attention.none")}</span>
      <span className="muted">
        {samples.at(-1)?.suspended === 0 && t("overview.attention.noneText")}{" "}
        {last !== undefined && <T k="overview.attention.last" values={{ time: <Time value={last.accepted_at} /> }} />}
      </span>
    </p>
  );
}

interface StageView {
  id: "accept" | "match" | "notify" | "deliver" | "outcome";
  to: string;
  search?: Record<string, string>;
  rateIn: number | null;
  rateText: MessageKey;
  rateOut?: number | null;
  waiting?: number;
  waitingText?: MessageKey;
  drain?: Drain;
  oldest?: string | null;
  p95?: number | null;
  history: (number | null)[];
  series: 1 | 2 | 3 | 4 | 5 | 6;
  /** The role that can be switched off. */
  role?: { component: string; state: "paused" | "disabled" };
  extra?: ReactNode;
}

/** Samples that a sparkline shows: two minutes by the stream. */
const historyMost = 120;

function Flow({ status, samples }: { status: Status; samples: readonly Sample[] }) {
  const t = useT();
  const now = samples.at(-1);
  const rates = useMemo(() => {
    const first = Math.max(0, samples.length - historyMost);
    return samples.slice(first).map((_, index) => ratesAt(samples, first + index));
  }, [samples]);
  const present: StageRates = rates.at(-1) ?? {
    events: null,
    matched: null,
    notifications: null,
    closed: null,
    attempts: {},
  };
  const history = (of: (rate: StageRates) => number | null) => rates.map(of);
  const delivered = (rate: StageRates) => rate.attempts.delivered ?? null;
  const failing = (present.attempts.refused ?? 0) + (present.attempts.expired ?? 0);
  const stages: StageView[] = [
    {
      id: "accept",
      to: "/events",
      rateIn: present.events,
      rateText: "overview.rate.events",
      p95: status.latencies.accept.count === 0 ? null : status.latencies.accept.p95_ms,
      history: history((rate) => rate.events),
      series: 1,
      role: { component: "role:accept", state: "disabled" },
      extra: (
        <Fact label={t("overview.stage.batches")}>
          <Count value={now?.eventBatches} compact />
        </Fact>
      ),
    },
    {
      id: "match",
      to: "/events",
      search: { state: "waiting" },
      rateIn: present.events,
      rateText: "overview.rate.events",
      rateOut: present.matched,
      waiting: now?.waitingEvents ?? 0,
      waitingText: "overview.waiting.events",
      drain: drainOf(now?.waitingEvents ?? 0, present.events, present.matched),
      oldest: now?.oldestEvent ?? null,
      p95: status.latencies.match.count === 0 ? null : status.latencies.match.p95_ms,
      history: history((rate) => rate.matched),
      series: 1,
      role: { component: "role:match", state: "paused" },
    },
    {
      id: "notify",
      to: "/notifications",
      rateIn: present.notifications,
      rateText: "overview.rate.notifications",
      history: history((rate) => rate.notifications),
      series: 2,
      extra: (
        <>
          <Fact label={t("overview.stage.workItems")}>
            <Count value={now?.workItems} compact />
          </Fact>
          <Fact label={t("overview.stage.perEvent")}>
            <Rate
              value={
                present.events === null || present.events === 0 || present.notifications === null
                  ? null
                  : present.notifications / present.events
              }
            />
          </Fact>
        </>
      ),
    },
    {
      id: "deliver",
      to: "/notifications",
      search: { outcome: "waiting" },
      rateIn: present.notifications,
      rateText: "overview.rate.notifications",
      rateOut: present.closed,
      waiting: now?.waitingNotifications ?? 0,
      waitingText: "overview.waiting.notifications",
      drain: drainOf(now?.waitingNotifications ?? 0, present.notifications, present.closed),
      p95: status.latencies.deliver.count === 0 ? null : status.latencies.deliver.p95_ms,
      history: history((rate) => rate.closed),
      series: 2,
      role: { component: "role:deliver", state: "paused" },
    },
    {
      id: "outcome",
      to: "/channels",
      rateIn: present.attempts.delivered ?? null,
      rateText: "overview.rate.delivered",
      history: history(delivered),
      series: 3,
      extra: (
        <>
          <Fact label={t("overview.stage.failed")}>
            <Rate value={present.attempts.delivered === undefined ? null : failing} />
          </Fact>
          <Fact label={t("common.state.suspended")}>
            <Link to="/suspended">
              <Count value={now?.suspended} compact />
            </Link>
          </Fact>
        </>
      ),
    },
  ];
  return (
    <section aria-labelledby="overview-flow" className="stack-tight">
      <h2 id="overview-flow" className="overview-title">
        {t("overview.flow")}
      </h2>
      <ol className="overview-flow">
        {stages.map((stage) => (
          <Stage
            key={stage.id}
            stage={stage}
            isOff={status.switches.find((entry) => entry.component === stage.role?.component)}
          />
        ))}
      </ol>
    </section>
  );
}

function Fact({ label, children }: { label: string; children: ReactNode }) {
  return (
    <div className="overview-fact">
      <dt>{label}</dt>
      <dd>{children}</dd>
    </div>
  );
}

function Stage({ stage, isOff }: { stage: StageView; isOff: Status["switches"][number] | undefined }) {
  const t = useT();
  const act = useAct();
  const canSwitch = useCan("operations:write");
  const name = t(`overview.stage.${stage.id}`);
  const { role } = stage;
  const turn = (off: boolean) => {
    if (role === undefined) return;
    act({
      level: "C1",
      title: off ? t("overview.pause.title", { stage: name }) : t("overview.resume.title", { stage: name }),
      text: off ? t(`overview.pause.${stage.id as "accept" | "match" | "deliver"}`) : t("overview.resume.text"),
      verb: off ? t("overview.pause.verb") : t("overview.resume.verb"),
      command: {
        tocsin: off
          ? `switch ${role.state === "paused" ? "pause" : "disable"} ${role.component}`
          : `switch enable ${role.component}`,
        curl: {
          method: "POST",
          path: `/v1/switches/${off ? "off" : "on"}`,
          body: off ? role : { component: role.component },
        },
      },
      run: () =>
        request("POST", `/v1/switches/${off ? "off" : "on"}`, {
          body: off ? role : { component: role.component },
        }),
      done: off ? t("overview.pause.done", { stage: name }) : t("overview.resume.done", { stage: name }),
      invalidates: ["/v1/status", "/v1/switches", "/v1/attention"],
    });
  };
  return (
    <li className={`panel overview-stage${isOff === undefined ? "" : " overview-off"}`}>
      <div className="overview-stage-head">
        <h3>
          <Link to={stage.to} {...(stage.search === undefined ? {} : { search: stage.search })}>
            {name}
          </Link>
        </h3>
        {role !== undefined && canSwitch && (
          <IconButton
            icon={isOff === undefined ? "pause" : "play"}
            label={
              isOff === undefined
                ? t("overview.pause.title", { stage: name })
                : t("overview.resume.title", { stage: name })
            }
            onClick={() => turn(isOff === undefined)}
          />
        )}
      </div>
      <div className="overview-rate">
        <span className={`overview-figure${stage.rateIn === null ? " muted" : ""}`}>
          <Rate value={stage.rateIn} />
        </span>
        <span className="muted">{t(stage.rateText)}</span>
      </div>
      <Sparkline values={stage.history} series={stage.series} />
      <dl className="overview-facts">
        {stage.waiting !== undefined && (
          <Fact label={t(stage.waitingText!)}>
            <Count value={stage.waiting} compact />
          </Fact>
        )}
        {stage.rateOut !== undefined && (
          <Fact label={t("overview.rate.out")}>
            <Rate value={stage.rateOut} />
          </Fact>
        )}
        {stage.oldest !== undefined && stage.oldest !== null && (
          <Fact label={t("overview.stage.oldest")}>
            <Time value={stage.oldest} />
          </Fact>
        )}
        {stage.extra}
        {stage.p95 !== undefined && (
          <Fact label={t("overview.stage.p95")}>
            <Duration ms={stage.p95} />
          </Fact>
        )}
      </dl>
      {isOff !== undefined ? (
        <p className="overview-drain">
          <StateBadge state={isOff.state} />
        </p>
      ) : (
        stage.drain !== undefined && <DrainLine drain={stage.drain} />
      )}
    </li>
  );
}

function DrainLine({ drain }: { drain: Drain }) {
  const t = useT();
  const locale = presentLanguage();
  switch (drain.state) {
    case "empty":
      return <p className="overview-drain muted">{t("overview.drain.empty")}</p>;
    case "drains":
      return (
        <p className="overview-drain">
          {drain.ms > 30 * 86_400_000
            ? t("overview.drain.steady")
            : t("overview.drain.drains", { time: formatDuration(drain.ms, locale) })}
        </p>
      );
    case "grows":
      return (
        <p className="overview-drain overview-grows">
          <Icon name="arrow-up" size={12} />
          {t("overview.drain.grows", { rate: formatRate(drain.perSecond, locale) })}
        </p>
      );
    case "steady":
      return <p className="overview-drain">{t("overview.drain.steady")}</p>;
    case "unknown":
      return <p className="overview-drain muted">{t("overview.drain.unknown")}</p>;
  }
}

function Headroom({ status }: { status: Status }) {
  const t = useT();
  const resources = status.saturation?.resources ?? [];
  const roles = status.saturation?.roles ?? [];
  return (
    <section className="panel" aria-labelledby="overview-headroom">
      <div className="panel-head">
        <h2 id="overview-headroom">{t("overview.headroom")}</h2>
        <Link to="/capacity" className="overview-more">
          {t("common.nav.capacity")}
        </Link>
      </div>
      <div className="panel-body stack">
        {resources.length === 0 && <p className="muted">{t("overview.headroom.none")}</p>}
        {resources.map((resource) => (
          <Meter
            key={resource.resource}
            label={textOr(t, `overview.resource.${resource.resource}`, resource.resource)}
            used={resource.used}
            note={
              resource.full_in_seconds != null ? (
                <T k="overview.headroom.full" values={{ time: <Duration ms={resource.full_in_seconds * 1000} /> }} />
              ) : resource.headroom != null ? (
                <HeadroomText factor={resource.headroom} />
              ) : null
            }
          />
        ))}
        {roles.length > 0 && (
          <div className="stack">
            <h3 className="label">{t("overview.headroom.roles")}</h3>
            {roles.map((role) => (
              <Meter
                key={role.role}
                label={textOr(t, `overview.role.${role.role}`, role.role)}
                used={role.headroom == null || role.headroom <= 0 ? role.processor : Math.min(1, 1 / role.headroom)}
                note={
                  role.headroom == null ? null : (
                    <>
                      <HeadroomText factor={role.headroom} />{" "}
                      {role.first != null && (
                        <span className="muted">({textOr(t, `overview.resource.${role.first}`, role.first)})</span>
                      )}
                    </>
                  )
                }
              />
            ))}
          </div>
        )}
        {status.saturation?.has_vectors === false && (
          <p className="muted overview-note">
            <T k="overview.headroom.vectors" values={{ command: <code>tocsin bench vectors</code> }} />
          </p>
        )}
      </div>
    </section>
  );
}

function HeadroomText({ factor }: { factor: number }) {
  const t = useT();
  return (
    <>
      {factor >= 100
        ? t("overview.headroom.ample")
        : t("overview.headroom.factor", { factor: formatRate(factor, presentLanguage()) })}
    </>
  );
}

function Meter({ label, used, note }: { label: string; used: number; note: ReactNode }) {
  const tone = used >= 0.9 ? "error" : used >= 0.7 ? "pending" : "success";
  return (
    <div className="overview-meter">
      <div className="overview-meter-head">
        <span>{label}</span>
        <span className="muted overview-meter-note">{note}</span>
        <span className="overview-meter-value">
          {tone !== "success" && <Icon name="attention" size={14} />}
          <Percent value={used} />
        </span>
      </div>
      <meter
        className={`overview-bar overview-bar-${tone}`}
        min={0}
        max={1}
        value={Math.min(1, used)}
        aria-label={label}
      />
    </div>
  );
}

function Latencies({ status }: { status: Status }) {
  const t = useT();
  const rows = (["accept", "match", "deliver", "end_to_end"] as const).map((stage) => ({
    stage,
    figures: status.latencies[stage],
  }));
  return (
    <section className="panel" aria-labelledby="overview-latencies">
      <div className="panel-head">
        <h2 id="overview-latencies">{t("overview.latencies")}</h2>
      </div>
      <div className="table-box" tabIndex={0} role="group" aria-labelledby="overview-latencies">
        <table className="table">
          <thead>
            <tr>
              <th scope="col">{t("overview.latencies.stage")}</th>
              <th scope="col" className="end">
                p50
              </th>
              <th scope="col" className="end">
                p95
              </th>
              <th scope="col" className="end">
                p99
              </th>
              <th scope="col" className="end">
                {t("overview.latencies.count")}
              </th>
            </tr>
          </thead>
          <tbody>
            {rows.map(({ stage, figures }) => (
              <tr key={stage}>
                <th scope="row">{t(`overview.latency.${stage}`)}</th>
                {([figures.p50_ms, figures.p95_ms, figures.p99_ms] as const).map((ms, index) => (
                  <td key={index} className="end">
                    <Duration ms={figures.count === 0 ? null : ms} />
                  </td>
                ))}
                <td className="end">
                  <Count value={figures.count} compact />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

const volumeNames = ["events", "notifications", "delivered", "refused", "expired"] as const;
const latencyNames = ["end_to_end_p50", "end_to_end_p95", "end_to_end_p99"] as const;

function Volumes() {
  const t = useT();
  const range = useRange();
  const series = useSeries([...volumeNames, ...latencyNames], range);
  const of = (answer: SeriesAnswer, name: string, per: number) =>
    (answer.series.find((one) => one.name === name)?.values ?? []).map((value) =>
      value === null ? null : value / per,
    );
  return (
    <section className="overview-columns" aria-label={t("overview.volumes")}>
      {series.data === undefined ? (
        <div className="panel overview-wide">
          {series.error === null ? (
            <Loading lines={5} />
          ) : (
            <Failed error={series.error} retry={() => void series.refetch()} />
          )}
        </div>
      ) : (
        <Suspense
          fallback={
            <div className="panel overview-wide">
              <Loading lines={5} />
            </div>
          }
        >
          <div className="panel overview-chart">
            <Chart
              title={t("overview.volumes.title")}
              times={series.data.times}
              unit="rate"
              sync="overview"
              from={range.from.getTime() / 1000}
              to={range.to.getTime() / 1000}
              series={[
                {
                  id: "events",
                  label: t("overview.series.events"),
                  values: of(series.data, "events", series.data.step),
                  series: 1,
                },
                {
                  id: "notifications",
                  label: t("overview.series.notifications"),
                  values: of(series.data, "notifications", series.data.step),
                  series: 2,
                },
                {
                  id: "delivered",
                  label: t("common.state.delivered"),
                  values: of(series.data, "delivered", series.data.step),
                  series: 3,
                },
                {
                  id: "refused",
                  label: t("common.state.refused"),
                  values: of(series.data, "refused", series.data.step),
                  series: 4,
                },
              ]}
            />
          </div>
          <div className="panel overview-chart">
            <Chart
              title={t("overview.latency.end_to_end")}
              times={series.data.times}
              unit="ms"
              sync="overview"
              from={range.from.getTime() / 1000}
              to={range.to.getTime() / 1000}
              series={latencyNames.map((name, index) => ({
                id: name,
                label: name.slice(-3),
                values: of(series.data, name, 1),
                series: (index + 1) as 1,
              }))}
            />
          </div>
        </Suspense>
      )}
    </section>
  );
}

function Applications({ status }: { status: Status }) {
  const t = useT();
  return (
    <section className="panel" aria-labelledby="overview-applications">
      <div className="panel-head">
        <h2 id="overview-applications">{t("common.nav.applications")}</h2>
        <Link to="/applications" className="overview-more">
          {t("overview.all")}
        </Link>
      </div>
      {status.applications.length === 0 ? (
        <p className="panel-body muted">{t("overview.noApplications")}</p>
      ) : (
        <div className="table-box" tabIndex={0} role="group" aria-labelledby="overview-applications">
          <table className="table">
            <thead>
              <tr>
                <th scope="col">{t("overview.application.name")}</th>
                <th scope="col" className="end">
                  {t("overview.application.version")}
                </th>
                <th scope="col" className="end">
                  {t("overview.application.indexed")}
                </th>
                <th scope="col" className="end">
                  {t("overview.application.index")}
                </th>
                <th scope="col" className="end">
                  {t("overview.application.unusable")}
                </th>
              </tr>
            </thead>
            <tbody>
              {status.applications.slice(0, 8).map((application) => (
                <tr key={application.name}>
                  <th scope="row" className="overview-name">
                    <Link to="/applications/$name" params={{ name: application.name }}>
                      {application.name}
                    </Link>{" "}
                    {!application.ready && <StateBadge state="pending" />}
                  </th>
                  <td className="end num">{application.version}</td>
                  <td className="end">
                    <Count value={application.indexed} compact />
                  </td>
                  <td className="end">
                    <Bytes value={application.index_bytes} />
                  </td>
                  <td className="end">
                    <Count value={application.unusable} compact />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function Installation({ status }: { status: Status }) {
  const t = useT();
  const spool = status.partitions.reduce((sum, partition) => sum + partition.bytes, 0);
  return (
    <section className="panel" aria-labelledby="overview-installation">
      <div className="panel-head">
        <h2 id="overview-installation">{t("overview.installation")}</h2>
        <Link to="/maintenance" className="overview-more">
          {t("common.nav.maintenance")}
        </Link>
      </div>
      <dl className="facts panel-body">
        <dt>{t("overview.version")}</dt>
        <dd>
          {status.version}{" "}
          <span className="muted">
            · <T k="overview.started" values={{ time: <Time value={status.started_at} /> }} />
          </span>
        </dd>
        <dt>{t("common.nav.subscribers")}</dt>
        <dd>
          <Link to="/subscribers">
            <Count value={status.counts.subscribers} />
          </Link>
        </dd>
        <dt>{t("overview.subscriptions")}</dt>
        <dd>
          <Count value={status.counts.subscriptions} />
        </dd>
        <dt>{t("overview.devices")}</dt>
        <dd>
          <Count value={status.counts.devices} />
        </dd>
        <dt>{t("overview.inboxItems")}</dt>
        <dd>
          <Count value={status.counts.inbox_items} />
        </dd>
        {spool > 0 && (
          <>
            <dt>{t("overview.spool")}</dt>
            <dd>
              <Bytes value={spool} />
            </dd>
          </>
        )}
        {status.switches.length > 0 && (
          <>
            <dt>{t("overview.off")}</dt>
            <dd>
              <ul className="stack-tight">
                {status.switches.map((entry) => (
                  <li key={entry.component} className="row">
                    <code>{entry.component}</code> <StateBadge state={entry.state} />{" "}
                    <span className="muted">{entry.reason}</span>
                  </li>
                ))}
              </ul>
            </dd>
          </>
        )}
      </dl>
    </section>
  );
}
