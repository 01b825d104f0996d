// One event batch with its journey, events and notification batches; with `?event=` one event of it.
import { request } from "../../api/client";
import { useCan } from "../../api/session";
import { StateBadge } from "../../components/badge";
import { Button } from "../../components/controls";
import { Grid } from "../../components/grid";
import { countColumn, durationColumn, idColumn, stateColumn, textColumn } from "../../components/grid/cells";
import { JourneyOf } from "../../components/journey/journey";
import { Fields } from "../../components/json/json";
import { summaryOf } from "../../components/json/model";
import { Link, useGo } from "../../components/link";
import { Loaded, NotFound } from "../../components/states";
import { Tabs } from "../../components/tabs";
import { Count, Time } from "../../components/values";
import { useT } from "../../locales";
import { useAct } from "../../shell/act";
import { shellQuote } from "../../shell/command";
import { Page } from "../../shell/page-frame";
import { useShortcut } from "../../shell/shortcuts";
import { detailsOf, useBatch, type BatchDetails, type EventRow, type MadeBatchRow } from "./queries";
import { eventPage } from "./route";
import "./page.css";

export default function BatchPage() {
  const t = useT();
  const { id } = eventPage.useParams();
  const { event } = eventPage.useSearch();
  const answer = useBatch(id);
  const details = answer.data === undefined ? null : detailsOf(answer.data);
  const crumbs = [
    { to: "/events", text: t("events.title") },
    ...(event === undefined ? [] : [{ to: `/events/${id}`, text: id }]),
  ];
  return (
    <Page
      title={event ?? id}
      crumbs={crumbs}
      facts={details !== null && <StateBadge state={details.batch.status} />}
      actions={
        details !== null &&
        (event === undefined ? <BatchActions details={details} /> : <EventActions details={details} event={event} />)
      }
      command={{ tocsin: `trace ${event ?? id}`, curl: { method: "GET", path: `/v1/trace/${event ?? id}` } }}
    >
      <Loaded query={answer}>
        {(data) => {
          const found = detailsOf(data);
          if (found === null) return <NotFound />;
          return event === undefined ? <Batch details={found} /> : <Event details={found} id={event} />;
        }}
      </Loaded>
    </Page>
  );
}

function BatchFacts({ details: { batch } }: { details: BatchDetails }) {
  const t = useT();
  return (
    <dl className="facts-line">
      <div>
        <dt>{t("events.column.application")}</dt>
        <dd>
          <Link to={`/applications/${batch.application}`}>{batch.application}</Link>{" "}
          <span className="muted">{t("events.version", { version: batch.version })}</span>
        </dd>
      </div>
      <div>
        <dt>{t("events.column.class")}</dt>
        <dd>{batch.class}</dd>
      </div>
      <div>
        <dt>{t("events.column.source")}</dt>
        <dd>{batch.source}</dd>
      </div>
      <div>
        <dt>{t("events.column.events")}</dt>
        <dd>
          <Count value={batch.events} />
        </dd>
      </div>
      <div>
        <dt>{t("events.column.accepted")}</dt>
        <dd>
          <Time value={batch.collection_ended_at} form="date-time" />
        </dd>
      </div>
      {batch.reason !== null && (
        <div className="events-reason">
          <dt>{t("events.column.reason")}</dt>
          <dd>{batch.reason}</dd>
        </div>
      )}
    </dl>
  );
}

function Batch({ details }: { details: BatchDetails }) {
  const t = useT();
  const { id } = eventPage.useParams();
  const { tab } = eventPage.useSearch();
  const setSearch = eventPage.useSetSearch();
  return (
    <div className="stack">
      <BatchFacts details={details} />
      <Tabs
        label={t("events.batch")}
        selected={tab}
        onSelect={(next) => setSearch({ tab: next === "journey" ? undefined : next } as never)}
        tabs={[
          { id: "journey", text: t("events.journey"), content: () => <JourneyOf id={id} /> },
          {
            id: "events",
            text: t("events.column.events"),
            mark: <Count value={details.batch.events} />,
            content: () => <EventList details={details} />,
          },
          {
            id: "notifications",
            text: t("events.notificationBatches"),
            mark: <Count value={details.notificationBatches.length} />,
            content: () => <MadeBatches details={details} />,
          },
        ]}
      />
    </div>
  );
}

function EventList({ details }: { details: BatchDetails }) {
  const t = useT();
  const { id } = eventPage.useParams();
  return (
    <Grid
      height="content"
      name="events-of-batch"
      label={t("events.column.events")}
      rows={details.events}
      rowId={(row) => row.event}
      href={(row) => `/events/${id}?event=${row.event}`}
      columns={[
        idColumn("id", t("events.column.event"), (row: EventRow) => row.event, { width: 130 }),
        {
          id: "fields",
          title: t("events.column.fields"),
          min: 240,
          cell: (row) => <code className="events-summary">{summaryOf(row.fields, 240)}</code>,
          text: (row) => JSON.stringify(row.fields),
          card: "meta",
        },
      ]}
      empty={<p className="muted">{t("events.noEvents")}</p>}
    />
  );
}

