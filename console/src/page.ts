// Definition of a page: its path, texts, scope, search parameters, and the module that draws it.
import { useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { useCallback, type ComponentType } from "react";
import type { MessageKey, Namespace } from "./locales";

type Raw = Record<string, unknown>;

type ParamNames<Path extends string> = Path extends `${string}$${infer Name}/${infer Rest}`
  ? Name | ParamNames<`/${Rest}`>
  : Path extends `${string}$${infer Name}`
    ? Name
    : never;

export interface PageOptions<Path extends string, Search> {
  /** Path below `/console`, with `$name` for a parameter. */
  path: Path;
  /** Namespace of its texts, which are loaded with the page. */
  page: Namespace;
  title: MessageKey;
  /** Scope without which the page shows the forbidden state. */
  scope?: string;
  /** Drawn without the shell, and without a session. */
  bare?: boolean;
  search?: (raw: Raw) => Search;
  load: () => Promise<{ default: ComponentType }>;
}

export interface PageDefinition<Path extends string = string, Search = unknown> extends PageOptions<Path, Search> {
  useSearch: () => Search;
  useSetSearch: () => (change: Partial<Search>, options?: { push?: boolean }) => void;
  useParams: () => Record<ParamNames<Path>, string>;
}

/** Defines a page. Its search parameters are validated on every read, so a page never sees a malformed link. */
export function definePage<const Path extends string, Search extends object = Record<never, never>>(
  options: PageOptions<Path, Search>,
): PageDefinition<Path, Search> {
  return {
    ...options,
    useSearch: () => {
      const raw = useSearch({ strict: false }) as Raw;
      return options.search === undefined ? ({} as Search) : options.search(raw);
    },
    useSetSearch: () => {
      const navigate = useNavigate();
      return useCallback(
        (change, behaviour) => {
          void navigate({
            to: ".",
            replace: behaviour?.push !== true,
            resetScroll: false,
            search: ((previous: Raw) => withoutEmpty({ ...previous, ...change })) as never,
          });
        },
        [navigate],
      );
    },
    useParams: () => useParams({ strict: false }) as Record<ParamNames<Path>, string>,
  };
}

/** A parameter without a value is left out of the address. */
export function withoutEmpty(search: Raw): Raw {
  return Object.fromEntries(
    Object.entries(search).filter(
      ([, value]) =>
        value !== undefined &&
        value !== null &&
        value !== "" &&
        value !== false &&
        !(Array.isArray(value) && value.length === 0),
    ),
  );
}

/** Text parameter; a number in the address is read as text. */
export function text(raw: unknown): string | undefined {
  if (typeof raw === "string") return raw === "" ? undefined : raw;
  return typeof raw === "number" || typeof raw === "boolean" ? String(raw) : undefined;
}

export function whole(raw: unknown): number | undefined {
  const value = typeof raw === "number" ? raw : typeof raw === "string" && raw !== "" ? Number(raw) : NaN;
  return Number.isSafeInteger(value) ? value : undefined;
}

export function flag(raw: unknown): boolean {
  return raw === true || raw === "true" || raw === 1;
}

export function oneOf<const Value extends string>(raw: unknown, values: readonly Value[]): Value | undefined {
  return values.find((value) => value === raw);
}

/** List of texts, also from one text with commas. */
export function list(raw: unknown): string[] {
  if (Array.isArray(raw)) return raw.flatMap((item) => text(item) ?? []);
  return (text(raw) ?? "").split(",").filter((item) => item !== "");
}
