// Elements without HTML texts, so that a page can require Trusted Types.

type Child = Node | string | undefined | false;

/** Makes an element with attributes and children. `true` sets an empty attribute; `undefined` and `false` set none. */
export function element<Name extends keyof HTMLElementTagNameMap>(
  name: Name,
  attributes: Record<string, string | boolean | undefined> = {},
  ...children: Child[]
): HTMLElementTagNameMap[Name] {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child): child is Node | string => child !== undefined && child !== false));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

/** The symbol of the bell. */
export function bellSymbol(): SVGElement {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute(
    "d",
    "M12 3a6 6 0 0 0-6 6v4.2L4.4 16a1 1 0 0 0 .9 1.5h13.4a1 1 0 0 0 .9-1.5L18 13.2V9a6 6 0 0 0-6-6Zm-2.3 16a2.4 2.4 0 0 0 4.6 0Z",
  );
  path.setAttribute("fill", "currentColor");
  svg.append(path);
  return svg;
}

/** A web address or a path of the page's site; `undefined` for every other scheme. */
export function safeLink(link: string | undefined): string | undefined {
  if (link === undefined) return undefined;
  try {
    const url = new URL(link, document.baseURI);
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : undefined;
  } catch {
    return undefined;
  }
}
