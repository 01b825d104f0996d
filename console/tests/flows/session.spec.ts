// Flow 1: first start, login, logout, an ended session, and a request without the token against forgery.
import { admin, expect, freshServer, signIn, test } from "../server";

/** The one-time link in the output of `tocsin console open`. */
const linkIn = (output: string) => {
  const found = /https?:\/\/\S+\/console\/\S+#\S+/.exec(output)?.[0];
  if (found === undefined) throw new Error(`no link in ${output}`);
  return found;
};

test("first start by keyboard: the setup link creates an administrator, who lands on the overview", async ({
  browser,
}) => {
  const { server, close } = await freshServer("first start", {});
  try {
    const page = await browser.newPage();
    await page.goto(`${server.url}/console/`);
    await expect(page.getByText("tocsin console open")).toBeVisible();
    await page.goto(linkIn(await server.command("console", "open")));
    await expect(page.getByRole("textbox", { name: "User name" })).toBeFocused();
    expect(page.url(), "the token stays in no history").not.toContain("#");
    await page.keyboard.type("grace");
    await page.keyboard.press("Tab");
    await page.keyboard.type("Grace Hopper");
    await page.keyboard.press("Tab");
    await page.keyboard.type("a long enough passphrase");
    await page.keyboard.press("Tab");
    await page.keyboard.type("a long enough passphrase");
    await page.keyboard.press("Enter");
    await expect(page.getByRole("heading", { level: 1, name: "Overview" })).toBeVisible();
    await expect(page.getByRole("button", { name: "Menu of Grace Hopper" })).toBeVisible();
    await page.close();
  } finally {
    await close();
  }
});

test("login with the mouse, a wrong password, the wanted page, logout", async ({ page, problems }) => {
  problems.allow(/401/);
  await page.goto("/console/attention");
  await expect(page).toHaveURL(/\/console\/login\?next=/);
  await page.getByLabel("User name").fill(admin.name);
  await page.getByLabel("Password", { exact: true }).fill("not the password");
  await page.getByRole("button", { name: "Log in" }).click();
  await expect(page.getByRole("alert")).toContainText("wrong");
  await page.getByLabel("Password", { exact: true }).fill(admin.password);
  await page.getByRole("button", { name: "Log in" }).click();
  await expect(page).toHaveURL(/\/console\/attention$/);
  await page.getByRole("button", { name: /^Menu of/ }).click();
  await page.getByRole("menuitem", { name: "Log out" }).click();
  await expect(page.getByLabel("User name")).toBeVisible();
  await page.goto("/console/");
  await expect(page).toHaveURL(/\/console\/login/);
});

test("an ended session asks for the password over the open page, which stays", async ({ page, server, problems }) => {
  problems.allow(/401/);
  await signIn(page, server);
  await page.goto("/console/profile");
  await page.getByLabel("Display name").fill("Not saved yet");
  await page.context().clearCookies();
  await page.getByRole("button", { name: "Save" }).click();
  const dialog = page.getByRole("dialog", { name: "Session expired" });
  await expect(dialog).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(dialog, "it stays until a login").toBeVisible();
  await dialog.getByLabel("Password").fill(admin.password);
  await page.keyboard.press("Enter");
  await expect(dialog).toBeHidden();
  await expect(page.getByLabel("Display name")).toHaveValue("Not saved yet");
});

test("a change without the token, or from another origin, is rejected", async ({ page, server }) => {
  await signIn(page, server);
  const { csrf } = (await (await page.context().request.get(`${server.url}/v1/session`)).json()) as { csrf: string };
  const change = (headers: Record<string, string>) =>
    page.context().request.patch(`${server.url}/v1/users/${admin.name}`, { data: { language: "en" }, headers });
  const code = async (headers: Record<string, string>) => {
    const response = await change(headers);
    return response.ok() ? response.status() : ((await response.json()) as { code: string }).code;
  };
  expect(await code({ origin: server.url })).toBe("csrf_token");
  expect(await code({ origin: "https://evil.example", "x-tocsin-csrf": csrf })).toBe("cross_origin");
  expect(await code({ origin: server.url, "x-tocsin-csrf": csrf })).toBe(200);
});

test("a one-time link logs in once", async ({ page, server, browser, problems }) => {
  problems.allow(/401/);
  const link = linkIn(await server.command("console", "open"));
  await page.goto(link);
  await expect(page.getByRole("heading", { level: 1, name: "Overview" })).toBeVisible();
  const other = await browser.newPage();
  await other.goto(link);
  await expect(other.getByRole("alert")).toContainText("used already");
  await other.close();
});

test("setting cookie attributes: not readable by scripts, same site", async ({ page, server }) => {
  await signIn(page, server);
  const [cookie] = await page.context().cookies();
  expect(cookie).toMatchObject({ name: "tocsin", httpOnly: true, sameSite: "Lax", path: "/" });
  await page.goto("/console/");
  expect(await page.evaluate(() => document.cookie)).toBe("");
});
