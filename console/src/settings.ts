// Settings of the display, kept in this browser: theme, density, time zone, shortcuts.
import { useSyncExternalStore } from "react";

export interface Settings {
  theme: "system" | "light" | "dark" | "contrast";
  density: "comfortable" | "compact";
  /** `browser`, or an IANA name such as `UTC`. */
  timeZone: string;
  /** Shortcuts of a single key (WCAG 2.1.4). */
  singleKeys: boolean;
  language: string | null;
}

const storageKey = "tocsin.settings";
const initial: Settings = {
  theme: "system",
  density: "comfortable",
  timeZone: "browser",
  singleKeys: true,
  language: null,
};
const listeners = new Set<() => void>();
let settings: Settings = { ...initial, ...read<Partial<Settings>>(storageKey) };

/** Reads a value of this browser's storage; `null` if there is none, or no storage. */
export function read<Value>(key: string): Value | null {
  try {
    const text = localStorage.getItem(key);
    return text === null ? null : (JSON.parse(text) as Value);
  } catch {
    return null;
  }
}

export function write(key: string, value: unknown) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // A browser can forbid storage; settings then last as long as the tab.
  }
}

export function applySettings() {
  const root = document.documentElement;
  if (settings.theme === "system") delete root.dataset.theme;
  else root.dataset.theme = settings.theme;
  root.dataset.density = settings.density;
}

export function changeSettings(change: Partial<Settings>) {
  settings = { ...settings, ...change };
  write(storageKey, settings);
  applySettings();
  listeners.forEach((listener) => listener());
}

export function presentSettings(): Settings {
  return settings;
}

export function useSettings(): Settings {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => settings,
  );
}

/** The time zone for `Intl`; undefined for that of the browser. */
export function useTimeZone(): string | undefined {
  const { timeZone } = useSettings();
  return timeZone === "browser" ? undefined : timeZone;
}
