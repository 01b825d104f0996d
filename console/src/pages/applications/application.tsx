// One application: outline, definition, versions.
import { useEffect, useState, type ReactNode } from "react";
import { useCan } from "../../api/session";
import { Badge, StateBadge } from "../../components/badge";
import { Button } from "../../components/controls";
import { Diff } from "../../components/diff/diff";
import { namesOf, type Names } from "../../components/editor/names";
import { Grid } from "../../components/grid";
import { countColumn, textColumn, timeColumn } from "../../components/grid/cells";
import { Icon } from "../../components/icon";
import { Link, useGo } from "../../components/link";
import { MenuButton } from "../../components/menu";
import { Empty, Loaded } from "../../components/states";
import { Tabs } from "../../components/tabs";
import { Bytes, Count, Time } from "../../components/values";
import { T, useT } from "../../locales";
import { useAct } from "../../shell/act";
import { Page } from "../../shell/page-frame";
import { Definition } from "./definition";
import { remove, useApplication, useHistory, useSnapshots, type Application } from "./queries";
import { applicationPage } from "./route";
import "./page.css";

/** Texts that are edited and not applied, by application; kept while the console is open. */
const drafts = new Map<string, string>();

export default function ApplicationPage() {
  const t = useT();
  const { application: name } = applicationPage.useParams();
  const application = useApplication(name);
  return (
    <Page
      title={name}
      crumbs={[{ to: "/applications", text: t("applications.title") }]}
      facts={
        application.data !== undefined && (
          <>
            {application.data.running ? (
              <StateBadge state="running" />
            ) : (
              <StateBadge state="failed">{t("applications.notRunning")}</StateBadge>
            )}
            <span className="muted">{t("applications.versionNumber", { version: application.data.version })}</span>
          </>
        )
      }
      about={application.data?.description ?? undefined}
      actions={application.data !== undefined && <Actions name={name} />}
      command={{
        tocsin: `export definition ${name} -o ${name}.yaml`,
        curl: { method: "GET", path: `/v1/applications/${name}` },
      }}
    >
      <Loaded query={application}>{(found) => <Found key={name} application={found} />}</Loaded>
    </Page>
  );
}

function Found({ application }: { application: Application }) {
  const t = useT();
  const { tab, line } = applicationPage.useSearch();
  const setSearch = applicationPage.useSetSearch();
  const stored = application.definition ?? "";
  const [edited, setEdited] = useState(drafts.get(application.name) ?? null);
  const draft = edited ?? stored;
  const change = (text: string) => {
    setEdited(text === stored ? null : text);
    if (text === stored) drafts.delete(application.name);
    else drafts.set(application.name, text);
  };
  // A leave of the browser loses what is edited.
  useEffect(() => {
    if (draft === stored) return;
    const ask = (event: BeforeUnloadEvent) => event.preventDefault();
    window.addEventListener("beforeunload", ask);
    return () => window.removeEventListener("beforeunload", ask);
  }, [draft === stored]);
  return (
    <Tabs
      label={t("applications.one")}
      selected={tab}
      onSelect={(next) =>
        setSearch({ tab: next === "outline" ? undefined : next, line: undefined, version: undefined } as never)
      }
      tabs={[
        {
          id: "outline",
          text: t("applications.outline"),
          content: () => <Outline application={application} />,
        },
        {
          id: "definition",
          text: t("applications.definition"),
          ...(draft === stored ? {} : { mark: <Icon name="edit" size={12} /> }),
          content: () => (
            <Definition
              name={application.name}
              stored={stored}
              version={application.version}
              draft={draft}
              onDraft={change}
              line={line}
              onApplied={() => {
                // The stored text follows, with `***` for secrets.
                drafts.delete(application.name);
                setEdited(null);
              }}
            />
          ),
        },
        {
          id: "versions",
          text: t("applications.versions"),
          content: () => (
            <Versions
              application={application}
              onRestore={(text) => {
                change(text);
                setSearch({ tab: "definition", version: undefined } as never, { push: true });
              }}
            />
          ),
        },
      ]}
    />
  );
}

