// Notifications: filters, one notification with attempts, journey and content.
import { expect, signIn, test } from "../server";

test("filters are in the address, and a notification shows its attempts, journey and content", async ({
  page,
  server,
}) => {
  await expect
    .poll(
      async () =>
        ((await server.api("GET", "/v1/notifications?application=quakes&outcome=delivered&limit=1")) as { items: unknown[] }).items.length,
    )
    .toBe(1);
  await signIn(page, server);
  await page.goto("/console/notifications?application=quakes");
  await page.getByRole("checkbox", { name: "Delivered" }).check();
  await expect(page).toHaveURL(/outcome=.*delivered/);
  const row = page.getByRole("row").nth(1);
  await expect(row).toContainText("Delivered");
  await row.getByRole("link").first().click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText(/^n-\d+-\d+$/);
  await expect(page.getByRole("region", { name: "Attempts" })).toContainText("250");
  await expect(page.locator(".journey-step").filter({ hasText: "Delivered" })).toHaveCount(1);
  await page.getByRole("tab", { name: "Content" }).click();
  const frame = page.frameLocator("iframe");
  await expect(frame.locator("body")).toContainText(/Magnitude|Stärke/);
  await page.getByRole("radio", { name: "Text" }).check();
  await expect(page.locator(".notifications-text")).toContainText(/earthquake|Erdbeben/);
});

test("an unknown notification is reported as not found", async ({ page, server, problems }) => {
  problems.allow(/404/);
  await signIn(page, server);
  await page.goto("/console/notifications/n-999999-0");
  await expect(page.getByRole("heading", { name: "Not found" })).toBeVisible();
});

test("a failure of the server offers a repetition", async ({ page, server, problems }) => {
  problems.allow(/503/, /500/);
  await signIn(page, server);
  // The live stream repeats the read too, so the failure ends with the click.
  const isRetried = () => page.evaluate(() => "retried" in document.documentElement.dataset);
  await page.route("**/v1/notifications/n-1-0", async (route) => {
    if (!(await isRetried()))
      await route.fulfill({
        status: 500,
        contentType: "application/problem+json",
        body: JSON.stringify({
          type: "/problems/internal",
          code: "internal",
          title: "The server failed",
          status: 500,
          detail: "injected",
        }),
      });
    else await route.continue();
  });
  await page.goto("/console/notifications/n-1-0");
  await expect(page.getByRole("heading", { name: "The server failed" })).toBeVisible();
  await page.evaluate(() => {
    const mark = () => (document.documentElement.dataset.retried = "");
    document.addEventListener("click", mark, { capture: true });
  });
  await page.getByRole("button", { name: "Retry" }).click();
  await expect(page.getByRole("heading", { name: "Steps" })).toBeVisible();
});
