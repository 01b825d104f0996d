// The web components of clients/embed, in a page with a strict policy that requires Trusted Types.
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";

import AxeBuilder from "@axe-core/playwright";
import type { BrowserContext, Page } from "@playwright/test";

import { type Server, test as base, expect, freshServer } from "./server";

/** A server of its own: its items would be among those of the pages. */
const test = base.extend<object, { server: Server }>({
  server: [
    async ({}, use, info) => {
      const { server, close } = await freshServer(`embed ${info.workerIndex}`, { TOCSIN_HTTP_REQUESTS_PER_ADDRESS_MAX: "0" });
      try {
        await use(server);
      } finally {
        await close();
      }
    },
    { scope: "worker", timeout: 120_000 },
  ],
});

const repository = resolve(import.meta.dirname, "../..");
const script = readFileSync(join(repository, "console/dist/embed/tocsin.js"), "utf8");
const policy =
  "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-src 'self'; base-uri 'none'; " +
  "require-trusted-types-for 'script'; trusted-types tocsin-embed";

const definition = `
application: bell
events: { note: { fields: { who: { type: string, required: true }, text: string, link: string } } }
subscriptions: { mine: {} }
notifications:
  note:
    fields: { text: string, link: string }
    content:
      templates:
        base:
          subject: "{{ text }}"
          text: "Details of {{ text }}"
          html: "<p><b>{{ text }}</b><script>parent.broken = true</script></p>"
          json: '{"link": {{ link }}, "actions": [{"label": "Track", "link": "/track"}]}'
rules: { note: { on: note, subscription: mine, when: event.who == subscriber.id, notify: note } }
channels: { bell: { protocol: inbox } }
`;

/** A subscriber with an inbox; returns a token for it. */
async function subscriber(server: Server, id: string): Promise<string> {
  await fetch(`${server.url}/v1/applications/bell`, {
    method: "PUT",
    headers: { authorization: `Bearer ${server.key}`, "content-type": "application/yaml" },
    body: definition,
  });
  await server.api("POST", "/v1/subscribers", { id, devices: { bell: { channel: "bell", address: id } } });
  await server.api("POST", "/v1/subscriptions", { application: "bell", class: "mine", subscriber: id });
  const made = (await server.api("POST", `/v1/subscribers/${id}/inbox/token`, { expires_in: 3600 })) as { token: string };
  return made.token;
}

async function publish(server: Server, who: string, text: string, link = "/orders/1") {
  await server.api("POST", "/v1/applications/bell/events/note", { who, text, link });
}

/** Publishes, and waits until the item is in the inbox. */
async function deliver(server: Server, who: string, text: string, link?: string) {
  await publish(server, who, text, link);
  await expect
    .poll(async () => ((await server.api("GET", `/v1/subscribers/${who}/inbox`)) as { items: { subject: string }[] }).items.map((item) => item.subject))
    .toContain(text);
}

/** Opens a page of the application's own with both components. */
async function open(page: Page, server: Server, attributes: string) {
  await page.route(`${server.url}/shop**`, (route) => {
    const path = new URL(route.request().url()).pathname;
    if (path === "/shop/tocsin.js") return route.fulfill({ contentType: "text/javascript", body: script });
    return route.fulfill({
      contentType: "text/html",
      headers: { "content-security-policy": policy },
      body: `<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Shop</title>
        <script type="module" src="/shop/tocsin.js"></script></head>
        <body><header><tocsin-bell ${attributes}></tocsin-bell></header><main><h1>Shop</h1><tocsin-inbox ${attributes}></tocsin-inbox></main></body></html>`,
    });
  });
  await page.goto(`${server.url}/shop`);
}

const attributesOf = (who: string, token: string) => `subscriber="${who}" token="${token}"`;

test("the bell is used by keyboard alone", async ({ page, server }) => {
  const token = await subscriber(server, "kim");
  await deliver(server, "kim", "Parcel one");
  await deliver(server, "kim", "Parcel two");
  await open(page, server, attributesOf("kim", token));
  const bell = page.getByRole("button", { name: "Notifications, 2 unread notifications" });
  await bell.focus();
  await page.keyboard.press("Enter");
  const dialog = page.getByRole("dialog");
  await expect(dialog.getByRole("listitem")).toHaveCount(2);
  await dialog.getByRole("listitem").filter({ hasText: "Parcel one" }).getByRole("button", { name: "Mark as read" }).focus();
  await page.keyboard.press("Enter");
  await expect(dialog.getByRole("listitem").filter({ hasText: "Parcel one" }).getByRole("button", { name: "Mark as unread" })).toBeFocused();
  await dialog.getByRole("tab", { name: "All" }).focus();
  await page.keyboard.press("ArrowRight");
  await expect(dialog.getByRole("tab", { name: "Unread" })).toHaveAttribute("aria-selected", "true");
  await expect(dialog.getByRole("listitem")).toHaveCount(1);
  await page.keyboard.press("Escape");
  await expect(dialog).toBeHidden();
  await expect(page.getByRole("button", { name: "Notifications, 1 unread notification" })).toBeFocused();
});

