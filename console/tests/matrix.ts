// Checks of one view in both themes and at two widths: axe, horizontal overflow, and what the page fixture reports.
import AxeBuilder from "@axe-core/playwright";
import type { Locator, Page } from "@playwright/test";

import { expect } from "./server";

export const THEMES = ["light", "dark"] as const;
export const WIDTHS = [1280, 390] as const;

/** Rules of axe: WCAG 2.2 to level AA, and best practices. */
const TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];

/** Opens an address of the server at each width, waits until it is ready, and checks it in each theme. */
export async function inspect(page: Page, path: string, ready: (page: Page) => Locator) {
  for (const width of WIDTHS) {
    await page.setViewportSize({ width, height: 900 });
    await page.goto(path);
    await expect(ready(page).first()).toBeVisible();
    for (const theme of THEMES) {
      await page.emulateMedia({ colorScheme: theme, reducedMotion: "reduce" });
      await inspectView(page, `${path} ${theme} ${width} px`);
    }
  }
}

/** Checks the view as it is. */
export async function inspectView(page: Page, name: string) {
  // Loading indicators are no final state.
  await expect(page.locator("[aria-busy=true]")).toHaveCount(0);
  // Scripts of axe do not run in the sandboxed frames of previews.
  const { violations } = await new AxeBuilder({ page }).withTags(TAGS).exclude("iframe[sandbox]").analyze();
  const found = violations.flatMap(({ id, nodes }) =>
    nodes.map((node) => `${id}: ${node.target.join(" ")}: ${node.failureSummary}`),
  );
  expect.soft(found, `axe: ${name}`).toEqual([]);
  const overflow = await page.evaluate(() => {
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= width) return [];
    const all = [...document.body.querySelectorAll("*")];
    const wide = all.filter((element) => element.getBoundingClientRect().right > width + 1);
    return wide.slice(0, 5).map((element) => `${element.tagName.toLowerCase()}.${element.className}`);
  });
  expect.soft(overflow, `wider than the window: ${name}`).toEqual([]);
  const folder = process.env.TOCSIN_SCREENSHOTS;
  if (folder !== undefined) await page.screenshot({ path: `${folder}/${name.replaceAll(/[^a-z0-9]+/g, "-")}.png` });
}
