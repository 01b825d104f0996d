import { useQueries } from "@tanstack/react-query";
import type { Page } from "../../api/client";
import { request } from "../../api/client";
import type { ProblemError } from "../../api/problems";
import { useRead } from "../../api/query";
import type { Missed, RulePlan, Slow, StoppedRule } from "./model";

/** Plans of the rules of several applications. */
export function usePlans(applications: readonly string[]) {
  return useQueries({
    queries: applications.map((application) => ({
      queryKey: [`/v1/applications/${encodeURIComponent(application)}/rules`, ""],
      queryFn: ({ signal }: { signal: AbortSignal }) =>
        request<Page<RulePlan>>("GET", `/v1/applications/${encodeURIComponent(application)}/rules`, { signal }),
    })),
    combine: (results) => ({
      plans: new Map(
        applications.flatMap((application, index) => {
          const items = results[index]?.data?.items;
          return items === undefined ? [] : [[application, items] as const];
        }),
      ),
      error: (results.find((result) => result.error !== null)?.error ?? null) as ProblemError | null,
      pending: results.some((result) => result.isPending),
    }),
  });
}

export function useStopped() {
  return useRead<Page<StoppedRule>>("/v1/stopped-rules", { topics: ["firings", "audit"] });
}

export function useMissed(application: string | undefined) {
  return useRead<Page<Missed>>("/v1/firings", { query: { application, limit: 1000 }, topics: ["firings"] });
}

export function useSlow(application: string | undefined) {
  return useRead<Page<Slow>>("/v1/slow-firings", { query: { application, limit: 500 }, every: 10_000 });
}
