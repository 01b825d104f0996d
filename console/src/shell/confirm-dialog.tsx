// The dialog of an action: the count of the server, and what its confirmation level requires.
import { useId, useRef, useState } from "react";
import { asProblem, type ProblemError } from "../api/problems";
import { reauthenticate, useSession } from "../api/session";
import { Button, Dialog, TextField } from "../components/controls";
import { Icon } from "../components/icon";
import { Command } from "../components/states";
import { Count } from "../components/values";
import { T, useT } from "../locales";
import { finish, type Action } from "./act";
import { commandLines } from "./command";

export default function ConfirmDialog({
  action,
  askPassword,
  close,
}: {
  action: Action;
  askPassword: boolean;
  close: () => void;
}) {
  const t = useT();
  const session = useSession();
  const counted = useCounted(action);
  const [typed, setTyped] = useState("");
  const [reason, setReason] = useState("");
  const [password, setPassword] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ProblemError | null>(null);
  const form = useId();
  const [needsPassword, setNeedsPassword] = useState(
    askPassword ||
      (action.level === "C3" &&
        !(session.reauthenticated_until !== null && Date.parse(session.reauthenticated_until) > Date.now() + 5_000)),
  );
  const strict = action.level === "C2" || action.level === "C3";
  const word = action.word ?? (counted.count === null ? null : String(counted.count));
  const ready =
    !counted.pending &&
    counted.error === null &&
    (!strict || (word !== null && typed.trim() === word && reason.trim() !== "")) &&
    (!needsPassword || password !== "");

  const confirm = async () => {
    setBusy(true);
    setError(null);
    try {
      if (needsPassword) {
        await reauthenticate(password);
        setNeedsPassword(false);
      }
      await finish(action, reason.trim() === "" ? undefined : reason.trim());
      close();
    } catch (caught) {
      const problem = asProblem(caught);
      if (problem.code === "reauthentication_required") setNeedsPassword(true);
      else setError(problem);
      setBusy(false);
    }
  };

  return (
    <Dialog
      title={action.title}
      size="small"
      onClose={close}
      actions={
        <>
          {/* The safe button is the default. */}
          <Button onClick={close}>{t("common.cancel")}</Button>
          <Button
            look={action.danger === true || strict ? "danger" : "main"}
            disabled={!ready}
            busy={busy}
            onClick={() => void confirm()}
          >
            {action.verb}
          </Button>
        </>
      }
    >
      <form id={form} className="stack" onSubmit={(event) => event.preventDefault()}>
        {action.text !== undefined && <div className="confirm-text">{action.text}</div>}
        {action.count !== undefined && (
          <p className="confirm-count" aria-live="polite">
            {counted.error !== null ? (
              <span className="field-error">{counted.error.message}</span>
            ) : counted.pending ? (
              <span className="muted">{t("common.counting")}</span>
            ) : (
              <T
                k="common.touches"
                values={{
                  count: counted.count ?? 0,
                  number: (
                    <strong>
                      <Count value={counted.count} />
                    </strong>
                  ),
                }}
              />
            )}
          </p>
        )}
        {strict && (
          <>
            <TextField
              label={word === null ? t("common.typeToConfirmPending") : t("common.typeToConfirm", { word })}
              value={typed}
              className="input mono"
              onChange={(event) => setTyped(event.currentTarget.value)}
            />
            <TextField
              label={t("common.reason")}
              help={t("common.reasonHelp")}
              value={reason}
              onChange={(event) => setReason(event.currentTarget.value)}
            />
          </>
        )}
        {needsPassword && (
          <TextField
            label={t("common.passwordAgain")}
            help={t("common.passwordAgainHelp")}
            type="password"
            autoComplete="current-password"
            value={password}
            onChange={(event) => setPassword(event.currentTarget.value)}
          />
        )}
        {error !== null && (
          <p className="field-error" role="alert">
            <Icon name="error" size={14} />
            <span>{error.code === "login_failed" ? t("common.wrongPassword") : error.message}</span>
          </p>
        )}
      </form>
      {action.command !== undefined && (
        <details className="confirm-command">
          <summary>{t("common.asCommand")}</summary>
          {commandLines(action.command, location.origin).map((line) => (
            <Command key={line.name} text={line.text} />
          ))}
        </details>
      )}
    </Dialog>
  );
}

function useCounted(action: Action): { count: number | null; pending: boolean; error: ProblemError | null } {
  const [state, setState] = useState<{ count: number | null; pending: boolean; error: ProblemError | null }>(() => ({
    count: typeof action.count === "number" ? action.count : null,
    pending: typeof action.count === "function",
    error: null,
  }));
  const asked = useRef(false);
  if (typeof action.count === "function" && !asked.current) {
    asked.current = true;
    action.count().then(
      (count) => setState({ count, pending: false, error: null }),
      (error: unknown) => setState({ count: null, pending: false, error: asProblem(error) }),
    );
  }
  return state;
}
