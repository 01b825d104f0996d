// Rules: index plan, stop, resume, missed batches.
import { expect, signIn, test } from "../server";

test("a rule is stopped and resumed, and its missed batch is run again", async ({ page, server }) => {
  await signIn(page, server);
  await page.goto("/console/rules?application=quakes");
  await page.getByRole("row").filter({ hasText: "near" }).click();
  await expect(page).toHaveURL(/rule=near/);
  const detail = page.getByRole("region", { name: "Rule near" });
  await expect(detail).toContainText("event.magnitude >= sub.magnitude_min");

  await detail.getByRole("button", { name: "Stop", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Stop" }).click();
  await expect(detail.getByRole("button", { name: "Resume" })).toBeVisible();
  await server.api("POST", "/v1/applications/quakes/events/quake", {
    id: "test-1",
    magnitude: 9.1,
    place: "Test",
    latitude: 35,
    longitude: 139,
    at: "2026-11-29T12:00:00Z",
  });
  await expect
    .poll(async () => ((await server.api("GET", "/v1/firings?rule=near")) as { items: unknown[] }).items.length)
    .toBe(1);

  await detail.getByRole("button", { name: "Resume" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Resume" }).click();
  await expect(detail.getByRole("button", { name: "Stop", exact: true })).toBeVisible();
  await page.goto("/console/rules?view=missed");
  await page.getByRole("button", { name: "Run again" }).click();
  const dialog = page.getByRole("dialog");
  await expect(dialog).toContainText("1");
  await dialog.getByRole("button", { name: "Run again" }).click();
  await expect(page.getByRole("heading", { name: "No missed batches" })).toBeVisible();
});

test("a reader sees rules, and no actions", async ({ page, server }) => {
  const { reader } = await import("../server");
  await signIn(page, server, reader);
  await page.goto("/console/rules?application=quakes&rule=near");
  await expect(page.getByRole("heading", { name: "Index plan" })).toBeVisible();
  await expect(page.getByRole("button", { name: "Stop", exact: true })).toHaveCount(0);
});
