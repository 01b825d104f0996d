// Opens hosted pages in Chromium and checks them: by axe, in width, by keyboard, and without scripts.
// Input: one JSON object {browser, url, pages: {name: path}, preferences, ended, later: {name: path}, screenshots}.
// `ended` is the page of an unsubscription that can be undone; the pages of `later` are opened after it. Prints JSON.
const fs = require("node:fs");
const path = require("node:path");
const puppeteer = require("puppeteer-core");
const axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const WIDTHS = [390, 1280];
const SCHEMES = ["light", "dark"];
const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];

async function open(browser, width, scheme, scripts) {
  const page = await browser.newPage();
  await page.setViewport({ width, height: 844, isMobile: width < 600, hasTouch: width < 600 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await page.setExtraHTTPHeaders({ "accept-language": "en" });
  await page.setJavaScriptEnabled(scripts);
  page.problems = [];
  page.on("console", (message) => page.problems.push(`console: ${message.text()} ${message.location()?.url ?? ""}`));
  page.on("requestfailed", (request) => page.problems.push(`request: ${request.url()}`));
  return page;
}

// Violations that axe finds, and whether the page is wider than its window.
async function inspect(page) {
  await page.evaluate(axe);
  const found = await page.evaluate(async (tags) => {
    const { violations } = await axe.run(document, { runOnly: { type: "tag", values: tags } });
    return violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html.slice(0, 200)} ${node.failureSummary}`));
  }, RULES);
  const overflow = await page.evaluate(() => {
    const wide = document.scrollingElement.scrollWidth - document.documentElement.clientWidth;
    return wide > 0 ? [`the page is ${wide} px too wide`] : [];
  });
  const small = await page.evaluate(() => {
    const targets = [...document.querySelectorAll("button, summary, select, input:not([type=hidden])")];
    const size = (element) => (element.closest("label") ?? element).getBoundingClientRect();
    const isSmall = ({ width, height }) => width > 0 && (width < 24 || height < 24);
    return targets.filter((element) => isSmall(size(element))).map((element) => `small target: ${element.outerHTML.slice(0, 120)}`);
  });
  return [...found, ...overflow, ...small];
}

const focused = (page) => page.evaluate(() => {
  const element = document.activeElement;
  if (!element || element === document.body) return null;
  const style = getComputedStyle(element);
  return {
    name: `${element.tagName.toLowerCase()} ${element.name ?? ""} ${element.value ?? ""} ${element.textContent.trim().slice(0, 40)}`,
    visible: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
  };
});

// Presses Tab until the focused element satisfies a test.
async function tabTo(page, test) {
  for (let count = 0; count < 200; count++) {
    await page.keyboard.press("Tab");
    const element = await focused(page);
    if (element && test(element.name)) return element;
  }
  throw new Error(`no focusable element satisfies ${test}`);
}

async function press(page, key) {
  await Promise.all([page.waitForNavigation({ waitUntil: "load" }), page.keyboard.press(key)]);
}

// Elements that Tab never reaches, and those whose focus is not visible.
async function keyboard(page) {
  const expected = await page.evaluate(() =>
    [...document.querySelectorAll("a[href], button, summary, select, input:not([type=hidden])")].filter((element) => element.checkVisibility()).length);
  const problems = [];
  let reached = 0;
  for (let count = 0; count < 400; count++) {
    await page.keyboard.press("Tab");
    const element = await focused(page);
    if (!element) break;
    if (!element.visible) problems.push(`no visible focus: ${element.name}`);
    // An input of type time has several stops.
    const isSame = await page.evaluate(() => {
      const same = window.lastFocused === document.activeElement;
      window.lastFocused = document.activeElement;
      return same;
    });
    if (!isSame) reached++;
  }
  if (reached < expected) problems.push(`Tab reaches ${reached} of ${expected} elements`);
  return problems;
}

// Opens pages in each width and colour scheme.
async function inspectAll(browser, input, pages, result) {
  for (const width of WIDTHS) {
    for (const scheme of SCHEMES) {
      for (const [name, target] of Object.entries(pages)) {
        const page = await open(browser, width, scheme, true);
        const answer = await page.goto(input.url + target, { waitUntil: "load" });
        // Chromium logs the status of the page itself if it is an error.
        const own = (text) => !answer.ok() && text.startsWith("console: Failed to load resource") && text.endsWith(answer.url());
        const found = [...page.problems.filter((text) => !own(text)), ...(await inspect(page))];
        result.problems.push(...found.map((text) => `${name} ${width} ${scheme}: ${text}`));
        result.inspected++;
        if (input.screenshots) {
          await page.screenshot({ path: path.join(input.screenshots, `${name}-${width}-${scheme}.png`), fullPage: true });
        }
        if (scheme === "light") {
          const unreached = await keyboard(page);
          result.keyboard.push(...unreached.map((text) => `${name} ${width}: ${text}`));
        }
        await page.close();
      }
    }
  }
}

(async () => {
  const input = JSON.parse(fs.readFileSync(0, "utf8"));
  const browser = await puppeteer.launch({
    executablePath: input.browser,
    args: ["--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb"],
  });
  const result = { problems: [], inspected: 0, keyboard: [], steps: [] };
  try {
    await inspectAll(browser, input, input.pages, result);
    // Without scripts, by keyboard alone: change a preference, then unsubscribe and undo it.
    const page = await open(browser, 390, "light", false);
    await page.goto(input.url + input.preferences, { waitUntil: "load" });
    await tabTo(page, (name) => name.startsWith("input on "));
    await page.keyboard.press("Space");
    await tabTo(page, (name) => name.includes("save"));
    await press(page, "Enter");
    result.steps.push(await page.$eval("[role=status]", (element) => element.textContent.trim()));
    await page.goto(input.url + input.ended, { waitUntil: "load" });
    for (const button of ["button action undo", "button List-Unsubscribe", "button action undo"]) {
      await tabTo(page, (name) => name.startsWith(button));
      await press(page, "Enter");
      result.steps.push(await page.$eval("[role=status] p", (element) => element.textContent.trim()));
    }
    result.problems.push(...page.problems);
    await page.close();
    await inspectAll(browser, input, input.later, result);
  } finally {
    await browser.close();
  }
  console.log(JSON.stringify(result));
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
