// Differences of two documents, line by line, and the list of differences of an apply.
import { Fragment, useMemo, useState } from "react";
import { useT } from "../../locales";
import { Badge } from "../badge";
import { Checkbox } from "../controls";
import { changedPart, compare, counts, hunks, type DiffLine } from "./lines";
import "./diff.css";

export function Diff({ before, after, label }: { before: string; after: string; label: string }) {
  const t = useT();
  const [all, setAll] = useState(false);
  const lines = useMemo(() => compare(before, after), [before, after]);
  const { added, removed } = counts(lines);
  if (added + removed === 0) return <p className="muted">{t("parts.diff.equal")}</p>;
  const { hunks: shown, rest } = all ? { hunks: [{ lines, skipped: 0 }], rest: 0 } : hunks(lines);
  return (
    <div className="diff">
      <div className="diff-head">
        <span>
          <span className="diff-count" data-kind="added">
            {t("parts.diff.added", { count: added })}
          </span>{" "}
          <span className="diff-count" data-kind="removed">
            {t("parts.diff.removed", { count: removed })}
          </span>
        </span>
        <Checkbox label={t("parts.diff.whole")} checked={all} onValue={setAll} />
      </div>
      <div className="diff-scroll" tabIndex={0} role="region" aria-label={label}>
        <table className="diff-table">
          <caption className="visually-hidden">{label}</caption>
          <thead className="visually-hidden">
            <tr>
              <th scope="col">{t("parts.diff.oldLine")}</th>
              <th scope="col">{t("parts.diff.newLine")}</th>
              <th scope="col">{t("parts.diff.change")}</th>
              <th scope="col">{t("parts.diff.text")}</th>
            </tr>
          </thead>
          <tbody>
            {shown.map((hunk, index) => (
              <Fragment key={index}>
                {hunk.skipped > 0 && <Skipped count={hunk.skipped} />}
                {hunk.lines.map((line, at) => (
                  <Line key={at} line={line} partner={partnerOf(hunk.lines, at)} />
                ))}
              </Fragment>
            ))}
            {rest > 0 && <Skipped count={rest} />}
          </tbody>
        </table>
      </div>
    </div>
  );
}

function Skipped({ count }: { count: number }) {
  const t = useT();
  return (
    <tr className="diff-skipped">
      <td colSpan={4}>{t("parts.diff.skipped", { count })}</td>
    </tr>
  );
}

/** The removed line that an added line replaces, and the reverse: the ones at the same place of adjoining runs. */
function partnerOf(lines: DiffLine[], at: number): DiffLine | null {
  const kind = lines[at]?.kind;
  if (kind === undefined || kind === "same") return null;
  let start = at;
  while (start > 0 && lines[start - 1]?.kind !== "same") start -= 1;
  let end = at;
  while (end < lines.length && lines[end]?.kind !== "same") end += 1;
  const run = lines.slice(start, end);
  const removed = run.filter((line) => line.kind === "removed");
  const added = run.filter((line) => line.kind === "added");
  if (removed.length !== added.length) return null;
  const own = kind === "removed" ? removed : added;
  const line = lines[at];
  const index = line === undefined ? -1 : own.indexOf(line);
  return (kind === "removed" ? added : removed)[index] ?? null;
}

function Line({ line, partner }: { line: DiffLine; partner: DiffLine | null }) {
  const t = useT();
  const signs = { same: " ", added: "+", removed: "−" };
  return (
    <tr data-kind={line.kind}>
      <td className="diff-number num">{line.old}</td>
      <td className="diff-number num">{line.new}</td>
      <td className="diff-sign">
        <span aria-hidden="true">{signs[line.kind]}</span>
        {line.kind !== "same" && <span className="visually-hidden">{t(`parts.diff.kind.${line.kind}`)}</span>}
      </td>
      <td className="diff-text">{partner === null ? line.text : <Marked line={line} partner={partner} />}</td>
    </tr>
  );
}

function Marked({ line, partner }: { line: DiffLine; partner: DiffLine }) {
  const isRemoved = line.kind === "removed";
  const part = isRemoved ? changedPart(line.text, partner.text) : changedPart(partner.text, line.text);
  const end = isRemoved ? part.beforeEnd : part.afterEnd;
  if (part.start === 0 && end === line.text.length) return <>{line.text}</>;
  return (
    <>
      {line.text.slice(0, part.start)}
      <mark>{line.text.slice(part.start, end)}</mark>
      {line.text.slice(end)}
    </>
  );
}

export interface Difference {
  kind: string;
  path: string;
  text: string;
  drops: boolean;
  allow?: string | null;
}

/** Differences that an apply or its dry run reports; those that drop stored data first. */
export function Differences({ items }: { items: Difference[] }) {
  const t = useT();
  if (items.length === 0) return <p className="muted">{t("parts.diff.none")}</p>;
  const sorted = [...items].sort((left, right) => Number(right.drops) - Number(left.drops));
  return (
    <ul className="differences">
      {sorted.map((item, index) => (
        <li key={index} data-drops={item.drops ? "" : undefined}>
          <Badge
            tone={
              item.drops ? "error" : item.kind === "added" ? "success" : item.kind === "removed" ? "pending" : "info"
            }
            icon={item.kind === "added" ? "plus" : item.kind === "removed" ? "trash" : "edit"}
          >
            {item.kind === "added" || item.kind === "removed" || item.kind === "changed"
              ? t(`parts.diff.word.${item.kind}`)
              : item.kind}
          </Badge>
          <div>
            <code>{item.path}</code>
            <span className="differences-text">{item.text}</span>
            {item.drops && <span className="differences-drops">{t("parts.diff.drops")}</span>}
          </div>
        </li>
      ))}
    </ul>
  );
}
