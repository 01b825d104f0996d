// The list of an inbox: tabs, items with their buttons, states. Both components contain one.

import { bellSymbol, element, safeLink } from "./dom";
import type { TocsinFeed } from "./feed";
import { ago, type Texts } from "./texts";
import type { Item, State, View } from "./types";

/** What a list needs from its component. */
export interface Host {
  /** Language tag. */
  readonly language: string;
  readonly texts: Texts;
  /** Whether HTML contents are shown, in a sandboxed frame. */
  readonly showsHtml: boolean;
  /** Announces a choice of the reader; `false`: the page has handled it. */
  announce(name: "tocsin-open" | "tocsin-action", detail: unknown): boolean;
  /** Closes the pop-over, if there is one. */
  readonly close?: () => void;
}

const VIEWS: readonly View[] = ["current", "unread", "archived"];

/** A list. `root` is put into the shadow root of the component. */
export class List {
  readonly root: HTMLElement;
  readonly #feed: TocsinFeed;
  readonly #host: Host;
  readonly #tabs = new Map<View, HTMLButtonElement>();
  readonly #items = element("ul");
  readonly #empty = element("p", { class: "empty" });
  readonly #state = element("p", { class: "state", role: "status" });
  readonly #more: HTMLButtonElement;
  readonly #rows = new Map<string, { item: Item; row: HTMLLIElement }>();

