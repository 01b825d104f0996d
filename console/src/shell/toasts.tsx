// Toasts: short results of actions, in a polite live region.
import { useEffect, useSyncExternalStore } from "react";
import { Icon } from "../components/icon";
import { useT } from "../locales";

export interface Toast {
  text: string;
  tone?: "success" | "error" | "info";
  /** Takes the action back. */
  undo?: () => void;
}

type Shown = Toast & { number: number };

let shown: Shown[] = [];
let number = 0;
const listeners = new Set<() => void>();

function set(next: Shown[]) {
  shown = next;
  listeners.forEach((listener) => listener());
}

export function toast(item: Toast) {
  number += 1;
  set([...shown.slice(-3), { ...item, number }]);
}

function remove(which: number) {
  set(shown.filter((item) => item.number !== which));
}

export function Toasts() {
  const t = useT();
  const items = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => shown,
  );
  return (
    <section className="toasts" aria-label={t("common.toasts")} aria-live="polite" aria-relevant="additions">
      {items.map((item) => (
        <ToastView key={item.number} item={item} />
      ))}
    </section>
  );
}

function ToastView({ item }: { item: Shown }) {
  const t = useT();
  const tone = item.tone ?? "success";
  useEffect(() => {
    if (tone === "error") return;
    const timer = setTimeout(() => remove(item.number), item.undo === undefined ? 5_000 : 10_000);
    return () => clearTimeout(timer);
  }, [item, tone]);
  return (
    <div className={`toast toast-${tone}`}>
      <Icon name={tone} />
      <span className="toast-text">{item.text}</span>
      {item.undo !== undefined && (
        <button
          type="button"
          className="button button-quiet"
          onClick={() => {
            item.undo?.();
            remove(item.number);
          }}
        >
          {t("common.undo")}
        </button>
      )}
      <button type="button" className="icon-button" aria-label={t("common.close")} onClick={() => remove(item.number)}>
        <Icon name="close" />
      </button>
    </div>
  );
}
