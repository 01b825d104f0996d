// First start: makes the first user, an administrator, with the one-time link that the server printed.
import { useState, type FormEvent } from "react";
import { asProblem, type ProblemError } from "../../api/problems";
import { queryClient } from "../../api/query";
import { setUp } from "../../api/session";
import { Button, TextField } from "../../components/controls";
import { Icon } from "../../components/icon";
import { Link, useGo } from "../../components/link";
import { Command } from "../../components/states";
import { presentLanguage, useT } from "../../locales";
import { SessionFrame } from "./frame";
import { forgetToken, takeToken } from "./token";
import { problemOf } from "./problem-of";

export default function Setup() {
  const t = useT();
  const go = useGo();
  const [token] = useState(takeToken);
  const [name, setName] = useState("");
  const [displayName, setDisplayName] = useState("");
  const [password, setPassword] = useState("");
  const [repeated, setRepeated] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ProblemError | null>(null);
  const differs = repeated !== "" && repeated !== password;

  if (token === null)
    return (
      <SessionFrame title={t("session.setup.title")} text={t("session.setup.noToken")}>
        <Command text="tocsin console open" />
      </SessionFrame>
    );

  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await setUp({
        token,
        name: name.trim().toLowerCase(),
        password,
        language: presentLanguage(),
        time_zone: Intl.DateTimeFormat().resolvedOptions().timeZone,
        ...(displayName.trim() === "" ? {} : { display_name: displayName.trim() }),
      });
      forgetToken();
      queryClient.clear();
      go("/");
    } catch (caught) {
      setError(asProblem(caught));
      setBusy(false);
    }
  };

  const own =
    error === null
      ? null
      : error.code === "login_failed"
        ? t("session.error.link")
        : error.code === "already_exists"
          ? t("session.setup.exists")
          : (error.problem.problems ?? []).length > 0
            ? null
            : error.message;
  return (
    <SessionFrame title={t("session.setup.title")} text={t("session.setup.text")}>
      {own !== null && (
        <div className="session-error" role="alert">
          <Icon name="error" />
          <span>
            {own} {error?.code === "already_exists" && <Link to="/login">{t("session.login.title")}</Link>}
          </span>
        </div>
      )}
      <form className="stack" onSubmit={(event) => void submit(event)}>
        <TextField
          label={t("session.name")}
          help={t("session.nameHelp")}
          error={problemOf(error, "name")}
          name="username"
          autoComplete="username"
          autoCapitalize="none"
          autoFocus
          required
          value={name}
          onChange={(event) => setName(event.currentTarget.value)}
        />
        <TextField
          label={t("session.displayName")}
          error={problemOf(error, "display_name")}
          autoComplete="name"
          value={displayName}
          onChange={(event) => setDisplayName(event.currentTarget.value)}
        />
        <TextField
          label={t("session.password")}
          help={t("session.passwordHelp")}
          error={problemOf(error, "password")}
          name="password"
          type="password"
          autoComplete="new-password"
          minLength={12}
          required
          value={password}
          onChange={(event) => setPassword(event.currentTarget.value)}
        />
        <TextField
          label={t("session.passwordRepeat")}
          error={differs ? t("session.passwordDiffers") : null}
          type="password"
          autoComplete="new-password"
          required
          value={repeated}
          onChange={(event) => setRepeated(event.currentTarget.value)}
        />
        <Button
          type="submit"
          look="main"
          className="session-wide"
          busy={busy}
          disabled={name.trim() === "" || password.length < 12 || repeated !== password}
        >
          {t("session.setup.verb")}
        </Button>
      </form>
    </SessionFrame>
  );
}
