// Overview and Attention against the real server.
import { expect, signIn, test } from "../server";

test.beforeEach(async ({ page, server }) => {
  await signIn(page, server);
});

test("the flow has five stages, with figures of the server", async ({ page, server }) => {
  await page.goto("/console/");
  const stages = page.locator(".overview-stage h3");
  await expect(stages).toHaveText(["Accept", "Match", "Notify", "Deliver", "Outcome"]);
  const status = (await server.api("GET", "/v1/status")) as {
    totals: { event_batches: number };
    applications: { name: string }[];
  };
  await expect(page.locator(".overview-stage").first()).toContainText(String(status.totals.event_batches));
  await expect(page.getByRole("region", { name: "Applications" }).getByRole("link", { name: "quakes" })).toBeVisible();
  await expect(page.getByRole("figure")).toHaveCount(2);
});

test("a stage is switched off after a confirmation whose default is Cancel, appears under Attention, and is resumed", async ({
  page,
  server,
}) => {
  await page.goto("/console/");
  const switchOff = page.getByRole("button", { name: "Switch off: Deliver" });
  await switchOff.click();
  const dialog = page.getByRole("dialog");
  await expect(dialog.getByRole("button", { name: "Cancel" })).toBeFocused();
  await page.keyboard.press("Enter");
  await expect(dialog).toBeHidden();
  await expect(switchOff).toBeFocused();
  const list = async () =>
    ((await server.api("GET", "/v1/switches")) as { items: { component: string }[] }).items.map(
      (item) => item.component,
    );
  expect(await list()).not.toContain("role:deliver");
  await switchOff.click();
  await dialog.getByRole("button", { name: "Switch off" }).click();
  await expect(page.getByText("Deliver: switched off")).toBeVisible();
  expect(await list()).toContain("role:deliver");
  await page.goto("/console/attention");
  await expect(page.getByRole("heading", { name: "Components are switched off" })).toBeVisible();
  await page.getByRole("radio", { name: /^Note/ }).check();
  await expect(page).toHaveURL(/urgency=note/);
  await page.goto("/console/");
  await page.getByRole("button", { name: "Resume: Deliver" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Resume" }).click();
  await expect(page.getByText("Deliver: resumed")).toBeVisible();
  expect(await list()).not.toContain("role:deliver");
});

test("a chart has a table, and dragging over it sets the time range", async ({ page }) => {
  await page.goto("/console/");
  const chart = page.getByRole("figure", { name: "Per second" });
  await expect(chart.locator("canvas")).toBeVisible();
  await chart.getByRole("button", { name: "Show as table" }).click();
  await expect(chart.getByRole("columnheader", { name: "Events" })).toBeVisible();
  await chart.getByRole("button", { name: "Show as chart" }).click();
  // Contents that arrive above the chart would move it.
  await expect(page.locator("[aria-busy=true]")).toHaveCount(0);
  const plot = chart.locator(".u-over");
  await plot.hover({ position: { x: 100, y: 40 } });
  await page.mouse.down();
  await plot.hover({ position: { x: 200, y: 60 } });
  await page.mouse.up();
  await expect(page).toHaveURL(/from=.*to=/);
});
