// The pages of the server beside the console: the API explorer and the status page.
import { inspect } from "./matrix";
import { expect, test } from "./server";

test("the explorer shows its areas collapsed, and Markdown as elements", async ({ page }) => {
  await page.goto("/explorer/");
  await expect(page.locator("#state")).toContainText("operations");
  const areas = page.locator("details.area");
  expect(await areas.count()).toBeGreaterThan(10);
  await expect(page.locator("details.area[open]")).toHaveCount(0);
  await page.locator("details.area > summary", { hasText: "events" }).first().click();
  await expect(page.locator("details.area[open]")).toHaveCount(1);
  // A filter opens the areas of what it finds; without it they are as before.
  await page.locator("#filter").fill("put subscribers");
  await expect(page.locator("details.operation:visible").first()).toBeVisible();
  await page.locator("#filter").fill("");
  await expect(page.locator("details.area[open]")).toHaveCount(1);
  const inbox = page.locator("details.area > summary", { hasText: "inbox" }).first();
  await expect(inbox.locator("code").first()).toHaveText("Bearer");
  await expect(page.locator("#operations")).not.toContainText("`");
});

test("the explorer is accessible, without errors, within the window", async ({ page }) => {
  await inspect(page, "/explorer/", (page) => page.locator("details.area"));
});

test("the status page is accessible, and is not reloaded by itself", async ({ page }) => {
  await inspect(page, "/status", (page) => page.getByRole("heading", { level: 1 }));
  await expect(page.locator("meta[http-equiv]")).toHaveCount(0);
});
