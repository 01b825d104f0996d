// Previews of a notification: a matrix of locales and channels, and the parts of one cell.
import { useRef } from "react";
import { Badge } from "../../components/badge";
import { ApplicationFilter, FilterBar, TypedField } from "../../components/filters";
import { namesOf, templateKeys } from "../../components/editor/names";
import { Fields, type JsonValue } from "../../components/json/json";
import { Link } from "../../components/link";
import { Empty, Failed, Loaded, Loading } from "../../components/states";
import { useRead } from "../../api/query";
import type { Schema } from "../../api/client";
import { T, useT } from "../../locales";
import { Page } from "../../shell/page-frame";
import { shellQuote } from "../../shell/command";
import { cellId, cellsOf, previewBody, type Cell, type Question } from "./model";
import { useNewestEvent, usePreviews, type Preview } from "./queries";
import { templatesPage } from "./route";
import "./page.css";

export default function TemplatesPage() {
  const t = useT();
  const { application, event, subscription, rule } = templatesPage.useSearch();
  const setSearch = templatesPage.useSetSearch();
  const definition = useRead<Schema<"ApplicationBody">>(`/v1/applications/${encodeURIComponent(application ?? "")}`, {
    enabled: application !== undefined,
  });
  return (
    <Page
      title={t("templates.title")}
      about={t("templates.about")}
      actions={
        application !== undefined && (
          <Link
            className="button"
            to={`/applications/${application}`}
            search={{
              tab: "definition",
              line: namesOf(definition.data?.definition ?? "").lines.get("notifications"),
            }}
          >
            {t("templates.openDefinition")}
          </Link>
        )
      }
      command={{
        tocsin: `preview ${application ?? "APPLICATION"} --event ${event ?? "e-12-0"}`,
        ...(application === undefined
          ? {}
          : {
              curl: {
                method: "POST",
                path: `/v1/applications/${application}/preview`,
                body: {
                  event: event ?? "e-12-0",
                  ...(subscription === undefined ? {} : { subscription }),
                  ...(rule === undefined ? {} : { rule }),
                },
              },
            }),
      }}
    >
      <FilterBar>
        <ApplicationFilter
          required
          value={application}
          onValue={(value) =>
            setSearch({
              application: value,
              event: undefined,
              subscription: undefined,
              rule: undefined,
              cell: undefined,
            })
          }
        />
        <TypedField
          label={t("templates.event")}
          placeholder={t("templates.eventHelp")}
          value={event ?? ""}
          mono
          onValue={(value) => setSearch({ event: value === "" ? undefined : value })}
        />
        <TypedField
          label={t("templates.subscription")}
          placeholder="s-15"
          value={subscription ?? ""}
          mono
          onValue={(value) => setSearch({ subscription: value === "" ? undefined : value })}
        />
        <TypedField
          label={t("templates.rule")}
          value={rule ?? ""}
          mono
          onValue={(value) => setSearch({ rule: value === "" ? undefined : value })}
        />
      </FilterBar>
      {application === undefined ? (
        <Empty
          icon="templates"
          title={t("templates.chooseApplication")}
          text={t("templates.chooseApplicationText")}
          action={
            <Link className="button" to="/applications">
              {t("templates.openApplications")}
            </Link>
          }
          command="tocsin preview APPLICATION --event e-12-0"
        />
      ) : (
        <Loaded query={definition}>
          {(found) => <Matrix key={application} application={application} definition={found.definition ?? ""} />}
        </Loaded>
      )}
    </Page>
  );
}

