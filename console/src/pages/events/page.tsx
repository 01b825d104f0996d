// Event batches, and the search of events by class, time and condition.
import { useMemo } from "react";
import { request } from "../../api/client";
import { useCan } from "../../api/session";
import { Button, Select } from "../../components/controls";
import { ApplicationFilter, FilterBar, TypedField, useListRange } from "../../components/filters";
import { Grid, type Column } from "../../components/grid";
import {
  countColumn,
  durationColumn,
  idColumn,
  stateColumn,
  textColumn,
  timeColumn,
} from "../../components/grid/cells";
import { literal, summaryOf } from "../../components/json/model";
import { Link } from "../../components/link";
import { Empty, Loaded } from "../../components/states";
import { Tabs } from "../../components/tabs";
import { Count } from "../../components/values";
import { T, useT } from "../../locales";
import { useAct } from "../../shell/act";
import { optionsOf } from "../../shell/command";
import { Page } from "../../shell/page-frame";
import { useBatches, useCounts, useEvents, type BatchRow, type FoundEvent } from "./queries";
import { eventsPage } from "./route";
import "./page.css";

export default function EventsPage() {
  const t = useT();
  const search = eventsPage.useSearch();
  const setSearch = eventsPage.useSetSearch();
  const isSearch = search.view === "events";
  const { application, class: eventClass, state, where } = search;
  const found = { application, class: eventClass, where };
  const listed = { application, class: eventClass, status: state };
  return (
    <Page
      title={t("events.title")}
      about={t("events.about")}
      fill
      actions={<Rematch />}
      command={
        isSearch
          ? {
              tocsin: `events find${optionsOf(found)}`,
              curl: {
                method: "GET",
                path: "/v1/events",
                query: found,
              },
            }
          : {
              tocsin: `report event-batch-list${optionsOf(listed)}`,
              curl: {
                method: "GET",
                path: "/v1/reports/event-batch-list",
                query: listed,
              },
            }
      }
    >
      <Tabs
        label={t("events.views")}
        selected={search.view}
        onSelect={(view) => setSearch({ view: view === "events" ? "events" : undefined } as never, { push: true })}
        tabs={[
          { id: "batches", text: t("events.batches"), content: () => <Batches /> },
          { id: "events", text: t("events.search"), content: () => <Search /> },
        ]}
      />
    </Page>
  );
}

function Batches() {
  const t = useT();
  const { application, class: eventClass, state } = eventsPage.useSearch();
  const setSearch = eventsPage.useSetSearch();
  const range = useListRange();
  const rows = useBatches({ application, class: eventClass, status: state, ...range }, true);
  const filtered = application !== undefined || eventClass !== undefined || state !== undefined;
  const columns = useMemo(
    (): Column<BatchRow>[] => [
      idColumn("id", t("events.column.batch"), (row) => row.event_batch, { width: 110 }),
      stateColumn("state", t("events.column.state"), (row) => row.status, { width: 136 }),
      textColumn("class", t("events.column.class"), (row) => row.class, { width: 130, card: "meta" }),
      textColumn("application", t("events.column.application"), (row) => row.application, { width: 120 }),
      textColumn("source", t("events.column.source"), (row) => row.source, { width: 100 }),
      countColumn("events", t("events.column.events"), (row) => row.events, { width: 116 }),
      timeColumn("accepted", t("events.column.accepted"), (row) => row.collection_ended_at, {
        width: 130,
        card: "meta",
      }),
      durationColumn("match", t("events.column.match"), (row) => row.generation_ms, { width: 172 }),
      textColumn("reason", t("events.column.reason"), (row) => row.reason, {
        min: 240,
        hidden: state !== "failed",
      }),
    ],
    [t, state],
  );
  return (
    <>
      <Grid
        toolbar={
          <FilterBar
            onClear={
              filtered ? () => setSearch({ application: undefined, class: undefined, state: undefined }) : undefined
            }
          >
            <ApplicationFilter value={application} onValue={(value) => setSearch({ application: value })} />
            <ClassField value={eventClass} />
            <Select
              label={t("events.column.state")}
              value={state ?? ""}
              onValue={(value) => setSearch({ state: value === "" ? undefined : (value as "accepted") })}
              options={[
                { value: "", text: t("events.anyState") },
                ...(["accepted", "matched", "failed"] as const).map((value) => ({
                  value,
                  text: t(`events.state.${value}`),
                })),
              ]}
            />
          </FilterBar>
        }
        name="event-batches"
        label={t("events.batches")}
        rows={rows}
        columns={columns}
        rowId={(row) => row.event_batch}
        href={(row) => `/events/${row.event_batch}`}
        empty={
          <Empty
            icon="events"
            title={filtered ? t("events.noneFiltered") : t("events.none")}
            text={filtered ? t("events.noneFilteredText") : t("events.noneText")}
            action={
              filtered ? (
                <Button onClick={() => setSearch({ application: undefined, class: undefined, state: undefined })}>
                  {t("parts.filters.clear")}
                </Button>
              ) : (
                <Link className="button" to="/sources">
                  {t("events.openSources")}
                </Link>
              )
            }
            {...(filtered ? {} : { command: "tocsin publish APPLICATION CLASS events.ndjson" })}
          />
        }
      />
    </>
  );
}

