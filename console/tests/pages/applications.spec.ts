// Applications: a definition is written in the editor, corrected and applied; an earlier version is restored.
import type { Page } from "@playwright/test";

import { expect, signIn, test } from "../server";

/** Writes the text of the editor anew, with a change. */
async function write(page: Page, change: (text: string) => string) {
  const content = page.locator(".cm-content");
  await content.click();
  const before = await page.evaluate(() => {
    const host = document.querySelector(".editor-host");
    const lines = host?.shadowRoot?.querySelectorAll(".cm-line") ?? [];
    return [...lines].map((line) => line.textContent).join("\n");
  });
  const after = change(before);
  expect(after).not.toBe(before);
  await page.keyboard.press("ControlOrMeta+a");
  // The editor deletes the text by itself. Chromium would replace it with inline styles, which the policy reports.
  await page.keyboard.press("Delete");
  await page.keyboard.insertText(after);
}

test("a definition is written, checked, applied, changed and restored", async ({ page, server }) => {
  await page.setViewportSize({ width: 1280, height: 1600 });
  await signIn(page, server);
  await page.goto("/console/applications");
  await page.getByRole("link", { name: "New application" }).click();
  await expect(page.getByText("Valid", { exact: true })).toBeVisible();

  await write(page, (text) =>
    text.replace("application: doors", "application: gates").replace("event.door == sub.door", "event.dor == sub.door"),
  );
  await expect(page.getByText("1 error")).toBeVisible();
  const problems = page.getByRole("region", { name: "Problems" });
  await expect(problems).toContainText("dor");
  await expect(page.getByRole("button", { name: "Review changes" })).toBeDisabled();
  await write(page, (text) => text.replace("event.dor", "event.door"));
  await expect(page.getByText("Valid", { exact: true })).toBeVisible();

  await page.getByRole("button", { name: "Review changes" }).click();
  await page.getByRole("button", { name: "Apply", exact: true }).click();
  const dialog = page.getByRole("dialog");
  await expect(dialog).toContainText("Create the application gates?");
  await dialog.getByRole("button", { name: "Apply" }).click();
  await expect(page).toHaveURL(/\/console\/applications\/gates$/);
  await expect(page.getByRole("table", { name: "Flow" })).toContainText("watched");

  await page.getByRole("tab", { name: "Definition" }).click();
  await write(page, (text) => text.replace("Notifications of opened doors", "Notifications of opened gates"));
  await expect(page.getByText("Valid", { exact: true })).toBeVisible();
  await page.getByRole("button", { name: "Review changes" }).click();
  await expect(page.getByRole("region", { name: "Differences to the running version" })).toContainText("description");
  await page.keyboard.press("ControlOrMeta+Enter");
  await page.getByRole("dialog").getByRole("button", { name: "Apply" }).click();
  await expect(page.locator(".page-about")).toHaveText("Notifications of opened gates");

  await page.getByRole("tab", { name: "Versions" }).click();
  // Newest first: the header, the running version, the one before.
  await page.getByRole("row").nth(2).click();
  await page.getByRole("button", { name: /^Restore version/ }).click();
  await expect(page.getByText("Edited", { exact: true })).toBeVisible();
  await expect(page.getByText("Valid", { exact: true })).toBeVisible();
  await page.getByRole("button", { name: "Review changes" }).click();
  await page.getByRole("button", { name: "Apply", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Apply" }).click();
  await expect(page.locator(".page-about")).toHaveText("Notifications of opened doors");
  const stored = (await server.api("GET", "/v1/applications/gates")) as { description: string };
  expect(stored.description).toBe("Notifications of opened doors");
});

test("completion offers keys of the schema and names of the definition", async ({ page, server }) => {
  await signIn(page, server);
  await page.goto("/console/applications/quakes?tab=definition");
  await page.locator(".cm-content").click();
  await page.keyboard.press("ControlOrMeta+End");
  await page.keyboard.type("func");
  await expect(page.locator(".cm-tooltip-autocomplete")).toContainText("functions");
});
