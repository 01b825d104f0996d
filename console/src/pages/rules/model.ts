/** The rules with their state and evaluation. */
import type { Schema } from "../../api/client";

export type RulePlan = Schema<"RuleBody">;
export type Branch = Schema<"BranchBody">;

export interface StoppedRule {
  application: string;
  rule: string;
  since?: string;
  reason?: string | null;
  by?: string | null;
  by_name?: string | null;
  [member: string]: unknown;
}

export interface Missed {
  id: number;
  application: string;
  rule: string;
  status: "failed" | "skipped";
  reason: string;
  first: string;
  last: string;
  batches: number;
  since: string;
}

export interface Slow {
  application: string;
  version: number;
  rule: string;
  batch: string;
  events: number;
  at: string;
  took_ms: number;
  timeout_ms: number;
  plan: string[];
}

export interface RuleRow {
  application: string;
  plan: RulePlan;
  stopped: StoppedRule | null;
  missed: number;
  slow: number;
}

/** How a rule finds its subscriptions. */
export type Method = "index" | "scan" | "sql";

export function methodOf(plan: Pick<RulePlan, "branches" | "query">): Method {
  if (plan.query.length > 0) return "sql";
  return plan.branches.every((branch) => branch.keys.length > 0 || branch.range.length > 0) ? "index" : "scan";
}

/** Average number of candidates of an event over all branches; null without figures. */
export function candidatesOf(plan: Pick<RulePlan, "branches">): number | null {
  const counts = plan.branches.map((branch) => branch.candidates ?? null);
  if (counts.length === 0 || counts.some((count) => count === null)) return null;
  return counts.reduce<number>((sum, count) => sum + (count ?? 0), 0);
}

/** Rows of the list, by application and name. */
export function rowsOf(
  plans: Map<string, RulePlan[]>,
  stopped: StoppedRule[],
  missed: Missed[],
  slow: Slow[],
): RuleRow[] {
  return [...plans].flatMap(([application, list]) =>
    list.map((plan): RuleRow => {
      const isOf = (item: { application: string; rule: string }) =>
        item.application === application && item.rule === plan.rule;
      return {
        application,
        plan,
        stopped: stopped.find(isOf) ?? null,
        missed: missed.filter(isOf).reduce((sum, item) => sum + item.batches, 0),
        slow: slow.filter(isOf).length,
      };
    }),
  );
}
