/** The result of a predicate as a tree of conditions, from `/v1/explain`, a rule test or a segment's member. */

export type Truth = "true" | "false" | "error" | "unknown";

export interface ReadValue {
  field: string;
  /** JSON text. */
  value: string;
}

/** A condition as the server reports it. */
export interface Condition {
  text: string;
  verdict: string;
  trouble?: string | null;
  values: ReadValue[];
  decides?: boolean;
  operator?: string | null;
  parts?: Condition[] | null;
}

export interface VerdictNode {
  key: string;
  text: string;
  truth: Truth;
  trouble: string | null;
  values: ReadValue[];
  /** Whether this condition alone fixes the result of its parent. */
  decides: boolean;
  operator: "all" | "any" | "not" | null;
  parts: VerdictNode[];
}

export function truthOf(verdict: string): Truth {
  switch (verdict) {
    case "holds":
    case "true":
    case "passed":
      return "true";
    case "fails":
    case "false":
    case "blocked":
      return "false";
    case "error":
      return "error";
    default:
      return "unknown";
  }
}

const operatorOf = (operator: string | null | undefined) =>
  operator === "all" || operator === "any" || operator === "not" ? operator : null;

/** Nodes of conditions; where the server names no deciding condition, it is found by {@link decidingOf}. */
export function nodesOf(conditions: Condition[], operator: "all" | "any" = "all", prefix = ""): VerdictNode[] {
  const nodes = conditions.map((condition, index): VerdictNode => {
    const key = `${prefix}${index}`;
    const inner = operatorOf(condition.operator);
    return {
      key,
      text: condition.text,
      truth: truthOf(condition.verdict),
      trouble: condition.trouble ?? null,
      values: distinct(condition.values),
      decides: condition.decides ?? false,
      operator: inner,
      parts: nodesOf(condition.parts ?? [], inner === "any" ? "any" : "all", `${key}.`),
    };
  });
  const isNamed = conditions.some((condition) => condition.decides !== undefined);
  if (!isNamed) {
    const deciding = decidingOf(
      nodes.map((node) => node.truth),
      operator,
    );
    nodes.forEach((node, index) => {
      node.decides = index === deciding;
    });
  }
  return nodes;
}

/**
 * The condition that decides a conjunction or a disjunction; -1 if they decide together. As in CEL, `false && error` is
 * false and `true || error` is true.
 */
export function decidingOf(truths: Truth[], operator: "all" | "any"): number {
  const dominant: Truth = operator === "all" ? "false" : "true";
  const first = truths.indexOf(dominant);
  if (first >= 0) return first;
  const error = truths.indexOf("error");
  if (error >= 0) return error;
  return truths.indexOf("unknown");
}

/** Truth value of a conjunction or a disjunction. */
export function joined(truths: Truth[], operator: "all" | "any"): Truth {
  const deciding = decidingOf(truths, operator);
  return truths[deciding] ?? (operator === "all" ? "true" : "false");
}

function distinct(values: ReadValue[]): ReadValue[] {
  const seen = new Set<string>();
  return values.filter(({ field }) => !seen.has(field) && seen.add(field) !== undefined);
}

/** A condition of a long text, split at its `&&` and `||` outside of parentheses and literals, for line breaks. */
export function breakable(text: string): string[] {
  const parts: string[] = [];
  let depth = 0;
  let quote = "";
  let from = 0;
  for (let at = 0; at < text.length; at += 1) {
    const letter = text[at] ?? "";
    if (quote !== "") {
      if (letter === "\\") at += 1;
      else if (letter === quote) quote = "";
      continue;
    }
    if (letter === "'" || letter === '"') quote = letter;
    else if ("([{".includes(letter)) depth += 1;
    else if (")]}".includes(letter)) depth -= 1;
    else if (depth === 0 && (text.startsWith("&&", at) || text.startsWith("||", at))) {
      parts.push(text.slice(from, at).trimEnd());
      from = at;
      at += 1;
    }
  }
  parts.push(text.slice(from).trim());
  return parts.filter((part) => part !== "");
}
