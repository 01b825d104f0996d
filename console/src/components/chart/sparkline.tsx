// A small line without axes. It repeats figures that stand beside it, so it is hidden from screen readers.
import { sparkPath } from "./scale";
import "./chart.css";

const width = 120;

export function Sparkline({
  values,
  height = 28,
  series = 1,
  most,
}: {
  values: readonly (number | null)[];
  height?: number;
  series?: 1 | 2 | 3 | 4 | 5 | 6;
  most?: number;
}) {
  const top = most ?? values.reduce<number>((max, value) => Math.max(max, value ?? 0), 0);
  const line = sparkPath(values, width, height, top);
  const first = values.findIndex((value) => value !== null);
  const start = values.length > 1 ? (first / (values.length - 1)) * width : 0;
  return (
    <svg
      className={`sparkline series-${series}`}
      viewBox={`0 0 ${width} ${height}`}
      preserveAspectRatio="none"
      height={height}
      aria-hidden="true"
      focusable="false"
    >
      {values.length - first > 1 && first >= 0 && values.at(-1) !== null && !line.slice(1).includes("M") && (
        <path className="sparkline-area" d={`${line}L${width} ${height}L${start} ${height}Z`} />
      )}
      <path className="sparkline-line" d={line} />
    </svg>
  );
}
