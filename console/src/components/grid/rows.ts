// Rows of a list with cursor pages: at most 2,000 in memory. Distant pages are dropped, and read again when they come
// into view.
import { asProblem, retries, retryDelay, type ProblemError } from "../../api/problems";

interface ListPage<Row> {
  items: Row[];
  next?: string | null;
  count?: number | { count: number; exact: boolean };
}

interface Held<Row> {
  after: string | null;
  length: number;
  items: Row[] | null;
  isReading: boolean;
}

export interface RowSourceOptions<Row> {
  id: (row: Row) => string;
  pageSize?: number;
  rowsMost?: number;
  fetch: (after: string | null, limit: number, signal: AbortSignal) => Promise<ListPage<Row>>;
}

export class RowSource<Row> {
  private pages: Held<Row>[] = [];
  private next: string | null = null;
  private readonly listeners = new Set<() => void>();
  private stamp = 0;
  private abort = new AbortController();
  private isExtending = false;
  private isChecking = false;
  private started = false;
  private center = 0;
  readonly pageSize: number;
  readonly rowsMost: number;

  status: "pending" | "ready" | "failed" = "pending";
  error: ProblemError | null = null;
  isFetching = false;
  /** Rows that are newer than the first one shown; `isAtLeast` if there are more than a page of them. */
  newer: { count: number; isAtLeast: boolean } = { count: 0, isAtLeast: false };
  total: { count: number; exact: boolean } | null = null;
  updatedAt = 0;
  /** Scroll position, kept for a return to the page. */
  scrollTop = 0;

  constructor(private readonly options: RowSourceOptions<Row>) {
    this.pageSize = options.pageSize ?? 100;
    this.rowsMost = options.rowsMost ?? 2_000;
  }

