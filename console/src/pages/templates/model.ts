/** Cells of the matrix of locales and channels. */

export interface Cell {
  locale: string | null;
  channel: string;
}

/** At most so many previews are rendered at once. */
export const CELLS_MAX = 48;

export const cellId = ({ locale, channel }: Cell) => `${locale ?? ""}/${channel}`;

/** Cells of the matrix: the locales that templates name, and the default, by channel. */
export function cellsOf(
  templates: readonly string[],
  channels: readonly string[],
): { locales: (string | null)[]; cells: Cell[] } {
  const parts = templates.flatMap((key) => (key === "base" ? [] : [key.split("/")[0] ?? key]));
  const locales: (string | null)[] = [null, ...[...new Set(parts)].filter((part) => !channels.includes(part)).sort()];
  const cells = locales.flatMap((locale) => channels.map((channel) => ({ locale, channel })));
  return { locales, cells: cells.slice(0, CELLS_MAX) };
}

export interface Question {
  application: string;
  event: string;
  subscription?: string | undefined;
  rule?: string | undefined;
}

export function previewBody({ event, subscription, rule }: Question, { locale, channel }: Cell) {
  return {
    event,
    channel,
    address: "preview",
    ...(locale === null ? {} : { locale }),
    ...(subscription === undefined ? {} : { subscription }),
    ...(rule === undefined ? {} : { rule }),
  };
}
