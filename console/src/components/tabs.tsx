// Tabs (WAI-ARIA): arrows move, the selected one has its panel drawn.
import { useId, useRef, type ReactNode } from "react";

export interface Tab {
  id: string;
  text: ReactNode;
  /** Count or other mark behind the text. */
  mark?: ReactNode;
  content: () => ReactNode;
}

export function Tabs({
  label,
  tabs,
  selected,
  onSelect,
}: {
  label: string;
  tabs: readonly Tab[];
  selected: string;
  onSelect: (id: string) => void;
}) {
  const base = useId();
  const list = useRef<HTMLDivElement>(null);
  const shown = tabs.find((tab) => tab.id === selected) ?? tabs[0];
  const go = (index: number) => {
    const next = tabs[(index + tabs.length) % tabs.length];
    if (next === undefined) return;
    onSelect(next.id);
    list.current?.querySelector<HTMLElement>(`[data-tab="${CSS.escape(next.id)}"]`)?.focus();
  };
  return (
    <div className="tabs">
      <div
        ref={list}
        role="tablist"
        aria-label={label}
        className="tabs-list"
        onKeyDown={(event) => {
          const at = tabs.findIndex((tab) => tab.id === shown?.id);
          const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
          if (to === undefined) return;
          event.preventDefault();
          go(to);
        }}
      >
        {tabs.map((tab) => (
          <button
            key={tab.id}
            type="button"
            role="tab"
            id={`${base}-tab-${tab.id}`}
            data-tab={tab.id}
            aria-selected={tab.id === shown?.id}
            aria-controls={`${base}-panel-${tab.id}`}
            tabIndex={tab.id === shown?.id ? 0 : -1}
            onClick={() => onSelect(tab.id)}
          >
            {tab.text}
            {tab.mark !== undefined && <span className="tabs-mark">{tab.mark}</span>}
          </button>
        ))}
      </div>
      {shown !== undefined && (
        <div
          role="tabpanel"
          id={`${base}-panel-${shown.id}`}
          aria-labelledby={`${base}-tab-${shown.id}`}
          className="tabs-panel"
          tabIndex={-1}
          key={shown.id}
        >
          {shown.content()}
        </div>
      )}
    </div>
  );
}