  subscribe = (listener: () => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  version = () => this.stamp;

  private changed() {
    this.stamp += 1;
    this.listeners.forEach((listener) => listener());
  }

  /** Number of rows whose place is known. */
  get count(): number {
    return this.pages.reduce((sum, page) => sum + page.length, 0);
  }

  get hasMore(): boolean {
    return this.next !== null;
  }

  get held(): number {
    return this.pages.reduce((sum, page) => sum + (page.items?.length ?? 0), 0);
  }

  at(index: number): Row | undefined {
    let start = 0;
    for (const page of this.pages) {
      if (index < start + page.length) return page.items?.[index - start];
      start += page.length;
    }
    return undefined;
  }

  /** All rows in memory, in order. */
  rows(): Row[] {
    return this.pages.flatMap((page) => page.items ?? []);
  }

  start() {
    if (this.started) {
      void this.checkNewer();
      return;
    }
    this.started = true;
    void this.read(true);
  }

  retry() {
    void this.read(this.pages.length === 0);
  }

  /** Reads the list from its beginning. The rows stay until the answer is there. */
  async refresh() {
    await this.read(true);
  }

  private async read(fromStart: boolean) {
    if (!fromStart) {
      await this.extend();
      return;
    }
    this.abort.abort();
    this.abort = new AbortController();
    this.isExtending = false;
    const { signal } = this.abort;
    this.isFetching = true;
    this.changed();
    try {
      const page = await this.repeated(null, signal);
      this.pages = [{ after: null, length: page.items.length, items: page.items, isReading: false }];
      this.next = page.next ?? null;
      this.newer = { count: 0, isAtLeast: false };
      this.noteTotal(page);
      this.settle();
      if (page.items.length === 0 && this.next !== null) await this.extend();
    } catch (error) {
      if (!signal.aborted) this.fail(error);
    }
  }

  private async repeated(after: string | null, signal: AbortSignal): Promise<ListPage<Row>> {
    for (let failures = 0; ; failures += 1) {
      try {
        return await this.options.fetch(after, this.pageSize, signal);
      } catch (error) {
        if (signal.aborted || !retries(failures, error)) throw error;
        await new Promise((resolve) => setTimeout(resolve, retryDelay(failures, error)));
        if (signal.aborted) throw error;
      }
    }
  }

  private noteTotal(page: ListPage<Row>) {
    if (page.count === undefined || page.count === null) return;
    this.total = typeof page.count === "number" ? { count: page.count, exact: true } : page.count;
  }

  private settle() {
    this.status = "ready";
    this.error = null;
    this.isFetching = false;
    this.updatedAt = Date.now();
    this.changed();
  }

  private fail(error: unknown) {
    this.error = asProblem(error);
    this.status = this.pages.length === 0 ? "failed" : "ready";
    this.isFetching = false;
    this.changed();
  }

  /** Says which rows are in view; reads what is missing of them, and the next page near the end. */
  need(first: number, last: number) {
    if (this.status !== "ready") return;
    this.center = (first + last) / 2;
    let start = 0;
    this.pages.forEach((page, number) => {
      const end = start + page.length;
      if (page.items === null && !page.isReading && start <= last && end > first) void this.reread(number);
      start = end;
    });
    if (this.next !== null && this.error === null && last >= start - this.pageSize / 2) void this.extend();
  }

  /** Reads one more page, and after it further ones while they are empty: a bounded search can answer without rows. */
  async extend(pagesMost = 5) {
    if (this.isExtending || this.next === null) return;
    this.isExtending = true;
    const { signal } = this.abort;
    this.isFetching = true;
    this.error = null;
    this.changed();
    try {
      for (let read = 0; read < pagesMost && this.next !== null; read += 1) {
        const after: string = this.next;
        const page = await this.repeated(after, signal);
        this.next = page.next ?? null;
        if (page.items.length > 0) {
          this.pages.push({ after, length: page.items.length, items: page.items, isReading: false });
          break;
        }
      }
      this.drop();
      this.settle();
    } catch (error) {
      if (!signal.aborted) this.fail(error);
    } finally {
      if (!signal.aborted) this.isExtending = false;
    }
  }

  private async reread(number: number) {
    const held = this.pages[number]!;
    held.isReading = true;
    const { signal } = this.abort;
    try {
      const page = await this.repeated(held.after, signal);
      held.items = page.items;
      held.length = page.items.length;
      this.drop();
      this.changed();
    } catch (error) {
      if (!signal.aborted) this.fail(error);
    } finally {
      held.isReading = false;
    }
  }

  /** Drops the pages that are farthest from the view until the bound holds. */
  private drop() {
    while (this.held > this.rowsMost) {
      let farthest: Held<Row> | null = null;
      let most = -1;
      let start = 0;
      for (const page of this.pages) {
        const distance = Math.abs(start + page.length / 2 - this.center);
        if (page.items !== null && page.length > 0 && distance > most) {
          most = distance;
          farthest = page;
        }
        start += page.length;
      }
      if (farthest === null) return;
      farthest.items = null;
    }
  }

  /** Counts what is newer than the first row, without moving the list; an unmoved or short list is read again. */
  async checkNewer() {
    if (this.status === "pending" || this.isChecking || this.isFetching) return;
    this.isChecking = true;
    const { signal } = this.abort;
    try {
      const page = await this.options.fetch(null, this.pageSize, signal);
      const first = this.pages[0];
      const head = first?.items ?? null;
      this.noteTotal(page);
      if (
        head === null ||
        first === undefined ||
        head.length === 0 ||
        (this.pages.length === 1 && this.sameIds(head, page.items))
      ) {
        // Nothing would move: states of the rows are brought up to date.
        if (first !== undefined && head !== null) {
          first.items = page.items;
          first.length = page.items.length;
          if (this.pages.length === 1) this.next = page.next ?? null;
          this.newer = { count: 0, isAtLeast: false };
        }
        this.settle();
        return;
      }
      const firstId = this.options.id(head[0]!);
      const place = page.items.findIndex((row) => this.options.id(row) === firstId);
      this.newer = place === -1 ? { count: page.items.length, isAtLeast: true } : { count: place, isAtLeast: false };
      if (place === 0 && this.sameIds(head.slice(0, page.items.length), page.items)) first.items = page.items;
      else if (place > 0) {
        const fresh = new Map(page.items.map((row) => [this.options.id(row), row]));
        first.items = head.map((row) => fresh.get(this.options.id(row)) ?? row);
      }
      this.settle();
    } catch (error) {
      if (!signal.aborted) {
        this.error = asProblem(error);
        this.changed();
      }
    } finally {
      this.isChecking = false;
    }
  }

  private sameIds(left: Row[], right: Row[]): boolean {
    return (
      left.length === right.length &&
      left.every((row, index) => this.options.id(row) === this.options.id(right[index]!))
    );
  }

  async showNewer() {
    this.scrollTop = 0;
    await this.read(true);
  }
}
