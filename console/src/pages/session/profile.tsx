// Profile: language, time zone, theme, density, password and sessions of the own user.
import { useState, type FormEvent } from "react";
import { request } from "../../api/client";
import { asProblem, type ProblemError } from "../../api/problems";
import { invalidate, useRead } from "../../api/query";
import { changeSession, useSession } from "../../api/session";
import { Badge } from "../../components/badge";
import { Button, Segmented, Select, Switch, TextField } from "../../components/controls";
import { Icon } from "../../components/icon";
import { Loaded } from "../../components/states";
import { Time } from "../../components/values";
import { languages, presentLanguage, useT, type Language } from "../../locales";
import { changeSettings, useSettings } from "../../settings";
import { showProblem, useAct } from "../../shell/act";
import { Page } from "../../shell/page-frame";
import { toast } from "../../shell/toasts";
import { chooseLanguage, languageNames } from "../../shell/user-menu";
import { agentName } from "./agent";
import { problemOf } from "./problem-of";
import "./session.css";

interface SessionRow {
  id: string;
  user: string;
  created_at: string;
  last_used_at: string;
  expires_at: string;
  address: string | null;
  user_agent: string | null;
  is_current: boolean;
}

export default function Profile() {
  const t = useT();
  const session = useSession();
  const isUser = session.kind === "user";
  return (
    <Page
      title={t("session.profile.title")}
      about={isUser ? session.name : t("session.profile.key", { name: session.name })}
    >
      <div className="profile">
        {isUser && <NameForm />}
        <Display />
        <section className="panel">
          <div className="panel-head">
            <h2>{t("session.profile.rights")}</h2>
          </div>
          <dl className="facts panel-body">
            <dt>{t("session.profile.roles")}</dt>
            <dd>{session.roles.length === 0 ? "–" : session.roles.map((role) => <code key={role}>{role}</code>)}</dd>
            <dt>{t("session.profile.scopes")}</dt>
            <dd className="profile-scopes">
              {session.scopes.map((scope) => (
                <code key={scope}>{scope}</code>
              ))}
            </dd>
          </dl>
        </section>
        {isUser && session.has_password !== false && <PasswordForm />}
        {isUser && <Sessions />}
      </div>
    </Page>
  );
}

function NameForm() {
  const t = useT();
  const session = useSession();
  const [name, setName] = useState(session.display_name ?? "");
  const [busy, setBusy] = useState(false);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      await request("PATCH", `/v1/users/${encodeURIComponent(session.name)}`, {
        body: { display_name: name.trim() },
      });
      changeSession({ display_name: name.trim() });
      toast({ text: t("common.saved") });
    } catch (error) {
      showProblem(error);
    }
    setBusy(false);
  };
  return (
    <section className="panel">
      <div className="panel-head">
        <h2>{t("session.profile.person")}</h2>
      </div>
      <form className="panel-body stack" onSubmit={(event) => void submit(event)}>
        <TextField
          label={t("session.displayName")}
          autoComplete="name"
          value={name}
          onChange={(event) => setName(event.currentTarget.value)}
        />
        <div className="row">
          <Button type="submit" busy={busy} disabled={name.trim() === (session.display_name ?? "")}>
            {t("common.save")}
          </Button>
        </div>
      </form>
    </section>
  );
}

function Display() {
  const t = useT();
  const settings = useSettings();
  const session = useSession();
  const user = session.kind === "user" ? session.name : null;
  const zones = ["browser", "UTC", ...Intl.supportedValuesOf("timeZone").filter((zone) => zone !== "UTC")];
  const chooseZone = (timeZone: string) => {
    changeSettings({ timeZone });
    if (user === null) return;
    const named = timeZone === "browser" ? Intl.DateTimeFormat().resolvedOptions().timeZone : timeZone;
    request("PATCH", `/v1/users/${encodeURIComponent(user)}`, { body: { time_zone: named } }).catch(showProblem);
  };
  return (
    <section className="panel">
      <div className="panel-head">
        <h2>{t("session.profile.display")}</h2>
      </div>
      <div className="panel-body stack">
        <Select
          label={t("common.user.language")}
          value={presentLanguage()}
          options={languages.map((language) => ({ value: language, text: languageNames[language] }))}
          onValue={(language) => void chooseLanguage(language as Language, user)}
        />
        <Select
          label={t("common.range.zone")}
          value={settings.timeZone}
          options={zones.map((zone) => ({
            value: zone,
            text: zone === "browser" ? t("common.range.browserZone") : zone,
          }))}
          onValue={chooseZone}
        />
        <div className="field">
          <span className="label">{t("common.user.theme")}</span>
          <Segmented
            label={t("common.user.theme")}
            value={settings.theme}
            options={(["system", "light", "dark", "contrast"] as const).map((value) => ({
              value,
              text: t(`common.theme.${value}`),
            }))}
            onValue={(theme) => changeSettings({ theme })}
          />
        </div>
        <div className="field">
          <span className="label">{t("common.user.density")}</span>
          <Segmented
            label={t("common.user.density")}
            value={settings.density}
            options={(["comfortable", "compact"] as const).map((value) => ({
              value,
              text: t(`common.density.${value}`),
            }))}
            onValue={(density) => changeSettings({ density })}
          />
        </div>
        <Switch
          label={t("common.help.singleKeys")}
          checked={settings.singleKeys}
          onValue={(singleKeys) => changeSettings({ singleKeys })}
        />
      </div>
    </section>
  );
}