  constructor(feed: TocsinFeed, host: Host) {
    this.#feed = feed;
    this.#host = host;
    const { texts } = host;
    const labels: Record<View, string> = { current: texts.all, unread: texts.unread, archived: texts.archived };
    const tabs = element("div", { role: "tablist", "aria-label": texts.title });
    for (const view of VIEWS) {
      const tab = element("button", { type: "button", role: "tab", part: "tab" }, labels[view]);
      tab.addEventListener("click", () => void feed.show(view));
      this.#tabs.set(view, tab);
      tabs.append(tab);
    }
    tabs.addEventListener("keydown", (event) => this.#moveTab(event));
    const all = element("button", { type: "button", part: "mark-all" }, texts.markAllRead);
    all.addEventListener("click", () => void this.#try(feed.readAll()));
    this.#more = element("button", { type: "button", class: "more", part: "more" }, texts.more);
    this.#more.addEventListener("click", () => void feed.more());
    const close = element("button", { type: "button", "aria-label": texts.close, part: "close" }, "✕");
    close.addEventListener("click", () => host.close?.());
    const head = element("div", { class: "head", part: "header" }, element("h2", { id: "title" }, texts.title));
    if (host.close !== undefined) head.append(close);
    this.#items.addEventListener("keydown", (event) => this.#moveItem(event));
    // The dialog of a pop-over is a landmark already.
    const landmark = host.close === undefined ? { role: "region", "aria-labelledby": "title" } : {};
    this.root = element(
      "div",
      { class: "inbox", part: "inbox", ...landmark },
      head,
      element("div", { class: "bar" }, tabs, all),
      this.#state,
      element("div", { class: "list", part: "list", role: "tabpanel", "aria-label": texts.title }, this.#items, this.#empty, this.#more),
    );
    this.render(feed.state);
  }

  /** Shows a state. Rows of unchanged items stay, and so does the focus. */
  render(state: State): void {
    const { texts } = this.#host;
    for (const [view, tab] of this.#tabs) {
      tab.setAttribute("aria-selected", String(view === state.view));
      tab.tabIndex = view === state.view ? 0 : -1;
    }
    const notes = { loading: "", live: "", waiting: texts.waiting, refused: texts.refused, removed: texts.removed };
    this.#say(notes[state.connection]);
    const kept = new Set(state.items.map((item) => item.id));
    for (const [id, { row }] of this.#rows) {
      if (kept.has(id)) continue;
      if (focused(row) !== undefined) (row.nextElementSibling ?? row.previousElementSibling)?.querySelector<HTMLElement>("button, a")?.focus();
      row.remove();
      this.#rows.delete(id);
    }
    state.items.forEach((item, place) => {
      const known = this.#rows.get(item.id);
      const row = known?.item === item ? known.row : this.#row(item);
      if (known !== undefined && known.row !== row) {
        const had = focused(known.row)?.dataset.action;
        known.row.replaceWith(row);
        if (had !== undefined) row.querySelector<HTMLElement>(`[data-action=${had}]`)?.focus();
      }
      this.#rows.set(item.id, { item, row });
      if (this.#items.children[place] !== row) this.#items.insertBefore(row, this.#items.children[place] ?? null);
    });
    const empty = { current: texts.empty, unread: texts.emptyUnread, archived: texts.emptyArchived }[state.view];
    this.#empty.textContent = state.connection === "loading" ? "" : empty;
    this.#empty.hidden = state.items.length > 0;
    this.#more.hidden = !state.hasMore;
  }

  #say(text: string): void {
    if (this.#state.textContent !== text) this.#state.textContent = text;
  }

  #row(item: Item): HTMLLIElement {
    const { texts, language, showsHtml } = this.#host;
    const isRead = item.read_at != null;
    const isArchived = item.archived_at != null;
    const link = safeLink(item.link);
    const subject = item.subject ?? item.text ?? "";
    const title =
      link === undefined
        ? element("span", { class: "subject", part: "subject" }, subject)
        : element("a", { class: "subject", part: "subject", href: link, "data-action": "open" }, subject);
    title.addEventListener("click", (event) => {
      if (link === undefined) return;
      if (!isRead) void this.#try(this.#feed.read(item.id));
      if (!this.#host.announce("tocsin-open", item)) event.preventDefault();
    });
    const foot = element("div", { class: "foot" });
    const time = element("time", { datetime: item.created_at, title: new Date(item.created_at).toLocaleString(language) }, ago(item.created_at, language));
    foot.append(time);
    for (const action of item.actions) {
      const target = safeLink(action.link);
      if (target === undefined) continue;
      const button = element("a", { class: "action", part: "action", href: target, role: "button" }, action.label);
      button.addEventListener("click", (event) => {
        if (!this.#host.announce("tocsin-action", { item, action })) event.preventDefault();
      });
      foot.append(button);
    }
    const button = (label: string, action: string, act: () => Promise<void>) => {
      const made = element("button", { type: "button", part: action, "data-action": action }, label);
      made.addEventListener("click", () => void this.#try(act()));
      foot.append(made);
    };
    button(isRead ? texts.markUnread : texts.markRead, "read", () => this.#feed.read(item.id, !isRead));
    button(isArchived ? texts.unarchive : texts.archive, "archive", () => this.#feed.archive(item.id, !isArchived));
    const row = element("li", { class: isRead ? "read" : "unread", part: "item" });
    if (!isRead) row.append(element("span", { class: "dot", "aria-hidden": "true" }), element("span", { class: "hidden" }, `${texts.isUnread}: `));
    row.append(title);
    if (showsHtml && item.html !== undefined) row.append(htmlFrame(item.html, subject));
    else if (item.subject !== undefined && item.text !== undefined) row.append(element("p", { class: "text", part: "text" }, item.text));
    row.append(foot);
    return row;
  }

  async #try(change: Promise<void>): Promise<void> {
    try {
      await change;
    } catch {
      this.#say(this.#host.texts.failed);
    }
  }

  /** Arrows move between the tabs (ARIA Authoring Practices, Tabs). */
  #moveTab(event: KeyboardEvent): void {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    const place = VIEWS.indexOf(this.#feed.state.view);
    const next = VIEWS[(place + step + VIEWS.length) % VIEWS.length] ?? "current";
    event.preventDefault();
    void this.#feed.show(next);
    this.#tabs.get(next)?.focus();
  }

  /** Arrows move between the items. */
  #moveItem(event: KeyboardEvent): void {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step === undefined) return;
    const rows = [...this.#items.children];
    const place = rows.findIndex((row) => row.contains(event.target as Node));
    const target = rows[place + step]?.querySelector<HTMLElement>("a, button");
    if (target == null) return;
    event.preventDefault();
    target.focus();
  }
}

/** The focused element within a row. */
function focused(row: HTMLElement): HTMLElement | undefined {
  const root = row.getRootNode();
  const active = root instanceof ShadowRoot ? root.activeElement : document.activeElement;
  return active instanceof HTMLElement && row.contains(active) ? active : undefined;
}

interface Policy {
  createHTML(html: string): string;
}
let policy: Policy | undefined;

/** HTML in a frame without scripts, forms and origin. */
function htmlFrame(html: string, title: string): HTMLIFrameElement {
  const factory = (window as { trustedTypes?: { createPolicy(name: string, rules: Policy): Policy } }).trustedTypes;
  policy ??= factory?.createPolicy("tocsin-embed", { createHTML: (text) => text }) ?? { createHTML: (text) => text };
  const frame = element("iframe", { sandbox: "allow-popups", title, loading: "lazy", referrerpolicy: "no-referrer" });
  frame.srcdoc = policy.createHTML(`<base target="_blank">${html}`);
  return frame;
}

export { bellSymbol };
