// Editor of a definition: check while typing, differences of a dry run, apply.
import { useRef, useState } from "react";
import { asProblem, type ProblemError } from "../../api/problems";
import { useCan } from "../../api/session";
import { Badge } from "../../components/badge";
import { Button } from "../../components/controls";
import { Diff, Differences } from "../../components/diff/diff";
import { Editor, type EditorHandle, type Finding } from "../../components/editor/editor";
import { Icon } from "../../components/icon";
import { Failed } from "../../components/states";
import { T, useT } from "../../locales";
import { useAct } from "../../shell/act";
import { useMainAction } from "../../shell/shortcuts";
import { apply, check, dryRun, type Applied } from "./queries";

interface Review {
  text: string;
  /** The running version that the differences refer to. */
  version: number | null;
  applied: Applied;
}

export interface DefinitionProps {
  /** Name of the application; null for a new one, which is named in the text. */
  name: string | null;
  /** Text of the running version, and its number. */
  stored: string;
  version: number | null;
  draft: string;
  onDraft: (text: string) => void;
  line?: number | undefined;
  onApplied: (name: string) => void;
}

export function Definition({ name, stored, version, draft, onDraft, line, onApplied }: DefinitionProps) {
  const t = useT();
  const act = useAct();
  const mayWrite = useCan("applications:write");
  const [findings, setFindings] = useState<Finding[] | null>(null);
  const [review, setReview] = useState<Review | null>(null);
  const [error, setError] = useState<ProblemError | null>(null);
  const [busy, setBusy] = useState(false);
  const editor = useRef<EditorHandle | null>(null);
  const target = name ?? nameOf(draft);
  const changed = draft !== stored;
  const errors = findings?.filter((finding) => finding.severity === "error").length ?? null;
  const current = review !== null && review.text === draft && review.version === version ? review : null;

  const reviewNow = async () => {
    if (target === null) return;
    setBusy(true);
    setError(null);
    try {
      setReview({ text: draft, version, applied: await dryRun(target, draft) });
    } catch (caught) {
      setReview(null);
      setError(asProblem(caught));
    } finally {
      setBusy(false);
    }
  };

  const applyNow = () => {
    if (current === null || target === null) return;
    const drops = current.applied.differences.filter((difference) => difference.drops);
    const allow = [...new Set(drops.flatMap((difference) => difference.allow ?? []))];
    act({
      level: drops.length > 0 ? "C3" : "C1",
      danger: drops.length > 0,
      title:
        version === null
          ? t("applications.createTitle", { name: target })
          : t("applications.applyTitle", { name: target, version: version + 1 }),
      text: (
        <>
          <p>
            {version === null
              ? t("applications.isNew", { name: target })
              : t("applications.changes", { count: current.applied.differences.length })}
          </p>
          {drops.length > 0 && <Differences items={drops} />}
        </>
      ),
      word: target,
      verb: t("applications.apply"),
      command: {
        tocsin: `apply ${target}.yaml${allow.length > 0 ? ` --allow-drop ${allow.join(",")}` : ""}`,
        curl: { method: "PUT", path: `/v1/applications/${target}`, query: { allow_drop: allow.join(",") } },
      },
      run: (reason) => apply(target, current.text, current.version, allow, reason),
      done: (answer) => t("applications.appliedVersion", { name: target, version: (answer as Applied).version }),
      invalidates: ["/v1/applications", "/v1/reports/snapshot-applications", "/v1/status", "/v1/stopped-rules"],
      after: () => {
        setReview(null);
        onApplied(target);
      },
    });
  };

  const ready = mayWrite && changed && errors === 0 && target !== null;
  useMainAction(
    current === null ? t("applications.review") : t("applications.apply"),
    () => (current === null ? void reviewNow() : applyNow()),
    ready,
  );

  return (
    <div className="stack">
      <div className="toolbar">
        <CheckState findings={findings} />
        {changed && (
          <Badge tone="info" icon="edit">
            {t("applications.edited")}
          </Badge>
        )}
        <div className="toolbar-end">
          {changed && (
            <Button look="quiet" onClick={() => onDraft(stored)}>
              {t("applications.discard")}
            </Button>
          )}
          {mayWrite && (
            <Button
              look={current === null ? "main" : "normal"}
              icon="columns"
              busy={busy}
              disabled={!ready}
              onClick={() => void reviewNow()}
            >
              {t("applications.review")}
            </Button>
          )}
        </div>
      </div>
      {error !== null && (
        <section className="panel">
          <Failed error={error} retry={() => void reviewNow()} />
        </section>
      )}
      {current !== null && (
        <section className="panel" aria-label={t(version === null ? "applications.first" : "applications.differences")}>
          <header className="panel-head">
            <h2>{t(version === null ? "applications.first" : "applications.differences")}</h2>
            <Button look="quiet" icon="close" onClick={() => setReview(null)}>
              {t("applications.closeReview")}
            </Button>
            <Button
              look="main"
              icon="check"
              disabled={version !== null && current.applied.differences.length === 0}
              onClick={applyNow}
            >
              {t("applications.apply")}
            </Button>
          </header>
          <div className="panel-body stack">
            {version === null ? (
              <p>{t("applications.isNew", { name: target ?? "" })}</p>
            ) : (
              <Differences items={current.applied.differences} />
            )}
            {current.applied.warnings.length > 0 && (
              <Findings
                findings={current.applied.warnings.map((warning) => ({
                  ...warning,
                  severity: "warning",
                }))}
              />
            )}
            {version !== null && (
              <details>
                <summary>{t("applications.asText")}</summary>
                <Diff before={stored} after={draft} label={t("applications.diffLabel", { version })} />
              </details>
            )}
          </div>
        </section>
      )}
      <Editor
        value={draft}
        onChange={onDraft}
        label={t("applications.definition")}
        language="yaml"
        completes="application"
        check={check}
        onFindings={setFindings}
        handle={editor}
        {...(line === undefined ? {} : { line })}
        size="tall"
      />
      {findings !== null && findings.length > 0 && (
        <section className="panel" aria-label={t("applications.problems")}>
          <header className="panel-head">
            <h2>{t("applications.problems")}</h2>
          </header>
          <div className="panel-body">
            <Findings
              findings={findings}
              onOpen={(finding) => editor.current?.goTo(finding.line ?? 1, finding.column ?? 1)}
            />
          </div>
        </section>
      )}
      {draft.includes("***") && (
        <p className="muted">
          <T k="applications.masked" values={{ stars: <code>***</code> }} />
        </p>
      )}
    </div>
  );
}

