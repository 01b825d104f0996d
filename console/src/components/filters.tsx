// Filters above a list: a bar of fields, the application, and the time range of the shell.
import { useMemo, useState, type ReactNode } from "react";
import { useRead } from "../api/query";
import type { Page, Schema } from "../api/client";
import { useT } from "../locales";
import { useRange } from "../shell/range";
import { useCan } from "../api/session";
import { Button, Select, TextField } from "./controls";
import "./filters.css";

export type Application = Schema<"ApplicationBody">;

export function useApplications() {
  return useRead<Page<Application>>("/v1/applications", { enabled: useCan("applications:read") });
}

/** Bar of filters; `onClear` is given while one of them is set. */
export function FilterBar({ children, onClear }: { children: ReactNode; onClear?: (() => void) | undefined }) {
  const t = useT();
  return (
    <div className="filters" role="search">
      {children}
      {onClear !== undefined && (
        <Button look="quiet" icon="close" className="filters-clear" onClick={onClear}>
          {t("parts.filters.clear")}
        </Button>
      )}
    </div>
  );
}

/** Choice of an application; with one application only, it is still shown, since its name is part of links. */
export function ApplicationFilter({
  value,
  onValue,
  required = false,
}: {
  value: string | undefined;
  onValue: (value: string | undefined) => void;
  required?: boolean;
}) {
  const t = useT();
  const applications = useApplications();
  const names = (applications.data?.items ?? []).map((item) => item.name);
  if (value !== undefined && !names.includes(value)) names.push(value);
  return (
    <Select
      label={t("parts.filters.application")}
      value={value ?? ""}
      onValue={(next) => onValue(next === "" ? undefined : next)}
      options={[
        ...(required && value !== undefined
          ? []
          : [{ value: "", text: t(required ? "parts.filters.choose" : "parts.filters.allApplications") }]),
        ...names.map((name) => ({ value: name, text: name })),
      ]}
    />
  );
}

/**
 * The time range for a list. A relative range keeps its start while the list is shown: with a start that moves, the
 * list would be read again every minute, under the eyes of its reader.
 */
export function useListRange(): { from: string; to?: string } {
  const range = useRange();
  const absolute = range.key === "absolute";
  return useMemo(
    () => (absolute ? range.query : { from: range.query.from }),
    [range.key, absolute ? range.query.from : "", absolute ? range.query.to : ""],
  );
}

/** A text field that applies its value on Enter and when it loses the focus. */
export function TypedField({
  label,
  value,
  onValue,
  mono = false,
  wide = false,
  placeholder,
}: {
  label: string;
  value: string;
  onValue: (value: string) => void;
  mono?: boolean;
  wide?: boolean;
  placeholder?: string;
}) {
  const [typed, setTyped] = useState(value);
  const [applied, setApplied] = useState(value);
  if (applied !== value) {
    setApplied(value);
    setTyped(value);
  }
  const apply = () => typed.trim() !== value && onValue(typed.trim());
  return (
    <TextField
      label={label}
      value={typed}
      {...(placeholder === undefined ? {} : { placeholder })}
      className={mono ? "input mono" : "input"}
      fieldClass={wide ? "filters-wide" : ""}
      onChange={(event) => setTyped(event.currentTarget.value)}
      onBlur={apply}
      onKeyDown={(event) => {
        if (event.key === "Enter") apply();
      }}
    />
  );
}
