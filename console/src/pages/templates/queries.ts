import { useQueries } from "@tanstack/react-query";
import type { Schema } from "../../api/client";
import { request } from "../../api/client";
import type { ProblemError } from "../../api/problems";
import { useRead } from "../../api/query";
import { tableOf } from "../../api/report";
import { cellId, previewBody, type Cell, type Question } from "./model";

/** With an HTML part, `html` is the address of its sandboxed document. */
export type Preview = Schema<"NotificationPreview"> & { html?: string | null };

/** The newest event of an application. */
export function useNewestEvent(application: string | undefined, enabled: boolean) {
  const batches = useRead<Parameters<typeof tableOf>[0]>("/v1/reports/event-batch-list", {
    query: { application, limit: 1 },
    enabled: enabled && application !== undefined,
  });
  const batch =
    batches.data === undefined
      ? undefined
      : tableOf<{ event_batch: string }>(batches.data, "event_batches")[0]?.event_batch;
  return {
    event: batch === undefined ? undefined : `${batch.replace("eb-", "e-")}-0`,
    ready: batches.data !== undefined,
  };
}

export function usePreviews(question: Question | null, cells: readonly Cell[]) {
  return useQueries({
    queries: cells.map((cell) => ({
      queryKey: ["preview", question, cell],
      queryFn: ({ signal }: { signal: AbortSignal }) =>
        request<Preview>("POST", `/v1/applications/${encodeURIComponent(question?.application ?? "")}/preview`, {
          body: question === null ? {} : previewBody(question, cell),
          signal,
        }),
      enabled: question !== null,
    })),
    combine: (results) =>
      new Map(
        cells.map((cell, index) => [
          cellId(cell),
          {
            preview: results[index]?.data ?? null,
            error: (results[index]?.error ?? null) as ProblemError | null,
          },
        ]),
      ),
  });
}
