// The console loads from the real server, with its headers, and asks for a login.
import { expect, signIn, test } from "./server";

const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
  "font-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; " +
  "require-trusted-types-for 'script'";

test("@smoke the console loads and asks for a login", async ({ page }) => {
  const response = await page.goto("/");
  expect(new URL(page.url()).pathname).toMatch(/^\/console\//);
  const headers = response?.headers() ?? {};
  expect(headers["content-security-policy"]).toBe(POLICY);
  expect(headers["cache-control"]).toBe("no-cache");
  await expect(page.locator("form")).toBeVisible();
  expect(await page.title()).toContain("Tocsin");
});

test("@smoke a session opens the console, and a view has an address of its own", async ({ page, server }) => {
  await signIn(page, server);
  await page.goto("/console/attention");
  await expect(page.getByRole("heading", { level: 1 })).toBeVisible();
  await page.reload();
  expect(new URL(page.url()).pathname).toBe("/console/attention");
  await expect(page.getByRole("heading", { level: 1 })).toBeVisible();
});

test("@smoke files are compressed and cached by their names", async ({ page, server }) => {
  await page.goto("/console/");
  const script = await page.locator("script[type=module]").first().getAttribute("src");
  const response = await fetch(`${server.url}${script}`, { headers: { "accept-encoding": "br" } });
  expect(response.status).toBe(200);
  expect(response.headers.get("content-encoding")).toBe("br");
  expect(response.headers.get("cache-control")).toBe("public, max-age=31536000, immutable");
  const missing = await fetch(`${server.url}/console/assets/missing-0.js`);
  expect(missing.status).toBe(404);
});
