// Browser tests of the console: the real server on a fresh folder, and the installed Chromium.
import { existsSync } from "node:fs";

import { defineConfig } from "@playwright/test";

const installed = ["chromium", "chromium-browser", "google-chrome"].map((name) => `/usr/bin/${name}`);
const candidates = [process.env.TOCSIN_CHROMIUM, ...installed];
const chromium = candidates.find((path) => path !== undefined && existsSync(path));
if (chromium === undefined) throw new Error("Chromium is missing: make setup installs it, or TOCSIN_CHROMIUM names it");

export default defineConfig({
  testDir: "tests",
  outputDir: process.env.TOCSIN_TEST_RESULTS ?? "test-results",
  // Each worker has a server of its own.
  workers: 2,
  fullyParallel: true,
  forbidOnly: process.env.CI === "true",
  retries: 0,
  timeout: 60_000,
  expect: { timeout: 15_000 },
  reporter: [["list"]],
  use: {
    actionTimeout: 15_000,
    navigationTimeout: 30_000,
    locale: "en-GB",
    timezoneId: "UTC",
    viewport: { width: 1280, height: 900 },
    // Kept below the output folder; `npx playwright show-trace FILE` opens one.
    // Without a picture of each moment, which would take a part of a core.
    trace: { mode: "retain-on-failure", screenshots: false, snapshots: true, sources: false },
    screenshot: "only-on-failure",
    // A sandbox needs a user other than root.
    launchOptions: {
      executablePath: chromium,
      chromiumSandbox: process.getuid?.() !== 0,
      args: ["--disable-dev-shm-usage"],
    },
  },
});
