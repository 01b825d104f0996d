// Notifications by application, class, rule, channel, recipient, outcome, reason and time; notification batches.
import { useMemo, useState } from "react";
import type { Schema } from "../../api/client";
import { useRead } from "../../api/query";
import { useCan } from "../../api/session";
import { StateBadge } from "../../components/badge";
import { Button, Checkbox } from "../../components/controls";
import { ApplicationFilter, FilterBar, TypedField, useListRange } from "../../components/filters";
import { Grid, type Column } from "../../components/grid";
import { Id } from "../../components/id";
import { Link } from "../../components/link";
import { Empty } from "../../components/states";
import { Tabs } from "../../components/tabs";
import { Count, Duration, Time } from "../../components/values";
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
      {
        id: "id",
        title: t("notifications.column.id"),
        width: 120,
        cell: (row) => <Id value={row.id} copies={false} />,
        text: (row) => row.id,
        card: "title",
      },
      {
        id: "state",
        title: t("notifications.column.outcome"),
        width: 146,
        cell: (row) => <StateBadge state={row.state} />,
        text: (row) => row.state,
        card: "state",
      },
      {
        id: "subscriber",
        title: t("notifications.column.subscriber"),
        width: 150,
        cell: (row) => row.recipient?.subscriber ?? row.subscription,
        text: (row) => row.recipient?.subscriber ?? row.subscription,
        card: "meta",
      },
      {
        id: "address",
        title: t("notifications.column.address"),
        width: 190,
        cell: (row) => row.recipient?.address ?? "–",
        text: (row) => row.recipient?.address ?? "",
      },
      {
        id: "class",
        title: t("notifications.column.class"),
        width: 140,
        cell: (row) => row.class,
        text: (row) => row.class,
        hidden: true,
      },
      {
        id: "rule",
        title: t("notifications.column.rule"),
        width: 110,
        cell: (row) => row.rule,
        text: (row) => row.rule,
        hidden: true,
      },
      {
        id: "channel",
        title: t("notifications.column.channel"),
        width: 100,
        cell: (row) => row.channel,
        text: (row) => row.channel,
      },
      {
        id: "attempts",
        title: t("notifications.column.attempts"),
        width: 90,
        align: "end",
        cell: (row) => <Count value={row.attempts} />,
        text: (row) => String(row.attempts),
        hidden: true,
      },
      {
        id: "matched",
        title: t("notifications.column.matched"),
        width: 120,
        cell: (row) => <Time value={row.matched_at} />,
        text: (row) => row.matched_at,
        card: "meta",
      },
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
      {
        id: "id",
        title: t("notifications.batch"),
        width: 110,
        cell: (row) => <Id value={row.notification_batch} copies={false} />,
        text: (row) => row.notification_batch,
        card: "title",
      },
      {
        id: "state",
        title: t("notifications.column.state"),
        width: 120,
        cell: (row) => <StateBadge state={row.status} />,
        text: (row) => row.status,
        card: "state",
      },
      {
        id: "class",
        title: t("notifications.column.class"),
        width: 150,
        cell: (row) => row.class,
        text: (row) => row.class,
        card: "meta",
      },
      {
        id: "rule",
        title: t("notifications.column.rule"),
        width: 120,
        cell: (row) => row.rule,
        text: (row) => row.rule,
      },
      {
        id: "channel",
        title: t("notifications.column.channel"),
        width: 110,
        cell: (row) => row.channel,
        text: (row) => row.channel,
      },
      {
        id: "notifications",
        title: t("notifications.title"),
        width: 130,
        align: "end",
        cell: (row) => <Count value={row.notifications} />,
        text: (row) => String(row.notifications),
      },
      {
        id: "delivered",
        title: t("notifications.column.delivered"),
        width: 110,
        align: "end",
        cell: (row) => <Count value={row.delivered} />,
        text: (row) => String(row.delivered),
      },
      {
        id: "failed",
        title: t("notifications.column.failed"),
        width: 120,
        align: "end",
        cell: (row) => <Count value={row.failed} />,
        text: (row) => String(row.failed),
      },
      {
        id: "open",
        title: t("notifications.column.open"),
        width: 90,
        align: "end",
        cell: (row) => <Count value={row.open} />,
        text: (row) => String(row.open),
      },
      {
        id: "matched",
        title: t("notifications.column.matched"),
        width: 140,
        cell: (row) => <Time value={row.generation_ended_at} />,
        text: (row) => row.generation_ended_at,
        card: "meta",
      },
      {
        id: "wait",
        title: t("notifications.column.wait"),
        width: 110,
        align: "end",
        cell: (row) => <Duration ms={row.wait_ms} />,
        text: (row) => String(row.wait_ms ?? ""),
      },
      {
        id: "delivery",
        title: t("notifications.column.delivery"),
        width: 110,
        align: "end",
        cell: (row) => <Duration ms={row.delivery_ms} />,
        text: (row) => String(row.delivery_ms ?? ""),
      },
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
