// One notification: recipient, attempts with responses, journey, content as sent, fields.
import { useState } from "react";
import { useCan } from "../../api/session";
import { StateBadge } from "../../components/badge";
import { Segmented } from "../../components/controls";
import { Id } from "../../components/id";
import { JourneyOf } from "../../components/journey/journey";
import { Fields } from "../../components/json/json";
import { Link } from "../../components/link";
import { MenuButton } from "../../components/menu";
import { Empty, Loaded } from "../../components/states";
import { Tabs } from "../../components/tabs";
import { Duration, Time } from "../../components/values";
import { T, useT } from "../../locales";
import { useAct, type Action } from "../../shell/act";
import { Page } from "../../shell/page-frame";
import { canResend, type Resend } from "./model";
import { countResend, resend, useContent, useNotification, type Content, type Notification } from "./queries";
import { notificationPage } from "./route";
import "./page.css";

export default function NotificationPage() {
  const t = useT();
  const { id } = notificationPage.useParams();
  const notification = useNotification(id);
  return (
    <Page
      title={id}
      crumbs={[{ to: "/notifications", text: t("notifications.title") }]}
      facts={notification.data !== undefined && <StateBadge state={notification.data.state} />}
      actions={notification.data !== undefined && <Actions notification={notification.data} />}
      command={{ tocsin: `trace ${id}`, curl: { method: "GET", path: `/v1/notifications/${id}` } }}
    >
      <Loaded query={notification}>{(found) => <Found notification={found} />}</Loaded>
    </Page>
  );
}

function Found({ notification }: { notification: Notification }) {
  const t = useT();
  const { tab } = notificationPage.useSearch();
  const setSearch = notificationPage.useSetSearch();
  const { id, recipient, attempts } = notification;
  const batch = `nb-${id.split("-")[1] ?? ""}`;
  return (
    <div className="stack">
      <dl className="facts-line">
        <div>
          <dt>{t("notifications.column.subscriber")}</dt>
          <dd>
            {recipient == null ? (
              <span className="muted">{t("notifications.noRecipient")}</span>
            ) : (
              <Link to={`/subscribers/${encodeURIComponent(recipient.subscriber)}`}>{recipient.subscriber}</Link>
            )}
          </dd>
        </div>
        <div>
          <dt>{t("notifications.column.address")}</dt>
          <dd>{recipient?.address ?? "–"}</dd>
        </div>
        <div>
          <dt>{t("notifications.column.channel")}</dt>
          <dd>
            <Link to="/channels" search={{ application: notification.application, channel: notification.channel }}>
              {notification.channel}
            </Link>
          </dd>
        </div>
        <div>
          <dt>{t("notifications.column.class")}</dt>
          <dd>{notification.class}</dd>
        </div>
        <div>
          <dt>{t("notifications.column.rule")}</dt>
          <dd>
            <Link to="/rules" search={{ application: notification.application, rule: notification.rule }}>
              {notification.rule}
            </Link>
          </dd>
        </div>
        <div>
          <dt>{t("notifications.event")}</dt>
          <dd>
            <Id value={notification.event_id} copies={false} />
          </dd>
        </div>
        <div>
          <dt>{t("notifications.subscription")}</dt>
          <dd>
            <Id value={notification.subscription} copies={false} />
          </dd>
        </div>
        <div>
          <dt>{t("notifications.batch")}</dt>
          <dd>
            <Id value={batch} copies={false} />
          </dd>
        </div>
        <div>
          <dt>{t("notifications.column.application")}</dt>
          <dd>
            <Link to={`/applications/${notification.application}`}>{notification.application}</Link>{" "}
            <span className="muted">{t("notifications.version", { version: notification.version })}</span>
          </dd>
        </div>
        {notification.expires_at != null && (
          <div>
            <dt>{t("notifications.expires")}</dt>
            <dd>
              <Time value={notification.expires_at} />
            </dd>
          </div>
        )}
      </dl>
      <Attempts notification={notification} />
      <Tabs
        label={t("notifications.one")}
        selected={tab}
        onSelect={(next) => setSearch({ tab: next === "journey" ? undefined : next } as never)}
        tabs={[
          {
            id: "journey",
            text: t("notifications.journey"),
            content: () => <JourneyOf id={id} topics={["notifications"]} />,
          },
          { id: "content", text: t("notifications.content"), content: () => <ContentTab id={id} /> },
          {
            id: "fields",
            text: t("notifications.fields"),
            content: () => <FieldsTab notification={notification} />,
          },
        ]}
      />
      {attempts.length === 0 && notification.state === "waiting" && (
        <p className="muted">{t("notifications.waitingText")}</p>
      )}
    </div>
  );
}

function Attempts({ notification: { attempts } }: { notification: Notification }) {
  const t = useT();
  if (attempts.length === 0) return null;
  return (
    <section className="panel" aria-label={t("notifications.attempts")}>
      <header className="panel-head">
        <h2>{t("notifications.attempts")}</h2>
      </header>
      <ol className="notifications-attempts">
        {attempts.map((attempt) => (
          <li key={attempt.number}>
            <span className="num notifications-number">{attempt.number}</span>
            <StateBadge state={attempt.outcome} />
            <span className="muted">
              <Time value={attempt.sent_at} form="date-time" /> ·{" "}
              <Duration ms={Date.parse(attempt.answered_at) - Date.parse(attempt.sent_at)} />
            </span>
            <code className="notifications-response">{attempt.reply === "" ? "–" : attempt.reply}</code>
          </li>
        ))}
      </ol>
    </section>
  );
}

