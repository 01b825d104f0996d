// Login over the open pages, after the session ended: what was typed there stays.
import { useState, type FormEvent } from "react";
import { asProblem } from "../api/problems";
import { logIn, useSession } from "../api/session";
import { Button, Dialog, TextField } from "../components/controls";
import { useT } from "../locales";

export default function LoginDialog({ onDone }: { onDone: () => void }) {
  const t = useT();
  const session = useSession();
  const [password, setPassword] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const submit = async (event?: FormEvent) => {
    event?.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await logIn(session.name, password);
      onDone();
    } catch (caught) {
      const problem = asProblem(caught);
      setError(problem.code === "login_failed" ? t("common.wrongPassword") : problem.message);
      setBusy(false);
    }
  };
  const usesPassword = session.kind === "user" && session.has_password !== false;
  return (
    <Dialog
      title={t("common.expired.title")}
      size="small"
      stays
      onClose={() => {}}
      actions={
        <>
          <Button onClick={() => location.assign("/console/login")}>{t("common.expired.other")}</Button>
          {usesPassword && (
            <Button look="main" busy={busy} disabled={password === ""} onClick={() => void submit()}>
              {t("common.expired.login")}
            </Button>
          )}
        </>
      }
    >
      <form className="stack" onSubmit={(event) => void submit(event)}>
        <p>{t("common.expired.text", { name: session.display_name ?? session.name })}</p>
        <input type="text" name="username" autoComplete="username" value={session.name} readOnly hidden />
        {usesPassword && (
          <TextField
            label={t("common.password")}
            type="password"
            autoComplete="current-password"
            error={error}
            value={password}
            onChange={(event) => setPassword(event.currentTarget.value)}
          />
        )}
        {/* Enter submits a form of several fields only if it has a button. */}
        <button type="submit" className="visually-hidden" tabIndex={-1} aria-hidden="true" />
      </form>
    </Dialog>
  );
}
