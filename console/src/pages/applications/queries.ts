import type { Page, Schema } from "../../api/client";
import { exchange, reasonHeader, request } from "../../api/client";
import { useRead } from "../../api/query";
import { tableOf } from "../../api/report";
import { useCan } from "../../api/session";
import type { Finding } from "../../components/editor/editor";

export type Application = Schema<"ApplicationBody">;
export type Applied = Schema<"AppliedBody">;

/** Row of the report `snapshot-applications`. */
export interface Snapshot {
  application: string;
  state: string;
  event_classes: number;
  rules: number;
  rules_stopped: number;
  channels: number;
  subscriptions_enabled: number;
  subscriptions_indexed: number;
  last_event_at: string | null;
  last_notification_at: string | null;
}

export interface Indexed {
  name: string;
  indexed: number;
  index_bytes: number;
  unusable: number;
  ready: boolean;
}

export function useApplicationList() {
  return useRead<Page<Application>>("/v1/applications", { query: { limit: 1000 }, topics: ["audit"] });
}

/** Figures of the running versions; only with the scope of reports. */
export function useSnapshots() {
  const may = useCan("operations:read");
  const report = useRead<Parameters<typeof tableOf>[0]>("/v1/reports/snapshot-applications", {
    topics: ["batches"],
    enabled: may,
  });
  const status = useRead<{ applications: Indexed[] }>("/v1/status", { topics: ["status"], enabled: may });
  return {
    snapshots: new Map(
      report.data === undefined
        ? []
        : tableOf<Snapshot>(report.data, "applications").map((row) => [row.application, row]),
    ),
    indexes: new Map((status.data?.applications ?? []).map((row) => [row.name, row])),
  };
}

export function useApplication(name: string) {
  return useRead<Application>(`/v1/applications/${encodeURIComponent(name)}`);
}

export function useHistory(name: string) {
  return useRead<Page<Application>>(`/v1/applications/${encodeURIComponent(name)}/history`);
}

const yaml = { "Content-Type": "application/yaml" };

/** Problems and warnings of a definition. */
export async function check(text: string, signal?: AbortSignal): Promise<Finding[]> {
  const checked = await request<Schema<"CheckedBody">>("POST", "/v1/applications/check", {
    body: text,
    headers: yaml,
    ...(signal === undefined ? {} : { signal }),
  });
  return [
    ...checked.problems.map((problem): Finding => ({ ...problem, severity: "error" })),
    ...checked.warnings.map((problem): Finding => ({ ...problem, severity: "warning" })),
  ];
}

const pathOf = (name: string) => `/v1/applications/${encodeURIComponent(name)}`;

/** What an apply would change. */
export function dryRun(name: string, text: string): Promise<Applied> {
  return request("PUT", pathOf(name), { query: { dry_run: true }, body: text, headers: yaml });
}

/** Applies a definition over the version that was reviewed; another version in between is refused (`If-Match`). */
export async function apply(
  name: string,
  text: string,
  version: number | null,
  allowDrop: readonly string[],
  reason: string | undefined,
): Promise<Applied> {
  const { body } = await exchange<Applied>("PUT", pathOf(name), {
    query: allowDrop.length === 0 ? {} : { allow_drop: allowDrop.join(",") },
    body: text,
    headers: {
      ...yaml,
      ...(version === null ? { "If-None-Match": "*" } : { "If-Match": `"${version}"` }),
      ...reasonHeader(reason),
    },
  });
  return body;
}

export function remove(name: string, reason: string | undefined): Promise<unknown> {
  return request("DELETE", pathOf(name), { query: { confirm: name }, headers: reasonHeader(reason) });
}
