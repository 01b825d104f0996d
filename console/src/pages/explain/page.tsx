// Why a subscriber was or was not notified about an event: every gate in order, with its verdict and values.
import { useEffect, useState } from "react";
import { Badge, StateBadge, type Tone } from "../../components/badge";
import { Button, Segmented, TextField } from "../../components/controls";
import { Icon, type IconName } from "../../components/icon";
import { Id, objectPath } from "../../components/id";
import { Fields } from "../../components/json/json";
import { StepText } from "../../components/journey/journey";
import { Link, useGo } from "../../components/link";
import { Empty, Failed, Loaded } from "../../components/states";
import { Time } from "../../components/values";
import { Values, Verdict } from "../../components/verdict/verdict";
import { hasMessage, T, useT } from "../../locales";
import { optionsOf } from "../../shell/command";
import { Page } from "../../shell/page-frame";
import { useMainAction } from "../../shell/shortcuts";
import { orderPaths, questionOf, type Explanation, type Gate, type Path, type Question } from "./model";
import { useExplanation } from "./queries";
import { explainPage } from "./route";
import "./page.css";

export default function ExplainPage() {
  const t = useT();
  const search = explainPage.useSearch();
  const question = questionOf(search);
  const explanation = useExplanation(question);
  return (
    <Page
      title={t("explain.title")}
      about={t("explain.about")}
      command={commandOf(question ?? { event: "e-12-7", subscriber: "ada" })}
    >
      <Ask />
      {question === null ? (
        <Empty
          icon="explain"
          title={t("explain.none")}
          text={t("explain.noneText")}
          action={
            <>
              <Link className="button" to="/events" search={{ view: "events" }}>
                {t("explain.chooseEvent")}
              </Link>
              <Link className="button" to="/subscribers">
                {t("explain.chooseSubscriber")}
              </Link>
            </>
          }
        />
      ) : explanation.error !== null && explanation.data === undefined ? (
        <Failed error={explanation.error} retry={() => void explanation.refetch()} />
      ) : (
        <Loaded query={explanation}>{(found) => <Answer explanation={found} />}</Loaded>
      )}
    </Page>
  );
}

function commandOf(question: Question) {
  const { event, ...options } = question;
  return {
    tocsin: `explain ${event}${optionsOf(options)}`,
    curl: { method: "POST", path: "/v1/explain", body: question },
  };
}

function Ask() {
  const t = useT();
  const search = explainPage.useSearch();
  const setSearch = explainPage.useSetSearch();
  const given = search.subscription === undefined ? "subscriber" : "subscription";
  const [by, setBy] = useState<"subscriber" | "subscription">(given);
  const [event, setEvent] = useState(search.event ?? "");
  const [who, setWho] = useState(search.subscription ?? search.subscriber ?? "");
  const [rule, setRule] = useState(search.rule ?? "");
  useEffect(() => {
    setEvent(search.event ?? "");
    setWho(search.subscription ?? search.subscriber ?? "");
    setRule(search.rule ?? "");
    if (search.subscription !== undefined || search.subscriber !== undefined)
      setBy(search.subscription === undefined ? "subscriber" : "subscription");
  }, [search.event, search.subscriber, search.subscription, search.rule]);
  const ready = event.trim() !== "" && who.trim() !== "";
  const ask = () => {
    if (!ready) return;
    const [subscriber, subscription] = by === "subscriber" ? [who.trim(), undefined] : [undefined, who.trim()];
    setSearch(
      { event: event.trim(), subscriber, subscription, rule: rule.trim() === "" ? undefined : rule.trim() },
      { push: true },
    );
  };
  useMainAction(t("explain.ask"), ask, ready);
  return (
    <form
      className="panel explain-ask"
      onSubmit={(submitted) => {
        submitted.preventDefault();
        ask();
      }}
    >
      <TextField
        label={t("explain.event")}
        placeholder="e-12-7"
        className="input mono"
        value={event}
        onChange={(changed) => setEvent(changed.currentTarget.value)}
      />
      <div className="explain-who">
        <Segmented
          label={t("explain.by")}
          value={by}
          onValue={setBy}
          options={[
            { value: "subscriber", text: t("explain.subscriber") },
            { value: "subscription", text: t("explain.subscription") },
          ]}
        />
        <TextField
          label={t(by === "subscriber" ? "explain.subscriberId" : "explain.subscriptionId")}
          placeholder={by === "subscriber" ? "ada" : "s-15"}
          className="input mono"
          value={who}
          onChange={(changed) => setWho(changed.currentTarget.value)}
        />
      </div>
      <TextField
        label={t("explain.ruleOptional")}
        className="input mono"
        value={rule}
        onChange={(changed) => setRule(changed.currentTarget.value)}
      />
      <Button type="submit" look="main" icon="explain" disabled={!ready}>
        {t("explain.ask")}
      </Button>
    </form>
  );
}

