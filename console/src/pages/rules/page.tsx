// The rules with state, index plan and warnings; missed and slow firings; stop, resume, run again, discard.
import { useMemo } from "react";
import { reasonHeader, request } from "../../api/client";
import { useCan } from "../../api/session";
import { Badge, StateBadge } from "../../components/badge";
import { Button } from "../../components/controls";
import { ApplicationFilter, FilterBar, useApplications } from "../../components/filters";
import { Grid, type Column } from "../../components/grid";
import { countColumn, textColumn } from "../../components/grid/cells";
import { Icon } from "../../components/icon";
import { Id } from "../../components/id";
import { StepText } from "../../components/journey/journey";
import { Link } from "../../components/link";
import { Empty, Failed, Loaded, Loading } from "../../components/states";
import { Tabs } from "../../components/tabs";
import { Count, Duration, Time } from "../../components/values";
import { T, useT } from "../../locales";
import { useAct } from "../../shell/act";
import { Page } from "../../shell/page-frame";
import { useShortcut } from "../../shell/shortcuts";
import {
  candidatesOf,
  methodOf,
  rowsOf,
  type Branch,
  type Missed,
  type RulePlan,
  type RuleRow,
  type Slow,
} from "./model";
import { useMissed, usePlans, useSlow, useStopped } from "./queries";
import { rulesPage } from "./route";
import "./page.css";

const changed = [
  "/v1/stopped-rules",
  "/v1/firings",
  "/v1/applications",
  "/v1/attention",
  "/v1/status",
  "/v1/reports/snapshot-applications",
];

export default function RulesPage() {
  const t = useT();
  const { application, view } = rulesPage.useSearch();
  const setSearch = rulesPage.useSetSearch();
  const applications = useApplications();
  return (
    <Page
      title={t("rules.title")}
      about={t("rules.about")}
      command={
        view === "missed"
          ? {
              tocsin: `firings list${application === undefined ? "" : ` --application ${application}`}`,
              curl: { method: "GET", path: "/v1/firings", query: { application } },
            }
          : view === "slow"
            ? {
                tocsin: `firings slow${application === undefined ? "" : ` --application ${application}`}`,
                curl: { method: "GET", path: "/v1/slow-firings", query: { application } },
              }
            : application === undefined
              ? { tocsin: "rule stopped", curl: { method: "GET", path: "/v1/stopped-rules" } }
              : {
                  tocsin: `rule explain ${application}`,
                  curl: { method: "GET", path: `/v1/applications/${application}/rules` },
                }
      }
    >
      <FilterBar
        onClear={application === undefined ? undefined : () => setSearch({ application: undefined, rule: undefined })}
      >
        <ApplicationFilter
          value={application}
          onValue={(value) => setSearch({ application: value, rule: undefined })}
        />
      </FilterBar>
      <Loaded
        query={applications}
        empty={(data) =>
          data.items.length === 0 && (
            <Empty
              icon="rules"
              title={t("rules.noApplication")}
              text={t("rules.noApplicationText")}
              action={
                <Link className="button button-main" to="/applications/~new">
                  {t("rules.newApplication")}
                </Link>
              }
              command="tocsin apply application.yaml"
            />
          )
        }
      >
        {(data) => (
          <Views
            names={data.items
              .map((item) => item.name)
              .filter((name) => application === undefined || name === application)}
          />
        )}
      </Loaded>
    </Page>
  );
}

