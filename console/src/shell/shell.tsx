// The shell around all pages: top bar, navigation, content, and what can open over them.
import { Outlet, useLocation } from "@tanstack/react-router";
import { lazy, Suspense, useEffect, useRef, useState } from "react";
import { startLive, toggleLive, useLiveState, useTopics } from "../api/live";
import { queryClient, useRead } from "../api/query";
import { holds, useCan, useSession, useSessionState } from "../api/session";
import { formatCount } from "../format";
import { Bell, Icon } from "../components/icon";
import { Link, useGo } from "../components/link";
import { Forbidden, NotFound } from "../components/states";
import { presentLanguage, useT } from "../locales";
import { ActProvider } from "./act";
import { navigation } from "./navigation";
import { Page } from "./page-frame";
import { RangeButton } from "./range-button";
import { MenuButton } from "../components/menu";
import { useRange, useSetRange, shiftRange } from "./range";
import { useShortcut } from "./shortcuts";
import { Toasts } from "./toasts";
import { useUserMenu } from "./user-menu";

const Palette = lazy(() => import("./palette"));
const Help = lazy(() => import("./help"));
const LoginDialog = lazy(() => import("./login-dialog"));

export function Shell() {
  const state = useSessionState();
  if (state.state !== "present" && state.state !== "expired") return null;
  return (
    <ActProvider>
      <ShellFrame isExpired={state.state === "expired"} />
    </ActProvider>
  );
}

interface Counts {
  attention: number | null;
  suspended: number | null;
}

function ShellFrame({ isExpired }: { isExpired: boolean }) {
  const t = useT();
  const [over, setOver] = useState<"palette" | "help" | null>(null);
  const [drawer, setDrawer] = useState(false);
  const location = useLocation();
  const counts = useCounts();
  const main = useRef<HTMLElement>(null);

  useEffect(() => startLive(), []);
  useEffect(() => setDrawer(false), [location.pathname]);

  useShortcut("Ctrl+k", t("common.key.palette"), () => setOver("palette"), "global");
  useShortcut("?", t("common.key.help"), () => setOver("help"), "global");
  useShortcut("/", t("common.key.filter"), () => document.querySelector<HTMLElement>("[data-filter]")?.focus(), "list");
  useShortcut("l", t("common.key.live"), toggleLive, "global");
  useRangeShortcuts();

  return (
    <div className="shell">
      <a
        className="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          main.current?.focus();
        }}
      >
        {t("common.skip")}
      </a>
      <header className="top">
        <button
          type="button"
          className="icon-button top-menu"
          aria-label={t("common.navigation")}
          aria-expanded={drawer}
          onClick={() => setDrawer(true)}
        >
          <Icon name="menu" />
        </button>
        <Link to="/" className="brand" aria-label="Tocsin">
          <Bell />
          <span>Tocsin</span>
        </Link>
        <button
          type="button"
          className="jump"
          aria-label={t("common.jump")}
          aria-keyshortcuts="Control+K"
          onClick={() => setOver("palette")}
        >
          <Icon name="search" />
          <span className="jump-text">{t("common.jump")}</span>
          <kbd>Ctrl K</kbd>
        </button>
        <div className="top-tools">
          <RangeButton />
          <LiveButton />
          <AttentionLink counts={counts} />
          <UserButton showHelp={() => setOver("help")} />
        </div>
      </header>
      <Navigation counts={counts} className="nav nav-side" />
      {drawer && <Drawer counts={counts} close={() => setDrawer(false)} />}
      <main id="main" ref={main} className="main" tabIndex={-1}>
        <Outlet />
      </main>
      <Toasts />
      <Suspense>
        {over === "palette" && <Palette close={() => setOver(null)} showHelp={() => setOver("help")} />}
        {over === "help" && <Help close={() => setOver(null)} />}
        {isExpired && <LoginDialog onDone={() => void queryClient.invalidateQueries()} />}
      </Suspense>
    </div>
  );
}

/** Counts of the navigation. That of attention is the length of the list which the pages show, so both agree. */
function useCounts(): Counts {
  const can = useCan("operations:read");
  const [suspended, setSuspended] = useState<number | null>(null);
  const attention = useRead<{ items: unknown[] }>("/v1/attention", {
    topics: ["attention"],
    every: 30_000,
    enabled: can,
  });
  useTopics(["suspensions"], ({ data }) => {
    const report = data as { suspended?: number } | null;
    if (typeof report?.suspended === "number") setSuspended(report.suspended);
  });
  return { attention: attention.data?.items.length ?? null, suspended };
}

