// The components <tocsin-inbox> and <tocsin-bell>.

import { element } from "./dom";
import { TocsinFeed } from "./feed";
import { bellSymbol, List } from "./list";
import { styles } from "./styles";
import { type Texts, textsOf } from "./texts";
import type { Item } from "./types";

/** Largest number of the badge. */
const BADGE_MAX = 99;
/** Distance of the pop-over from the bell and from the edge of the window, in pixels. */
const GAP = 8;

/** Parts of both components: attributes, feed, language. */
abstract class Component extends HTMLElement {
  static readonly observedAttributes = ["server", "subscriber", "token", "lang", "html"];

  /** Returns a new token when the present one has expired. */
  renew: (() => Promise<string>) | undefined;
  #texts: Partial<Texts> = {};
  #feed: TocsinFeed | undefined;
  #list: List | undefined;
  #isScheduled = false;

  constructor() {
    super();
    this.attachShadow({ mode: "open" }).adoptedStyleSheets = [styles()];
  }

  /** Texts that replace those of the language. */
  set texts(texts: Partial<Texts>) {
    this.#texts = texts;
    this.#schedule();
  }

  /** The feed, while the component is in a document and has its attributes. */
  get feed(): TocsinFeed | undefined {
    return this.#feed;
  }

  protected get list(): List | undefined {
    return this.#list;
  }

  connectedCallback(): void {
    this.#schedule();
  }

  disconnectedCallback(): void {
    this.#close();
  }

  attributeChangedCallback(): void {
    this.#schedule();
  }

  /** Shows the component for a new feed. */
  protected abstract build(list: List, texts: Texts): void;
  /** Shows a state of the feed. */
  protected abstract update(feed: TocsinFeed, texts: Texts): void;
  /** Closes the pop-over. */
  protected readonly close?: () => void;

  /** Several attributes that change together make one feed. */
  #schedule(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    queueMicrotask(() => {
      this.#isScheduled = false;
      this.#open();
    });
  }

  #close(): void {
    this.#feed?.stop();
    this.#feed = undefined;
  }

  #open(): void {
    this.#close();
    const [server, subscriber, token] = ["server", "subscriber", "token"].map((name) => this.getAttribute(name) ?? "");
    if (!this.isConnected || !subscriber || !token) return;
    const language = this.getAttribute("lang") ?? (document.documentElement.lang || navigator.language);
    const texts = textsOf(language, this.#texts);
    const renew = () => (this.renew === undefined ? Promise.reject(new Error("there is no function `renew`")) : this.renew());
    const feed = new TocsinFeed({ server: server || location.origin, subscriber, token, renew });
    this.#feed = feed;
    const list = new List(feed, {
      language,
      texts,
      showsHtml: this.hasAttribute("html"),
      announce: (name, detail) => this.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true, cancelable: true })),
      ...(this.close === undefined ? {} : { close: this.close }),
    });
    this.#list = list;
    this.build(list, texts);
    feed.addEventListener("change", () => {
      if (feed !== this.#feed) return;
      list.render(feed.state);
      this.update(feed, texts);
    });
    feed.addEventListener("new", (event) => {
      const item = (event as CustomEvent<Item>).detail;
      this.dispatchEvent(new CustomEvent("tocsin-new", { detail: item, bubbles: true, composed: true }));
    });
    this.update(feed, texts);
    feed.start();
  }
}

/** `<tocsin-inbox>`: the list, in the page. */
export class InboxElement extends Component {
  protected override build(list: List): void {
    this.shadowRoot?.replaceChildren(list.root);
  }

  protected override update(): void {
    // The list is everything.
  }
}

/** `<tocsin-bell>`: a button with the number of unread items, and the list in a pop-over. */
export class BellElement extends Component {
  #button: HTMLButtonElement | undefined;
  #badge: HTMLElement | undefined;
  #dialog: HTMLDialogElement | undefined;
  #announcer: HTMLElement | undefined;
  #announced = "";

  protected override readonly close = (): void => this.#dialog?.close();

  constructor() {
    super();
    this.addEventListener("tocsin-new", (event) => {
      const subject = (event as CustomEvent<Item>).detail.subject ?? "";
      if (this.#announcer !== undefined) this.#announcer.textContent = this.#announced.replace("{subject}", subject);
    });
  }

  protected override build(list: List, texts: Texts): void {
    this.#announced = texts.arrived;
    const badge = element("span", { class: "badge", part: "badge", "aria-hidden": "true", hidden: true });
    const button = element("button", { type: "button", class: "bell", part: "bell", "aria-haspopup": "dialog", "aria-expanded": "false" });
    const slot = element("slot", { name: "icon" });
    slot.append(bellSymbol());
    button.append(slot, badge);
    const dialog = element("dialog", { part: "popover", "aria-labelledby": "title" }, list.root);
    button.addEventListener("click", () => this.#open());
    // A click outside of the dialog is one on its backdrop.
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    dialog.addEventListener("close", () => button.setAttribute("aria-expanded", "false"));
    const announcer = element("span", { class: "hidden", role: "status" });
    [this.#badge, this.#button, this.#dialog, this.#announcer] = [badge, button, dialog, announcer];
    this.shadowRoot?.replaceChildren(button, dialog, announcer);
  }

  protected override update(feed: TocsinFeed, texts: Texts): void {
    const { unread } = feed.state;
    const count = unread === 1 ? texts.unreadOne : texts.unreadMany.replace("{count}", String(unread));
    this.#button?.setAttribute("aria-label", `${texts.title}, ${count}`);
    if (this.#badge !== undefined) {
      this.#badge.hidden = unread === 0;
      this.#badge.textContent = unread > BADGE_MAX ? `${BADGE_MAX}+` : String(unread);
    }
  }

  #open(): void {
    const [button, dialog] = [this.#button, this.#dialog];
    if (button === undefined || dialog === undefined) return;
    dialog.showModal();
    button.setAttribute("aria-expanded", "true");
    // Below the bell, within the window.
    const bell = button.getBoundingClientRect();
    const size = dialog.getBoundingClientRect();
    const left = Math.max(GAP, Math.min(bell.right - size.width, innerWidth - size.width - GAP));
    const top = Math.max(GAP, Math.min(bell.bottom + GAP, innerHeight - size.height - GAP));
    dialog.style.left = `${left}px`;
    dialog.style.top = `${top}px`;
  }
}