function ClassField({ value }: { value: string | undefined }) {
  const t = useT();
  const setSearch = eventsPage.useSetSearch();
  return (
    <TypedField
      label={t("events.column.class")}
      value={value ?? ""}
      onValue={(next) => setSearch({ class: next === "" ? undefined : next })}
    />
  );
}

function Search() {
  const t = useT();
  const { application, class: eventClass, where, by } = eventsPage.useSearch();
  const setSearch = eventsPage.useSetSearch();
  const range = useListRange();
  const query = { application, class: eventClass, where, ...range };
  // A condition is typed for one class; without it the server refuses the search.
  const isComplete = where === undefined || (application !== undefined && eventClass !== undefined);
  const rows = useEvents(query, isComplete);
  const filtered = application !== undefined || eventClass !== undefined || where !== undefined;
  const columns = useMemo(
    (): Column<FoundEvent>[] => [
      idColumn("id", t("events.column.event"), (row) => row.id, { width: 120 }),
      stateColumn("state", t("events.column.state"), (row) => row.state, { width: 136 }),
      textColumn("class", t("events.column.class"), (row) => row.class, { width: 130 }),
      timeColumn("accepted", t("events.column.accepted"), (row) => row.accepted_at, { width: 140, card: "meta" }),
      {
        id: "fields",
        title: t("events.column.fields"),
        min: 240,
        cell: (row) => <code className="events-summary">{summaryOf(row.event, 200)}</code>,
        text: (row) => JSON.stringify(row.event),
        card: "meta",
      },
    ],
    [t],
  );
  return (
    <>
      <FilterBar
        onClear={
          filtered
            ? () => setSearch({ application: undefined, class: undefined, where: undefined, by: undefined })
            : undefined
        }
      >
        <ApplicationFilter value={application} onValue={(value) => setSearch({ application: value })} />
        <ClassField value={eventClass} />
        <TypedField
          label={t("events.where")}
          value={where ?? ""}
          placeholder="event.magnitude > 5.0"
          mono
          wide
          onValue={(value) => setSearch({ where: value === "" ? undefined : value })}
        />
        {application !== undefined && eventClass !== undefined && (
          <TypedField
            label={t("events.countBy")}
            value={by ?? ""}
            mono
            onValue={(value) => setSearch({ by: value === "" ? undefined : value })}
          />
        )}
      </FilterBar>
      {by !== undefined && isComplete && application !== undefined && eventClass !== undefined && <Counts field={by} />}
      {isComplete ? (
        <Grid
          name="events"
          label={t("events.search")}
          rows={rows}
          columns={columns}
          rowId={(row) => row.id}
          href={(row) => `/events/${row.batch}?event=${row.id}`}
          empty={
            <Empty
              icon="events"
              title={filtered ? t("events.noEvents") : t("events.none")}
              text={filtered ? t("events.noneFilteredText") : t("events.noneText")}
              action={
                filtered ? (
                  <Button onClick={() => setSearch({ where: undefined, class: undefined, application: undefined })}>
                    {t("parts.filters.clear")}
                  </Button>
                ) : (
                  <Link className="button" to="/sources">
                    {t("events.openSources")}
                  </Link>
                )
              }
            />
          }
        />
      ) : (
        <Empty icon="filter" title={t("events.classNeeded")} text={t("events.classNeededText")} />
      )}
    </>
  );
}