function Views({ names }: { names: string[] }) {
  const t = useT();
  const { application, view } = rulesPage.useSearch();
  const setSearch = rulesPage.useSetSearch();
  const missed = useMissed(application);
  const slow = useSlow(application);
  const batches = missed.data?.items.reduce((sum, item) => sum + item.batches, 0) ?? 0;
  return (
    <Tabs
      label={t("rules.views")}
      selected={view}
      onSelect={(next) => setSearch({ view: next === "rules" ? undefined : next } as never, { push: true })}
      tabs={[
        {
          id: "rules",
          text: t("rules.title"),
          content: () => <Rules names={names} missed={missed.data?.items ?? []} slow={slow.data?.items ?? []} />,
        },
        {
          id: "missed",
          text: t("rules.missed"),
          ...(batches > 0 ? { mark: <Count value={batches} /> } : {}),
          content: () => <Loaded query={missed}>{(data) => <MissedList items={data.items} />}</Loaded>,
        },
        {
          id: "slow",
          text: t("rules.slow"),
          ...((slow.data?.items.length ?? 0) > 0 ? { mark: <Count value={slow.data?.items.length} /> } : {}),
          content: () => <Loaded query={slow}>{(data) => <SlowList items={data.items} />}</Loaded>,
        },
      ]}
    />
  );
}

function Rules({ names, missed, slow }: { names: string[]; missed: Missed[]; slow: Slow[] }) {
  const t = useT();
  const { application, rule } = rulesPage.useSearch();
  const setSearch = rulesPage.useSetSearch();
  const { plans, error, pending } = usePlans(names);
  const stopped = useStopped();
  const rows = useMemo(
    () => rowsOf(plans, stopped.data?.items ?? [], missed, slow),
    [plans, stopped.data, missed, slow],
  );
  const idOf = (row: RuleRow) => `${row.application}/${row.plan.rule}`;
  const shown =
    rule === undefined
      ? null
      : (rows.find((row) => row.plan.rule === rule && (application === undefined || row.application === application)) ??
        null);
  const columns = useMemo(
    (): Column<RuleRow>[] => [
      {
        id: "rule",
        title: t("rules.rule"),
        min: 140,
        card: "title",
        text: (row) => row.plan.rule,
        cell: (row) => <strong>{row.plan.rule}</strong>,
      },
      {
        id: "state",
        title: t("rules.state"),
        width: 120,
        card: "state",
        text: (row) => (row.stopped === null ? "running" : "stopped"),
        cell: (row) => <StateBadge state={row.stopped === null ? "running" : "stopped"} />,
      },
      textColumn("application", t("rules.application"), (row) => row.application, {
        width: 140,
        card: "meta",
        hidden: names.length === 1,
      }),
      {
        id: "method",
        title: t("rules.method"),
        width: 140,
        text: (row) => methodOf(row.plan),
        cell: (row) => <MethodBadge plan={row.plan} />,
      },
      {
        id: "candidates",
        title: t("rules.candidates"),
        width: 160,
        align: "end",
        text: (row) => String(candidatesOf(row.plan) ?? ""),
        cell: (row) => <Count value={candidatesOf(row.plan)} compact />,
      },
      {
        id: "warnings",
        title: t("rules.warnings"),
        width: 110,
        align: "end",
        text: (row) => String(row.plan.warnings.length),
        cell: (row) =>
          row.plan.warnings.length > 0 ? (
            <Badge tone="pending" icon="attention">
              <Count value={row.plan.warnings.length} />
            </Badge>
          ) : (
            <Count value={0} />
          ),
      },
      {
        id: "missed",
        title: t("rules.missedBatches"),
        width: 140,
        align: "end",
        text: (row) => String(row.missed),
        cell: (row) =>
          row.missed > 0 ? (
            <Badge tone="error">
              <Count value={row.missed} />
            </Badge>
          ) : (
            <Count value={0} />
          ),
      },
      countColumn("slow", t("rules.slow"), (row) => row.slow, { width: 100 }),
    ],
    [t, names.length],
  );
  if (error !== null && rows.length === 0) return <Failed error={error} />;
  if (pending && rows.length === 0) return <Loading />;
  return (
    <div className="rules-columns" data-open={shown === null ? undefined : ""}>
      <Grid
        name="rules"
        label={t("rules.title")}
        rows={rows}
        columns={columns}
        rowId={idOf}
        openId={shown === null ? null : idOf(shown)}
        onOpen={(row) => setSearch({ application: row.application, rule: row.plan.rule })}
        height="content"
        empty={
          <Empty
            icon="rules"
            title={t("rules.none")}
            text={t("rules.noneText")}
            action={
              application !== undefined && (
                <Link className="button" to={`/applications/${application}`} search={{ tab: "definition" }}>
                  {t("rules.openDefinition")}
                </Link>
              )
            }
          />
        }
      />
      {shown !== null && (
        <Detail
          row={shown}
          missed={missed.filter((item) => item.application === shown.application && item.rule === shown.plan.rule)}
        />
      )}
    </div>
  );
}

