// Menu button (WAI-ARIA): arrows, Home, End and first letters move; Escape and Tab close; the focus returns to the
// button.
import { useEffect, useId, useLayoutEffect, useRef, useState, type KeyboardEvent, type ReactNode } from "react";
import { Icon, type IconName } from "./icon";

export interface MenuEntry {
  id: string;
  text: ReactNode;
  /** Text for first letters, where `text` is no string. */
  plain?: string;
  icon?: IconName;
  note?: ReactNode;
  danger?: boolean;
  disabled?: boolean;
  /** An entry with this member is a choice that is on or off. */
  checked?: boolean;
  /** The menu stays open, for several choices in a row. */
  stays?: boolean;
  run: () => void;
}

export interface MenuGroup {
  title?: string;
  entries: readonly MenuEntry[];
}

export interface MenuButtonProps {
  label: string;
  children?: ReactNode;
  icon?: IconName;
  groups: readonly MenuGroup[];
  className?: string;
  disabled?: boolean;
}

export function MenuButton({ label, children, icon, groups, className = "button", disabled = false }: MenuButtonProps) {
  const [open, setOpen] = useState(false);
  const button = useRef<HTMLButtonElement>(null);
  // A press on the button closes an open menu before its click arrives.
  const wasOpen = useRef(false);
  const id = useId();
  return (
    <>
      <button
        ref={button}
        type="button"
        className={children === undefined ? "icon-button" : className}
        aria-label={label}
        {...(children === undefined ? { "data-tip": label } : {})}
        aria-haspopup="menu"
        aria-expanded={open}
        aria-controls={open ? id : undefined}
        disabled={disabled}
        onPointerDown={() => {
          wasOpen.current = open;
        }}
        onClick={() => {
          setOpen(!wasOpen.current);
          wasOpen.current = false;
        }}
        onKeyDown={(event) => {
          if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
          event.preventDefault();
          event.stopPropagation();
          setOpen(true);
        }}
      >
        {icon !== undefined && <Icon name={icon} />}
        {children}
      </button>
      {open && (
        <Menu
          id={id}
          label={label}
          groups={groups}
          anchor={button}
          close={(returnFocus) => {
            setOpen(false);
            if (returnFocus) button.current?.focus();
          }}
        />
      )}
    </>
  );
}

interface MenuProps {
  id: string;
  label: string;
  groups: readonly MenuGroup[];
  anchor: { current: HTMLElement | null };
  close: (returnFocus: boolean) => void;
}

function Menu({ id, label, groups, anchor, close }: MenuProps) {
  const element = useRef<HTMLDivElement>(null);
  const letters = useRef({ text: "", at: 0 });
  const latestClose = useRef(close);
  latestClose.current = close;

  useLayoutEffect(() => {
    const menu = element.current!;
    menu.showPopover();
    place(menu, anchor.current!);
    items(menu)[0]?.focus();
    const toggled = (event: Event) => {
      if ((event as ToggleEvent).newState === "closed") latestClose.current(false);
    };
    menu.addEventListener("toggle", toggled);
    return () => menu.removeEventListener("toggle", toggled);
  }, [anchor]);

  useEffect(() => {
    const again = () => latestClose.current(false);
    addEventListener("resize", again);
    return () => removeEventListener("resize", again);
  }, []);

  const choose = (entry: MenuEntry) => {
    if (entry.disabled === true) return;
    if (entry.stays !== true) close(true);
    entry.run();
  };

  const onKeyDown = (event: KeyboardEvent) => {
    const all = items(element.current!);
    const at = all.indexOf(document.activeElement as HTMLElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
    event.stopPropagation();
    if (to !== undefined) {
      event.preventDefault();
      all.at(to % all.length)?.focus();
    } else if (event.key === "Escape") {
      event.preventDefault();
      close(true);
    } else if (event.key === "Tab") {
      event.preventDefault();
      close(true);
    } else if (event.key.length === 1 && event.key !== " " && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const now = Date.now();
      letters.current = {
        text: (now - letters.current.at < 700 ? letters.current.text : "") + event.key.toLowerCase(),
        at: now,
      };
      const { text } = letters.current;
      const order = [...all.slice(text.length === 1 ? at + 1 : at), ...all.slice(0, Math.max(0, at) + 1)];
      order.find((item) => (item.dataset.plain ?? "").toLowerCase().startsWith(text))?.focus();
    }
  };

  return (
    <div ref={element} id={id} role="menu" aria-label={label} className="menu" popover="auto" onKeyDown={onKeyDown}>
      {groups.map((group, index) => (
        <div key={index} role="group" aria-label={group.title ?? label} className="menu-group">
          {group.title !== undefined && (
            <div className="menu-title" role="presentation">
              {group.title}
            </div>
          )}
          {group.entries.map((entry) => (
            <button
              key={entry.id}
              type="button"
              role={entry.checked === undefined ? "menuitem" : "menuitemcheckbox"}
              aria-checked={entry.checked}
              aria-disabled={entry.disabled || undefined}
              tabIndex={-1}
              data-plain={entry.plain ?? (typeof entry.text === "string" ? entry.text : entry.id)}
              className={`menu-item${entry.danger === true ? " menu-danger" : ""}`}
              onPointerMove={(event) => event.currentTarget.focus({ preventScroll: true })}
              onClick={() => choose(entry)}
            >
              <span className="menu-icon">
                {entry.checked === true ? (
                  <Icon name="check" />
                ) : (
                  entry.icon !== undefined && <Icon name={entry.icon} />
                )}
              </span>
              <span className="menu-text">{entry.text}</span>
              {entry.note !== undefined && <span className="menu-note">{entry.note}</span>}
            </button>
          ))}
        </div>
      ))}
    </div>
  );
}

function items(menu: HTMLElement): HTMLElement[] {
  return [...menu.querySelectorAll<HTMLElement>("[role^=menuitem]")];
}

/** Below the anchor, ends aligned; above it where there is more room. */
function place(menu: HTMLElement, anchor: HTMLElement) {
  const gap = 4;
  const edge = 8;
  const box = anchor.getBoundingClientRect();
  const below = innerHeight - box.bottom - gap - edge;
  const above = box.top - gap - edge;
  const isAbove = below < Math.min(menu.scrollHeight, 240) && above > below;
  const most = Math.max(120, isAbove ? above : below);
  menu.style.maxHeight = `${most}px`;
  const size = menu.getBoundingClientRect();
  const alignEnd = document.dir === "rtl" ? box.left : box.right - size.width;
  menu.style.left = `${Math.min(Math.max(edge, alignEnd), innerWidth - size.width - edge)}px`;
  menu.style.top = `${isAbove ? box.top - gap - Math.min(size.height, most) : box.bottom + gap}px`;
}
