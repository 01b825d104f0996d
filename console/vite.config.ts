// Build of the console: static files below /console/, embedded by crates/console.
import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// In development, /v1 is sent to a running server. With TOCSIN_KEY set, its requests carry that key instead of a session cookie.
const server = process.env.TOCSIN_URL ?? "http://127.0.0.1:8480";
const key = process.env.TOCSIN_KEY;

const policy =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; " +
  "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

const proxy = {
  "/v1": {
    target: server,
    changeOrigin: false,
    ...(key === undefined ? {} : { headers: { authorization: `Bearer ${key}` } }),
  },
};

export default defineConfig({
  base: "/console/",
  plugins: [react()],
  build: {
    target: "es2022",
    manifest: true,
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 700,
    sourcemap: false,
    rolldownOptions: {
      output: {
        codeSplitting: {
          // One file for the libraries of the shell: it changes seldom, and packs better than many small ones.
          groups: [
            {
              name: "libraries",
              test: /node_modules[\\/](react|react-dom|scheduler|use-sync-external-store|@tanstack[\\/](react-router|router-core|history|react-store|store|react-query|query-core))[\\/]/,
            },
            {
              name: "shell",
              test: /src[\\/](api[\\/](client|live|problems|query|session)|locales[\\/](icu|index)|shell[\\/](act|command|copy|crash|navigation|page-frame|range|range-button|search|shell|shortcuts|toasts|tooltip|user-menu)|components[\\/](icon|id|link|menu|states|values|grid[\\/]rows)|pages[\\/][^\\/]+[\\/](route|token)|page|routes|format|ids|settings)\.tsx?$/,
            },
          ],
        },
      },
    },
  },
  server: { port: 5480, strictPort: true, proxy },
  preview: { port: 5481, strictPort: true, proxy, headers: { "Content-Security-Policy": policy } },
});
