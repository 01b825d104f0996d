// One tooltip for all elements with `data-tip`: on hover after a moment, on focus at once; Escape closes it (WCAG
// 1.4.13).

const delayMs = 400;

export function startTooltips() {
  const tip = document.createElement("div");
  tip.className = "tooltip";
  tip.id = "tooltip";
  tip.setAttribute("role", "tooltip");
  tip.popover = "manual";
  document.body.append(tip);

  let timer: ReturnType<typeof setTimeout> | undefined;
  let anchor: HTMLElement | null = null;

  const hide = () => {
    clearTimeout(timer);
    if (anchor !== null) anchor.removeAttribute("aria-describedby");
    anchor = null;
    if (tip.matches(":popover-open")) tip.hidePopover();
  };

  const show = (target: HTMLElement) => {
    if (!target.isConnected) return;
    hide();
    const text = target.dataset.tip ?? "";
    if (text === "") return;
    anchor = target;
    tip.textContent = text;
    tip.showPopover();
    if (target.getAttribute("aria-label") !== text) target.setAttribute("aria-describedby", "tooltip");
    const box = target.getBoundingClientRect();
    const size = tip.getBoundingClientRect();
    const top = box.bottom + 6 + size.height > innerHeight ? box.top - size.height - 6 : box.bottom + 6;
    const left = Math.min(Math.max(8, box.left + box.width / 2 - size.width / 2), innerWidth - size.width - 8);
    tip.style.top = `${Math.max(4, top)}px`;
    tip.style.left = `${left}px`;
  };

  const tipped = (event: Event) =>
    event.target instanceof Element ? event.target.closest<HTMLElement>("[data-tip]") : null;

  document.addEventListener("mouseover", (event) => {
    const target = tipped(event);
    if (target === anchor || tip.contains(event.target as Node)) return;
    hide();
    if (target !== null) timer = setTimeout(() => show(target), delayMs);
  });
  document.addEventListener("focusin", (event) => {
    const focused = event.target as Element;
    const target =
      tipped(event) ??
      (focused.matches("[role=gridcell],[role=row]") ? focused.querySelector<HTMLElement>("[data-tip]") : null);
    if (target !== null && focused.matches(":focus-visible")) show(target);
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("pointerdown", hide);
  document.addEventListener("scroll", hide, { capture: true, passive: true });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
  });
}
