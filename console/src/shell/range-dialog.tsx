// A time range by its beginning and end.
import { useState, type FormEvent } from "react";
import { Button, Dialog, Field } from "../components/controls";
import { useT } from "../locales";
import { useTimeZone } from "../settings";
import { useSetRange, type Range } from "./range";
import { zoneOffsetMs } from "./zone";

export default function RangeDialog({ range, close }: { range: Range; close: () => void }) {
  const t = useT();
  const setRange = useSetRange();
  const zone = useTimeZone();
  const [from, setFrom] = useState(() => local(range.from, zone));
  const [to, setTo] = useState(() => local(range.to, zone));
  const start = moment(from, zone);
  const end = moment(to, zone);
  const valid = start !== null && end !== null && start < end;
  const submit = (event?: FormEvent) => {
    event?.preventDefault();
    if (!valid) return;
    setRange({ from: start.toISOString(), to: end.toISOString() });
    close();
  };
  return (
    <Dialog
      title={t("common.range.absolute")}
      size="small"
      onClose={close}
      actions={
        <>
          <Button onClick={close}>{t("common.cancel")}</Button>
          <Button look="main" disabled={!valid} onClick={() => submit()}>
            {t("common.apply")}
          </Button>
        </>
      }
    >
      <form className="stack" onSubmit={submit}>
        <Field label={t("common.range.from")}>
          {(ids) => (
            <input
              type="datetime-local"
              step={1}
              className="input"
              value={from}
              onChange={(event) => setFrom(event.currentTarget.value)}
              {...ids}
            />
          )}
        </Field>
        <Field
          label={t("common.range.to")}
          error={start !== null && end !== null && start >= end ? t("common.range.order") : null}
          help={t("common.range.inZone", { zone: zone ?? t("common.range.browserZone") })}
        >
          {(ids) => (
            <input
              type="datetime-local"
              step={1}
              className="input"
              value={to}
              onChange={(event) => setTo(event.currentTarget.value)}
              {...ids}
            />
          )}
        </Field>
        <button type="submit" className="visually-hidden" tabIndex={-1} aria-hidden="true" />
      </form>
    </Dialog>
  );
}

function local(time: Date, zone: string | undefined): string {
  return new Date(time.getTime() + zoneOffsetMs(time, zone)).toISOString().slice(0, 19);
}

function moment(text: string, zone: string | undefined): Date | null {
  const clock = Date.parse(`${text}Z`);
  if (Number.isNaN(clock)) return null;
  // Two steps, since the offset belongs to the moment and not to the clock.
  const guess = new Date(clock - zoneOffsetMs(new Date(clock), zone));
  return new Date(clock - zoneOffsetMs(guess, zone));
}
