// Virtual grid (WAI-ARIA grid): roving focus, selection, sort, columns that can be hidden and resized, cursor pages;
// cards below 600 px.
import { useVirtualizer } from "@tanstack/react-virtual";
import {
  memo,
  useCallback,
  useEffect,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
  useSyncExternalStore,
  type CSSProperties,
  type KeyboardEvent,
  type MouseEvent,
  type ReactNode,
  type RefObject,
} from "react";
import type { ProblemError } from "../../api/problems";
import { formatCompact, formatCount } from "../../format";
import { presentLanguage, useT } from "../../locales";
import { useSettings } from "../../settings";
import { copy } from "../../shell/copy";
import { useShortcut } from "../../shell/shortcuts";
import { Icon } from "../icon";
import { useGo } from "../link";
import { MenuButton, type MenuGroup } from "../menu";
import { Failed, Loading, Stale } from "../states";
import { useColumns } from "./columns";
import { RowSource } from "./rows";
import { toTsv } from "./tsv";
import "./grid.css";

export { RowSource } from "./rows";

export interface Column<Row> {
  id: string;
  title: string;
  /** Pixels at first; the user can change it. A column without a width shares the rest. */
  width?: number;
  /** Least width of a column without one. */
  min?: number;
  align?: "start" | "end";
  cell: (row: Row) => ReactNode;
  /** Plain text, for copies; without it, copies leave the column out. */
  text?: (row: Row) => string;
  /** Name by which `onSort` sorts. */
  sort?: string;
  /** Hidden until the user shows it. */
  hidden?: boolean;
  /** Place in the card of a narrow window. Up to three columns have one; `title` is the first line. */
  card?: "title" | "meta" | "state";
}

export interface Sort {
  by: string;
  descending: boolean;
}

export interface GridProps<Row> {
  /** Name under which widths and choice of columns are stored. */
  name: string;
  label: string;
  rows: RowSource<Row> | readonly Row[];
  columns: readonly Column<Row>[];
  rowId: (row: Row) => string;
  /** Path of the page of a row: the row opens it. */
  href?: (row: Row) => string | null;
  onOpen?: (row: Row) => void;
  /** Marks one row as the open one, such as that of a side panel. */
  openId?: string | null;
  selection?: ReadonlySet<string>;
  onSelection?: (selection: ReadonlySet<string>) => void;
  /** Actions on the selection, shown above the rows while there is one. */
  selectionActions?: ReactNode;
  sort?: Sort | null;
  onSort?: (sort: Sort) => void;
  empty?: ReactNode;
  /** Filters and other controls before the tools of the grid. */
  toolbar?: ReactNode;
  /** Path of a list whose rows the server exports as `?format=csv` and `ndjson`. */
  exportPath?: string;
  /** Rows at most as high as the page allows (default), or as high as they are. */
  height?: "fill" | "content";
  level?: (row: Row) => number;
  expanded?: (row: Row) => boolean | undefined;
  onExpand?: (row: Row, expand: boolean) => void;
  onExpandSiblings?: (row: Row) => void;
  rowTone?: (row: Row) => "error" | "pending" | null;
}

interface View<Row> {
  count: number;
  at: (index: number) => Row | undefined;
  all: () => Row[];
  hasMore: boolean;
  status: "pending" | "ready" | "failed";
  error: ProblemError | null;
  source: RowSource<Row> | null;
}

function useView<Row>(rows: RowSource<Row> | readonly Row[]): View<Row> {
  const source = rows instanceof RowSource ? rows : null;
  const stamp = useSyncExternalStore(source?.subscribe ?? noSubscription, source?.version ?? zero);
  return useMemo(() => {
    void stamp;
    if (source !== null)
      return {
        count: source.count,
        at: (index) => source.at(index),
        all: () => source.rows(),
        hasMore: source.hasMore,
        status: source.status,
        error: source.error,
        source,
      };
    const items = rows as readonly Row[];
    return {
      count: items.length,
      at: (index) => items[index],
      all: () => [...items],
      hasMore: false,
      status: "ready",
      error: null,
      source: null,
    };
  }, [rows, source, stamp]);
}

const noSubscription = () => () => {};
const zero = () => 0;
const cardHeight = 84;

