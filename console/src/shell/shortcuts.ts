// Keyboard shortcuts: of the shell, and of what is mounted on the page.
import { useEffect, useRef } from "react";
import { presentSettings } from "../settings";

export interface Shortcut {
  /** Keys as shown: `?`, `g e`, `Ctrl+Enter`, `[`. */
  keys: string;
  text: string;
  run: (event: KeyboardEvent) => void;
  group: "global" | "page" | "list";
}

const active: Shortcut[] = [];
let prefix: { key: string; until: number } | null = null;

export function activeShortcuts(): readonly Shortcut[] {
  return active;
}

/** Name of the pressed key in the form of `Shortcut.keys`. `Ctrl` stands for Command on a Mac. */
export function keyName(event: Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "altKey">): string {
  const key = event.key === " " ? "Space" : event.key;
  return `${event.ctrlKey || event.metaKey ? "Ctrl+" : ""}${event.altKey ? "Alt+" : ""}${key}`;
}

/** Whether the key belongs to the element with the focus, so that no shortcut of a single key may take it. */
export function takesText(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  if (target.isContentEditable || target.closest("[role=textbox], .cm-editor, [data-keys=own]") !== null) return true;
  if (target instanceof HTMLInputElement)
    return !["checkbox", "radio", "button", "submit", "reset", "range"].includes(target.type);
  return target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement;
}

export function startShortcuts() {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing) return;
    const name = keyName(event);
    const modified = event.ctrlKey || event.metaKey;
    if (
      !modified &&
      (takesText(event.composedPath()[0] ?? event.target) || !presentSettings().singleKeys || event.altKey)
    )
      return;
    // An open modal dialog has its own keys.
    if (document.querySelector("dialog[open]:modal, [role=dialog][aria-modal=true]") !== null) return;
    if (document.querySelector("[role=menu]") !== null) return;
    const now = Date.now();
    const keys = prefix !== null && prefix.until > now ? `${prefix.key} ${name}` : name;
    prefix = null;
    const found = active.findLast((shortcut) => shortcut.keys === keys);
    if (found !== undefined) {
      event.preventDefault();
      found.run(event);
    } else if (active.some((shortcut) => shortcut.keys.startsWith(`${name} `)))
      prefix = { key: name, until: now + 1_500 };
  });
}

/** A shortcut while the component is mounted. The newest of several with the same keys wins. */
export function useShortcut(
  keys: string,
  text: string,
  run: (event: KeyboardEvent) => void,
  group: Shortcut["group"] = "page",
  enabled = true,
) {
  const latest = useRef(run);
  latest.current = run;
  useEffect(() => {
    if (!enabled) return;
    const shortcut: Shortcut = { keys, text, group, run: (event) => latest.current(event) };
    active.push(shortcut);
    return () => {
      active.splice(active.indexOf(shortcut), 1);
    };
  }, [keys, text, group, enabled]);
}

/** Ctrl-Enter of the page. */
export function useMainAction(text: string, run: () => void, enabled = true) {
  useShortcut("Ctrl+Enter", text, run, "page", enabled);
}
