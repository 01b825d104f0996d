// Events: batches, the search by condition, one batch, one event.
import { expect, signIn, test } from "../server";

test("a batch is opened by the keyboard, and shows its journey, events and notification batches", async ({
  page,
  server,
}) => {
  await signIn(page, server);
  await page.goto("/console/events");
  await expect(page.getByRole("link", { name: "eb-1", exact: true })).toBeVisible();
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await expect(page).toHaveURL(/\/console\/events\/eb-\d+$/);
  await page.goto("/console/events/eb-1");
  const steps = page.locator(".journey-step");
  await expect(steps.filter({ hasText: "Accepted" })).toHaveCount(1);
  await expect(steps.filter({ hasText: "Matched" })).toHaveCount(1);
  await page.getByRole("tab", { name: /^Events/ }).click();
  await expect(page).toHaveURL(/tab=events/);
  await page.getByRole("link", { name: "e-1-0", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("e-1-0");
  await expect(page.locator(".fields").getByText("magnitude")).toBeVisible();
  await page.getByRole("link", { name: "Explain", exact: true }).last().click();
  await expect(page).toHaveURL(/\/console\/explain\?event=e-1-0/);
});

test("events are searched by a condition, which is in the address", async ({ page, server }) => {
  await signIn(page, server);
  await page.goto("/console/events?view=events&application=quakes&class=quake");
  const condition = page.getByLabel("Condition (CEL)");
  await condition.fill("event.magnitude > 5.5");
  await condition.press("Enter");
  await expect(page).toHaveURL(/where=/);
  const first = page.getByRole("row").nth(1);
  await expect(first).toContainText("magnitude");
  const found = (await server.api(
    "GET",
    "/v1/events?application=quakes&class=quake&where=event.magnitude%20%3E%205.5",
  )) as { items: { id: string }[] };
  expect(found.items.length).toBeGreaterThan(0);
  await expect(first).toContainText(found.items[0]?.id ?? "missing");
  await page.reload();
  await expect(condition).toHaveValue("event.magnitude > 5.5");
});

test("a wrong condition is reported with its place", async ({ page, server, problems }) => {
  problems.allow(/422/);
  await signIn(page, server);
  await page.goto("/console/events?view=events&application=quakes&class=quake&where=event.magnitud%20%3E%205");
  await expect(page.getByRole("alert")).toContainText("magnitud");
});
