// Columns of common values: the cell, and the same as text for copies.
import { StateBadge } from "../badge";
import { Id } from "../id";
import { Count, Duration, Time } from "../values";
import type { Column } from "./index";

type More<Row> = Partial<Omit<Column<Row>, "id" | "title" | "cell" | "text">>;

/** The id of a row, which is the first line of its card. */
export function idColumn<Row>(id: string, title: string, valueOf: (row: Row) => string, more?: More<Row>): Column<Row> {
  return {
    id,
    title,
    cell: (row) => <Id value={valueOf(row)} copies={false} />,
    text: valueOf,
    card: "title",
    ...more,
  };
}

/** The state of a row, as a badge. */
export function stateColumn<Row>(
  id: string,
  title: string,
  stateOf: (row: Row) => string,
  more?: More<Row>,
): Column<Row> {
  return { id, title, cell: (row) => <StateBadge state={stateOf(row)} />, text: stateOf, card: "state", ...more };
}

/** A text; nothing if it is absent. */
export function textColumn<Row>(
  id: string,
  title: string,
  textOf: (row: Row) => string | null | undefined,
  more?: More<Row>,
): Column<Row> {
  const text = (row: Row) => textOf(row) ?? "";
  return { id, title, cell: text, text, ...more };
}

/** A number, at the end of its column. */
export function countColumn<Row>(
  id: string,
  title: string,
  countOf: (row: Row) => number,
  more?: More<Row>,
): Column<Row> {
  return {
    id,
    title,
    align: "end",
    cell: (row) => <Count value={countOf(row)} />,
    text: (row) => String(countOf(row)),
    ...more,
  };
}

/** A duration in milliseconds; nothing if it is absent. */
export function durationColumn<Row>(
  id: string,
  title: string,
  msOf: (row: Row) => number | null | undefined,
  more?: More<Row>,
): Column<Row> {
  return {
    id,
    title,
    align: "end",
    cell: (row) => <Duration ms={msOf(row)} />,
    text: (row) => String(msOf(row) ?? ""),
    ...more,
  };
}

/** A time. */
export function timeColumn<Row>(
  id: string,
  title: string,
  timeOf: (row: Row) => string,
  more?: More<Row>,
): Column<Row> {
  return { id, title, cell: (row) => <Time value={timeOf(row)} />, text: timeOf, ...more };
}
