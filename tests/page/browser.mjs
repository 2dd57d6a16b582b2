/** Debian's Chromium, headless, with a profile of its own that is thrown away. */

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { chromium } from "playwright-core";

const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

/** Opens the browser; `close` ends it and removes its profile. */
export async function open(scheme = "light", viewport = { width: 1440, height: 900 }) {
  const profile = mkdtempSync(join(tmpdir(), "leveret-page-"));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    headless: true,
    args: FLAGS,
    colorScheme: scheme,
    viewport,
    acceptDownloads: true,
  });
  const close = async () => {
    await context.close();
    rmSync(profile, { recursive: true, force: true });
  };
  return { context, page: context.pages()[0] ?? (await context.newPage()), close };
}

/** Signs in on the page at `base`. */
export async function signIn(page, base, name = "guest", password = "guest") {
  await page.goto(base);
  await page.getByLabel("User").fill(name);
  await page.getByLabel("Password").fill(password);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("navigation", { name: "Pages" }).waitFor();
}
