// Templates: the matrix of locales and channels.
import { expect, signIn, test } from "../server";

test("arrows move in the matrix, and the preview follows", async ({ page, server }) => {
  await signIn(page, server);
  await page.goto("/console/templates?application=quakes&event=e-1-0");
  const cell = page.getByRole("button", { name: /base/ }).first();
  await expect(cell).toHaveAttribute("aria-pressed", "true");
  await cell.focus();
  await page.keyboard.press("ArrowDown");
  await expect(page).toHaveURL(/cell=de/);
  await expect(page.locator("[data-part=subject]")).toContainText("Erdbeben");
});