function Outline({ application }: { application: Application }) {
  const t = useT();
  const names = namesOf(application.definition ?? "");
  const { snapshots, indexes } = useSnapshots();
  const snapshot = snapshots.get(application.name);
  const index = indexes.get(application.name);
  return (
    <div className="stack">
      <dl className="facts-line">
        <div>
          <dt>{t("applications.column.applied")}</dt>
          <dd>
            <Time value={application.applied_at} />{" "}
            <span className="muted">{application.author_name ?? application.author}</span>
          </dd>
        </div>
        {snapshot !== undefined && (
          <div>
            <dt>{t("applications.column.subscriptions")}</dt>
            <dd>
              <Count value={snapshot.subscriptions_enabled} />
            </dd>
          </div>
        )}
        {index !== undefined && (
          <div>
            <dt>{t("applications.column.index")}</dt>
            <dd>
              <Bytes value={index.index_bytes} />
            </dd>
          </div>
        )}
        {index !== undefined && (
          <div>
            <dt>{t("applications.column.unusable")}</dt>
            <dd>
              {index.unusable > 0 ? (
                <Badge tone="pending" icon="attention">
                  <Count value={index.unusable} />
                </Badge>
              ) : (
                <Count value={0} />
              )}
            </dd>
          </div>
        )}
        {snapshot !== undefined && (
          <div>
            <dt>{t("applications.lastEvent")}</dt>
            <dd>
              <Time value={snapshot.last_event_at} />
            </dd>
          </div>
        )}
        {snapshot !== undefined && (
          <div>
            <dt>{t("applications.lastNotification")}</dt>
            <dd>
              <Time value={snapshot.last_notification_at} />
            </dd>
          </div>
        )}
      </dl>
      <Flow names={names} application={application.name} />
    </div>
  );
}

/** The flow of the definition: each rule with its event class, subscription class and notification class. */
function Flow({ names, application }: { names: Names; application: string }) {
  const t = useT();
  const rules = [...names.rules];
  const used = new Set(
    rules.flatMap(([, rule]) => [
      `events.${rule.on}`,
      `subscriptions.${rule.subscription}`,
      `notifications.${rule.notify}`,
    ]),
  );
  const unused = (["events", "subscriptions", "notifications"] as const).flatMap((section) =>
    [...names[section].keys()].filter((name) => !used.has(`${section}.${name}`)).map((name) => ({ section, name })),
  );
  const classBox = (section: "events" | "subscriptions" | "notifications", name: string) => {
    const fields = names[section].get(name);
    return (
      <DefinitionLink names={names} path={`${section}.${name}`} text={name}>
        {fields !== undefined && fields.length > 0 && (
          <span className="muted applications-fields">{fields.join(", ")}</span>
        )}
      </DefinitionLink>
    );
  };
  return (
    <section className="panel">
      <header className="panel-head">
        <h2>{t("applications.flow")}</h2>
      </header>
      {rules.length === 0 ? (
        <Empty icon="rules" title={t("applications.noRules")} text={t("applications.noRulesText")} />
      ) : (
        <div className="applications-flow" role="table" aria-label={t("applications.flow")}>
          <div role="row" className="applications-flow-head">
            <span role="columnheader">{t("applications.eventClass")}</span>
            <span role="columnheader">{t("applications.rule")}</span>
            <span role="columnheader">{t("applications.subscriptionClass")}</span>
            <span role="columnheader">{t("applications.notificationClass")}</span>
          </div>
          {rules.map(([name, rule]) => (
            <div role="row" key={name}>
              <span role="cell" data-label={t("applications.eventClass")}>
                {rule.on === "" ? (
                  <span className="muted">{t("applications.bySchedule")}</span>
                ) : (
                  classBox("events", rule.on)
                )}
              </span>
              <span role="cell" data-label={t("applications.rule")} className="applications-rule">
                <Icon name="arrow-right" size={14} />
                <Link to="/rules" search={{ application, rule: name }}>
                  <strong>{name}</strong>
                </Link>
              </span>
              <span role="cell" data-label={t("applications.subscriptionClass")}>
                {rule.subscription === "" ? "–" : classBox("subscriptions", rule.subscription)}
              </span>
              <span role="cell" data-label={t("applications.notificationClass")} className="applications-rule">
                <Icon name="arrow-right" size={14} />
                {rule.notify === "" ? "–" : classBox("notifications", rule.notify)}
              </span>
            </div>
          ))}
        </div>
      )}
      <dl className="facts applications-others">
        {names.sources.length > 0 && (
          <Names title={t("applications.sources")} section="sources" list={names.sources} names={names} />
        )}
        {names.channels.length > 0 && (
          <Names title={t("applications.channels")} section="channels" list={names.channels} names={names} />
        )}
        {names.functions.length > 0 && (
          <Names title={t("applications.functions")} section="functions" list={names.functions} names={names} />
        )}
        {names.attributes.length > 0 && (
          <Names title={t("applications.attributes")} section="attributes" list={names.attributes} names={names} />
        )}
        {unused.length > 0 && (
          <>
            <dt>{t("applications.withoutRule")}</dt>
            <dd className="row">
              {unused.map(({ section, name }) => (
                <DefinitionLink key={`${section}.${name}`} names={names} path={`${section}.${name}`} text={name} />
              ))}
            </dd>
          </>
        )}
      </dl>
    </section>
  );
}

function Names({ title, section, list, names }: { title: string; section: string; list: string[]; names: Names }) {
  return (
    <>
      <dt>{title}</dt>
      <dd className="row">
        {list.map((name) => (
          <DefinitionLink key={name} names={names} path={`${section}.${name}`} text={name} />
        ))}
      </dd>
    </>
  );
}

