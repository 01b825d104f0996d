// Time series, drawn by uPlot: localised axes, synchronised cursor, drag to zoom; a summary and a table for screen
// readers.
import { useEffect, useId, useMemo, useRef, useState, type ReactNode } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { formatTime } from "../../format";
import { presentLanguage, useT } from "../../locales";
import { useSettings, useTimeZone } from "../../settings";
import { useSetRange } from "../../shell/range";
import { Time } from "../values";
import { IconButton } from "../controls";
import { formatUnit, summarize, type Unit } from "./scale";
import "./chart.css";

export { Sparkline } from "./sparkline";
export { formatUnit, type Unit } from "./scale";

export interface ChartSeries {
  id: string;
  label: string;
  values: readonly (number | null)[];
  unit?: Unit;
  /** Number of its colour and dash pattern; by its place if absent. */
  series?: 1 | 2 | 3 | 4 | 5 | 6;
}

export interface Annotation {
  at: string | Date;
  text: string;
}

export interface ChartProps {
  title: string;
  /** Unix seconds. */
  times: readonly number[];
  series: readonly ChartSeries[];
  unit?: Unit;
  kind?: "line" | "area" | "bars";
  height?: number;
  annotations?: readonly Annotation[];
  /** Charts with the same key have one cursor. */
  sync?: string;
  /** Beginning and end of the time axis, unix seconds. */
  from?: number;
  to?: number;
  actions?: ReactNode;
  /** Called instead of setting the time range of the shell. */
  onZoom?: (from: Date, to: Date) => void;
}

const dashes: (number[] | undefined)[] = [undefined, [7, 3], [2, 3], [9, 3, 2, 3], [12, 4], [4, 2]];

