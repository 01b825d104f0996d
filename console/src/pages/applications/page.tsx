// The applications with their versions and figures.
import { useMemo } from "react";
import { useCan } from "../../api/session";
import { Badge, StateBadge } from "../../components/badge";
import { Grid, type Column } from "../../components/grid";
import { countColumn, textColumn, timeColumn } from "../../components/grid/cells";
import { Link } from "../../components/link";
import { Empty, Loaded } from "../../components/states";
import { Bytes, Count } from "../../components/values";
import { useT } from "../../locales";
import { Page } from "../../shell/page-frame";
import { useApplicationList, useSnapshots, type Application } from "./queries";
import "./page.css";

export default function ApplicationsPage() {
  const t = useT();
  const mayWrite = useCan("applications:write");
  const applications = useApplicationList();
  return (
    <Page
      title={t("applications.title")}
      about={t("applications.about")}
      actions={
        mayWrite && (
          <Link className="button button-main" to="/applications/~new">
            {t("applications.new")}
          </Link>
        )
      }
      command={{ tocsin: "applications list", curl: { method: "GET", path: "/v1/applications" } }}
    >
      <Loaded
        query={applications}
        empty={(data) =>
          data.items.length === 0 && (
            <Empty
              icon="applications"
              title={t("applications.none")}
              text={t("applications.noneText")}
              action={
                mayWrite && (
                  <Link className="button button-main" to="/applications/~new">
                    {t("applications.new")}
                  </Link>
                )
              }
              command="tocsin apply application.yaml"
            />
          )
        }
      >
        {(data) => <List items={data.items} />}
      </Loaded>
    </Page>
  );
}

function List({ items }: { items: Application[] }) {
  const t = useT();
  const { snapshots, indexes } = useSnapshots();
  const columns = useMemo(
    (): Column<Application>[] => [
      {
        id: "name",
        title: t("applications.column.name"),
        width: 150,
        card: "title",
        text: (row) => row.name,
        cell: (row) => <strong>{row.name}</strong>,
      },
      {
        id: "state",
        title: t("applications.column.state"),
        width: 176,
        card: "state",
        text: (row) => String(row.running),
        cell: (row) => {
          const stopped = snapshots.get(row.name)?.rules_stopped ?? 0;
          if (!row.running) return <StateBadge state="failed">{t("applications.notRunning")}</StateBadge>;
          return stopped > 0 ? (
            <Badge tone="pending" icon="pause">
              {t("applications.rulesStopped", { count: stopped })}
            </Badge>
          ) : (
            <StateBadge state="running" />
          );
        },
      },
      countColumn("version", t("applications.column.version"), (row) => row.version, { width: 80 }),
      {
        id: "rules",
        title: t("applications.rules"),
        width: 80,
        align: "end",
        text: (row) => String(snapshots.get(row.name)?.rules ?? ""),
        cell: (row) => <Count value={snapshots.get(row.name)?.rules ?? null} />,
      },
      {
        id: "subscriptions",
        title: t("applications.column.subscriptions"),
        width: 128,
        align: "end",
        text: (row) => String(snapshots.get(row.name)?.subscriptions_enabled ?? ""),
        cell: (row) => <Count value={snapshots.get(row.name)?.subscriptions_enabled ?? null} compact />,
      },
      {
        id: "unusable",
        title: t("applications.column.unusable"),
        width: 120,
        align: "end",
        text: (row) => String(indexes.get(row.name)?.unusable ?? ""),
        cell: (row) => {
          const unusable = indexes.get(row.name)?.unusable ?? null;
          return unusable !== null && unusable > 0 ? (
            <Badge tone="pending" icon="attention">
              <Count value={unusable} />
            </Badge>
          ) : (
            <Count value={unusable} />
          );
        },
      },
      {
        id: "index",
        title: t("applications.column.index"),
        width: 110,
        align: "end",
        text: (row) => String(indexes.get(row.name)?.index_bytes ?? ""),
        cell: (row) => <Bytes value={indexes.get(row.name)?.index_bytes ?? null} />,
        hidden: true,
      },
      timeColumn("applied", t("applications.column.applied"), (row) => row.applied_at, {
        width: 120,
        card: "meta",
      }),
      textColumn("author", t("applications.column.author"), (row) => row.author_name ?? row.author, {
        width: 160,
        hidden: true,
      }),
      {
        id: "description",
        title: t("applications.column.description"),
        min: 160,
        text: (row) => row.description ?? "",
        cell: (row) => <span className="muted">{row.description ?? ""}</span>,
      },
    ],
    [t, snapshots, indexes],
  );
  return (
    <Grid
      name="applications"
      label={t("applications.title")}
      rows={items}
      columns={columns}
      rowId={(row) => row.name}
      href={(row) => `/applications/${row.name}`}
      height="content"
    />
  );
}
