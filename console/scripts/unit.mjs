// Runs `test/*.test.ts` under `node --test`: Vite bundles them for Node first.
import { spawnSync } from "node:child_process";
import { readdirSync, rmSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { join, relative } from "node:path";
import { build } from "vite";

const root = fileURLToPath(new URL("..", import.meta.url));
const out = join(root, "node_modules/.cache/unit");
const wanted = process.argv.slice(2);

const tests = readdirSync(join(root, "test"), { recursive: true, encoding: "utf8" })
  .filter((name) => /\.test\.tsx?$/.test(name) && wanted.every((part) => name.includes(part)))
  .sort();
rmSync(out, { recursive: true, force: true });
await build({
  root,
  configFile: false,
  logLevel: "warn",
  build: {
    ssr: true,
    outDir: out,
    target: "node20",
    minify: false,
    rollupOptions: {
      input: Object.fromEntries(
        tests.map((name) => [name.replace(/\.tsx?$/, "").replaceAll(/[\\/]/g, "-"), join(root, "test", name)]),
      ),
      output: { entryFileNames: "[name].mjs", chunkFileNames: "shared-[hash].mjs" },
    },
  },
});
const files = tests.map((name) =>
  relative(root, join(out, `${name.replace(/\.tsx?$/, "").replaceAll(/[\\/]/g, "-")}.mjs`)),
);
const { status } = spawnSync(process.execPath, ["--test", ...files], { cwd: root, stdio: "inherit" });
process.exit(status ?? 1);
