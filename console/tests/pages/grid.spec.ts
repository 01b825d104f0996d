// The grid of a list, by keyboard.
import { expect, signIn, test } from "../server";

/** An event that belongs to the sample application. */
const quake = (id: string) => ({
  id,
  magnitude: 0.1,
  place: "here",
  latitude: 1,
  longitude: 2,
  depth_km: 3,
  at: "2026-11-29T10:00:00Z",
  url: "https://example.org",
});

test.beforeEach(async ({ page, server }) => {
  const batches = (await server.api("GET", "/v1/event-batches?limit=30")) as { items: unknown[] };
  for (let made = batches.items.length; made < 30; made += 1)
    await server.api("POST", "/v1/applications/quakes/events/quake", quake(`grid-${made}`));
  await signIn(page, server);
  await page.goto("/console/events");
  await page.locator(".grid-row").first().waitFor();
});

const focusedRow = "document.activeElement.closest('[data-row]')?.dataset.row";

test("rows and cells move with keys, and Enter opens a row", async ({ page }) => {
  const grid = page.getByRole("grid");
  expect(await grid.getAttribute("aria-rowcount")).not.toBeNull();
  await page.keyboard.press("j");
  await expect(page.locator('[data-row="0"]')).toBeFocused();
  await page.keyboard.press("j");
  await page.keyboard.press("ArrowDown");
  await expect(page.locator('[data-row="2"]')).toBeFocused();
  await page.keyboard.press("ArrowRight");
  await expect(page.locator('[data-row="2"] [data-cell="0"]')).toBeFocused();
  await page.keyboard.press("End");
  await expect(page.locator('[data-row="2"] [role=gridcell]').last()).toBeFocused();
  await page.keyboard.press("Control+Home");
  await expect.poll(() => page.evaluate(focusedRow)).toBe("0");
  await page.keyboard.press("PageDown");
  await expect.poll(async () => Number(await page.evaluate(focusedRow))).toBeGreaterThan(5);
  await page.keyboard.press("k");
  await page.keyboard.press("Enter");
  await expect(page).toHaveURL(/\/console\/events\/eb-\d+$/);
});

test("a key pressed before the next frame goes to the row that has the focus", async ({ page }) => {
  await page.evaluate(() => {
    for (const key of ["j", "Enter"]) {
      const press = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true });
      (document.activeElement ?? document.body).dispatchEvent(press);
    }
  });
  await expect(page).toHaveURL(/\/console\/events\/eb-\d+$/);
});

test("columns are hidden and resized, and stay so", async ({ page }) => {
  const header = page.getByRole("columnheader", { name: "Source" });
  await expect(header).toBeVisible();
  await page.getByRole("button", { name: "List actions" }).click();
  await page.getByRole("menuitemcheckbox", { name: "Source" }).click();
  await expect(header).toBeHidden();
  await page.keyboard.press("Escape");
  await page.reload();
  await page.locator(".grid-row").first().waitFor();
  await expect(header).toBeHidden();
  const first = page.getByRole("columnheader").first();
  const before = (await first.boundingBox())!.width;
  await first.getByRole("separator").focus();
  await page.keyboard.press("ArrowRight");
  await expect.poll(async () => (await first.boundingBox())!.width).toBe(before + 16);
});

test("below 600 px rows are cards without horizontal scrolling", async ({ page }) => {
  await page.setViewportSize({ width: 390, height: 844 });
  await expect(page.getByRole("columnheader").first()).toBeHidden();
  expect(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth)).toBe(true);
});

test("newer rows wait for a click or the key", async ({ page, server }) => {
  const first = page.locator('[data-row="0"] .id-text');
  const before = (await first.textContent())!;
  await server.api("POST", "/v1/applications/quakes/events/quake", quake(`newer-${Date.now()}`));
  await expect(page.getByRole("button", { name: /newer/ })).toBeVisible({ timeout: 20_000 });
  await expect(first, "the list does not move").toHaveText(before);
  await page.keyboard.press(".");
  await expect(page.getByRole("button", { name: /newer/ })).toBeHidden();
  await expect(first).not.toHaveText(before);
});
