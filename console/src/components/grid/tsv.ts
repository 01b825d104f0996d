/** Rows as tab-separated values with a line of titles; tabs and line breaks in values become spaces. */
export function toTsv<Row>(
  columns: readonly { title: string; text?: (row: Row) => string }[],
  rows: readonly Row[],
): string {
  const copied = columns.filter((column) => column.text !== undefined);
  const clean = (text: string) => text.replace(/[\t\r\n]+/g, " ");
  const lines = [
    copied.map((column) => clean(column.title)),
    ...rows.map((row) => copied.map((column) => clean(column.text!(row)))),
  ];
  return lines.map((line) => line.join("\t")).join("\n");
}