function PasswordForm() {
  const t = useT();
  const session = useSession();
  const [current, setCurrent] = useState("");
  const [next, setNext] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ProblemError | null>(null);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await request("POST", `/v1/users/${encodeURIComponent(session.name)}/password`, {
        body: { password: next, current_password: current },
      });
      setCurrent("");
      setNext("");
      toast({ text: t("session.profile.passwordChanged") });
      await invalidate(["/v1/sessions"]);
    } catch (caught) {
      setError(asProblem(caught));
    }
    setBusy(false);
  };
  const wrong =
    error !== null && error.code === "login_failed" ? t("common.wrongPassword") : problemOf(error, "current_password");
  return (
    <section className="panel">
      <div className="panel-head">
        <h2>{t("session.password")}</h2>
      </div>
      <form className="panel-body stack" onSubmit={(event) => void submit(event)}>
        <input type="text" name="username" autoComplete="username" value={session.name} readOnly hidden />
        <TextField
          label={t("session.profile.currentPassword")}
          type="password"
          autoComplete="current-password"
          error={wrong}
          value={current}
          onChange={(event) => setCurrent(event.currentTarget.value)}
        />
        <TextField
          label={t("session.profile.newPassword")}
          help={t("session.passwordHelp")}
          type="password"
          autoComplete="new-password"
          error={problemOf(error, "password")}
          value={next}
          onChange={(event) => setNext(event.currentTarget.value)}
        />
        {error !== null && wrong === null && problemOf(error, "password") === null && (
          <p className="field-error" role="alert">
            <Icon name="error" size={14} />
            <span>{error.message}</span>
          </p>
        )}
        <div className="row">
          <Button type="submit" busy={busy} disabled={current === "" || next.length < 12}>
            {t("session.profile.changePassword")}
          </Button>
        </div>
      </form>
    </section>
  );
}

function Sessions() {
  const t = useT();
  const act = useAct();
  const sessions = useRead<{ items: SessionRow[] }>("/v1/sessions");
  return (
    <section className="panel">
      <div className="panel-head">
        <h2>{t("session.profile.sessions")}</h2>
      </div>
      <Loaded query={sessions}>
        {(data) => (
          <ul className="profile-sessions">
            {data.items.map((row) => (
              <li key={row.id}>
                <div>
                  <div className="row">
                    <strong>{agentName(row.user_agent) ?? t("session.profile.unknownAgent")}</strong>
                    {row.is_current && <Badge tone="info">{t("session.profile.current")}</Badge>}
                  </div>
                  <div className="muted">
                    {row.address !== null && <span className="mono">{row.address}</span>}{" "}
                    {t("session.profile.lastUsed")} <Time value={row.last_used_at} />
                  </div>
                </div>
                {!row.is_current && (
                  <Button
                    onClick={() =>
                      act({
                        level: "C1",
                        title: t("session.profile.endTitle"),
                        text: t("session.profile.endText"),
                        verb: t("session.profile.end"),
                        command: { curl: { method: "DELETE", path: `/v1/sessions/${row.id}` } },
                        run: () => request("DELETE", `/v1/sessions/${encodeURIComponent(row.id)}`),
                        done: t("session.profile.ended"),
                        invalidates: ["/v1/sessions"],
                      })
                    }
                  >
                    {t("session.profile.end")}
                  </Button>
                )}
              </li>
            ))}
          </ul>
        )}
      </Loaded>
    </section>
  );
}