export function Grid<Row>(props: GridProps<Row>) {
  const {
    name,
    label,
    rows,
    rowId,
    href,
    onOpen,
    selection,
    onSelection,
    sort,
    onSort,
    empty,
    toolbar,
    exportPath,
    height = "fill",
    openId = null,
  } = props;
  const t = useT();
  const go = useGo();
  const view = useView(rows);
  const { density } = useSettings();
  const columns = useColumns(name, props.columns);
  const isCards = useNarrow();
  const [active, setActive] = useState(0);
  const [activeColumn, setActiveColumn] = useState(-1);
  const scroller = useRef<HTMLDivElement>(null);
  const anchor = useRef<number | null>(null);
  const isTree = props.level !== undefined;
  const rowHeight = isCards ? cardHeight : density === "compact" ? 28 : 36;
  const total = view.count + (view.hasMore ? 1 : 0);
  const selectable = onSelection !== undefined;

  const virtual = useVirtualizer({
    count: total,
    getScrollElement: () => scroller.current,
    estimateSize: () => rowHeight,
    overscan: 8,
    initialOffset: () => view.source?.scrollTop ?? 0,
    getItemKey: (index) => {
      const row = view.at(index);
      return row === undefined ? `empty-${index}` : rowId(row);
    },
  });
  useEffect(() => virtual.measure(), [virtual, rowHeight]);

  const items = virtual.getVirtualItems();
  const firstShown = items[0]?.index ?? 0;
  const lastShown = items.at(-1)?.index ?? 0;
  const { source } = view;
  const { count } = view;
  useEffect(() => {
    source?.need(firstShown, lastShown);
  }, [source, firstShown, lastShown, count, view]);

  const last = Math.max(0, view.count - 1);
  const current = Math.min(active, last);

  const wanted = useRef<{ index: number; column: number; from: Element | null }>(null);
  const focusWanted = useCallback(() => {
    if (wanted.current === null) return;
    const { index, column, from } = wanted.current;
    const row = scroller.current?.querySelector<HTMLElement>(`[data-row="${index}"]`);
    // A row out of view is drawn after the scroll.
    if (row == null) return;
    wanted.current = null;
    const { activeElement } = document;
    if (activeElement !== from && activeElement !== document.body) return;
    const target = column < 0 ? row : (row.querySelector<HTMLElement>(`[data-cell="${column}"]`) ?? row);
    target.focus({ preventScroll: true });
  }, []);
  useLayoutEffect(focusWanted);
  const focusCell = useCallback(
    (index: number, column: number) => {
      virtual.scrollToIndex(index, { align: "auto" });
      wanted.current = { index, column, from: document.activeElement };
      focusWanted();
    },
    [virtual, focusWanted],
  );

  const move = useCallback(
    (index: number, column = activeColumn) => {
      const to = Math.max(0, Math.min(last, index));
      setActive(to);
      setActiveColumn(column);
      focusCell(to, column);
    },
    [activeColumn, last, focusCell],
  );

  const open = (row: Row | undefined) => {
    if (row === undefined) return;
    if (onOpen !== undefined) onOpen(row);
    else {
      const path = href?.(row);
      if (path != null) go(path);
    }
  };

  const toggle = (index: number, range: boolean) => {
    const row = view.at(index);
    if (onSelection === undefined || row === undefined) return;
    const next = new Set(selection);
    const from = anchor.current;
    if (range && from !== null) {
      for (let at = Math.min(from, index); at <= Math.max(from, index); at += 1) {
        const between = view.at(at);
        if (between !== undefined) next.add(rowId(between));
      }
    } else if (next.has(rowId(row))) next.delete(rowId(row));
    else next.add(rowId(row));
    anchor.current = index;
    onSelection(next);
  };

  const copyRows = () => {
    const chosen = view
      .all()
      .filter((row) => selection === undefined || selection.size === 0 || selection.has(rowId(row)));
    copy(toTsv(columns.shown, chosen));
  };

  const onKeyDown = (event: KeyboardEvent<HTMLDivElement>) => {
    if (event.target instanceof HTMLInputElement && event.key !== "Escape") return;
    const page = Math.max(1, Math.floor((scroller.current?.clientHeight ?? 400) / rowHeight) - 1);
    const row = view.at(current);
    const withControl = event.ctrlKey || event.metaKey;
    const steps: Record<string, () => void> = {
      ArrowDown: () => move(current + 1),
      ArrowUp: () => move(current - 1),
      PageDown: () => move(current + page),
      PageUp: () => move(current - page),
      Home: () => (activeColumn >= 0 && !withControl ? move(current, 0) : move(0)),
      End: () => (activeColumn >= 0 && !withControl ? move(current, columns.shown.length - 1) : move(last)),
      ArrowRight: () => {
        if (isTree && activeColumn < 0 && row !== undefined && props.expanded?.(row) === false)
          props.onExpand?.(row, true);
        else move(current, Math.min(columns.shown.length - 1, activeColumn + 1));
      },
      ArrowLeft: () => {
        if (isTree && activeColumn < 0 && row !== undefined) {
          if (props.expanded?.(row) === true) props.onExpand?.(row, false);
          else move(parentOf(view, props.level!, current));
        } else move(current, Math.max(-1, activeColumn - 1));
      },
      Enter: () => open(row),
      Escape: () => {
        if (selection !== undefined && selection.size > 0) onSelection?.(new Set());
      },
      " ": () => toggle(current, event.shiftKey),
    };
    if (isTree && event.key === "*" && row !== undefined) steps["*"] = () => props.onExpandSiblings?.(row);
    if (withControl && event.key === "a" && onSelection !== undefined)
      steps.a = () => onSelection(new Set(view.all().map(rowId)));
    else if (withControl && event.key === "c" && getSelection()?.isCollapsed !== false) steps.c = copyRows;
    else if (withControl && event.key !== "Home" && event.key !== "End") return;
    const step = steps[event.key];
    if (step === undefined) return;
    // Enter on a link or button inside a cell is theirs.
    if (
      (event.key === "Enter" || event.key === " ") &&
      event.target instanceof Element &&
      event.target.closest("a, button") !== null
    )
      return;
    event.preventDefault();
    event.stopPropagation();
    step();
  };

  // Rows are drawn again only when what they show changes; their handlers are those of the latest drawing.
  const handlers = useRef<RowHandlers<Row>>(null!);
  handlers.current = {
    toggle,
    expand: (row, expand) => props.onExpand?.(row, expand),
    point: (row, index, event) => {
      setActive(index);
      setActiveColumn(-1);
      if (event.target instanceof Element && event.target.closest("a, button, input, label") !== null) return;
      if (getSelection()?.isCollapsed === false) return;
      if (event.shiftKey && selectable) toggle(index, true);
      else if (event.ctrlKey || event.metaKey) {
        const path = href?.(row);
        if (path != null) window.open(`/console${path}`, "_blank", "noopener");
      } else open(row);
    },
  };

  const openable = href !== undefined || onOpen !== undefined;
  useShortcut(
    "j",
    t("common.grid.key.down"),
    () => move(document.activeElement?.closest(".grid-scroll") === scroller.current ? current + 1 : current, -1),
    "list",
  );
  useShortcut("k", t("common.grid.key.up"), () => move(current - 1, -1), "list");
  useShortcut("x", t("common.grid.key.select"), () => toggle(current, false), "list", selectable);
  useShortcut(".", t("common.grid.key.newer"), () => void source?.showNewer(), "list", source !== null);

  const showNewer = () => {
    if (source === null) return;
    scroller.current?.scrollTo({ top: 0 });
    setActive(0);
    void source.showNewer();
  };

  const template = useMemo(() => {
    const widths = columns.shown.map((column) => {
      const width = columns.width(column);
      return width === undefined ? `minmax(${column.min ?? 140}px, 1fr)` : `${width}px`;
    });
    if (selectable) widths.unshift("36px");
    // Without a flexible column the last one takes the rest.
    if (!columns.shown.some((column) => columns.width(column) === undefined)) widths.push("minmax(0, 1fr)");
    return widths.join(" ");
  }, [columns, selectable]);
  const leastWidth = columns.shown.reduce(
    (sum, column) => sum + (columns.width(column) ?? column.min ?? 140),
    selectable ? 36 : 0,
  );

  const menu: MenuGroup[] = [
    {
      title: t("common.grid.columns"),
      entries: [
        ...props.columns.map((column) => ({
          id: `column-${column.id}`,
          text: column.title,
          checked: columns.shown.includes(column),
          disabled: columns.shown.length === 1 && columns.shown[0] === column,
          stays: true,
          run: () => columns.toggle(column),
        })),
        { id: "reset", text: t("common.grid.resetColumns"), run: columns.reset },
      ],
    },
    {
      entries: [
        { id: "copy", text: t("common.grid.copyTsv"), icon: "copy", run: copyRows },
        ...(exportPath === undefined
          ? []
          : [
              {
                id: "csv",
                text: t("common.grid.exportCsv"),
                icon: "download" as const,
                run: () => download(exportPath, "csv"),
              },
              {
                id: "ndjson",
                text: t("common.grid.exportNdjson"),
                icon: "download" as const,
                run: () => download(exportPath, "ndjson"),
              },
            ]),
      ],
    },
  ];

  const selected = selection?.size ?? 0;
  const isEmpty = view.status === "ready" && view.count === 0 && !view.hasMore;
  const style = {
    "--grid-columns": template,
    "--grid-width": `${leastWidth}px`,
    "--grid-row": `${rowHeight}px`,
  } as CSSProperties;

  return (
    <section
      className={`grid ${height === "fill" ? "grid-fill" : "grid-auto"}${isCards ? " grid-cards" : ""}`}
      style={style}
      aria-label={label}
    >
      <div className="grid-tools toolbar">
        {toolbar}
        <div className="toolbar-end">
          {source !== null && source.newer.count > 0 && (
            <button type="button" className="grid-newer" onClick={showNewer} aria-keyshortcuts=".">
              <Icon name="arrow-up" size={14} />
              {source.newer.isAtLeast
                ? t("common.grid.newerAtLeast", { count: source.newer.count })
                : t("common.grid.newer", { count: source.newer.count })}
            </button>
          )}
          <span className="grid-count muted" role="status">
            <CountText view={view} />
          </span>
          <MenuButton label={t("common.grid.actions")} icon="columns" groups={menu} />
        </div>
      </div>
      {selected > 0 && (
        <div className="grid-selection" role="status">
          <span>{t("common.grid.selected", { count: selected })}</span>
          {props.selectionActions}
          <button type="button" className="button button-quiet" onClick={() => onSelection?.(new Set())}>
            {t("common.grid.clearSelection")}
          </button>
        </div>
      )}
      {view.error !== null && view.status === "ready" && source !== null && (
        <Stale since={source.updatedAt} error={view.error} retry={() => source.retry()} />
      )}
      <div className="grid-box">
        {source?.isFetching === true && view.status !== "pending" && (
          <progress className="progress" aria-hidden="true" />
        )}
        {view.status === "pending" ? (
          <Loading lines={8} />
        ) : view.status === "failed" && view.error !== null ? (
          <Failed error={view.error} retry={() => source?.retry()} />
        ) : isEmpty ? (
          (empty ?? <p className="grid-none muted">{t("common.grid.empty")}</p>)
        ) : (
          <div
            ref={scroller}
            className="grid-scroll"
            role={isTree ? "treegrid" : "grid"}
            aria-label={label}
            aria-rowcount={view.hasMore ? -1 : view.count + 1}
            aria-colcount={columns.shown.length + (selectable ? 1 : 0)}
            aria-multiselectable={selectable || undefined}
            onKeyDown={onKeyDown}
            onScroll={(event) => {
              if (source !== null) source.scrollTop = event.currentTarget.scrollTop;
            }}
          >
            <div className="grid-head" role="row" aria-rowindex={1}>
              {selectable && (
                <div role="columnheader" className="grid-check">
                  <input
                    type="checkbox"
                    aria-label={t("common.grid.selectAll")}
                    checked={selected > 0 && selected >= view.count}
                    ref={(input) => {
                      if (input !== null) input.indeterminate = selected > 0 && selected < view.count;
                    }}
                    onChange={(event) =>
                      onSelection(event.currentTarget.checked ? new Set(view.all().map(rowId)) : new Set())
                    }
                  />
                </div>
              )}
              {columns.shown.map((column) => (
                <HeadCell
                  key={column.id}
                  column={column}
                  sort={sort ?? null}
                  {...(onSort === undefined ? {} : { onSort })}
                  width={columns.width(column)}
                  setWidth={(width) => columns.setWidth(column, width)}
                />
              ))}
            </div>
            <div className="grid-body" role="rowgroup" style={{ blockSize: virtual.getTotalSize() }}>
              {items.map((item) => {
                const row = view.at(item.index);
                if (row === undefined)
                  return (
                    <div
                      key={item.key}
                      role="row"
                      aria-rowindex={item.index + 2}
                      aria-busy="true"
                      className="grid-row grid-row-pending"
                      style={{ transform: `translateY(${item.start}px)` }}
                    >
                      <div role="gridcell" aria-label={t("common.grid.loadingRow")}>
                        <span className="skeleton" data-width={item.index % 4} />
                      </div>
                    </div>
                  );
                const id = rowId(row);
                return (
                  <GridRow
                    key={item.key}
                    row={row}
                    index={item.index}
                    start={item.start}
                    columns={columns.shown}
                    isActive={item.index === current}
                    activeColumn={item.index === current ? activeColumn : -1}
                    isSelected={selection?.has(id) === true}
                    isOpen={id === openId}
                    isCard={isCards}
                    openable={openable}
                    selectable={selectable}
                    {...(props.level === undefined ? {} : { level: props.level(row), expanded: props.expanded?.(row) })}
                    tone={props.rowTone?.(row) ?? null}
                    selectText={selectable ? t("common.grid.selectRow") : ""}
                    handlers={handlers}
                  />
                );
              })}
            </div>
          </div>
        )}
      </div>
    </section>
  );
}

