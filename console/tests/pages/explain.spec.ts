// Explain: the gates of one event and one subscription, and the condition that decides.
import { expect, signIn, test } from "../server";

interface Found {
  items: { event_id: string; subscription: string }[];
}

test("a delivered notification is explained from its page", async ({ page, server }) => {
  await expect
    .poll(async () => ((await server.api("GET", "/v1/notifications?outcome=delivered&limit=1")) as Found).items.length)
    .toBe(1);
  const { items } = (await server.api("GET", "/v1/notifications?outcome=delivered&limit=1")) as {
    items: { id: string; event_id: string }[];
  };
  await signIn(page, server);
  await page.goto(`/console/notifications/${items[0]?.id ?? ""}`);
  await page.locator(".page-actions").getByRole("link", { name: "Explain" }).click();
  await expect(page.getByRole("heading", { name: "Sent", exact: true })).toBeVisible();
  await expect(page.getByLabel("Event", { exact: true })).toHaveValue(items[0]?.event_id ?? "missing");
});

test("the condition that decides is marked", async ({ page, server }) => {
  const subscription = (await server.api("POST", "/v1/subscriptions", {
    application: "quakes",
    class: "nearby",
    subscriber: ((await server.api("GET", "/v1/subscribers?limit=1")) as { items: { id: string }[] }).items[0]?.id,
    key: "never",
    values: { latitude: 35, longitude: 139, distance_km: 500, magnitude_min: 11 },
  })) as { id: string };
  const { batch } = (await server.api("POST", "/v1/applications/quakes/events/quake", {
    id: "test-explain",
    magnitude: 3,
    place: "Test",
    latitude: 35,
    longitude: 139,
    at: "2026-11-29T12:00:00Z",
  })) as { batch: string };
  await expect
    .poll(async () => ((await server.api("GET", `/v1/event-batches/${batch}`)) as { state: string }).state)
    .toBe("matched");
  await signIn(page, server);
  await page.goto("/console/explain");
  await page.getByLabel("Event", { exact: true }).fill(`${batch.replace("eb-", "e-")}-0`);
  await page.getByRole("radio", { name: "Subscription" }).check();
  await page.getByLabel("Subscription id").fill(subscription.id);
  await page.keyboard.press("ControlOrMeta+Enter");
  await expect(page.getByRole("heading", { name: "Not sent" })).toBeVisible();
  const deciding = page.locator(".verdict-node[data-decides]");
  await expect(deciding).toContainText("event.magnitude >= sub.magnitude_min");
  await expect(deciding).toContainText("11");
});