function MethodBadge({ plan }: { plan: RulePlan }) {
  const t = useT();
  const method = methodOf(plan);
  return (
    <Badge
      tone={method === "index" ? "success" : method === "scan" ? "pending" : "info"}
      icon={method === "index" ? "success" : method === "scan" ? "attention" : "info"}
    >
      {t(`rules.method.${method}`)}
    </Badge>
  );
}

function Detail({ row, missed }: { row: RuleRow; missed: Missed[] }) {
  const t = useT();
  const setSearch = rulesPage.useSetSearch();
  const { plan, application, stopped } = row;
  useShortcut("Escape", t("rules.close"), () => setSearch({ rule: undefined }));
  return (
    <section className="panel rules-detail" aria-label={t("rules.detail", { rule: plan.rule })}>
      <header className="panel-head">
        <h2>{plan.rule}</h2>
        <RuleActions row={row} />
        <button
          type="button"
          className="icon-button"
          aria-label={t("rules.close")}
          data-tip={t("rules.close")}
          onClick={() => setSearch({ rule: undefined })}
        >
          <Icon name="close" />
        </button>
      </header>
      <div className="panel-body stack">
        {stopped !== null && (
          <p className="rules-stopped">
            <Icon name="pause" />
            <span>
              <T
                k="rules.stoppedSince"
                values={{ time: stopped.since === undefined ? "" : <Time value={stopped.since} /> }}
              />
              {stopped.reason != null && stopped.reason !== "" && <>: {stopped.reason}</>}
            </span>
          </p>
        )}
        {plan.warnings.length > 0 && (
          <ul className="rules-warnings">
            {plan.warnings.map((warning, index) => (
              <li key={index}>
                <Icon name="attention" />{" "}
                <span>
                  <StepText text={warning} />
                </span>
              </li>
            ))}
          </ul>
        )}
        <Plan plan={plan} />
        {missed.length > 0 && (
          <>
            <h3>{t("rules.missed")}</h3>
            <MissedList items={missed} />
          </>
        )}
        <p className="row">
          <Link className="button" to={`/applications/${application}`} search={{ tab: "definition" }}>
            {t("rules.openDefinition")}
          </Link>
          <Link className="button" to="/notifications" search={{ application, rule: plan.rule }}>
            {t("rules.notifications")}
          </Link>
        </p>
      </div>
    </section>
  );
}

function Plan({ plan }: { plan: RulePlan }) {
  const t = useT();
  if (plan.query.length > 0) {
    return (
      <>
        <h3>{t("rules.queryPlan")}</h3>
        <pre className="rules-query" tabIndex={0}>
          {plan.query.join("\n")}
        </pre>
      </>
    );
  }
  return (
    <>
      <h3>{t("rules.plan")}</h3>
      {plan.branches.map((branch, index) => (
        <div key={index} className="rules-branch">
          {plan.branches.length > 1 && <h4>{t("rules.branch", { number: index + 1 })}</h4>}
          <BranchView branch={branch} />
        </div>
      ))}
      {plan.filters != null && (
        <dl className="facts-line">
          <div>
            <dt>{t("rules.filters")}</dt>
            <dd>
              <Count value={plan.filters.distinct} />
            </dd>
          </div>
          <div>
            <dt>{t("rules.unindexed")}</dt>
            <dd>
              <Count value={plan.filters.unindexed} />
            </dd>
          </div>
          <div>
            <dt>{t("rules.evaluated")}</dt>
            <dd>
              <Count value={plan.filters.evaluated} compact />
            </dd>
          </div>
        </dl>
      )}
      {plan.audience != null && (
        <p>
          <T k="rules.audience" values={{ segment: <Link to={`/segments/${plan.audience}`}>{plan.audience}</Link> }} />
        </p>
      )}
      {plan.remembers.length > 0 && (
        <>
          <h3>{t("rules.remembers")}</h3>
          <ul className="rules-list">
            {plan.remembers.map((clause) => (
              <li key={clause}>
                <code>{clause}</code>
              </li>
            ))}
          </ul>
        </>
      )}
    </>
  );
}