function parentOf<Row>(view: View<Row>, level: (row: Row) => number, index: number): number {
  const row = view.at(index);
  if (row === undefined) return index;
  const own = level(row);
  for (let at = index - 1; at >= 0; at -= 1) {
    const before = view.at(at);
    if (before !== undefined && level(before) < own) return at;
  }
  return index;
}

function CountText<Row>({ view }: { view: View<Row> }) {
  const t = useT();
  const locale = presentLanguage();
  if (view.status !== "ready") return null;
  const known = view.source?.total;
  if (known != null) {
    const number = known.exact ? formatCount(known.count, locale) : formatCompact(known.count, locale);
    return <>{t("common.grid.total", { count: known.exact ? number : t("common.grid.about", { count: number }) })}</>;
  }
  return (
    <>
      {view.hasMore ? t("common.grid.rowsMore", { count: view.count }) : t("common.grid.rows", { count: view.count })}
    </>
  );
}

function HeadCell<Row>({
  column,
  sort,
  onSort,
  width,
  setWidth,
}: {
  column: Column<Row>;
  sort: Sort | null;
  onSort?: (sort: Sort) => void;
  width: number | undefined;
  setWidth: (width: number) => void;
}) {
  const t = useT();
  const isSorted = column.sort !== undefined && sort?.by === column.sort;
  const cell = useRef<HTMLDivElement>(null);
  const present = () => width ?? cell.current?.offsetWidth ?? 140;
  const startDrag = (event: React.PointerEvent) => {
    event.preventDefault();
    const from = event.clientX;
    const before = present();
    const handle = event.currentTarget;
    handle.setPointerCapture(event.pointerId);
    const drag = (moved: Event) =>
      setWidth(before + ((moved as PointerEvent).clientX - from) * (document.dir === "rtl" ? -1 : 1));
    handle.addEventListener("pointermove", drag);
    handle.addEventListener("lostpointercapture", () => handle.removeEventListener("pointermove", drag), {
      once: true,
    });
  };
  return (
    <div
      ref={cell}
      role="columnheader"
      className={`grid-cell${column.align === "end" ? " grid-end" : ""}`}
      aria-sort={isSorted ? (sort.descending ? "descending" : "ascending") : undefined}
    >
      {column.sort !== undefined && onSort !== undefined ? (
        <button
          type="button"
          className="grid-sort"
          data-tip={t("common.grid.sortBy", { name: column.title })}
          onClick={() => onSort({ by: column.sort!, descending: isSorted ? !sort.descending : false })}
        >
          <span>{column.title}</span>
          {isSorted && <Icon name={sort.descending ? "arrow-down" : "arrow-up"} size={12} />}
        </button>
      ) : (
        <span className="grid-title">{column.title}</span>
      )}
      <span
        role="separator"
        tabIndex={-1}
        aria-orientation="vertical"
        aria-label={t("common.grid.resize", { name: column.title })}
        aria-valuenow={Math.round(width ?? 140)}
        aria-valuemin={48}
        aria-valuemax={900}
        className="grid-resize"
        onPointerDown={startDrag}
        onKeyDown={(event) => {
          const by = { ArrowLeft: -16, ArrowRight: 16 }[event.key];
          if (by === undefined) return;
          event.preventDefault();
          event.stopPropagation();
          setWidth(present() + by);
        }}
      />
    </div>
  );
}

