// Page matrix: every page in both themes and at both widths.
import { inspect } from "./matrix";
import { pages } from "./pages";
import { signIn, test } from "./server";

// Four analyses by axe, each of seconds on a busy machine.
test.describe.configure({ timeout: 120_000 });

for (const { name, path, ready, isPublic } of pages) {
  test(`${name}: accessible, without errors, within the window`, async ({ page, server }) => {
    if (!isPublic) await signIn(page, server);
    await inspect(page, `/console${path}`, ready);
  });
}