function MadeBatches({ details }: { details: BatchDetails }) {
  const t = useT();
  return (
    <Grid
      height="content"
      name="notification-batches-of-batch"
      label={t("events.notificationBatches")}
      rows={details.notificationBatches}
      rowId={(row) => row.notification_batch}
      href={(row) => `/notifications/batches/${row.notification_batch}`}
      columns={[
        idColumn("id", t("events.column.batch"), (row: MadeBatchRow) => row.notification_batch, { width: 110 }),
        stateColumn("state", t("events.column.state"), (row: MadeBatchRow) => row.status, { width: 120 }),
        textColumn("rule", t("events.column.rule"), (row: MadeBatchRow) => row.rule, {
          width: 130,
          card: "meta",
        }),
        textColumn("class", t("events.column.class"), (row: MadeBatchRow) => row.class, { width: 150 }),
        textColumn("channel", t("events.column.channel"), (row: MadeBatchRow) => row.channel, {
          width: 120,
          card: "meta",
        }),
        countColumn("notifications", t("events.column.notifications"), (row: MadeBatchRow) => row.notifications, {
          width: 120,
        }),
        countColumn("delivered", t("events.column.delivered"), (row: MadeBatchRow) => row.delivered, {
          width: 110,
        }),
        countColumn("failed", t("events.column.failed"), (row: MadeBatchRow) => row.failed, { width: 110 }),
        durationColumn("wait", t("events.column.wait"), (row: MadeBatchRow) => row.wait_ms, { width: 110 }),
        durationColumn("delivery", t("events.column.delivery"), (row: MadeBatchRow) => row.delivery_ms, {
          width: 110,
        }),
      ]}
      empty={<p className="muted">{t("events.noNotifications")}</p>}
    />
  );
}

function Event({ details, id }: { details: BatchDetails; id: string }) {
  const t = useT();
  const go = useGo();
  const index = details.events.findIndex((row) => row.event === id);
  const row = details.events[index];
  const open = (offset: number) => {
    const next = details.events[index + offset];
    if (next !== undefined) go(`/events/${details.batch.event_batch}?event=${next.event}`);
  };
  useShortcut("Alt+ArrowUp", t("events.previous"), () => open(-1));
  useShortcut("Alt+ArrowDown", t("events.next"), () => open(1));
  return (
    <div className="stack">
      <div className="events-turn">
        <BatchFacts details={details} />
        {index >= 0 && (
          <div className="row">
            <Button look="quiet" icon="chevron-left" disabled={index === 0} onClick={() => open(-1)}>
              {t("events.previous")}
            </Button>
            <Button
              look="quiet"
              icon="chevron-right"
              disabled={index === details.events.length - 1}
              onClick={() => open(1)}
            >
              {t("events.next")}
            </Button>
          </div>
        )}
      </div>
      <div className="events-columns">
        <section className="panel">
          <header className="panel-head">
            <h2>{t("events.column.fields")}</h2>
          </header>
          <div className="panel-body">
            {row === undefined ? (
              <p className="muted">{t("events.notLoaded")}</p>
            ) : (
              <Fields fields={row.fields} label={t("events.column.fields")} />
            )}
          </div>
        </section>
        <section className="panel">
          <header className="panel-head">
            <h2>{t("events.journey")}</h2>
          </header>
          <div className="panel-body">
            <JourneyOf id={id} />
          </div>
        </section>
      </div>
    </div>
  );
}

function BatchActions({ details: { batch } }: { details: BatchDetails }) {
  const t = useT();
  const act = useAct();
  const may = useCan("operations:write");
  if (batch.status !== "failed" || !may) return null;
  const path = `/v1/applications/${encodeURIComponent(batch.application)}/rematch`;
  return (
    <Button
      icon="refresh"
      onClick={() =>
        act({
          level: "C1",
          title: t("events.rematchTitle", { application: batch.application }),
          text: t("events.rematchText"),
          verb: t("events.rematch"),
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

function EventActions({ details, event }: { details: BatchDetails; event: string }) {
  const t = useT();
  const act = useAct();
  const { application, class: eventClass } = details.batch;
  const row = details.events.find((found) => found.event === event);
  const mayPublish = useCan("events:write");
  const path = `/v1/applications/${encodeURIComponent(application)}/events/${encodeURIComponent(eventClass)}`;
  return (
    <>
      {mayPublish && row !== undefined && (
        <Button
          icon="copy"
          onClick={() =>
            act({
              level: "C1",
              title: t("events.publishTitle", { event }),
              text: t("events.publishText"),
              verb: t("events.publish"),
              command: {
                tocsin: `publish ${application} ${eventClass} ${shellQuote(JSON.stringify(row.fields))}`,
                curl: { method: "POST", path, body: row.fields },
              },
              run: () => request("POST", path, { body: row.fields }),
              done: t("events.published"),
              invalidates: ["/v1/reports/event-batch-list", "/v1/events"],
            })
          }
        >
          {t("events.publish")}
        </Button>
      )}
      <Link className="button" to="/templates" search={{ application, event }}>
        {t("events.preview")}
      </Link>
      <Link className="button button-main" to="/explain" search={{ event }}>
        {t("events.explain")}
      </Link>
    </>
  );
}