test("archived items move to their tab, and back", async ({ page, server }) => {
  const token = await subscriber(server, "ned");
  await deliver(server, "ned", "Old news");
  await open(page, server, attributesOf("ned", token));
  const inbox = page.locator("tocsin-inbox");
  await inbox.getByRole("button", { name: "Archive" }).click();
  await expect(inbox.getByText("No notifications")).toBeVisible();
  await inbox.getByRole("tab", { name: "Archived" }).click();
  await inbox.getByRole("button", { name: "Move to inbox" }).click();
  await inbox.getByRole("tab", { name: "All" }).click();
  await expect(inbox.getByRole("listitem")).toHaveCount(1);
});

test("tabs share one stream, and each shows what arrives", async ({ page, context, server, problems }) => {
  const token = await subscriber(server, "tab");
  const streams = streamsOf(context);
  await open(page, server, attributesOf("tab", token));
  const other = await context.newPage();
  problems.watch(other);
  await open(other, server, attributesOf("tab", token));
  await page.evaluate(() => document.addEventListener("tocsin-new", () => (document.title = "arrived")));
  await expect(other.locator("tocsin-inbox").getByText("No notifications")).toBeVisible();
  await publish(server, "tab", "Fresh");
  for (const tab of [page, other]) await expect(tab.locator("tocsin-inbox").getByText("Fresh", { exact: true })).toBeVisible();
  await expect(page).toHaveTitle("arrived");
  expect(streams(), "one tab holds the lock").toBe(1);
  // The other tab takes over when the first is closed.
  await page.close();
  await publish(server, "tab", "Later");
  await expect(other.locator("tocsin-inbox").getByText("Later", { exact: true })).toBeVisible();
});

function streamsOf(context: BrowserContext): () => number {
  let count = 0;
  context.on("request", (request) => {
    if (request.url().includes("/inbox/stream")) count += 1;
  });
  return () => count;
}

test("a token that is not valid is renewed, or reported", async ({ page, server, problems }) => {
  problems.allow(/401/);
  const token = await subscriber(server, "eva");
  await deliver(server, "eva", "Hello");
  await open(page, server, attributesOf("eva", "expired"));
  const inbox = page.locator("tocsin-inbox");
  await expect(inbox.getByRole("status")).toHaveText("Your session has expired. Reload the page.");
  await inbox.evaluate((element, renewed) => {
    (element as unknown as { renew: () => Promise<string> }).renew = () => Promise.resolve(renewed);
    element.setAttribute("token", "also-expired");
  }, token);
  await expect(inbox.getByText("Hello", { exact: true })).toBeVisible();
});

test("contents are text, and only web links are links", async ({ page, server, problems }) => {
  problems.allow(/Blocked script execution/);
  const token = await subscriber(server, "xss");
  await deliver(server, "xss", "<img src=x onerror=alert(1)>");
  await open(page, server, attributesOf("xss", token));
  const inbox = page.locator("tocsin-inbox");
  await expect(inbox.getByRole("link", { name: "<img src=x onerror=alert(1)>" })).toHaveAttribute("href", `${server.url}/orders/1`);
  await expect(inbox.getByRole("button", { name: "Track" })).toBeVisible();
  // On request, HTML is in a frame that runs no scripts.
  await inbox.evaluate((element) => element.setAttribute("html", ""));
  await expect(inbox.locator("iframe").contentFrame().locator("b")).toHaveText("<img src=x onerror=alert(1)>");
  expect(await page.evaluate(() => "broken" in window)).toBe(false);
});

test("the last page is shown without a connection", async ({ page, server, problems }) => {
  problems.allow(/ERR_FAILED|Failed to load resource/);
  const token = await subscriber(server, "off");
  await deliver(server, "off", "Stored");
  await open(page, server, attributesOf("off", token));
  await expect(page.locator("tocsin-inbox").getByText("Stored", { exact: true })).toBeVisible();
  await expect.poll(() => page.evaluate(() => Object.keys(localStorage).length)).toBe(1);
  await page.route("**/inbox**", (route) => route.abort());
  await page.reload();
  await expect(page.locator("tocsin-inbox").getByText("Stored", { exact: true })).toBeVisible();
  await expect(page.locator("tocsin-inbox").getByRole("status")).toHaveText("No connection. Trying again.");
});

for (const [language, width, scheme] of [["en", 1280, "light"], ["de", 390, "dark"], ["fr", 320, "light"]] as const) {
  test(`the components are accessible in ${language} at ${width} px`, async ({ page, server }) => {
    const who = `axe-${language}`;
    const token = await subscriber(server, who);
    await deliver(server, who, "Parcel");
    await page.setViewportSize({ width, height: 760 });
    await page.emulateMedia({ colorScheme: scheme });
    await open(page, server, `${attributesOf(who, token)} lang="${language}"`);
    await page.locator("tocsin-bell").getByRole("button").first().click();
    await expect(page.getByRole("dialog").getByRole("listitem")).toHaveCount(1);
    const { violations } = await new AxeBuilder({ page }).analyze();
    expect(violations.map((violation) => `${violation.id}: ${violation.nodes.map((node) => node.target).join(" ")}`)).toEqual([]);
    expect(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "no horizontal scrolling").toBe(true);
  });
}

test("the bundle has at most 12 KB, compressed", async () => {
  const { gzipSync } = await import("node:zlib");
  expect(gzipSync(script, { level: 9 }).length).toBeLessThanOrEqual(12 * 1024);
});
