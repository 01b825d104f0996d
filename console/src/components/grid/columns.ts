// Choice and widths of the columns of a grid, kept in this browser.
import { useCallback, useMemo, useState } from "react";
import { read, write } from "../../settings";
import type { Column } from "./index";

interface Stored {
  widths: Record<string, number>;
  /** Columns whose visibility differs from that of the page. */
  toggled: string[];
}

export interface Columns<Row> {
  shown: readonly Column<Row>[];
  width: (column: Column<Row>) => number | undefined;
  setWidth: (column: Column<Row>, width: number) => void;
  toggle: (column: Column<Row>) => void;
  reset: () => void;
}

const leastWidth = 48;
const mostWidth = 900;

export function useColumns<Row>(name: string, columns: readonly Column<Row>[]): Columns<Row> {
  const key = `tocsin.columns.${name}`;
  const [stored, setStored] = useState<Stored>(() => ({ widths: {}, toggled: [], ...read<Partial<Stored>>(key) }));
  const change = useCallback(
    (make: (before: Stored) => Stored) =>
      setStored((before) => {
        const after = make(before);
        write(key, after);
        return after;
      }),
    [key],
  );
  return useMemo(() => {
    const shown = columns.filter((column) => (column.hidden === true) === stored.toggled.includes(column.id));
    return {
      shown: shown.length === 0 ? columns.slice(0, 1) : shown,
      width: (column) => stored.widths[column.id] ?? column.width,
      setWidth: (column, width) =>
        change((before) => ({
          ...before,
          widths: {
            ...before.widths,
            [column.id]: Math.round(Math.min(mostWidth, Math.max(leastWidth, width))),
          },
        })),
      toggle: (column) =>
        change((before) => ({
          ...before,
          toggled: before.toggled.includes(column.id)
            ? before.toggled.filter((id) => id !== column.id)
            : [...before.toggled, column.id],
        })),
      reset: () => change(() => ({ widths: {}, toggled: [] })),
    };
  }, [columns, stored, change]);
}
