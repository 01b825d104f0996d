// A JSON value as a tree that opens and closes, and the fields of a record as names and values.
import { useState, type ReactNode } from "react";
import { useT } from "../../locales";
import { copy } from "../../shell/copy";
import { Icon } from "../icon";
import { childPath, entriesOf, isCollection, literal, summaryOf, type JsonValue } from "./model";
import "./json.css";

export type { JsonValue } from "./model";

/** Members that are drawn at once; more follow by a button. */
const MEMBERS_MAX = 200;

export function JsonView({ value, label, open = 2 }: { value: JsonValue; label: string; open?: number }) {
  const t = useT();
  return (
    <div className="json" role="group" aria-label={label}>
      <button
        type="button"
        className="icon-button json-copy"
        aria-label={t("parts.json.copy")}
        data-tip={t("parts.json.copy")}
        onClick={() => copy(JSON.stringify(value, null, 2))}
      >
        <Icon name="copy" />
      </button>
      <Value value={value} name={null} path="" depth={0} open={open} />
    </div>
  );
}

function Value({
  value,
  name,
  path,
  depth,
  open,
}: {
  value: JsonValue;
  name: string | null;
  path: string;
  depth: number;
  open: number;
}) {
  const t = useT();
  const [shown, setShown] = useState(MEMBERS_MAX);
  const [isOpen, setOpen] = useState(depth < open);
  const label = name === null ? null : <span className="json-name">{name}: </span>;
  if (!isCollection(value)) {
    return (
      <div className="json-leaf">
        {label}
        <Scalar value={value} />
      </div>
    );
  }
  const entries = entriesOf(value);
  const [start, end] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (entries.length === 0) {
    return (
      <div className="json-leaf">
        {label}
        {start}
        {end}
      </div>
    );
  }
  return (
    <details className="json-node" open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        {label}
        <span className="json-summary">{isOpen ? start : summaryOf(value, 60)}</span>
        <span className="json-count">
          {t(Array.isArray(value) ? "parts.json.items" : "parts.json.members", { count: entries.length })}
        </span>
      </summary>
      {isOpen && (
        <>
          <div className="json-members">
            {entries.slice(0, shown).map(([key, member]) => (
              <Value key={key} value={member} name={key} path={childPath(path, key)} depth={depth + 1} open={open} />
            ))}
            {entries.length > shown && (
              <button type="button" className="button button-quiet" onClick={() => setShown(shown + MEMBERS_MAX)}>
                {t("parts.json.more", { count: entries.length - shown })}
              </button>
            )}
          </div>
          <span className="json-end">{end}</span>
        </>
      )}
    </details>
  );
}

/** A value that is no collection, in the colour of its type; a long text is cut until it is opened. */
export function Scalar({ value }: { value: JsonValue }) {
  const t = useT();
  const [whole, setWhole] = useState(false);
  const { text, type } = literal(value);
  const isLong = text.length > 400;
  return (
    <span className="json-value" data-type={type}>
      {isLong && !whole ? `${text.slice(0, 400)}…` : text}
      {isLong && (
        <button type="button" className="button button-quiet json-whole" onClick={() => setWhole(!whole)}>
          {whole ? t("parts.json.less") : t("parts.json.all", { count: text.length })}
        </button>
      )}
    </span>
  );
}

/** Fields of an event, a notification or a subscription: one line each, collections below. */
export function Fields({
  fields,
  label,
  note,
}: {
  fields: Record<string, JsonValue>;
  label: string;
  note?: (name: string) => ReactNode;
}) {
  const t = useT();
  const entries = Object.entries(fields);
  if (entries.length === 0) return <p className="muted">{t("parts.json.noFields")}</p>;
  return (
    <dl className="fields" aria-label={label}>
      {entries.map(([name, value]) => (
        <div key={name}>
          <dt>
            {name}
            {note?.(name)}
          </dt>
          <dd>{isCollection(value) ? <JsonView value={value} label={name} open={1} /> : <Scalar value={value} />}</dd>
        </div>
      ))}
    </dl>
  );
}
