// The shell: palette, navigation by keys, menus, time range, live updates, copy as command, states.
import { expect, reader, signIn, test } from "../server";

test.beforeEach(async ({ page, server }) => {
  await signIn(page, server);
});

test("the palette opens pages by their names and journeys by their ids, without a mouse", async ({ page }) => {
  await page.goto("/console/");
  await page.getByRole("heading", { level: 1 }).waitFor();
  await page.keyboard.press("Control+k");
  const field = page.getByRole("combobox", { name: "Search or jump" });
  await expect(field).toBeFocused();
  await page.keyboard.type("atten");
  await expect(page.getByRole("option").first()).toHaveAttribute("aria-selected", "true");
  await page.keyboard.press("Enter");
  await expect(page).toHaveURL(/\/console\/attention$/);
  await expect(page.getByRole("heading", { level: 1, name: "Attention" })).toBeFocused();
  await page.keyboard.press("Control+k");
  await page.keyboard.type("eb-1");
  await page.keyboard.press("Enter");
  await expect(page).toHaveURL(/\/console\/events\/eb-1$/);
  await page.keyboard.press("Control+k");
  await page.keyboard.press("Escape");
  await expect(field).toBeHidden();
});

test("g and a letter opens a page; single keys can be switched off", async ({ page }) => {
  await page.goto("/console/");
  await page.getByRole("heading", { level: 1 }).waitFor();
  await page.keyboard.press("g");
  await page.keyboard.press("t");
  await expect(page).toHaveURL(/\/console\/attention$/);
  await page.keyboard.press("?");
  const help = page.getByRole("dialog", { name: "Keyboard shortcuts" });
  await expect(help.getByText("Notifications")).toBeVisible();
  await help.getByRole("switch").uncheck();
  await page.keyboard.press("Escape");
  await expect(help).toBeHidden();
  await page.keyboard.press("g");
  await page.keyboard.press("o");
  await page.keyboard.press("?");
  await expect(help).toBeHidden();
  await expect(page).toHaveURL(/\/console\/attention$/);
});

test("the time range is in the address, and stays on other pages", async ({ page }) => {
  await page.goto("/console/");
  await page.getByRole("button", { name: "Time range: Last 24 h" }).click();
  await page.getByRole("menuitemcheckbox", { name: "Last hour" }).click();
  await expect(page).toHaveURL(/range=1h/);
  await page.getByRole("navigation").getByRole("link", { name: "Attention" }).click();
  await expect(page).toHaveURL(/\/attention\?range=1h/);
  await page.keyboard.press("[");
  await expect(page).toHaveURL(/from=.*to=/);
  await expect(page).not.toHaveURL(/range=/);
  await page.getByRole("button", { name: /^Time range/ }).click();
  await page.getByRole("menuitemcheckbox", { name: "Last 24 h" }).click();
  await expect(page).toHaveURL(/\/attention$/);
});

test("theme, density and language change at once and stay", async ({ page }) => {
  await page.goto("/console/");
  const menu = page.getByRole("button", { name: /^Menu of/ });
  await menu.click();
  await page.getByRole("menuitemcheckbox", { name: "Dark" }).click();
  await expect(page.locator("html")).toHaveAttribute("data-theme", "dark");
  await menu.click();
  await page.getByRole("menuitemcheckbox", { name: "Français" }).click();
  await expect(page.getByRole("heading", { level: 1, name: "Vue d’ensemble" })).toBeVisible();
  await page.reload();
  await expect(page.locator("html")).toHaveAttribute("lang", "fr");
  await expect(page.locator("html")).toHaveAttribute("data-theme", "dark");
  await page.getByRole("button", { name: /^Menu de/ }).click();
  await page.getByRole("menuitemcheckbox", { name: "English" }).click();
  await expect(page.getByRole("heading", { level: 1, name: "Overview" })).toBeVisible();
});

