// Texts of the console by language. Namespaces are loaded with the pages that use them.
import { createContext, Fragment, use, useMemo, type ReactNode } from "react";
import { useSyncExternalStore } from "react";
import { format, formatParts, type Value } from "./icu";
import type { MessageKey, Namespace } from "./messages";

export type { MessageKey, Namespace } from "./messages";

export const languages = ["en", "de", "fr"] as const;
export type Language = (typeof languages)[number];

const files = import.meta.glob<Record<string, string>>("./{en,de,fr}/*.json", { import: "default" });

const texts: Record<Language, Record<string, string>> = { en: {}, de: {}, fr: {} };
const loaded: Record<Language, Set<Namespace>> = { en: new Set(), de: new Set(), fr: new Set() };
const wanted = new Set<Namespace>();
const listeners = new Set<() => void>();
let language: Language = "en";
let generation = 0;

/** Loads a namespace in the present language; a change of the language loads it again. */
export async function loadMessages(name: Namespace): Promise<void> {
  wanted.add(name);
  await loadIn(language, name);
}

async function loadIn(target: Language, name: Namespace): Promise<void> {
  if (loaded[target].has(name)) return;
  const file = files[`./${target}/${name}.json`];
  if (file === undefined) throw new Error(`no messages: ${target}/${name}`);
  Object.assign(texts[target], await file());
  loaded[target].add(name);
}

export async function setLanguage(next: Language): Promise<void> {
  await Promise.all([...wanted].map((name) => loadIn(next, name)));
  language = next;
  document.documentElement.lang = next;
  generation += 1;
  listeners.forEach((listener) => listener());
}

export function presentLanguage(): Language {
  return language;
}

/** First language of the browser that the console has. */
export function browserLanguage(): Language {
  for (const tag of navigator.languages) {
    const found = languages.find((known) => tag.toLowerCase().split("-")[0] === known);
    if (found !== undefined) return found;
  }
  return "en";
}

/** Text of a key in the present language, outside of components. */
export function translate(key: MessageKey, values: Record<string, Value> = {}): string {
  const message = texts[language][key];
  return message === undefined ? key : format(message, language, values);
}

/** The message of a key before its values are in it. */
export function messageOf(key: MessageKey): string {
  return texts[language][key] ?? key;
}

/** Whether a key exists, for keys that are made from codes of the server. */
export function hasMessage(key: string): key is MessageKey {
  return texts[language][key] !== undefined;
}

export type Translate = typeof translate;

/** Text of a key that is made from a code of the server; the code itself if the console has no text for it. */
export function textOr(t: Translate, key: string, code: string): string {
  return hasMessage(key) ? t(key) : code.replaceAll("_", " ");
}

const TranslateContext = createContext<Translate>(translate);

export function MessagesProvider({ children }: { children: ReactNode }) {
  const version = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => generation,
  );
  // A new function for each language, so that users of the context draw again.
  const value = useMemo<Translate>(() => (void version, (key, values) => translate(key, values)), [version]);
  return <TranslateContext value={value}>{children}</TranslateContext>;
}

export function useT(): Translate {
  return use(TranslateContext);
}

/** A message with elements as values. */
export function T({ k, values = {} }: { k: MessageKey; values?: Record<string, Value | ReactNode> }) {
  useT();
  const message = texts[language][k] ?? k;
  return formatParts<ReactNode>(message, language, values as Record<string, ReactNode>).map((part, index) => (
    <Fragment key={index}>{part}</Fragment>
  ));
}