export function Chart(props: ChartProps) {
  const {
    title,
    times,
    series,
    unit = "count",
    kind = "line",
    height = 200,
    annotations = [],
    sync,
    from,
    to,
    actions,
  } = props;
  const t = useT();
  const settings = useSettings();
  const zone = useTimeZone();
  const setRange = useSetRange();
  const locale = presentLanguage();
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(null);
  const [at, setAt] = useState<number | null>(null);
  const [asTable, setAsTable] = useState(false);
  const [themeStamp, setThemeStamp] = useState(0);
  const zoom = useRef<(from: Date, to: Date) => void>(() => {});
  zoom.current = props.onZoom ?? ((start, end) => setRange({ from: start.toISOString(), to: end.toISOString() }));
  const heading = useId();

  useEffect(() => {
    const media = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setThemeStamp((stamp) => stamp + 1);
    media.addEventListener("change", changed);
    return () => media.removeEventListener("change", changed);
  }, []);

  const data = useMemo(
    () => [times, ...series.map((one) => one.values)] as unknown as uPlot.AlignedData,
    [times, series],
  );
  const shape = JSON.stringify([
    series.map((one) => [one.id, one.label, one.unit, one.series]),
    annotations,
    unit,
    kind,
    height,
    sync,
    locale,
    zone,
    settings.theme,
    settings.density,
    themeStamp,
  ]);
  const range = useRef({ from, to });
  range.current = { from, to };

  useEffect(() => {
    const element = box.current;
    if (element === null || asTable) return;
    const colour = colours(element);
    const seriesOptions = series.map((one, index): uPlot.Series => {
      const number = one.series ?? (((index % 6) + 1) as 1);
      const stroke = colour(`--series-${number}`);
      return {
        label: one.label,
        stroke,
        width: 1.6,
        ...(dashes[number - 1] === undefined || kind === "bars" ? {} : { dash: dashes[number - 1]! }),
        ...(kind === "line" ? {} : { fill: withAlpha(stroke, kind === "bars" ? 0.75 : 0.12) }),
        ...(kind === "bars" ? { paths: uPlot.paths.bars!({ size: [0.7, 40], gap: 1 }) } : {}),
        points: { show: false },
        spanGaps: false,
      };
    });
    const axis: uPlot.Axis = {
      stroke: colour("--text-muted"),
      font: `11px ${getComputedStyle(element).fontFamily}`,
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
    };
    const options: uPlot.Options = {
      width: element.clientWidth,
      height,
      legend: { show: false },
      padding: [10, 10, 0, 0],
      cursor: {
        drag: { x: true, y: false, setScale: false },
        points: { size: 7 },
        ...(sync === undefined ? {} : { sync: { key: sync } }),
      },
      ...(zone === undefined ? {} : { tzDate: (seconds: number) => uPlot.tzDate(new Date(seconds * 1000), zone) }),
      scales: {
        x: {
          time: true,
          range: (_plot, min, max) => [range.current.from ?? min, range.current.to ?? (min === max ? max + 60 : max)],
        },
        y: { range: (_plot, _min, max) => [0, max > 0 ? max * 1.08 : 1] },
      },
      series: [{}, ...seriesOptions],
      axes: [
        {
          ...axis,
          size: 26,
          gap: 6,
          space: 72,
          values: (_plot, splits, _axis, _space, step) => splits.map((split) => axisTime(split, step, locale, zone)),
        },
        {
          ...axis,
          size: 64,
          gap: 8,
          values: (_plot, splits) => splits.map((split) => formatUnit(split, unit, locale)),
        },
      ],
      hooks: {
        setCursor: [(chart) => setAt(chart.cursor.idx ?? null)],
        setSelect: [
          (chart) => {
            if (chart.select.width < 6) return;
            const start = chart.posToVal(chart.select.left, "x");
            const end = chart.posToVal(chart.select.left + chart.select.width, "x");
            chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            zoom.current(new Date(start * 1000), new Date(end * 1000));
          },
        ],
        draw: [
          (chart) => {
            const { ctx, bbox } = chart;
            ctx.save();
            ctx.strokeStyle = colour("--text-muted");
            ctx.setLineDash([3, 3]);
            for (const mark of annotations) {
              const x = Math.round(chart.valToPos(new Date(mark.at).getTime() / 1000, "x", true)) + 0.5;
              if (x < bbox.left || x > bbox.left + bbox.width) continue;
              ctx.beginPath();
              ctx.moveTo(x, bbox.top);
              ctx.lineTo(x, bbox.top + bbox.height);
              ctx.stroke();
            }
            ctx.restore();
          },
        ],
      },
    };
    const chart = new uPlot(options, data, element);
    plot.current = chart;
    const observer = new ResizeObserver(() => {
      if (element.clientWidth > 0 && element.clientWidth !== chart.width)
        chart.setSize({ width: element.clientWidth, height });
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      chart.destroy();
      plot.current = null;
    };
    // `shape` stands for what the options are made of; the data follows below without a new chart.
  }, [shape, asTable]);

  useEffect(() => {
    plot.current?.setData(data);
  }, [data, from, to]);

  const summaries = series.map((one) => {
    const found = summarize(one.values);
    const own = one.unit ?? unit;
    return found.last === null
      ? t("common.chart.none", { name: one.label })
      : t("common.chart.summary", {
          name: one.label,
          last: formatUnit(found.last, own, locale),
          min: formatUnit(found.min, own, locale),
          max: formatUnit(found.max, own, locale),
        });
  });

  return (
    <figure className="chart" aria-labelledby={heading}>
      <figcaption className="chart-head">
        <h3 id={heading}>{title}</h3>
        <span className="chart-at muted num">
          {at === null || times[at] === undefined
            ? ""
            : formatTime(new Date(times[at] * 1000), "date-time", locale, zone)}
        </span>
        {actions}
        <IconButton
          icon={asTable ? "reports" : "columns"}
          label={asTable ? t("common.chart.chart") : t("common.chart.table")}
          aria-pressed={asTable}
          onClick={() => setAsTable(!asTable)}
        />
      </figcaption>
      <ul className="chart-legend" aria-hidden="true">
        {series.map((one, index) => {
          const number = one.series ?? (index % 6) + 1;
          const value = at === null ? summarize(one.values).last : one.values[at];
          return (
            <li key={one.id} className={`series-${number}`}>
              <svg width={18} height={8} viewBox="0 0 18 8" focusable="false">
                <path d="M0 4H18" strokeDasharray={dashes[number - 1]?.join(" ")} />
              </svg>
              <span>{one.label}</span>
              <span className="num chart-value">{formatUnit(value, one.unit ?? unit, locale)}</span>
            </li>
          );
        })}
      </ul>
      <p className="visually-hidden">{summaries.join(". ")}</p>
      {asTable ? (
        <ChartTable {...props} />
      ) : (
        <div ref={box} className="chart-box" style={{ blockSize: height }} data-tip={undefined} aria-hidden="true" />
      )}
      {annotations.length > 0 && (
        <ul className="visually-hidden">
          {annotations.map((mark, index) => (
            <li key={index}>
              <Time value={mark.at} form="date-time" /> {mark.text}
            </li>
          ))}
        </ul>
      )}
    </figure>
  );
}

const tableRowsMost = 300;

function ChartTable({ title, times, series, unit = "count", height = 200 }: ChartProps) {
  const t = useT();
  const locale = presentLanguage();
  const first = Math.max(0, times.length - tableRowsMost);
  return (
    <div className="chart-table" style={{ blockSize: height }} tabIndex={0} role="region" aria-label={title}>
      <table className="table">
        <thead>
          <tr>
            <th scope="col">{t("common.chart.time")}</th>
            {series.map((one) => (
              <th key={one.id} scope="col" className="end">
                {one.label}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {times
            .slice(first)
            .map((time, index) => ({ time, index: first + index }))
            .reverse()
            .map(({ time, index }) => (
              <tr key={time}>
                <td>
                  <Time value={time * 1000} form="date-time" />
                </td>
                {series.map((one) => (
                  <td key={one.id} className="end num">
                    {formatUnit(one.values[index], one.unit ?? unit, locale)}
                  </td>
                ))}
              </tr>
            ))}
        </tbody>
      </table>
      {first > 0 && <p className="muted chart-more">{t("common.chart.more", { count: first })}</p>}
    </div>
  );
}

/** Reads colours of tokens as the browser resolves them: a canvas knows no `light-dark()`. */
function colours(element: HTMLElement): (token: string) => string {
  const probe = document.createElement("span");
  element.append(probe);
  const known = new Map<string, string>();
  return (token) => {
    let found = known.get(token);
    if (found === undefined) {
      if (!probe.isConnected) element.append(probe);
      probe.style.color = `var(${token})`;
      found = getComputedStyle(probe).color;
      known.set(token, found);
      probe.remove();
    }
    return found;
  };
}

function withAlpha(colour: string, alpha: number): string {
  const parts = colour.match(/[\d.]+/g);
  return parts === null ? colour : `rgb(${parts[0]} ${parts[1]} ${parts[2]} / ${alpha})`;
}

function axisTime(seconds: number, step: number, locale: string, zone: string | undefined): string {
  const time = new Date(seconds * 1000);
  const at = { ...(zone === undefined ? {} : { timeZone: zone }), hourCycle: "h23" as const };
  const clock = (options: Intl.DateTimeFormatOptions) => formatter(locale, { ...at, ...options }).format(time);
  if (step >= 86_400) return clock({ month: "short", day: "numeric" });
  const text = clock(
    step < 60 ? { hour: "2-digit", minute: "2-digit", second: "2-digit" } : { hour: "2-digit", minute: "2-digit" },
  );
  return text === "00:00" ? clock({ month: "short", day: "numeric" }) : text;
}

const formatters = new Map<string, Intl.DateTimeFormat>();

function formatter(locale: string, options: Intl.DateTimeFormatOptions): Intl.DateTimeFormat {
  const key = locale + JSON.stringify(options);
  let found = formatters.get(key);
  if (found === undefined) {
    found = new Intl.DateTimeFormat(locale, options);
    formatters.set(key, found);
  }
  return found;
}
