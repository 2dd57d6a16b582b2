/**
 * The management page in a real browser against a running broker:
 * `node test.mjs http://127.0.0.1:15672/ amqp://127.0.0.1:5672 [PATH-OF-LEVERET] [test ...]`.
 *
 * The tests run in order on one broker and remove what they make. Nothing sleeps: each waits for what it
 * wants to see. The last line is `N passed, N failed`.
 */

import { strict as assert } from "node:assert";

import { open, signIn } from "./browser.mjs";
import { tests } from "./cases.mjs";
import { Api, Load } from "./broker.mjs";

/** A test that takes longer has failed. */
const PATIENCE_MS = 60_000;

const [base, amqp, program, ...only] = process.argv.slice(2);
const api = new Api(base);
const load = new Load(program, amqp);
const { context, page, close } = await open();
page.setDefaultTimeout(15_000);

/** What the page may not do while it is tested, whatever the test is about. */
const faults = [];
context.on("weberror", (error) => faults.push(`an error in the page: ${error.error().stack}`));
context.on("request", (request) => {
  const url = new URL(request.url());
  if (url.protocol.startsWith("http") && url.origin !== new URL(base).origin) faults.push(`asked another host: ${url}`);
  if (/guest:|password/.test(url.href)) faults.push(`a password in an address: ${url}`);
});
context.on("console", (message) => {
  if (/Content Security Policy/.test(message.text())) faults.push(message.text());
});

let passed = 0;
let failed = 0;
for (const [name, test] of tests) {
  if (only.length > 0 && !only.some((word) => name.includes(word))) continue;
  faults.length = 0;
  let timer;
  const late = new Promise((_, fail) => {
    timer = setTimeout(() => fail(new Error(`took longer than ${PATIENCE_MS / 1000} s`)), PATIENCE_MS);
  });
  try {
    if (!name.startsWith("sign in") && !(await page.evaluate(() => sessionStorage.getItem("leveret.credentials")).catch(() => null))) {
      await signIn(page, base);
    }
    await Promise.race([test({ page, base, api, load, context }), late]);
    assert.deepEqual(faults, []);
    passed += 1;
    console.log(`ok ${name}`);
  } catch (error) {
    failed += 1;
    const shot = `${process.env.SHOTS ?? "."}/failed-${name.replace(/\W+/g, "-")}.png`;
    await page.screenshot({ path: shot, fullPage: true }).catch(() => {});
    console.log(`FAILED ${name}: ${error.message}\n  at ${page.url()}, picture: ${shot}`);
    // The next test begins with no dialog on the screen.
    await page.goto(`${base}#/`).catch(() => {});
    await page.reload().catch(() => {});
  } finally {
    clearTimeout(timer);
  }
}
load.stop();
await close();
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed === 0 ? 0 : 1);
