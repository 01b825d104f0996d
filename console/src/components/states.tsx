// States of what a page reads: loading, empty, failed, forbidden, not found, stale. Identical on every page.
import { useEffect, useState, type ReactNode } from "react";
import type { Page } from "../api/client";
import { useRead, type Read } from "../api/query";
import type { ProblemError } from "../api/problems";
import { holds, sessionState } from "../api/session";
import { auditObject } from "../ids";
import { hasMessage, T, useT } from "../locales";
import { copy } from "../shell/copy";
import { Icon, type IconName } from "./icon";
import { Time } from "./values";

/** True after 300 ms, so that a quick answer shows no skeleton. */
function useLate(ms = 300): boolean {
  const [late, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), ms);
    return () => clearTimeout(timer);
  }, [ms]);
  return late;
}

export function Loading({ lines = 6 }: { lines?: number }) {
  const t = useT();
  const late = useLate();
  return (
    <div className="loading" role="status" aria-busy="true" aria-label={t("common.loading")}>
      {late &&
        Array.from({ length: lines }, (_, index) => <span key={index} className="skeleton" data-width={index % 4} />)}
    </div>
  );
}

export interface EmptyProps {
  /** What would be here. */
  title: string;
  /** Why it is not. */
  text?: ReactNode;
  icon?: IconName;
  /** One next step, as a button or link. */
  action?: ReactNode;
  /** The same step as a command. */
  command?: string;
}

export function Empty({ title, text, icon = "info", action, command }: EmptyProps) {
  return (
    <div className="empty">
      <Icon name={icon} size={24} />
      <h2>{title}</h2>
      {text !== undefined && <p>{text}</p>}
      {action !== undefined && <div className="empty-action">{action}</div>}
      {command !== undefined && <Command text={command} />}
    </div>
  );
}

/** A command line with a button that copies it. */
export function Command({ text }: { text: string }) {
  const t = useT();
  return (
    <div className="command">
      <code>{text}</code>
      <button type="button" className="icon-button" aria-label={t("common.copyCommand")} onClick={() => copy(text)}>
        <Icon name="copy" />
      </button>
    </div>
  );
}

/** Shows why a request failed: forbidden and not found have looks of their own. */
export function Failed({ error, retry }: { error: ProblemError; retry?: () => void }) {
  const t = useT();
  if (error.status === 403 && error.code === "insufficient_scope")
    return <Forbidden scope={scopeOf(error)} detail={error.problem.detail} />;
  if (error.status === 404) return <NotFound detail={error.problem.detail} path={error.path} />;
  const remedyKey = `common.remedy.${error.code}`;
  const remedy = hasMessage(remedyKey) ? t(remedyKey) : error.status >= 500 ? t("common.remedy.server") : null;
  return (
    <div className="empty failed" role="alert">
      <Icon name="error" size={24} />
      <h2>{error.code === "no_answer" ? t("common.noAnswer") : error.problem.title}</h2>
      {error.problem.detail !== "" && <p>{error.problem.detail}</p>}
      {remedy !== null && <p className="muted">{remedy}</p>}
      {(error.problem.problems ?? []).length > 0 && (
        <ul className="problem-list">
          {(error.problem.problems ?? []).map((item, index) => (
            <li key={index}>
              {item.path !== "" && <code>{item.path}</code>} {item.message}
            </li>
          ))}
        </ul>
      )}
      {retry !== undefined && (
        <div className="empty-action">
          <button type="button" className="button" onClick={retry}>
            <Icon name="refresh" />
            {t("common.retry")}
          </button>
        </div>
      )}
      <RequestId error={error} />
    </div>
  );
}

function RequestId({ error }: { error: ProblemError }) {
  const t = useT();
  if (error.requestId === null) return null;
  return (
    <p className="muted request-id">
      {t("common.requestId")} <code>{error.requestId}</code>
    </p>
  );
}

function scopeOf(error: ProblemError): string {
  const scope = error.problem.scope ?? error.problem.required_scope;
  if (typeof scope === "string") return scope;
  return /`([a-z_]+:[a-z_]+)`/.exec(error.problem.detail)?.[1] ?? "";
}

export function Forbidden({ scope, detail }: { scope: string; detail?: string }) {
  const t = useT();
  return (
    <div className="empty">
      <Icon name="lock" size={24} />
      <h2>{t("common.forbidden")}</h2>
      <p>{scope === "" ? detail : <T k="common.forbiddenScope" values={{ scope: <code>{scope}</code> }} />}</p>
    </div>
  );
}

/** `path` is that of the request: the audit log may name who deleted the object. */
export function NotFound({ detail, path }: { detail?: string; path?: string }) {
  const t = useT();
  const object = path === undefined ? null : auditObject(path);
  return (
    <div className="empty">
      <Icon name="search" size={24} />
      <h2>{t("common.notFound")}</h2>
      <p>{detail ?? t("common.notFoundText")}</p>
      {object !== null && <Deleted object={object} />}
    </div>
  );
}

function Deleted({ object }: { object: string }) {
  const present = sessionState();
  const canRead = present.state === "present" && holds(present.session.scopes, "audit:read");
  const entries = useRead<Page<{ at: string; actor: string; action: string }>>("/v1/audit", {
    query: { object, limit: 1 },
    enabled: canRead,
  });
  const last = entries.data?.items[0];
  if (last === undefined || !last.action.endsWith(".delete")) return null;
  return (
    <p>
      <T k="common.deletedBy" values={{ actor: <code>{last.actor}</code>, time: <Time value={last.at} /> }} />
    </p>
  );
}

/** Line above data that could not be brought up to date. */
export function Stale({ since, error, retry }: { since: number; error: ProblemError; retry: () => void }) {
  const t = useT();
  return (
    <div className="stale" role="status">
      <Icon name="attention" />
      <span>
        <T k="common.stale" values={{ time: <Time value={since} /> }} />{" "}
        <span className="muted">{error.code === "no_answer" ? t("common.noAnswer") : error.problem.title}</span>
      </span>
      <button type="button" className="button button-quiet" onClick={retry}>
        {t("common.retry")}
      </button>
    </div>
  );
}

export interface LoadedProps<Answer> {
  query: Read<Answer>;
  /** Shown instead of the data if it returns an element. */
  empty?: (data: Answer) => ReactNode;
  loading?: ReactNode;
  children: (data: Answer) => ReactNode;
}

/** Draws what was read, or the state it is in. */
export function Loaded<Answer>({ query, empty, loading, children }: LoadedProps<Answer>) {
  if (query.data === undefined) {
    if (query.error !== null) return <Failed error={query.error} retry={() => void query.refetch()} />;
    return loading ?? <Loading />;
  }
  const without = empty?.(query.data);
  return (
    <>
      {query.isPlaceholderData && <progress className="progress" aria-hidden="true" />}
      {query.error !== null && (
        <Stale since={query.dataUpdatedAt} error={query.error} retry={() => void query.refetch()} />
      )}
      {without !== undefined && without !== null && without !== false ? without : children(query.data)}
    </>
  );
}
