// Tree: a grid with levels. Children are read in pages of 100 when their parent is expanded.
import { useCallback, useEffect, useMemo, useReducer, useRef, type ReactNode } from "react";
import { asProblem, type ProblemError } from "../api/problems";
import { useT } from "../locales";
import { Grid, type Column, type GridProps } from "./grid";

export interface TreePage<Node> {
  items: Node[];
  next?: string | null;
}

export interface TreeProps<Node> extends Omit<
  GridProps<TreeRow<Node>>,
  "rows" | "columns" | "rowId" | "level" | "expanded" | "onExpand" | "onExpandSiblings" | "href" | "onOpen"
> {
  /** Children of a node, the roots for `null`: a page of them. */
  children: (parent: Node | null, after: string | null) => Promise<TreePage<Node>>;
  nodeId: (node: Node) => string;
  hasChildren: (node: Node) => boolean;
  columns: readonly Column<Node>[];
  href?: (node: Node) => string | null;
  onOpen?: (node: Node) => void;
  /** A change reads the tree again, such as a filter. */
  version?: string;
  /** Nodes that are expanded at first. */
  expandedFirst?: (node: Node) => boolean;
}

export type TreeRow<Node> =
  | { kind: "node"; id: string; node: Node; level: number }
  | { kind: "more"; id: string; parent: string | null; level: number; isReading: boolean }
  | { kind: "failed"; id: string; parent: string | null; level: number; error: ProblemError };

interface Branch<Node> {
  node: Node | null;
  items: Node[];
  next: string | null;
  isReading: boolean;
  error: ProblemError | null;
}

const rootId = "";

export function Tree<Node>(props: TreeProps<Node>) {
  const { children, nodeId, hasChildren, columns, href, onOpen, version = "", expandedFirst, ...rest } = props;
  const t = useT();
  const [stamp, changed] = useReducer((count: number) => count + 1, 0);
  const branches = useRef(new Map<string, Branch<Node>>());
  const expanded = useRef(new Set<string>());
  const latest = useRef(props);
  latest.current = props;

  const readPage = useCallback(async (id: string, node: Node | null) => {
    const { children: read, nodeId: idOf, hasChildren: isParent, expandedFirst: opens } = latest.current;
    const kept = branches.current;
    const branch: Branch<Node> = kept.get(id) ?? { node, items: [], next: null, isReading: false, error: null };
    kept.set(id, branch);
    if (branch.isReading) return;
    branch.isReading = true;
    branch.error = null;
    changed();
    try {
      const page = await read(node, branch.next);
      branch.items = [...branch.items, ...page.items];
      branch.next = page.next ?? null;
      for (const item of page.items)
        if (isParent(item) && opens?.(item) === true && !expanded.current.has(idOf(item))) {
          expanded.current.add(idOf(item));
          void readPage(idOf(item), item);
        }
    } catch (error) {
      branch.error = asProblem(error);
    }
    branch.isReading = false;
    // A tree that was begun anew in the meantime has other branches.
    if (kept === branches.current) changed();
  }, []);

  useEffect(() => {
    branches.current = new Map();
    void readPage(rootId, null);
  }, [version, readPage]);

  const rows = useMemo(() => {
    void stamp;
    const out: TreeRow<Node>[] = [];
    const add = (id: string, level: number) => {
      const branch = branches.current.get(id);
      if (branch === undefined) return;
      const { nodeId: idOf } = latest.current;
      for (const node of branch.items) {
        const own = idOf(node);
        out.push({ kind: "node", id: own, node, level });
        if (expanded.current.has(own)) add(own, level + 1);
      }
      const parent = id === rootId ? null : id;
      if (branch.error !== null) out.push({ kind: "failed", id: `failed:${id}`, parent, level, error: branch.error });
      else if (branch.next !== null || branch.isReading)
        out.push({ kind: "more", id: `more:${id}`, parent, level, isReading: branch.isReading });
    };
    add(rootId, 0);
    return out;
  }, [stamp]);

  const expand = (row: TreeRow<Node>, open: boolean) => {
    if (row.kind !== "node") return;
    if (open) {
      expanded.current.add(row.id);
      if (!branches.current.has(row.id)) void readPage(row.id, row.node);
    } else expanded.current.delete(row.id);
    changed();
  };

  const goOn = (row: TreeRow<Node>) => {
    if (row.kind === "node") return;
    const branch = branches.current.get(row.parent ?? rootId);
    if (branch !== undefined) void readPage(row.parent ?? rootId, branch.node);
  };

  const treeColumns = useMemo<Column<TreeRow<Node>>[]>(
    () =>
      columns.map(({ text, ...column }, index) => ({
        ...column,
        cell: (row): ReactNode => {
          if (row.kind === "node") return column.cell(row.node);
          if (index > 0) return null;
          return row.kind === "failed" ? (
            <span className="field-error">{row.error.message}</span>
          ) : (
            <span className="muted">{row.isReading ? t("common.loading") : t("common.tree.more")}</span>
          );
        },
        ...(text === undefined ? {} : { text: (row: TreeRow<Node>) => (row.kind === "node" ? text(row.node) : "") }),
      })),
    [columns, t],
  );

  return (
    <Grid<TreeRow<Node>>
      {...rest}
      rows={rows}
      columns={treeColumns}
      rowId={(row) => row.id}
      level={(row) => row.level}
      expanded={(row) => (row.kind === "node" && hasChildren(row.node) ? expanded.current.has(row.id) : undefined)}
      onExpand={expand}
      onExpandSiblings={(row) => {
        const at = rows.findIndex((other) => other.id === row.id);
        const level = row.level;
        for (let index = at; index >= 0 && rows[index]!.level >= level; index -= 1)
          if (rows[index]!.level === level) expand(rows[index]!, true);
        for (let index = at + 1; index < rows.length && rows[index]!.level >= level; index += 1)
          if (rows[index]!.level === level) expand(rows[index]!, true);
      }}
      onOpen={(row) => {
        if (row.kind !== "node") goOn(row);
        else if (onOpen !== undefined) onOpen(row.node);
        else expand(row, !expanded.current.has(row.id));
      }}
    />
  );
}