/** Opens the definition at the line of an object. */
function DefinitionLink({
  names,
  path,
  text,
  children,
}: {
  names: Names;
  path: string;
  text: string;
  children?: ReactNode;
}) {
  const { application } = applicationPage.useParams();
  const line = names.lines.get(path);
  return (
    <span className="applications-box">
      <Link to={`/applications/${application}`} search={{ tab: "definition", line }}>
        <code>{text}</code>
      </Link>
      {children}
    </span>
  );
}

function Versions({ application, onRestore }: { application: Application; onRestore: (text: string) => void }) {
  const t = useT();
  const go = useGo();
  const history = useHistory(application.name);
  const { version } = applicationPage.useSearch();
  const setSearch = applicationPage.useSetSearch();
  const mayWrite = useCan("applications:write");
  return (
    <Loaded query={history}>
      {({ items }) => {
        const shown = items.find((item) => item.version === version) ?? null;
        const before = shown === null ? null : (items.find((item) => item.version < shown.version) ?? null);
        return (
          <div className="applications-versions">
            <Grid
              name="application-versions"
              label={t("applications.versions")}
              rows={items}
              rowId={(row) => String(row.version)}
              openId={version === undefined ? null : String(version)}
              onOpen={(row) => setSearch({ version: row.version })}
              height="content"
              columns={[
                countColumn("version", t("applications.column.version"), (row: Application) => row.version, {
                  width: 90,
                  card: "title",
                }),
                {
                  id: "state",
                  title: t("applications.column.state"),
                  width: 112,
                  cell: (row) =>
                    row.version === application.version && row.running ? <StateBadge state="running" /> : "",
                  text: (row) => String(row.running),
                  card: "state",
                },
                timeColumn("applied", t("applications.column.applied"), (row: Application) => row.applied_at, {
                  width: 116,
                  card: "meta",
                }),
                textColumn(
                  "author",
                  t("applications.column.author"),
                  (row: Application) => row.author_name ?? row.author,
                  { min: 100, card: "meta" },
                ),
              ]}
            />
            {shown === null ? (
              <p className="muted">{t("applications.chooseVersion")}</p>
            ) : (
              <section className="panel">
                <header className="panel-head">
                  <h2>{t("applications.versionNumber", { version: shown.version })}</h2>
                  {mayWrite && shown.version !== application.version && shown.definition != null && (
                    <Button icon="refresh" onClick={() => onRestore(shown.definition ?? "")}>
                      {t("applications.restore", { version: shown.version })}
                    </Button>
                  )}
                  {shown.version === application.version && (
                    <Button icon="edit" onClick={() => go(`/applications/${application.name}?tab=definition`)}>
                      {t("applications.openDefinition")}
                    </Button>
                  )}
                </header>
                <div className="panel-body stack">
                  {shown.version !== application.version && (
                    <>
                      <h3>
                        <T k="applications.toRunning" values={{ version: application.version }} />
                      </h3>
                      <Diff
                        before={application.definition ?? ""}
                        after={shown.definition ?? ""}
                        label={t("applications.toRunningLabel", { version: shown.version })}
                      />
                    </>
                  )}
                  <h3>
                    {before === null
                      ? t("applications.firstVersion")
                      : t("applications.toPrevious", { version: before.version })}
                  </h3>
                  {before !== null && (
                    <Diff
                      before={before.definition ?? ""}
                      after={shown.definition ?? ""}
                      label={t("applications.toPrevious", { version: before.version })}
                    />
                  )}
                </div>
              </section>
            )}
          </div>
        );
      }}
    </Loaded>
  );
}

function Actions({ name }: { name: string }) {
  const t = useT();
  const act = useAct();
  const go = useGo();
  const mayWrite = useCan("applications:write");
  return (
    <>
      <Link className="button" to="/rules" search={{ application: name }}>
        {t("applications.rules")}
      </Link>
      <Link className="button" to="/events" search={{ application: name }}>
        {t("applications.events")}
      </Link>
      {mayWrite && (
        <MenuButton
          label={t("applications.more")}
          icon="more"
          groups={[
            {
              entries: [
                {
                  id: "delete",
                  text: t("applications.delete"),
                  icon: "trash",
                  danger: true,
                  run: () =>
                    act({
                      level: "C3",
                      danger: true,
                      title: t("applications.deleteTitle", { name }),
                      text: t("applications.deleteText"),
                      verb: t("applications.delete"),
                      word: name,
                      command: {
                        tocsin: `applications remove ${name}`,
                        curl: {
                          method: "DELETE",
                          path: `/v1/applications/${name}`,
                          query: { confirm: name },
                        },
                      },
                      run: (reason) => remove(name, reason),
                      done: t("applications.deleted", { name }),
                      invalidates: ["/v1/applications", "/v1/reports/snapshot-applications", "/v1/status"],
                      after: () => go("/applications"),
                    }),
                },
              ],
            },
          ]}
        />
      )}
    </>
  );
}