function Counts({ field }: { field: string }) {
  const t = useT();
  const { application, class: eventClass, where } = eventsPage.useSearch();
  const setSearch = eventsPage.useSetSearch();
  const range = useListRange();
  const counts = useCounts({ application, class: eventClass, where, ...range }, field);
  return (
    <section className="panel events-counts" aria-label={t("events.countsOf", { field })}>
      <header className="panel-head">
        <h2>
          <T k="events.countsTitle" values={{ field: <code>{field}</code> }} />
        </h2>
        <Button look="quiet" icon="close" onClick={() => setSearch({ by: undefined })}>
          {t("events.hideCounts")}
        </Button>
      </header>
      <Loaded query={counts}>
        {(data) => {
          const values = data.counts?.values ?? [];
          const most = values[0]?.count ?? 1;
          return (
            <ul>
              {values.map(({ value, count }, index) => (
                <li key={index}>
                  <button
                    type="button"
                    className="events-value"
                    onClick={() =>
                      setSearch({
                        where: [where, `event.${field} == ${literal(value).text}`]
                          .filter((part) => part !== undefined)
                          .join(" && "),
                        by: undefined,
                      })
                    }
                  >
                    <code>{summaryOf(value, 60)}</code>
                  </button>
                  <span className="events-meter" aria-hidden="true">
                    <span style={{ inlineSize: `${(100 * count) / most}%` }} />
                  </span>
                  <Count value={count} />
                </li>
              ))}
              {(data.counts?.other ?? 0) > 0 && (
                <li>
                  <span className="muted">{t("events.otherValues")}</span>
                  <span />
                  <Count value={data.counts?.other ?? 0} />
                </li>
              )}
            </ul>
          );
        }}
      </Loaded>
    </section>
  );
}

/** Sends the failed batches of an application to be matched again. */
function Rematch() {
  const t = useT();
  const act = useAct();
  const { application, state } = eventsPage.useSearch();
  const may = useCan("operations:write");
  if (!may || state !== "failed" || application === undefined) return null;
  const path = `/v1/applications/${encodeURIComponent(application)}/rematch`;
  return (
    <Button
      icon="refresh"
      onClick={() =>
        act({
          level: "C1",
          title: t("events.rematchTitle", { application }),
          text: t("events.rematchText"),
          verb: t("events.rematch"),
          count: () => countFailed(application),
          command: { curl: { method: "POST", path } },
          run: () => request("POST", path),
          done: (answer) => t("events.rematched", { count: (answer as { batches: number }).batches }),
          invalidates: ["/v1/reports/event-batch-list", "/v1/reports/event-batch-details", "/v1/trace"],
        })
      }
    >
      {t("events.rematch")}
    </Button>
  );
}

async function countFailed(application: string): Promise<number> {
  const answer = await request<{ tables: { rows: unknown[] }[] }>("GET", "/v1/reports/event-batch-list", {
    query: { application, status: "failed", limit: 1000 },
  });
  return answer.tables[0]?.rows.length ?? 0;
}
