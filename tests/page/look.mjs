/**
 * Pictures of every page, light and dark, to be looked at: `node look.mjs http://127.0.0.1:15672/ DIRECTORY [route ...]`.
 */

import { mkdirSync } from "node:fs";

import { open, signIn } from "./browser.mjs";

const [base, directory, ...only] = process.argv.slice(2);
const ROUTES = [
  "", "waits", "top", "queues", "queues/%2F/mail.slow", "exchanges", "exchanges/%2F/orders", "connections", "channels", "consumers",
  "events", "policies", "vhosts", "vhosts/%2F", "users", "users/guest", "limits", "parameters", "definitions", "nodes", "feature-flags",
];

mkdirSync(directory, { recursive: true });
for (const scheme of ["light", "dark"]) {
  const { page, close } = await open(scheme);
  page.on("console", (message) => message.type() === "error" && console.log(`${page.url()}: ${message.text()}`));
  page.on("pageerror", (error) => console.log(`${page.url()}: ${error.stack}`));
  await signIn(page, base);
  for (const route of only.length > 0 ? only : ROUTES) {
    await page.goto(`${base}#/${route}`);
    // Long enough for charts to have a few points: a picture, not a test.
    await page.waitForTimeout(3500);
    const name = route === "" ? "overview" : decodeURIComponent(route).replace(/[^\w.-]+/g, "_");
    await page.screenshot({ path: `${directory}/${name}-${scheme}.png`, fullPage: true });
  }
  await close();
}