/** Name that a definition gives itself. */
export function nameOf(text: string): string | null {
  return /^application:\s*["']?([A-Za-z][\w-]{0,63})["']?\s*(?:#.*)?$/m.exec(text)?.[1] ?? null;
}

function CheckState({ findings }: { findings: Finding[] | null }) {
  const t = useT();
  const errors = findings?.filter((finding) => finding.severity === "error").length ?? 0;
  const warnings = (findings?.length ?? 0) - errors;
  return (
    <span role="status" className="row">
      {findings === null ? (
        <Badge tone="neutral" icon="pending">
          {t("applications.checking")}
        </Badge>
      ) : (
        <>
          {errors > 0 ? (
            <Badge tone="error">{t("applications.errors", { count: errors })}</Badge>
          ) : (
            <Badge tone="success">{t("applications.valid")}</Badge>
          )}
          {warnings > 0 && (
            <Badge tone="pending" icon="attention">
              {t("applications.warnings", { count: warnings })}
            </Badge>
          )}
        </>
      )}
    </span>
  );
}

function Findings({ findings, onOpen }: { findings: Finding[]; onOpen?: (finding: Finding) => void }) {
  const t = useT();
  return (
    <ul className="applications-findings">
      {findings.map((finding, index) => {
        const isError = finding.severity === "error";
        return (
          <li key={index} data-severity={finding.severity}>
            <Icon name={isError ? "error" : "attention"} />
            <span className="visually-hidden">{t(isError ? "applications.error" : "applications.warning")}</span>
            <div>
              {finding.path !== "" && <code>{finding.path}</code>} {finding.message}
              {finding.hint != null && <p className="muted">{finding.hint}</p>}
            </div>
            {finding.line != null && onOpen !== undefined && (
              <button type="button" className="button button-quiet" onClick={() => onOpen(finding)}>
                {t("applications.line", { line: finding.line })}
              </button>
            )}
          </li>
        );
      })}
    </ul>
  );
}