function Matrix({ application, definition }: { application: string; definition: string }) {
  const t = useT();
  const { event, subscription, rule, cell: chosen } = templatesPage.useSearch();
  const setSearch = templatesPage.useSetSearch();
  const table = useRef<HTMLTableElement>(null);
  const names = namesOf(definition);
  const { locales, cells } = cellsOf(templateKeys(definition), names.channels);
  const newest = useNewestEvent(application, event === undefined);
  const id = event ?? newest.event;
  // A rule is needed where the application has several.
  const only = rule ?? [...names.rules.keys()][0];
  const question: Question | null = id === undefined ? null : { application, event: id, subscription, rule: only };
  const previews = usePreviews(question, cells);
  if (id === undefined) {
    return newest.ready ? (
      <Empty
        icon="events"
        title={t("templates.noEvent")}
        text={t("templates.noEventText")}
        command={`tocsin publish ${shellQuote(application)} CLASS events.ndjson`}
      />
    ) : (
      <Loading />
    );
  }
  const shown = cells.find((cell) => cellId(cell) === chosen) ?? cells[0];
  const move = (key: string, at: Cell) => {
    const row = locales.indexOf(at.locale);
    const column = names.channels.indexOf(at.channel);
    const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[key] ?? [
      0, 0,
    ];
    const next = cells.find(
      (cell) =>
        cell.locale === (locales[row + (down ?? 0)] ?? at.locale) &&
        cell.channel === (names.channels[column + (right ?? 0)] ?? at.channel),
    );
    if (next === undefined || next === at) return false;
    setSearch({ cell: cellId(next) });
    table.current?.querySelector<HTMLElement>(`[data-cell="${CSS.escape(cellId(next))}"]`)?.focus();
    return true;
  };
  return (
    <div className="templates-columns">
      <div className="panel templates-matrix">
        <table ref={table}>
          <caption className="visually-hidden">{t("templates.matrix")}</caption>
          <thead>
            <tr>
              <th scope="col">{t("templates.locale")}</th>
              {names.channels.map((channel) => (
                <th key={channel} scope="col">
                  {channel}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {locales.map((locale) => (
              <tr key={locale ?? ""}>
                <th scope="row">{locale ?? <em>{t("templates.default")}</em>}</th>
                {names.channels.map((channel) => {
                  const cell = cells.find((one) => one.locale === locale && one.channel === channel);
                  if (cell === undefined) return <td key={channel}>–</td>;
                  const isShown = cell === shown;
                  return (
                    <td key={channel}>
                      <button
                        type="button"
                        className="templates-cell"
                        data-cell={cellId(cell)}
                        aria-pressed={isShown}
                        tabIndex={isShown ? 0 : -1}
                        onClick={() => setSearch({ cell: cellId(cell) })}
                        onKeyDown={(pressed) => move(pressed.key, cell) && pressed.preventDefault()}
                      >
                        <CellSummary result={previews.get(cellId(cell))} />
                      </button>
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {shown !== undefined && question !== null && (
        <Shown key={cellId(shown)} cell={shown} question={question} result={previews.get(cellId(shown))} />
      )}
    </div>
  );
}

interface Result {
  preview: Preview | null;
  error: { message: string } | null;
}

function CellSummary({ result }: { result: Result | undefined }) {
  const t = useT();
  if (result === undefined || (result.preview === null && result.error === null))
    return <span className="muted">…</span>;
  const failed =
    result.error !== null ||
    result.preview?.failure != null ||
    (result.preview?.parts.some((part) => part.error != null) ?? false);
  if (failed) return <Badge tone="error">{t("templates.failed")}</Badge>;
  const templates = [...new Set((result.preview?.parts ?? []).flatMap((part) => part.template ?? []))];
  return (
    <>
      <span>
        {(result.preview?.parts ?? [])
          .map((part) => part.part)
          .filter((part, index, all) => all.indexOf(part) === index)
          .join(", ")}
      </span>
      <span className="muted mono">{templates.join(", ")}</span>
    </>
  );
}

function Shown({
  cell,
  question,
  result,
}: {
  cell: Cell;
  question: Question;
  result: ReturnType<typeof usePreviews> extends Map<string, infer Found> ? Found | undefined : never;
}) {
  const t = useT();
  const title = `${cell.locale ?? t("templates.default")} · ${cell.channel}`;
  return (
    <section className="panel" aria-label={title}>
      <header className="panel-head">
        <h2>{title}</h2>
        <span className="muted mono">{previewBody(question, cell).event}</span>
      </header>
      {result?.error != null ? (
        <Failed error={result.error} />
      ) : result?.preview == null ? (
        <div className="panel-body">
          <Loading />
        </div>
      ) : (
        <PreviewView preview={result.preview} />
      )}
    </section>
  );
}

function PreviewView({ preview }: { preview: Preview }) {
  const t = useT();
  return (
    <div className="panel-body stack">
      {preview.failure != null && (
        <p className="field-error" role="alert">
          {preview.failure}
        </p>
      )}
      {preview.warnings.map((warning) => (
        <p key={warning} className="templates-warning">
          {warning}
        </p>
      ))}
      {preview.parts.map((part, index) => (
        <div key={index} className="stack-tight">
          <h3>
            {part.part === "header"
              ? t("templates.part.header", { name: part.header ?? "" })
              : ["subject", "text", "html", "json", "sms"].includes(part.part)
                ? t(`templates.part.${part.part as "text"}`)
                : part.part}{" "}
            <span className="muted">
              {part.template == null ? (
                t("templates.fromHtml")
              ) : (
                <T k="templates.from" values={{ template: <code>{part.template}</code> }} />
              )}
            </span>
          </h3>
          {part.error != null ? (
            <p className="field-error">{part.error}</p>
          ) : part.part === "html" && preview.html != null ? (
            <iframe className="templates-html" title={t("templates.part.html")} src={preview.html} sandbox="" />
          ) : (
            <pre className="templates-content" tabIndex={0} data-part={part.part}>
              {part.content ?? t("templates.empty")}
            </pre>
          )}
        </div>
      ))}
      {preview.sms != null && (
        <p className="muted">
          {t("templates.segments", {
            count: preview.sms.segments,
            units: preview.sms.units,
            alphabet: preview.sms.alphabet.toUpperCase(),
          })}
        </p>
      )}
      <p className="muted">{t("templates.order", { keys: preview.looked_for.join(", ") })}</p>
      <details>
        <summary>{t("templates.fields")}</summary>
        <Fields fields={preview.fields as Record<string, JsonValue>} label={t("templates.fields")} />
      </details>
    </div>
  );
}
