/** Compares two documents line by line: the shortest edit script (Myers), grouped in hunks with context. */

export type LineKind = "same" | "added" | "removed";

export interface DiffLine {
  kind: LineKind;
  text: string;
  /** Line number in the old document, from 1. */
  old: number | null;
  /** Line number in the new document, from 1. */
  new: number | null;
}

export interface Hunk {
  lines: DiffLine[];
  /** Number of unchanged lines between the previous hunk, or the start, and this one. */
  skipped: number;
}

/** More edits than this are reported as one removal and one addition, which bounds the time of the comparison. */
const EDITS_MAX = 2000;

/** Lines of a document, without an empty one behind the last line break. */
export function linesOf(text: string): string[] {
  const lines = text.split(/\r\n|\n/);
  if (lines[lines.length - 1] === "") lines.pop();
  return lines;
}

/** All lines of both documents, in order. */
export function compare(before: string, after: string): DiffLine[] {
  const old = linesOf(before);
  const now = linesOf(after);
  let head = 0;
  while (head < old.length && head < now.length && old[head] === now[head]) head += 1;
  let tail = 0;
  while (
    tail < old.length - head &&
    tail < now.length - head &&
    old[old.length - 1 - tail] === now[now.length - 1 - tail]
  )
    tail += 1;
  const result: DiffLine[] = [];
  const same = (from: number, to: number, offset: number) => {
    for (let at = from; at < to; at += 1) {
      result.push({ kind: "same", text: old[at] ?? "", old: at + 1, new: at + 1 + offset });
    }
  };
  same(0, head, 0);
  result.push(...edits(old.slice(head, old.length - tail), now.slice(head, now.length - tail), head));
  same(old.length - tail, old.length, now.length - old.length);
  return result;
}

function edits(old: string[], now: string[], head: number): DiffLine[] {
  const max = Math.min(old.length + now.length, EDITS_MAX);
  const trace: Int32Array[] = [];
  const width = 2 * max + 2;
  const reach = new Int32Array(width);
  const at = (diagonal: number) => diagonal + max;
  for (let depth = 0; depth <= max; depth += 1) {
    trace.push(reach.slice());
    for (let diagonal = -depth; diagonal <= depth; diagonal += 2) {
      const goesDown =
        diagonal === -depth || (diagonal !== depth && (reach[at(diagonal - 1)] ?? 0) < (reach[at(diagonal + 1)] ?? 0));
      let x = goesDown ? (reach[at(diagonal + 1)] ?? 0) : (reach[at(diagonal - 1)] ?? 0) + 1;
      let y = x - diagonal;
      while (x < old.length && y < now.length && old[x] === now[y]) {
        x += 1;
        y += 1;
      }
      reach[at(diagonal)] = x;
      if (x >= old.length && y >= now.length) return backtrack(trace, old, now, head, max);
    }
  }
  return [
    ...old.map((text, index): DiffLine => ({ kind: "removed", text, old: head + index + 1, new: null })),
    ...now.map((text, index): DiffLine => ({ kind: "added", text, old: null, new: head + index + 1 })),
  ];
}

function backtrack(trace: Int32Array[], old: string[], now: string[], head: number, max: number): DiffLine[] {
  const result: DiffLine[] = [];
  let x = old.length;
  let y = now.length;
  const at = (diagonal: number) => diagonal + max;
  for (let depth = trace.length - 1; depth >= 0; depth -= 1) {
    const reach = trace[depth] ?? new Int32Array(0);
    const diagonal = x - y;
    const goesDown =
      diagonal === -depth || (diagonal !== depth && (reach[at(diagonal - 1)] ?? 0) < (reach[at(diagonal + 1)] ?? 0));
    const from = goesDown ? diagonal + 1 : diagonal - 1;
    const fromX = depth === 0 ? 0 : (reach[at(from)] ?? 0);
    const fromY = depth === 0 ? 0 : fromX - from;
    while (x > fromX && y > fromY) {
      x -= 1;
      y -= 1;
      result.push({ kind: "same", text: old[x] ?? "", old: head + x + 1, new: head + y + 1 });
    }
    if (depth === 0) break;
    if (goesDown) {
      y -= 1;
      result.push({ kind: "added", text: now[y] ?? "", old: null, new: head + y + 1 });
    } else {
      x -= 1;
      result.push({ kind: "removed", text: old[x] ?? "", old: head + x + 1, new: null });
    }
  }
  return result.reverse();
}

/** Groups of changes with `context` unchanged lines around each. */
export function hunks(lines: DiffLine[], context = 3): { hunks: Hunk[]; rest: number } {
  const keep = new Array<boolean>(lines.length).fill(false);
  lines.forEach((line, index) => {
    if (line.kind === "same") return;
    const to = Math.min(lines.length - 1, index + context);
    for (let near = Math.max(0, index - context); near <= to; near += 1) keep[near] = true;
  });
  const result: Hunk[] = [];
  let skipped = 0;
  let current: Hunk | null = null;
  lines.forEach((line, index) => {
    if (keep[index]) {
      if (current === null) {
        current = { lines: [], skipped };
        result.push(current);
        skipped = 0;
      }
      current.lines.push(line);
    } else {
      current = null;
      skipped += 1;
    }
  });
  return { hunks: result, rest: skipped };
}

/** Number of added and removed lines. */
export function counts(lines: DiffLine[]): { added: number; removed: number } {
  return {
    added: lines.filter((line) => line.kind === "added").length,
    removed: lines.filter((line) => line.kind === "removed").length,
  };
}

/**
 * The changed middle of a removed line and the added line that replaces it: the text between their common beginning
 * and their common end.
 */
export function changedPart(before: string, after: string): { start: number; beforeEnd: number; afterEnd: number } {
  const shorter = Math.min(before.length, after.length);
  let start = 0;
  while (start < shorter && before[start] === after[start]) start += 1;
  let end = 0;
  while (end < shorter - start && before[before.length - 1 - end] === after[after.length - 1 - end]) end += 1;
  return { start, beforeEnd: before.length - end, afterEnd: after.length - end };
}
