// Reads of pages: cached by path and query, repeated when a topic of the live stream reports.
import { keepPreviousData, QueryClient, useQuery, useQueryClient, type UseQueryResult } from "@tanstack/react-query";
import { useCallback, useEffect, useSyncExternalStore } from "react";
import { RowSource } from "../components/grid/rows";
import { queryString, request, type Page, type Query } from "./client";
import { useLiveState, useTopics, type Topic } from "./live";
import { retries, retryDelay, type ProblemError } from "./problems";

export const queryClient = new QueryClient({
  defaultOptions: {
    queries: {
      retry: retries,
      retryDelay,
      staleTime: 2_000,
      gcTime: 5 * 60_000,
      refetchOnWindowFocus: false,
      networkMode: "always",
    },
    mutations: { retry: false, networkMode: "always" },
  },
});

export interface ReadOptions {
  query?: Query;
  /** Topics of the live stream that make the answer outdated. */
  topics?: readonly Topic[];
  /** Repeats the read every so many milliseconds, unless live updates are paused. */
  every?: number;
  enabled?: boolean;
}

export type Read<Answer> = UseQueryResult<Answer, ProblemError>;

export function useRead<Answer>(
  path: string,
  { query, topics, every, enabled = true }: ReadOptions = {},
): Read<Answer> {
  const live = useLiveState();
  const client = useQueryClient();
  const result = useQuery<Answer, ProblemError>({
    queryKey: [path, queryString(query)],
    queryFn: ({ signal }) => request<Answer>("GET", path, { query, signal }),
    enabled,
    placeholderData: keepPreviousData,
    refetchInterval: every === undefined || live === "paused" ? false : every,
    refetchIntervalInBackground: false,
  });
  const search = queryString(query);
  useTopics(
    topics,
    useCallback(() => void client.invalidateQueries({ queryKey: [path, search], exact: true }), [client, path, search]),
  );
  return result;
}

const sources = new Map<string, RowSource<unknown>>();
const sourcesMost = 20;

export interface RowsOptions<Row> {
  query?: Query;
  topics?: readonly Topic[];
  id: (row: Row) => string;
  pageSize?: number;
  enabled?: boolean;
  /** Parameter of the cursor; `before` for lists that begin with the newest. */
  cursor?: "after" | "before";
  /** Reads a page from an answer of another form. */
  page?: (answer: never) => Page<Row>;
}

/** Rows of a list with cursor pages, for `Grid`. Kept for a return to the page. */
export function useRows<Row>(
  path: string,
  { query, topics, id, pageSize = 100, enabled = true, cursor = "after", page }: RowsOptions<Row>,
): RowSource<Row> {
  const search = queryString(query);
  const key = `${path}${search}`;
  let source = sources.get(key) as RowSource<Row> | undefined;
  if (source === undefined) {
    source = new RowSource<Row>({
      id,
      pageSize,
      fetch: async (after, limit, signal) => {
        const answer = await request<Page<Row>>("GET", path, {
          query: { ...query, limit, ...(after === null ? {} : { [cursor]: after }) },
          signal,
        });
        return page === undefined ? answer : page(answer as never);
      },
    });
    sources.set(key, source as RowSource<unknown>);
    const oldest = sources.keys().next().value;
    if (sources.size > sourcesMost && oldest !== undefined) sources.delete(oldest);
  }
  useSyncExternalStore(source.subscribe, source.version);
  useEffect(() => {
    if (enabled) source.start();
  }, [source, enabled]);
  useTopics(topics, () => {
    if (enabled) void source.checkNewer();
  });
  return source;
}

/** Reads lists and answers of these paths again, after a change. */
export async function invalidate(paths: readonly string[]): Promise<void> {
  for (const [key, source] of sources) if (paths.some((path) => key.startsWith(path))) void source.refresh();
  await queryClient.invalidateQueries({
    predicate: ({ queryKey }) =>
      typeof queryKey[0] === "string" && paths.some((path) => (queryKey[0] as string).startsWith(path)),
  });
}

export function forgetEverything() {
  sources.clear();
  queryClient.clear();
}
