// Notifications by application, class, rule, channel, recipient, outcome, reason and time; notification batches.
import { useMemo, useState } from "react";
import type { Schema } from "../../api/client";
import { useRead } from "../../api/query";
import { useCan } from "../../api/session";
import { StateBadge } from "../../components/badge";
import { Button, Checkbox } from "../../components/controls";
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
import { Link } from "../../components/link";
import { Empty } from "../../components/states";
import { Tabs } from "../../components/tabs";
import { useT } from "../../locales";
import { useAct } from "../../shell/act";
import { optionsOf } from "../../shell/command";
import { Page } from "../../shell/page-frame";
import { draftOf } from "./model";
import { countResend, resend, useBatches, useNotifications, type BatchRow, type FoundNotification } from "./queries";
import { notificationsPage, outcomes } from "./route";
import "./page.css";

const cleared = {
  application: undefined,
  class: undefined,
  rule: undefined,
  channel: undefined,
  subscriber: undefined,
  address: undefined,
  outcome: [],
  reason: undefined,
};

export default function NotificationsPage() {
  const t = useT();
  const search = notificationsPage.useSearch();
  const setSearch = notificationsPage.useSetSearch();
  const { view, outcome, ...filter } = search;
  const { application, rule, channel } = filter;
  return (
    <Page
      title={t("notifications.title")}
      about={t("notifications.about")}
      fill
      actions={view === "notifications" && <ResendFiltered />}
      command={
        view === "batches"
          ? {
              tocsin: `report notification-batch-list${optionsOf({ application, class: search.class, rule, channel })}`,
              curl: {
                method: "GET",
                path: "/v1/reports/notification-batch-list",
                query: { application: search.application },
              },
            }
          : {
              tocsin: `notifications${optionsOf({ ...filter, outcome: outcome.join(",") })}`,
              curl: {
                method: "GET",
                path: "/v1/notifications",
                query: { ...filter, outcome: outcome.join(",") },
              },
            }
      }
    >
      <Tabs
        label={t("notifications.views")}
        selected={view}
        onSelect={(next) => setSearch({ view: next === "batches" ? "batches" : undefined } as never, { push: true })}
        tabs={[
          { id: "notifications", text: t("notifications.title"), content: () => <List /> },
          { id: "batches", text: t("notifications.batches"), content: () => <Batches /> },
        ]}
      />
    </Page>
  );
}

function Filters() {
  const t = useT();
  const search = notificationsPage.useSearch();
  const setSearch = notificationsPage.useSetSearch();
  const isSet =
    search.outcome.length > 0 ||
    [
      search.application,
      search.class,
      search.rule,
      search.channel,
      search.subscriber,
      search.address,
      search.reason,
    ].some((value) => value !== undefined);
  const isBatches = search.view === "batches";
  // Filters that are set stay visible.
  const [more, setMore] = useState<boolean | null>(null);
  const showsMore =
    isBatches ||
    (more ?? [search.class, search.rule, search.channel, search.address].some((value) => value !== undefined));
  const field = (name: "class" | "rule" | "channel" | "subscriber" | "address" | "reason") => (
    <TypedField
      label={t(`notifications.filter.${name}`)}
      value={search[name] ?? ""}
      onValue={(value) => setSearch({ [name]: value === "" ? undefined : value })}
    />
  );
  return (
    <FilterBar onClear={isSet ? () => setSearch(cleared) : undefined}>
      <ApplicationFilter value={search.application} onValue={(value) => setSearch({ application: value })} />
      {!isBatches && (
        <>
          {field("subscriber")}
          {field("reason")}
        </>
      )}
      {showsMore && (
        <>
          {field("class")}
          {field("rule")}
          {field("channel")}
          {!isBatches && field("address")}
        </>
      )}
      {!isBatches && (
        <>
          <Button look="quiet" icon="filter" aria-expanded={showsMore} onClick={() => setMore(!showsMore)}>
            {t(showsMore ? "notifications.fewerFilters" : "notifications.moreFilters")}
          </Button>
          <fieldset className="notifications-outcomes">
            <legend>{t("notifications.filter.outcome")}</legend>
            {outcomes.map((word) => (
              <Checkbox
                key={word}
                label={<StateBadge state={word} />}
                checked={search.outcome.includes(word)}
                onValue={(checked) =>
                  setSearch({
                    outcome: checked ? [...search.outcome, word] : search.outcome.filter((other) => other !== word),
                  })
                }
              />
            ))}
          </fieldset>
        </>
      )}
    </FilterBar>
  );
}

