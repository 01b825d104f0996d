// Web components of Tocsin: <tocsin-bell> and <tocsin-inbox>, and the feed without a user interface.

import { BellElement, InboxElement } from "./elements";

export { TocsinFeed } from "./feed";
export type { Texts } from "./texts";
export type { Action, Item, Options, State, View } from "./types";
export { BellElement, InboxElement };

// A page can load the file twice.
if (!customElements.get("tocsin-inbox")) customElements.define("tocsin-inbox", InboxElement);
if (!customElements.get("tocsin-bell")) customElements.define("tocsin-bell", BellElement);