interface GridRowProps<Row> {
  row: Row;
  index: number;
  start: number;
  columns: readonly Column<Row>[];
  isActive: boolean;
  activeColumn: number;
  isSelected: boolean;
  isOpen: boolean;
  isCard: boolean;
  openable: boolean;
  selectable: boolean;
  level?: number;
  expanded?: boolean | undefined;
  tone: "error" | "pending" | null;
  selectText: string;
  handlers: RefObject<RowHandlers<Row>>;
}

interface RowHandlers<Row> {
  toggle: (index: number, range: boolean) => void;
  expand: (row: Row, expand: boolean) => void;
  point: (row: Row, index: number, event: MouseEvent) => void;
}

function GridRowView<Row>(props: GridRowProps<Row>) {
  const {
    row,
    index,
    start,
    columns,
    isActive,
    activeColumn,
    isSelected,
    isOpen,
    isCard,
    selectable,
    level,
    handlers,
  } = props;
  const cells = isCard ? cardColumns(columns) : columns;
  return (
    <div
      role="row"
      aria-rowindex={index + 2}
      aria-selected={selectable ? isSelected : undefined}
      aria-current={isOpen || undefined}
      aria-level={level === undefined ? undefined : level + 1}
      aria-expanded={props.expanded}
      data-row={index}
      data-tone={props.tone ?? undefined}
      tabIndex={isActive && activeColumn < 0 ? 0 : -1}
      className={`grid-row${index % 2 === 1 ? " grid-odd" : ""}${props.openable ? " grid-openable" : ""}`}
      style={{ transform: `translateY(${start}px)` }}
      onClick={(event) => handlers.current.point(row, index, event)}
    >
      {selectable && (
        <div role="gridcell" className="grid-check" onClick={(event) => event.stopPropagation()}>
          <input
            type="checkbox"
            tabIndex={-1}
            aria-label={props.selectText}
            checked={isSelected}
            onClick={(event) => handlers.current.toggle(index, event.shiftKey)}
            onChange={() => {}}
          />
        </div>
      )}
      {cells.map((column, at) => (
        <div
          key={column.id}
          role="gridcell"
          data-cell={at}
          data-card={isCard ? (column.card ?? (at === 0 ? "title" : "meta")) : undefined}
          tabIndex={isActive && activeColumn === at ? 0 : -1}
          className={`grid-cell${column.align === "end" ? " grid-end" : ""}`}
        >
          {at === 0 && level !== undefined && (
            <TreeHandle
              level={level}
              expanded={props.expanded}
              onExpand={(expand) => handlers.current.expand(row, expand)}
            />
          )}
          <span className="grid-content">{column.cell(row)}</span>
        </div>
      ))}
    </div>
  );
}

