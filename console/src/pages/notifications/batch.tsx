// One notification batch: outcomes of its notifications and its journey.
import { StateBadge } from "../../components/badge";
import { JourneyOf } from "../../components/journey/journey";
import { Link } from "../../components/link";
import { Loaded } from "../../components/states";
import { Count, Time } from "../../components/values";
import { useT } from "../../locales";
import { Page } from "../../shell/page-frame";
import { useNotificationBatch } from "./queries";
import { notificationBatchPage } from "./route";
import "./page.css";

export default function NotificationBatchPage() {
  const t = useT();
  const { id } = notificationBatchPage.useParams();
  const batch = useNotificationBatch(id);
  return (
    <Page
      title={id}
      crumbs={[{ to: "/notifications", text: t("notifications.title"), search: { view: "batches" } }]}
      command={{ tocsin: `trace ${id}`, curl: { method: "GET", path: `/v1/notification-batches/${id}` } }}
    >
      <Loaded query={batch}>
        {(found) => (
          <div className="stack">
            <dl className="facts-line">
              <div>
                <dt>{t("notifications.column.application")}</dt>
                <dd>
                  <Link to={`/applications/${found.application}`}>{found.application}</Link>{" "}
                  <span className="muted">{t("notifications.version", { version: found.version })}</span>
                </dd>
              </div>
              <div>
                <dt>{t("notifications.column.rule")}</dt>
                <dd>
                  <Link to="/rules" search={{ application: found.application, rule: found.rule }}>
                    {found.rule}
                  </Link>
                </dd>
              </div>
              <div>
                <dt>{t("notifications.column.class")}</dt>
                <dd>{found.class}</dd>
              </div>
              <div>
                <dt>{t("notifications.column.channel")}</dt>
                <dd>
                  <Link to="/channels" search={{ application: found.application, channel: found.channel }}>
                    {found.channel}
                  </Link>
                </dd>
              </div>
              <div>
                <dt>{t("notifications.title")}</dt>
                <dd>
                  <Count value={found.notifications} />
                </dd>
              </div>
              <div>
                <dt>{t("notifications.column.matched")}</dt>
                <dd>
                  <Time value={found.matched_at} form="date-time" />
                </dd>
              </div>
              {found.expires_at != null && (
                <div>
                  <dt>{t("notifications.expires")}</dt>
                  <dd>
                    <Time value={found.expires_at} />
                  </dd>
                </div>
              )}
            </dl>
            {found.outcomes != null && (
              <ul className="notifications-counts" aria-label={t("notifications.byOutcome")}>
                {Object.entries(found.outcomes).map(([outcome, count]) => (
                  <li key={outcome}>
                    <Link
                      to="/notifications"
                      search={{
                        application: found.application,
                        class: found.class,
                        rule: found.rule,
                        channel: found.channel,
                        outcome,
                        from: found.matched_at,
                        to: new Date(Date.parse(found.matched_at) + 1).toISOString(),
                      }}
                    >
                      <StateBadge state={outcome} /> <Count value={count} />
                    </Link>
                  </li>
                ))}
              </ul>
            )}
            <section className="panel">
              <header className="panel-head">
                <h2>{t("notifications.journey")}</h2>
              </header>
              <div className="panel-body">
                <JourneyOf id={id} topics={["notifications"]} />
              </div>
            </section>
          </div>
        )}
      </Loaded>
    </Page>
  );
}
