// Frame of a page: breadcrumb, title, actions, and the content.
import { lazy, Suspense, useEffect, useRef, useState, type ReactNode } from "react";
import { Icon } from "../components/icon";
import { Link } from "../components/link";
import { useT } from "../locales";
import type { CommandForms } from "./command";
import { useShortcut } from "./shortcuts";

const CommandDialog = lazy(() => import("./command-dialog"));

let pagesShown = 0;

export interface PageFrameProps {
  title: ReactNode;
  /** Title of the browser tab, where `title` is not a text. */
  name?: string;
  crumbs?: readonly { to: string; text: string; search?: Record<string, unknown> }[];
  /** State, id and other short facts beside the title. */
  facts?: ReactNode;
  /** One sentence below the title. */
  about?: ReactNode;
  actions?: ReactNode;
  /** What "copy as command" offers. */
  command?: CommandForms;
  /** The content reaches the lower edge of the window, and scrolls by itself: for one list. */
  fill?: boolean;
  children: ReactNode;
}

export function Page({
  title,
  name,
  crumbs = [],
  facts,
  about,
  actions,
  command,
  fill = false,
  children,
}: PageFrameProps) {
  const t = useT();
  const [commands, setCommands] = useState(false);
  const text = name ?? (typeof title === "string" ? title : "");
  useEffect(() => {
    document.title = text === "" ? "Tocsin" : `${text} – Tocsin`;
  }, [text]);
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    // After a navigation, reading goes on at the new page. The first page of a visit leaves the focus alone.
    if (pagesShown > 0 && (document.activeElement === null || document.activeElement === document.body))
      heading.current?.focus({ preventScroll: true });
    pagesShown += 1;
  }, []);
  useShortcut("c", t("common.asCommand"), () => setCommands(true), "page", command !== undefined);
  return (
    <article className={`page${fill ? " page-fill" : ""}`}>
      <header className="page-head">
        <div className="page-title">
          {crumbs.length > 0 && (
            <nav className="crumbs" aria-label={t("common.breadcrumb")}>
              <ol>
                {crumbs.map((crumb) => (
                  <li key={crumb.to}>
                    <Link to={crumb.to} {...(crumb.search === undefined ? {} : { search: crumb.search })}>
                      {crumb.text}
                    </Link>
                    <Icon name="chevron-right" size={12} />
                  </li>
                ))}
              </ol>
            </nav>
          )}
          <div className="page-line">
            <h1 ref={heading} tabIndex={-1}>
              {title}
            </h1>
            {facts}
          </div>
          {about !== undefined && <p className="page-about">{about}</p>}
        </div>
        <div className="page-actions">
          {actions}
          {command !== undefined && (
            <button
              type="button"
              className="icon-button"
              aria-label={t("common.asCommand")}
              data-tip={t("common.asCommand")}
              onClick={() => setCommands(true)}
            >
              <Icon name="terminal" />
            </button>
          )}
        </div>
      </header>
      <div className="page-body">{children}</div>
      <Suspense>
        {commands && command !== undefined && <CommandDialog command={command} close={() => setCommands(false)} />}
      </Suspense>
    </article>
  );
}