const GridRow = memo(GridRowView) as typeof GridRowView;

function TreeHandle({
  level,
  expanded,
  onExpand,
}: {
  level: number;
  expanded: boolean | undefined;
  onExpand: (expand: boolean) => void;
}) {
  const t = useT();
  return (
    <span className="grid-tree" style={{ paddingInlineStart: level * 18 }}>
      {expanded === undefined ? (
        <span className="grid-tree-space" />
      ) : (
        <button
          type="button"
          tabIndex={-1}
          className="grid-tree-button"
          aria-label={expanded ? t("common.tree.collapse") : t("common.tree.expand")}
          onClick={(event) => {
            event.stopPropagation();
            onExpand(!expanded);
          }}
        >
          <Icon name={expanded ? "chevron-down" : "chevron-right"} size={14} />
        </button>
      )}
    </span>
  );
}

/** The columns of a card: those with a place in it, else the first three. */
function cardColumns<Row>(columns: readonly Column<Row>[]): readonly Column<Row>[] {
  const order = { title: 0, state: 1, meta: 2 };
  const placed = columns
    .filter((column) => column.card !== undefined)
    .sort((left, right) => order[left.card!] - order[right.card!]);
  return placed.length === 0 ? columns.slice(0, 3) : placed.slice(0, 4);
}

function useNarrow(): boolean {
  return useSyncExternalStore(
    (listener) => {
      narrow.addEventListener("change", listener);
      return () => narrow.removeEventListener("change", listener);
    },
    () => narrow.matches,
  );
}

const narrow = matchMedia("(max-width: 599px)");

function download(path: string, format: "csv" | "ndjson") {
  const url = new URL(path, location.origin);
  url.searchParams.set("format", format);
  const link = document.createElement("a");
  link.href = url.href;
  link.download = "";
  link.click();
}