/** The steps of a branch, in the order of their evaluation. */
function BranchView({ branch }: { branch: Branch }) {
  const t = useT();
  const steps: [string, string, string[]][] = [
    [t("rules.step.event"), t("rules.step.eventText"), branch.event_guards],
    [t("rules.step.subscription"), t("rules.step.subscriptionText"), branch.subscription_guards],
    [t("rules.step.keys"), t("rules.step.keysText"), branch.keys],
    [t("rules.step.range"), t("rules.step.rangeText"), branch.range],
    [t("rules.step.residual"), t("rules.step.residualText"), branch.residual],
  ];
  return (
    <ol className="rules-steps">
      {steps
        .filter(([, , conditions]) => conditions.length > 0)
        .map(([name, about, conditions]) => (
          <li key={name}>
            <span className="rules-step-name">
              {name} <span className="muted">{about}</span>
            </span>
            {conditions.map((condition) => (
              <code key={condition}>{condition}</code>
            ))}
          </li>
        ))}
      {branch.filters && (
        <li>
          <span className="rules-step-name">
            {t("rules.step.filters")} <span className="muted">{t("rules.step.filtersText")}</span>
          </span>
        </li>
      )}
      {branch.candidates != null && (
        <li className="rules-candidates">
          <span>
            <T
              k="rules.candidatesOf"
              values={{
                count: branch.candidates,
                number: (
                  <strong>
                    <Count value={branch.candidates} />
                  </strong>
                ),
              }}
            />
          </span>
        </li>
      )}
    </ol>
  );
}

function RuleActions({ row }: { row: RuleRow }) {
  const t = useT();
  const act = useAct();
  const may = useCan("operations:write");
  if (!may) return null;
  const {
    application,
    plan: { rule },
    stopped,
  } = row;
  const base = `/v1/applications/${encodeURIComponent(application)}/rules/${encodeURIComponent(rule)}`;
  return stopped === null ? (
    <Button
      icon="pause"
      onClick={() =>
        act({
          level: "C1",
          title: t("rules.stopTitle", { rule }),
          text: t("rules.stopText"),
          verb: t("rules.stop"),
          command: {
            tocsin: `rule stop ${application} ${rule}`,
            curl: { method: "POST", path: `${base}/stop`, body: {} },
          },
          run: () => request("POST", `${base}/stop`, { body: {} }),
          done: t("rules.stoppedDone", { rule }),
          undo: () => request("POST", `${base}/resume`),
          invalidates: changed,
        })
      }
    >
      {t("rules.stop")}
    </Button>
  ) : (
    <Button
      icon="play"
      look="main"
      onClick={() =>
        act({
          level: "C1",
          title: t("rules.resumeTitle", { rule }),
          text: t("rules.resumeText", { count: row.missed }),
          verb: t("rules.resume"),
          command: {
            tocsin: `rule resume ${application} ${rule}`,
            curl: { method: "POST", path: `${base}/resume` },
          },
          run: () => request("POST", `${base}/resume`),
          done: t("rules.resumedDone", { rule }),
          invalidates: changed,
        })
      }
    >
      {t("rules.resume")}
    </Button>
  );
}