function List() {
  const t = useT();
  const { view: _view, outcome, ...filter } = notificationsPage.useSearch();
  const setSearch = notificationsPage.useSetSearch();
  const range = useListRange();
  const rows = useNotifications({
    ...filter,
    outcome: outcome.length === 0 ? undefined : outcome.join(","),
    ...range,
  });
  const filtered = outcome.length > 0 || Object.values(filter).some((value) => value !== undefined);
  const columns = useMemo(
    (): Column<FoundNotification>[] => [
      idColumn("id", t("notifications.column.id"), (row) => row.id, { width: 120 }),
      stateColumn("state", t("notifications.column.outcome"), (row) => row.state, { width: 146 }),
      textColumn(
        "subscriber",
        t("notifications.column.subscriber"),
        (row) => row.recipient?.subscriber ?? row.subscription,
        { width: 150, card: "meta" },
      ),
      {
        id: "address",
        title: t("notifications.column.address"),
        width: 190,
        cell: (row) => row.recipient?.address ?? "–",
        text: (row) => row.recipient?.address ?? "",
      },
      textColumn("class", t("notifications.column.class"), (row) => row.class, { width: 140, hidden: true }),
      textColumn("rule", t("notifications.column.rule"), (row) => row.rule, { width: 110, hidden: true }),
      textColumn("channel", t("notifications.column.channel"), (row) => row.channel, { width: 100 }),
      countColumn("attempts", t("notifications.column.attempts"), (row) => row.attempts, {
        width: 90,
        hidden: true,
      }),
      timeColumn("matched", t("notifications.column.matched"), (row) => row.matched_at, {
        width: 120,
        card: "meta",
      }),
      {
        id: "reply",
        title: t("notifications.column.reply"),
        min: 160,
        cell: (row) => <span className="notifications-reply">{row.reply ?? ""}</span>,
        text: (row) => row.reply ?? "",
      },
    ],
    [t],
  );
  return (
    <>
      <Grid
        toolbar={<Filters />}
        name="notifications"
        label={t("notifications.title")}
        rows={rows}
        columns={columns}
        rowId={(row) => row.id}
        href={(row) => `/notifications/${row.id}`}
        empty={
          <Empty
            icon="notifications"
            title={filtered ? t("notifications.noneFiltered") : t("notifications.none")}
            text={filtered ? <NoneFiltered /> : t("notifications.noneText")}
            action={
              filtered ? (
                <Button onClick={() => setSearch(cleared)}>{t("parts.filters.clear")}</Button>
              ) : (
                <Link className="button" to="/events">
                  {t("notifications.openEvents")}
                </Link>
              )
            }
          />
        }
      />
    </>
  );
}

/** Text of a filtered list without rows: how many notifications exist without the filters. */
function NoneFiltered() {
  const t = useT();
  const status = useRead<Schema<"StatusBody">>("/v1/status");
  const total = status.data?.totals.notifications;
  return (
    <>
      {t("notifications.noneFilteredText")} {total !== undefined && t("notifications.exist", { count: total })}
    </>
  );
}

function Batches() {
  const t = useT();
  const { application, class: notificationClass, rule, channel } = notificationsPage.useSearch();
  const setSearch = notificationsPage.useSetSearch();
  const range = useListRange();
  const rows = useBatches({ application, class: notificationClass, rule, channel, ...range });
  const columns = useMemo(
    (): Column<BatchRow>[] => [
      idColumn("id", t("notifications.batch"), (row) => row.notification_batch, { width: 110 }),
      stateColumn("state", t("notifications.column.state"), (row) => row.status, { width: 120 }),
      textColumn("class", t("notifications.column.class"), (row) => row.class, { width: 150, card: "meta" }),
      textColumn("rule", t("notifications.column.rule"), (row) => row.rule, { width: 120 }),
      textColumn("channel", t("notifications.column.channel"), (row) => row.channel, { width: 110 }),
      countColumn("notifications", t("notifications.title"), (row) => row.notifications, { width: 130 }),
      countColumn("delivered", t("notifications.column.delivered"), (row) => row.delivered, { width: 110 }),
      countColumn("failed", t("notifications.column.failed"), (row) => row.failed, { width: 120 }),
      countColumn("open", t("notifications.column.open"), (row) => row.open, { width: 90 }),
      timeColumn("matched", t("notifications.column.matched"), (row) => row.generation_ended_at, {
        width: 140,
        card: "meta",
      }),
      durationColumn("wait", t("notifications.column.wait"), (row) => row.wait_ms, { width: 110 }),
      durationColumn("delivery", t("notifications.column.delivery"), (row) => row.delivery_ms, { width: 110 }),
    ],
    [t],
  );
  return (
    <>
      <Grid
        toolbar={<Filters />}
        name="notification-batches"
        label={t("notifications.batches")}
        rows={rows}
        columns={columns}
        rowId={(row) => row.notification_batch}
        href={(row) => `/notifications/batches/${row.notification_batch}`}
        empty={
          <Empty
            icon="notifications"
            title={t("notifications.noBatches")}
            text={t("notifications.noneText")}
            action={<Button onClick={() => setSearch(cleared)}>{t("parts.filters.clear")}</Button>}
          />
        }
      />
    </>
  );
}

/** Sends again what failed, by the present filters. */
function ResendFiltered() {
  const t = useT();
  const act = useAct();
  const may = useCan("operations:write");
  const search = notificationsPage.useSearch();
  const range = useListRange();
  const { view: _view, outcome, rule, address, ...filter } = search;
  // A resend has no filter by rule or address: what the list shows and what would be sent would differ.
  const isPossible =
    outcome.length > 0 &&
    outcome.every((word) => word === "refused" || word === "suspended") &&
    rule === undefined &&
    address === undefined;
  if (!may || !isPossible) return null;
  const draft = draftOf({ ...filter, outcome, ...range });
  return (
    <Button
      icon="refresh"
      onClick={() => {
        const key = crypto.randomUUID?.() ?? String(Date.now());
        act({
          level: "C1",
          title: t("notifications.resendFilteredTitle"),
          text: t("notifications.resendText"),
          verb: t("notifications.resend"),
          count: () => countResend(draft),
          command: { curl: { method: "POST", path: "/v1/resends", body: draft } },
          run: () => resend(draft, key),
          done: t("notifications.resending"),
          invalidates: ["/v1/notifications", "/v1/resends"],
        });
      }}
    >
      {t("notifications.resendAll")}
    </Button>
  );
}
