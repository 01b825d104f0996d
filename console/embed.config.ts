// Build of the web components (clients/embed) into one file, which the server serves at /embed/tocsin.js.
import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

export default defineConfig({
  publicDir: false,
  build: {
    target: "es2022",
    outDir: "dist/embed",
    emptyOutDir: true,
    lib: {
      entry: fileURLToPath(new URL("../clients/embed/src/index.ts", import.meta.url)),
      formats: ["es"],
      fileName: () => "tocsin.js",
    },
  },
});