function Answer({ explanation }: { explanation: Explanation }) {
  const t = useT();
  const paths = orderPaths(explanation.paths);
  return (
    <div className="stack">
      <dl className="facts-line">
        <div>
          <dt>{t("explain.event")}</dt>
          <dd>
            {explanation.event.id === null ? "–" : <Id value={explanation.event.id} copies={false} />}{" "}
            <StateBadge state={explanation.event.state} />
          </dd>
        </div>
        <div>
          <dt>{t("explain.class")}</dt>
          <dd>
            {explanation.class} <span className="muted">{explanation.application}</span>
          </dd>
        </div>
        <div>
          <dt>{t("explain.time")}</dt>
          <dd>
            <Time value={explanation.event.time} form="date-time" />
          </dd>
        </div>
        {explanation.subscriber !== null && (
          <div>
            <dt>{t("explain.subscriber")}</dt>
            <dd>
              <Link to={`/subscribers/${encodeURIComponent(explanation.subscriber)}`}>{explanation.subscriber}</Link>
            </dd>
          </div>
        )}
      </dl>
      {explanation.basis === "now" && (
        <p className="explain-note">
          <Icon name="info" /> <span>{t("explain.basisNow")}</span>
        </p>
      )}
      {explanation.gates.length > 0 && <Gates gates={explanation.gates} label={t("explain.before")} />}
      {paths.map((path) => (
        <PathView key={`${path.rule} ${path.subscription}`} path={path} application={explanation.application} />
      ))}
      {paths.length === 0 && explanation.gates.length === 0 && (
        <Empty icon="rules" title={t("explain.noPath")} text={t("explain.noPathText")} />
      )}
      {explanation.truncated && <p className="muted">{t("explain.truncated")}</p>}
      <details className="panel explain-fields">
        <summary>{t("explain.fields")}</summary>
        <div className="panel-body">
          <Fields fields={explanation.event.fields} label={t("explain.fields")} />
        </div>
      </details>
    </div>
  );
}

const decisions: Record<Path["decision"], { tone: Tone; icon: IconName }> = {
  sent: { tone: "success", icon: "success" },
  would_send: { tone: "success", icon: "success" },
  waiting: { tone: "pending", icon: "clock" },
  not_sent: { tone: "error", icon: "error" },
  unknown: { tone: "neutral", icon: "info" },
};

function PathView({ path, application }: { path: Path; application: string }) {
  const t = useT();
  const look = decisions[path.decision];
  const deciding = path.gates.find((gate) => gate.deciding) ?? null;
  return (
    <section
      className="panel explain-path"
      data-decision={path.decision}
      aria-label={t("explain.pathLabel", { rule: path.rule, subscription: path.subscription })}
    >
      <header className="explain-decision" data-tone={look.tone}>
        <Icon name={look.icon} size={24} />
        <div>
          <h2>{t(`explain.decision.${path.decision}`)}</h2>
          <p>
            {deciding === null ? (
              t("explain.allPassed")
            ) : (
              <>
                <strong>{gateName(deciding.gate, t)}:</strong> <StepText text={deciding.text} />
              </>
            )}
          </p>
        </div>
        <div className="explain-links">
          {path.notification !== null && <Id value={path.notification} copies={false} />}
          {path.outcome !== null && <StateBadge state={path.outcome} />}
        </div>
      </header>
      <p className="explain-about muted">
        <T
          k="explain.pathAbout"
          values={{
            rule: (
              <Link to="/rules" search={{ application, rule: path.rule }}>
                {path.rule}
              </Link>
            ),
            subscription: <Id value={path.subscription} copies={false} />,
          }}
        />
      </p>
      <Gates gates={path.gates} label={t("explain.gates")} />
    </section>
  );
}

function gateName(gate: string, t: ReturnType<typeof useT>): string {
  const key = `explain.gate.${gate}`;
  return hasMessage(key) ? t(key) : gate;
}

const verdicts: Record<Gate["verdict"], { icon: IconName; tone: Tone }> = {
  passed: { icon: "success", tone: "success" },
  blocked: { icon: "error", tone: "error" },
  unknown: { icon: "info", tone: "neutral" },
};

function Gates({ gates, label }: { gates: readonly Gate[]; label: string }) {
  return (
    <ol className="explain-gates" aria-label={label}>
      {gates.map((gate, index) => (
        <GateView key={index} gate={gate} />
      ))}
    </ol>
  );
}

function GateView({ gate }: { gate: Gate }) {
  const t = useT();
  const go = useGo();
  const { icon } = verdicts[gate.verdict];
  const path = gate.object == null ? null : objectPath(gate.object);
  const conditions = gate.conditions ?? [];
  const hasMore = conditions.length > 0 || gate.values.length > 0;
  const head = (
    <>
      <span className="explain-icon">
        <Icon name={icon} />
        <span className="visually-hidden">{t(`explain.verdict.${gate.verdict}`)}</span>
      </span>
      <span className="explain-gate">{gateName(gate.gate, t)}</span>
      <span className="explain-text">
        <StepText text={gate.text} />
        {gate.until != null && (
          <span className="muted">
            {" "}
            <T k="explain.until" values={{ time: <Time value={gate.until} form="date-time" /> }} />
          </span>
        )}
      </span>
      <span className="explain-marks">
        {gate.deciding && (
          <Badge tone={gate.verdict === "blocked" ? "error" : "neutral"} icon="arrow-right">
            {t("explain.decides")}
          </Badge>
        )}
        {gate.as_of !== "event" && (
          <span className="muted" data-tip={t(`explain.asOf.${gate.as_of}Text`)} tabIndex={0}>
            {t(`explain.asOf.${gate.as_of}`)}
          </span>
        )}
      </span>
    </>
  );
  return (
    <li data-verdict={gate.verdict} data-deciding={gate.deciding ? "" : undefined}>
      {hasMore ? (
        <details open={gate.deciding}>
          <summary>{head}</summary>
          <div className="explain-more">
            {conditions.length > 0 ? <Verdict conditions={conditions} /> : <Values values={gate.values} />}
          </div>
        </details>
      ) : (
        <div className="explain-plain">{head}</div>
      )}
      {gate.verdict === "blocked" && path !== null && (
        <div className="explain-open">
          <Button icon="arrow-right" onClick={() => go(path)}>
            {t("explain.open", { object: gate.object?.id ?? "" })}
          </Button>
        </div>
      )}
    </li>
  );
}
