// Tree of the conditions of a predicate, with truth values, the values that were read, and the condition that decides.
import { useT } from "../../locales";
import { Badge } from "../badge";
import { Icon, type IconName } from "../icon";
import { breakable, joined, nodesOf, type Condition, type ReadValue, type Truth, type VerdictNode } from "./model";
import "./verdict.css";

export type { Condition } from "./model";

const looks: Record<Truth, IconName> = { true: "success", false: "error", error: "attention", unknown: "info" };

/** Conditions that are joined by `operator`, as a tree; `title` names the predicate. */
export function Verdict({
  conditions,
  operator = "all",
  title,
}: {
  conditions: Condition[];
  operator?: "all" | "any";
  title?: string;
}) {
  const t = useT();
  const nodes = nodesOf(conditions, operator);
  const truth = joined(
    nodes.map((node) => node.truth),
    operator,
  );
  return (
    <section className="verdict" aria-label={title ?? t("parts.verdict.title")}>
      <header className="verdict-head">
        {title !== undefined && <h3>{title}</h3>}
        <TruthBadge truth={truth} />
        {nodes.length > 1 && (
          <span className="muted">{t(`parts.verdict.joined.${operator}`, { count: nodes.length })}</span>
        )}
      </header>
      <Nodes nodes={nodes} />
    </section>
  );
}

export function TruthBadge({ truth }: { truth: Truth }) {
  const t = useT();
  const tone = truth === "true" ? "success" : truth === "false" ? "error" : truth === "error" ? "pending" : "neutral";
  return (
    <Badge tone={tone} icon={looks[truth]}>
      {t(`parts.verdict.truth.${truth}`)}
    </Badge>
  );
}

function Nodes({ nodes }: { nodes: VerdictNode[] }) {
  return (
    <ul className="verdict-nodes">
      {nodes.map((node) => (
        <Node key={node.key} node={node} />
      ))}
    </ul>
  );
}

function Node({ node }: { node: VerdictNode }) {
  const t = useT();
  return (
    <li className="verdict-node" data-truth={node.truth} data-decides={node.decides ? "" : undefined}>
      <div className="verdict-line">
        <span className="verdict-icon">
          <Icon name={looks[node.truth]} />
          <span className="visually-hidden">{t(`parts.verdict.truth.${node.truth}`)}</span>
        </span>
        <div className="verdict-body">
          {node.operator !== null && node.parts.length > 0 ? (
            <span className="verdict-operator">{t(`parts.verdict.operator.${node.operator}`)}</span>
          ) : (
            <code className="verdict-text">
              {breakable(node.text).map((part, index) => (
                <span key={index}>{part} </span>
              ))}
            </code>
          )}
          {node.decides && (
            <Badge tone="neutral" icon="arrow-right">
              {t("parts.verdict.decides")}
            </Badge>
          )}
          {node.parts.length === 0 && <Values values={node.values} />}
          {node.trouble !== null && <p className="verdict-trouble">{node.trouble}</p>}
        </div>
      </div>
      {node.parts.length > 0 && <Nodes nodes={node.parts} />}
    </li>
  );
}

/** Names and values that a condition or gate read. */
export function Values({ values }: { values: ReadValue[] }) {
  if (values.length === 0) return null;
  return (
    <dl className="verdict-values">
      {values.map(({ field, value }) => (
        <div key={field}>
          <dt>{field}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