function FieldsTab({ notification }: { notification: Notification }) {
  const t = useT();
  return (
    <div className="notifications-columns">
      <section className="panel">
        <header className="panel-head">
          <h2>{t("notifications.ofNotification")}</h2>
        </header>
        <div className="panel-body">
          <Fields fields={notification.fields} label={t("notifications.ofNotification")} />
        </div>
      </section>
      {notification.event != null && (
        <section className="panel">
          <header className="panel-head">
            <h2>{t("notifications.ofEvent")}</h2>
          </header>
          <div className="panel-body">
            <Fields fields={notification.event} label={t("notifications.ofEvent")} />
          </div>
        </section>
      )}
    </div>
  );
}

function ContentTab({ id }: { id: string }) {
  const t = useT();
  const content = useContent(id);
  return (
    <Loaded
      query={content}
      empty={(data) =>
        data.parts.length === 0 ? (
          <Empty
            icon="templates"
            title={t("notifications.noContent")}
            text={data.failure ?? t("notifications.noContentText")}
          />
        ) : null
      }
    >
      {(data) => <ContentView content={data} />}
    </Loaded>
  );
}

export function ContentView({ content }: { content: Content }) {
  const t = useT();
  const subject = content.parts.find((part) => part.part === "subject");
  const bodies = content.parts.filter((part) => part.part !== "subject");
  const forms = [...new Set(bodies.map((part) => (part.part === "header" ? "headers" : part.part)))];
  const [chosen, setChosen] = useState<string | null>(null);
  const shown = chosen ?? (content.html !== null ? "html" : (forms[0] ?? ""));
  return (
    <div className="stack">
      <p className="muted">
        <T k="notifications.renderedAgain" values={{ version: content.version }} />
      </p>
      {content.failure !== undefined && (
        <p className="field-error" role="alert">
          {content.failure}
        </p>
      )}
      <section className="panel notifications-message">
        <header>
          {subject !== undefined && <h2>{subject.content}</h2>}
          <p className="muted">
            {content.channel}
            {content.address !== null && ` · ${content.address}`}
            {content.locale !== null && ` · ${content.locale}`}
          </p>
        </header>
        {forms.length > 1 && (
          <Segmented
            label={t("notifications.form")}
            value={shown}
            onValue={setChosen}
            options={[...new Set([...(content.html !== null ? ["html"] : []), ...forms])].map((form) => ({
              value: form,
              text:
                form === "html" || form === "json" || form === "sms"
                  ? form.toUpperCase()
                  : t(form === "headers" ? "notifications.headers" : "notifications.text"),
            }))}
          />
        )}
        {shown === "html" && content.html !== null ? (
          <iframe className="notifications-html" title={t("notifications.htmlTitle")} src={content.html} sandbox="" />
        ) : shown === "headers" ? (
          <Fields
            fields={Object.fromEntries(
              bodies.filter((part) => part.part === "header").map((part) => [part.header ?? "", part.content]),
            )}
            label={t("notifications.headers")}
          />
        ) : (
          <pre className="notifications-text" tabIndex={0}>
            {bodies.find((part) => part.part === shown)?.content ?? ""}
          </pre>
        )}
      </section>
    </div>
  );
}

function Actions({ notification }: { notification: Notification }) {
  const t = useT();
  const act = useAct();
  const may = useCan("operations:write");
  const { id, state } = notification;
  const action = (asNew: boolean): Action => {
    const draft: Resend = {
      notification: id,
      ...(asNew ? { as_new: true, outcomes: [state] } : { outcomes: [state] }),
    };
    const key = crypto.randomUUID?.() ?? `${id}-${Date.now()}`;
    return {
      level: asNew ? "C2" : "C1",
      title: t(asNew ? "notifications.resendNewTitle" : "notifications.resendTitle", { id }),
      text: t(asNew ? "notifications.resendNewText" : "notifications.resendText"),
      verb: t(asNew ? "notifications.resendNew" : "notifications.resend"),
      count: () => countResend(draft),
      ...(asNew ? { word: id } : {}),
      command: {
        tocsin: `resend ${id}${asNew ? " --as-new" : ""}`,
        curl: { method: "POST", path: "/v1/resends", body: draft },
      },
      run: (reason) => resend(draft, key, reason),
      done: t("notifications.resending"),
      invalidates: ["/v1/notifications", "/v1/trace", "/v1/resends"],
    };
  };
  const entries = [
    ...(canResend(state, false)
      ? [
          {
            id: "resend",
            text: t("notifications.resend"),
            icon: "refresh" as const,
            run: () => act(action(false)),
          },
        ]
      : []),
    ...(canResend(state, true)
      ? [{ id: "new", text: t("notifications.resendNew"), icon: "plus" as const, run: () => act(action(true)) }]
      : []),
  ];
  return (
    <>
      {may && entries.length > 0 && (
        <MenuButton label={t("notifications.resend")} icon="refresh" groups={[{ entries }]}>
          {t("notifications.resend")}
        </MenuButton>
      )}
      <Link
        className="button button-main"
        to="/explain"
        search={{
          event: notification.event_id,
          subscription: notification.subscription,
          rule: notification.rule,
        }}
      >
        {t("notifications.explain")}
      </Link>
    </>
  );
}
