// Login: by name and password, by an OpenID provider, or by a one-time link.
import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState, type FormEvent } from "react";
import { request } from "../../api/client";
import { asProblem, type ProblemError } from "../../api/problems";
import { logIn, logInWithToken, sessionState, type SessionOptions } from "../../api/session";
import { Button, TextField } from "../../components/controls";
import { Icon } from "../../components/icon";
import { useGo } from "../../components/link";
import { Command } from "../../components/states";
import { formatDuration } from "../../format";
import { presentLanguage, T, useT } from "../../locales";
import { queryClient } from "../../api/query";
import { safeTarget, takeUserSettings } from "./enter";
import { SessionFrame } from "./frame";
import { loginPage } from "./route";
import { forgetToken, takeToken } from "./token";

export default function Login() {
  const t = useT();
  const go = useGo();
  const { next } = loginPage.useSearch();
  const options = useQuery<SessionOptions, ProblemError>({
    queryKey: ["/v1/session/options"],
    queryFn: () => request<SessionOptions>("GET", "/v1/session/options"),
  });
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const [busy, setBusy] = useState(() => takeToken() !== null);
  const [error, setError] = useState<ProblemError | null>(null);
  const byLink = useRef(false);

  const enter = async () => {
    await takeUserSettings();
    queryClient.clear();
    go(safeTarget(next));
  };

  useEffect(() => {
    const token = takeToken();
    if (token === null) {
      // With a session there is nothing to log in to.
      if (sessionState().state === "present") go(safeTarget(next));
      return;
    }
    if (byLink.current) return;
    byLink.current = true;
    forgetToken();
    logInWithToken(token).then(enter, (caught: unknown) => {
      setError(asProblem(caught));
      setBusy(false);
    });
    // The link is used once, when the page opens.
  }, []);

  const submit = async (event: FormEvent) => {
    event.preventDefault();
    byLink.current = false;
    setBusy(true);
    setError(null);
    try {
      await logIn(name.trim(), password);
      await enter();
    } catch (caught) {
      setError(asProblem(caught));
      setPassword("");
      setBusy(false);
    }
  };

  if (options.data?.setup_required === true)
    return (
      <SessionFrame title={t("session.noUser.title")} text={t("session.noUser.text")}>
        <div className="stack">
          <p>{t("session.noUser.how")}</p>
          <Command text="tocsin console open" />
          <p className="muted">{t("session.noUser.or")}</p>
          <Command text="tocsin users create ada --role admin" />
        </div>
      </SessionFrame>
    );

  return (
    <SessionFrame title={t("session.login.title")}>
      {error !== null && (
        <div className="session-error" role="alert">
          <Icon name="error" />
          <span>
            <LoginError error={error} byLink={byLink.current} />
          </span>
        </div>
      )}
      {options.error !== null && error === null && (
        <div className="session-error" role="alert">
          <Icon name="error" />
          <span>{options.error.code === "no_answer" ? t("common.noAnswer") : options.error.message}</span>
        </div>
      )}
      {options.data?.oidc != null && (
        <a className="button button-main session-wide" href={options.data.oidc.start_url}>
          {t("session.login.with", { name: options.data.oidc.name })}
        </a>
      )}
      {options.data?.oidc != null && options.data.password && <div className="session-or">{t("session.login.or")}</div>}
      {options.data?.password !== false && (
        <form className="stack" onSubmit={(event) => void submit(event)}>
          <TextField
            label={t("session.name")}
            name="username"
            autoComplete="username"
            autoCapitalize="none"
            autoFocus
            required
            value={name}
            onChange={(event) => setName(event.currentTarget.value)}
          />
          <TextField
            label={t("session.password")}
            name="password"
            type="password"
            autoComplete="current-password"
            required
            value={password}
            onChange={(event) => setPassword(event.currentTarget.value)}
          />
          <Button
            type="submit"
            look="main"
            className="session-wide"
            busy={busy}
            disabled={name.trim() === "" || password === ""}
          >
            {t("session.login.verb")}
          </Button>
        </form>
      )}
      <details className="session-lost">
        <summary>{t("session.login.lost")}</summary>
        <p>{t("session.login.lostText")}</p>
        <Command text="tocsin console open" />
      </details>
    </SessionFrame>
  );
}

function LoginError({ error, byLink }: { error: ProblemError; byLink: boolean }) {
  const t = useT();
  if (error.code === "login_failed") return byLink ? t("session.error.link") : t("session.error.failed");
  if (error.code === "login_locked" || error.status === 429)
    return (
      <T
        k="session.error.locked"
        values={{ time: formatDuration((error.retryAfter ?? 900) * 1000, presentLanguage()) }}
      />
    );
  if (error.code === "insecure_transport") return t("session.error.insecure");
  if (error.code === "no_answer") return t("common.noAnswer");
  return error.message;
}