function MissedList({ items }: { items: Missed[] }) {
  const t = useT();
  const act = useAct();
  const may = useCan("operations:write");
  if (items.length === 0) return <Empty icon="success" title={t("rules.noMissed")} text={t("rules.noMissedText")} />;
  const run = (item: Missed) =>
    act({
      level: "C1",
      title: t("rules.refireTitle", { rule: item.rule }),
      text: t("rules.refireText"),
      verb: t("rules.refire"),
      count: item.batches,
      command: {
        tocsin: `firings refire --id ${item.id}`,
        curl: { method: "POST", path: "/v1/firings/refire", body: { id: item.id } },
      },
      run: () => request("POST", "/v1/firings/refire", { body: { id: item.id } }),
      done: (answer) => {
        const { batches, failed } = answer as { batches: number; failed: unknown[] };
        return failed.length > 0
          ? t("rules.refiredFailed", { count: failed.length })
          : t("rules.refired", { count: batches });
      },
      invalidates: changed,
    });
  const discard = (item: Missed) =>
    act({
      level: "C2",
      danger: true,
      title: t("rules.discardTitle", { rule: item.rule }),
      text: t("rules.discardText"),
      verb: t("rules.discard"),
      count: item.batches,
      command: {
        tocsin: `firings dismiss --id ${item.id}`,
        curl: { method: "POST", path: "/v1/firings/dismiss", body: { id: item.id } },
      },
      run: (reason) => request("POST", "/v1/firings/dismiss", { body: { id: item.id }, headers: reasonHeader(reason) }),
      done: (answer) => t("rules.discarded", { count: (answer as { batches: number }).batches }),
      invalidates: changed,
    });
  return (
    <ul className="rules-missed">
      {items.map((item) => (
        <li key={item.id}>
          <div className="row">
            <StateBadge state={item.status === "failed" ? "failed" : "skipped"}>
              {t(`rules.status.${item.status}`)}
            </StateBadge>
            <Link to="/rules" search={{ application: item.application, rule: item.rule }}>
              <strong>{item.rule}</strong>
            </Link>
            <span className="muted">{item.application}</span>
            <span>{t("rules.batches", { count: item.batches })}</span>
            <span className="muted">
              <Id value={item.first} copies={false} />
              {item.first !== item.last && (
                <>
                  {" "}
                  … <Id value={item.last} copies={false} />
                </>
              )}
            </span>
            <Time value={item.since} />
          </div>
          <p className="rules-reason">
            <StepText text={item.reason} />
          </p>
          {may && (
            <div className="row">
              <Button icon="play" onClick={() => run(item)}>
                {t("rules.refire")}
              </Button>
              <Button look="quiet" icon="trash" onClick={() => discard(item)}>
                {t("rules.discard")}
              </Button>
            </div>
          )}
        </li>
      ))}
    </ul>
  );
}

function SlowList({ items }: { items: Slow[] }) {
  const t = useT();
  if (items.length === 0) return <Empty icon="success" title={t("rules.noSlow")} text={t("rules.noSlowText")} />;
  return (
    <ul className="rules-missed">
      {items.map((item, index) => (
        <li key={index}>
          <div className="row">
            <Link to="/rules" search={{ application: item.application, rule: item.rule }}>
              <strong>{item.rule}</strong>
            </Link>
            <span className="muted">{item.application}</span>
            <span>
              <T
                k="rules.took"
                values={{
                  time: (
                    <strong>
                      <Duration ms={item.took_ms} />
                    </strong>
                  ),
                  limit: <Duration ms={item.timeout_ms} />,
                  count: item.events,
                }}
              />
            </span>
            <Id value={item.batch} copies={false} />
            <Time value={item.at} />
          </div>
          {item.plan.length > 0 && (
            <details>
              <summary>{t("rules.queryPlan")}</summary>
              <pre className="rules-query" tabIndex={0}>
                {item.plan.join("\n")}
              </pre>
            </details>
          )}
        </li>
      ))}
    </ul>
  );
}