function Navigation({ counts, className }: { counts: Counts; className: string }) {
  const t = useT();
  const { scopes, server } = useSession();
  const go = useGo();
  return (
    <nav className={className} aria-label={t("common.navigation")}>
      {navigation.map((group, index) => {
        const entries = group.entries.filter(
          (entry) => holds(scopes, entry.scope) && (entry.when === undefined || entry.when(server)),
        );
        if (entries.length === 0) return null;
        return (
          <div key={index} className="nav-group">
            {group.text !== null && <h2 className="nav-title">{t(group.text)}</h2>}
            <ul>
              {entries.map((entry) => {
                const count = entry.badge === undefined ? null : counts[entry.badge];
                return (
                  <li key={entry.to}>
                    <Link to={entry.to} className="nav-link" current={entry.to === "/" ? "exact" : "below"}>
                      <Icon name={entry.icon} />
                      <span>{t(entry.text)}</span>
                      {count !== null && count > 0 && (
                        <span className={`nav-count nav-count-${entry.badge}`}>
                          {formatCount(count, presentLanguage())}
                        </span>
                      )}
                    </Link>
                    {entry.key !== undefined && (
                      <GoShortcut keys={`g ${entry.key}`} text={t(entry.text)} run={() => go(entry.to)} />
                    )}
                  </li>
                );
              })}
            </ul>
          </div>
        );
      })}
    </nav>
  );
}

function GoShortcut({ keys, text, run }: { keys: string; text: string; run: () => void }) {
  useShortcut(keys, text, run, "global");
  return null;
}

function Drawer({ counts, close }: { counts: Counts; close: () => void }) {
  const t = useT();
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = element.current!;
    if (!dialog.open) dialog.showModal();
    return () => dialog.close();
  }, []);
  return (
    <dialog
      ref={element}
      className="drawer"
      aria-label={t("common.navigation")}
      onClose={close}
      onPointerDown={(event) => {
        if (event.target === element.current) close();
      }}
      onClick={(event) => {
        if ((event.target as Element).closest("a") !== null) close();
      }}
    >
      <div className="drawer-box">
        <div className="drawer-head">
          <span className="brand">
            <Bell />
            <span>Tocsin</span>
          </span>
          <button type="button" className="icon-button" aria-label={t("common.close")} onClick={close}>
            <Icon name="close" />
          </button>
        </div>
        <Navigation counts={counts} className="nav" />
      </div>
    </dialog>
  );
}

function LiveButton() {
  const t = useT();
  const state = useLiveState();
  return (
    <button
      type="button"
      className={`tool live live-${state}`}
      aria-pressed={state !== "paused"}
      data-tip={t(`common.live.tip.${state}`)}
      aria-label={t(`common.live.${state}`)}
      onClick={toggleLive}
    >
      <span className="live-dot" aria-hidden="true">
        {state === "paused" && <Icon name="pause" size={12} />}
      </span>
      <span className="tool-text">{t(`common.live.${state}`)}</span>
    </button>
  );
}

function AttentionLink({ counts }: { counts: Counts }) {
  const t = useT();
  const can = useCan("operations:read");
  if (!can) return null;
  const count = counts.attention ?? 0;
  return (
    <Link
      to="/attention"
      className={`tool attention-link${count > 0 ? " has-items" : ""}`}
      aria-label={t("common.attentionCount", { count })}
      data-tip={t("common.attentionCount", { count })}
    >
      <Icon name="attention" />
      {count > 0 && <span className="num">{formatCount(count, presentLanguage())}</span>}
    </Link>
  );
}

function UserButton({ showHelp }: { showHelp: () => void }) {
  const t = useT();
  const session = useSession();
  const groups = useUserMenu(showHelp);
  const name = session.display_name ?? session.name;
  return (
    <MenuButton label={t("common.userMenu", { name })} className="tool user-button" groups={groups}>
      <Icon name={session.kind === "key" ? "key" : "user"} />
      <span className="tool-text user-name">{name}</span>
      <Icon name="chevron-down" size={12} />
    </MenuButton>
  );
}

function useRangeShortcuts() {
  const t = useT();
  const range = useRange();
  const setRange = useSetRange();
  useShortcut("[", t("common.key.earlier"), () => setRange(shiftRange(range, -1, Date.now())), "global");
  useShortcut(
    "]",
    t("common.key.later"),
    () => range.key === "absolute" && setRange(shiftRange(range, 1, Date.now())),
    "global",
  );
}

export function NotFoundPage() {
  const t = useT();
  return (
    <Page title={t("common.notFound")}>
      <NotFound detail={t("common.noPage")} />
    </Page>
  );
}

export function ForbiddenPage({ scope }: { scope: string }) {
  const t = useT();
  return (
    <Page title={t("common.forbidden")}>
      <Forbidden scope={scope} />
    </Page>
  );
}