test("two tabs share one stream, and the second takes over", async ({ page, server }) => {
  const streams: string[] = [];
  page.context().on("request", (request) => {
    if (request.url().includes("/v1/stream")) streams.push(request.url());
  });
  await page.goto("/console/");
  await expect(page.getByRole("button", { name: "Live", exact: true })).toBeVisible();
  expect(streams).toHaveLength(1);
  const second = await page.context().newPage();
  await second.goto(`${server.url}/console/attention`);
  await expect(second.getByRole("button", { name: "Live", exact: true })).toBeVisible();
  expect(streams).toHaveLength(1);
  await page.goto("about:blank");
  await expect.poll(() => streams.length).toBe(2);
  await expect(second.getByRole("button", { name: "Live", exact: true })).toBeVisible();
  await second.keyboard.press("l");
  await expect(second.getByRole("button", { name: "Paused" })).toBeVisible();
  await second.close();
});

test("without a stream, data is read every 10 s", async ({ page, problems }) => {
  problems.allow(/stream/);
  await page.route("**/v1/stream**", (route) => route.fulfill({ status: 503, body: "" }));
  await page.goto("/console/");
  await expect(page.getByRole("button", { name: "Every 10 s" })).toBeVisible();
});

test("a page as tocsin and curl command", async ({ page }) => {
  await page.goto("/console/attention");
  await page.getByRole("heading", { level: 1 }).waitFor();
  await page.keyboard.press("c");
  const dialog = page.getByRole("dialog", { name: "Copy as command" });
  await expect(dialog).toContainText("tocsin attention");
  await expect(dialog).toContainText("/v1/attention");
});

test("states: a failed request names its id and can be repeated; unknown pages and missing scopes say so", async ({
  page,
  server,
  problems,
}) => {
  problems.allow(/500/, /404/);
  const fail = (route: import("@playwright/test").Route) =>
    route.fulfill({
      status: 500,
      headers: { "x-request-id": "r-42" },
      json: {
        type: "/problems/internal",
        code: "internal",
        title: "An internal error",
        status: 500,
        detail: "the disk is gone",
      },
    });
  // The page repeats the read by itself too, so the failure ends with the click.
  await page.route("**/v1/status", async (route) => {
    const isRetried = await page.evaluate(() => "retried" in document.documentElement.dataset);
    await (isRetried ? route.fallback() : fail(route));
  });
  await page.goto("/console/");
  const alert = page.getByRole("alert");
  await expect(alert).toContainText("An internal error");
  await expect(alert).toContainText("r-42");
  await page.evaluate(() => {
    const mark = () => (document.documentElement.dataset.retried = "");
    document.addEventListener("click", mark, { capture: true });
  });
  await alert.getByRole("button", { name: "Retry" }).click();
  await expect(page.getByRole("main").getByRole("heading", { name: "Flow" })).toBeVisible();
  // Data that was shown stays when the next read fails.
  await page.route("**/v1/status", fail);
  await expect(page.getByText("Data from")).toBeVisible();
  await expect(page.getByRole("main").getByRole("heading", { name: "Flow" })).toBeVisible();
  await page.goto("/console/no-such-page");
  await expect(page.getByRole("heading", { level: 1, name: "Not found" })).toBeVisible();
  await page.route("**/v1/session", async (route) => {
    const response = await route.fetch();
    const session = (await response.json()) as Record<string, unknown>;
    await route.fulfill({ response, json: { ...session, scopes: ["subscribers:read"] } });
  });
  await page.goto(`${server.url}/console/attention`);
  await expect(page.getByText("operations:read")).toBeVisible();
});

test("below 900 px the navigation is a drawer, which closes after its use", async ({ page }) => {
  await page.setViewportSize({ width: 390, height: 844 });
  await page.goto("/console/");
  await expect(page.getByRole("navigation", { name: "Navigation" })).toBeHidden();
  await page.getByRole("button", { name: "Navigation" }).click();
  await page.getByRole("dialog", { name: "Navigation" }).getByRole("link", { name: "Attention" }).click();
  await expect(page).toHaveURL(/\/attention$/);
  await expect(page.getByRole("dialog", { name: "Navigation" })).toBeHidden();
});

test("a reader sees no action that it may not do", async ({ page, server }) => {
  await page.context().clearCookies();
  await signIn(page, server, reader);
  await page.goto("/console/");
  await expect(page.getByRole("main").getByRole("heading", { name: "Flow" })).toBeVisible();
  await expect(page.getByRole("button", { name: /^Switch off/ })).toHaveCount(0);
});
