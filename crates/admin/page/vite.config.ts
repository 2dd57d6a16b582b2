import { defineConfig } from "vite";

// In development the API is a running broker's: BROKER=http://127.0.0.1:15672 npm run dev
const broker = process.env.BROKER ?? "http://127.0.0.1:15672";

export default defineConfig({
  // Relative, so that the page also works below `management.path_prefix`.
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  server: { proxy: { "/api": broker } },
  preview: { proxy: { "/api": broker } },
  build: {
    target: "es2022",
    // The content security policy allows no `data:` address.
    assetsInlineLimit: 0,
    modulePreload: false,
    cssCodeSplit: false,
    rollupOptions: {
      output: {
        // Fixed names: `dist` is checked in, and the broker answers with an ETag.
        entryFileNames: "page.js",
        assetFileNames: (asset) => (asset.names.some((name) => name.endsWith(".css")) ? "page.css" : "[name][extname]"),
      },
    },
  },
});
