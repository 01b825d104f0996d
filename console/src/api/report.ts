// Pages of `/v1/reports/{name}`: rows of one table, as a list.
import type { Page } from "./client";

interface ReportAnswer<Row> {
  tables: { name: string; rows: Row[] }[];
  next?: string | null;
}

/** Reads the rows of a table from the answer of a report. */
export function reportPage<Row>(table: string): (answer: ReportAnswer<Row>) => Page<Row> {
  return ({ tables, next }) => ({
    items: tables.find((found) => found.name === table)?.rows ?? [],
    next: next ?? null,
  });
}

/** The rows of a table of a report. */
export function tableOf<Row>(answer: ReportAnswer<unknown>, table: string): Row[] {
  return (answer.tables.find((found) => found.name === table)?.rows ?? []) as Row[];
}
