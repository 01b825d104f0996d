// Command palette: ids, objects, pages and actions in one field.
import { useDeferredValue, useEffect, useId, useMemo, useRef, useState } from "react";
import { toggleLive } from "../api/live";
import { useRead } from "../api/query";
import { holds, useSession } from "../api/session";
import { Icon, isIcon, type IconName } from "../components/icon";
import { useGo } from "../components/link";
import { idPath, linkPath, objectPath } from "../ids";
import { hasMessage, useT } from "../locales";
import { changeSettings } from "../settings";
import { navigation } from "./navigation";
import { score } from "./score";
import { useLogOut } from "./user-menu";

const hitsMost = 40;

interface Entry {
  id: string;
  group: string;
  text: string;
  note?: string;
  icon: IconName;
  run: () => void;
}

/** A hit of `GET /v1/search`. */
export interface Hit {
  kind: string;
  id: string;
  title?: string | null;
  application?: string | null;
  /** Path of the API. */
  link?: string | null;
}

export default function Palette({ close, showHelp }: { close: () => void; showHelp: () => void }) {
  const t = useT();
  const [text, setText] = useState("");
  const [active, setActive] = useState(0);
  const element = useRef<HTMLDialogElement>(null);
  const list = useRef<HTMLDivElement>(null);
  const base = useId();
  const entries = useEntries(text.trim(), showHelp);

  useEffect(() => {
    const before = document.activeElement;
    const dialog = element.current!;
    if (!dialog.open) dialog.showModal();
    return () => {
      dialog.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  useEffect(() => setActive(0), [text]);
  useEffect(() => {
    list.current?.querySelector(`[data-index="${active}"]`)?.scrollIntoView({ block: "nearest" });
  }, [active]);

  const shown = Math.min(active, Math.max(0, entries.length - 1));
  const choose = (entry: Entry | undefined) => {
    if (entry === undefined) return;
    close();
    entry.run();
  };

  return (
    <dialog
      ref={element}
      className="palette"
      aria-label={t("common.palette.title")}
      onCancel={(event) => {
        event.preventDefault();
        close();
      }}
      onPointerDown={(event) => {
        if (event.target === element.current) close();
      }}
    >
      <div className="palette-box">
        <div className="palette-field">
          <Icon name="search" />
          <input
            autoFocus
            type="text"
            role="combobox"
            aria-expanded="true"
            aria-controls={`${base}-list`}
            aria-autocomplete="list"
            aria-activedescendant={entries.length === 0 ? undefined : `${base}-${shown}`}
            aria-label={t("common.palette.title")}
            placeholder={t("common.palette.placeholder")}
            spellCheck={false}
            autoComplete="off"
            value={text}
            onChange={(event) => setText(event.currentTarget.value)}
            onKeyDown={(event) => {
              const to = {
                ArrowDown: shown + 1,
                ArrowUp: shown - 1,
                PageDown: Math.min(entries.length - 1, shown + 8),
                PageUp: Math.max(0, shown - 8),
              }[event.key];
              if (to !== undefined && entries.length > 0) {
                event.preventDefault();
                setActive((to + entries.length) % entries.length);
              } else if (event.key === "Enter") {
                event.preventDefault();
                choose(entries[shown]);
              }
            }}
          />
          <kbd>Esc</kbd>
        </div>
        <div
          ref={list}
          id={`${base}-list`}
          role="listbox"
          aria-label={t("common.palette.results")}
          className="palette-list"
        >
          {entries.map((entry, index) => (
            <PaletteRow
              key={entry.id}
              entry={entry}
              id={`${base}-${index}`}
              index={index}
              isActive={index === shown}
              title={entries[index - 1]?.group === entry.group ? null : entry.group}
              onPoint={() => setActive(index)}
              onChoose={() => choose(entry)}
            />
          ))}
          {entries.length === 0 && <p className="palette-none muted">{t("common.palette.none")}</p>}
        </div>
        <div className="visually-hidden" role="status">
          {t("common.palette.count", { count: entries.length })}
        </div>
      </div>
    </dialog>
  );
}

function PaletteRow({
  entry,
  id,
  index,
  isActive,
  title,
  onPoint,
  onChoose,
}: {
  entry: Entry;
  id: string;
  index: number;
  isActive: boolean;
  title: string | null;
  onPoint: () => void;
  onChoose: () => void;
}) {
  return (
    <>
      {title !== null && (
        <div className="palette-group label" role="presentation">
          {title}
        </div>
      )}
      <div
        id={id}
        role="option"
        aria-selected={isActive}
        data-index={index}
        className="palette-row"
        onPointerMove={onPoint}
        onClick={onChoose}
      >
        <Icon name={entry.icon} />
        <span className="palette-text">{entry.text}</span>
        {entry.note !== undefined && <span className="palette-note">{entry.note}</span>}
      </div>
    </>
  );
}

function useEntries(text: string, showHelp: () => void): Entry[] {
  const t = useT();
  const go = useGo();
  const session = useSession();
  const leave = useLogOut();
  const query = useDeferredValue(text);
  const found = useRead<{ items: Hit[] }>("/v1/search", { query: { q: query }, enabled: query.length >= 2 });
  const hits = query.length >= 2 ? found.data?.items : undefined;

  return useMemo(() => {
    const entries: Entry[] = [];
    const path = idPath(text);
    if (path !== null)
      entries.push({
        id: "id",
        group: t("common.palette.open"),
        text,
        note: t("common.palette.openNote"),
        icon: "arrow-right",
        run: () => go(path),
      });
    for (const hit of (hits ?? []).slice(0, hitsMost)) {
      const to = objectPath(hit) ?? linkPath(hit.link);
      if (to === null || to === path) continue;
      const kind = `common.kind.${hit.kind}`;
      const title = hit.title ?? hit.id;
      entries.push({
        id: `hit-${hit.kind}-${hit.application ?? ""}-${hit.id}`,
        group: t("common.palette.objects"),
        text: title,
        note: [hasMessage(kind) ? t(kind) : hit.kind, title === hit.id ? null : hit.id, hit.application]
          .filter((part) => part !== null && part !== undefined && part !== "")
          .join(" · "),
        icon: iconOf(hit.kind),
        run: () => go(to),
      });
    }
    const pages: Entry[] = navigation
      .flatMap((group) => group.entries)
      .filter((entry) => holds(session.scopes, entry.scope) && (entry.when === undefined || entry.when(session.server)))
      .map((entry) => ({
        id: entry.to,
        group: t("common.palette.pages"),
        text: t(entry.text),
        icon: entry.icon,
        run: () => go(entry.to),
        ...(entry.key === undefined ? {} : { note: `g ${entry.key}` }),
      }));
    const actions: Entry[] = [
      {
        id: "profile",
        group: t("common.palette.pages"),
        text: t("common.user.profile"),
        icon: "user",
        run: () => go("/profile"),
      },
      {
        id: "live",
        group: t("common.palette.actions"),
        text: t("common.key.live"),
        note: "l",
        icon: "pause",
        run: toggleLive,
      },
      {
        id: "help",
        group: t("common.palette.actions"),
        text: t("common.user.shortcuts"),
        note: "?",
        icon: "keyboard",
        run: showHelp,
      },
      ...(["system", "light", "dark", "contrast"] as const).map((theme) => ({
        id: `theme-${theme}`,
        group: t("common.palette.actions"),
        text: `${t("common.user.theme")}: ${t(`common.theme.${theme}`)}`,
        icon: "columns" as const,
        run: () => changeSettings({ theme }),
      })),
      ...(session.kind === "user"
        ? [
            {
              id: "logout",
              group: t("common.palette.actions"),
              text: t("common.user.logout"),
              icon: "logout" as const,
              run: leave,
            },
          ]
        : []),
    ];
    const scored = [...pages, ...actions]
      .map((entry) => ({ entry, score: score(text, entry.text) }))
      .filter(({ score }) => score > 0);
    // Without a text, pages and actions keep their order.
    if (text !== "") scored.sort((left, right) => right.score - left.score);
    const groups = [t("common.palette.pages"), t("common.palette.actions")];
    for (const group of groups)
      entries.push(...scored.filter(({ entry }) => entry.group === group).map(({ entry }) => entry));
    return entries;
  }, [text, hits, session, t, go, leave, showHelp]);
}

function iconOf(kind: string): IconName {
  const names: Record<string, IconName> = {
    application: "applications",
    rule: "rules",
    channel: "channels",
    source: "sources",
    subscriber: "subscribers",
    subscription: "subscribers",
    device: "channels",
    address: "channels",
    segment: "segments",
    entry: "directory",
    exchange: "exchanges",
    message: "exchanges",
    event: "events",
    event_batch: "events",
    notification: "notifications",
    notification_batch: "notifications",
    broadcast: "inbox",
    inbox_broadcast: "inbox",
    user: "user",
    key: "key",
    schedule: "schedules",
    report: "reports",
  };
  const name = names[kind] ?? kind;
  return isIcon(name) ? name : "arrow-right";
}
