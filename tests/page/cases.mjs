/** What is tested, in order: name and steps. */

import { strict as assert } from "node:assert";
import { readFile } from "node:fs/promises";

import { open, signIn } from "./browser.mjs";
import { looks } from "./looks.mjs";
import { broker, Provider } from "./oauth.mjs";

const go = (page, base, route) => page.goto(`${base}#/${route}`);
const dialog = (page) => page.getByRole("dialog");
const press = (where, name) => where.getByRole("button", { name, exact: true }).click();
const gone = (where) => where.waitFor({ state: "hidden" });

/** A row of a table, by a text in it. */
const row = (page, text) => page.locator("main tr").filter({ hasText: text }).first();

async function confirm(page, name, word) {
  if (word !== undefined) await dialog(page).getByLabel(`Type ${word} to confirm`).fill(word);
  await press(dialog(page), name);
  await gone(dialog(page));
}

const signing = [
  ["sign in: a wrong password is said to be wrong", async ({ page, base }) => {
    await page.goto(base);
    await page.getByLabel("User").fill("guest");
    await page.getByLabel("Password").fill("wrong");
    await press(page, "Sign in");
    await page.getByRole("alert").getByText("password is wrong").waitFor();
  }],
  ["sign in: credentials stay in this tab and out of addresses", async ({ page, base }) => {
    await signIn(page, base);
    const kept = await page.evaluate(() => [JSON.stringify(localStorage), document.cookie, location.href].join(" "));
    assert.ok(!kept.includes(btoa("guest:guest")) && !kept.includes("guest:guest"), kept);
    await page.reload();
    await page.getByRole("navigation", { name: "Pages" }).waitFor();
  }],
  ["overview: numbers, a drawn chart, ports", async ({ page, base }) => {
    await go(page, base, "");
    await page.locator(".tiles").getByText("Queues").waitFor();
    await page.locator(".chart canvas").first().waitFor();
    await row(page, "amqp").waitFor();
    await page.getByText("Memory", { exact: true }).first().waitFor();
  }],
];

const messaging = [
  ["queue: declared with arguments", async ({ page, base, api }) => {
    await go(page, base, "queues");
    await press(page, "New queue");
    await dialog(page).getByLabel("Name").fill("page/one two");
    await dialog(page).getByLabel("Arguments: key 1").fill("x-message-ttl");
    await dialog(page).getByLabel("Arguments: value 1").fill("3600000");
    await press(dialog(page), "Declare queue");
    await page.getByRole("heading", { level: 1, name: "page/one two" }).waitFor();
    assert.equal((await api.get("queues/%2F/page%2Fone%20two")).arguments["x-message-ttl"], 3600000);
    await page.locator("h1").getByText("TTL").waitFor();
  }],
  ["queue: the nodes of a cluster that have it, and which of them are down", async ({ page, base }) => {
    const address = (url) => url.pathname.endsWith("/api/queues/%2F/page%2Fone%20two");
    await page.route(address, async (route) => {
      const json = await (await route.fetch()).json();
      const members = ["rabbit@a", "rabbit@b", "rabbit@c"];
      await route.fulfill({ json: { ...json, leader: members[0], members, online: members.slice(0, 2) } });
    });
    await go(page, base, "queues/%2F/page%2Fone%20two");
    const down = page.locator("main li").filter({ hasText: "down" });
    await down.waitFor();
    assert.match(await down.innerText(), /rabbit@c/);
    await page.locator("main dd").getByText("rabbit@a", { exact: true }).first().waitFor();
    await page.unroute(address);
  }],
  ["queue: a refusal is said in the dialog", async ({ page, base }) => {
    await go(page, base, "queues");
    await press(page, "New queue");
    await dialog(page).getByLabel("Name").fill("page/one two");
    await press(dialog(page), "Declare queue");
    await dialog(page).getByRole("alert").getByText(/inequivalent arg/i).waitFor();
    await page.keyboard.press("Escape");
    await gone(dialog(page));
  }],
  ["queue: publish, get and put back, get and remove", async ({ page, base, api }) => {
    await go(page, base, "queues/%2F/page%2Fone%20two");
    await press(page, "Publish");
    await dialog(page).getByLabel("Payload", { exact: true }).fill('{"tea":1}');
    await dialog(page).getByLabel("Headers: key 1").fill("kind");
    await dialog(page).getByLabel("Headers: value 1").fill("green");
    await press(dialog(page), "Publish");
    await dialog(page).getByText("routed to a queue").waitFor();
    await page.keyboard.press("Escape");
    await api.until("queues/%2F/page%2Fone%20two", (queue) => queue.messages_ready === 1);
    await page.getByText("1 message waits and nobody consumes").waitFor();
    await press(page, "Get");
    await press(dialog(page), "Get");
    await dialog(page).locator("pre").getByText('"tea": 1').waitFor();
    await dialog(page).getByText("green").waitFor();
    await dialog(page).getByLabel("What happens to them").selectOption("ack_requeue_false");
    await press(dialog(page), "Get and remove");
    await dialog(page).getByText("redelivered").waitFor();
    await press(dialog(page), "Get and remove");
    await dialog(page).getByText("The queue is empty").waitFor();
    await page.keyboard.press("Escape");
  }],
  ["queue: looked into, one deleted, one moved, paused, other arguments", async ({ page, base, api }) => {
    for (const name of ["page.from", "page.to"]) await api.put(`queues/%2F/${name}`, { durable: true });
    for (const payload of ["one", "two", "three"]) {
      const properties = { headers: { number: payload } };
      await api.post("exchanges/%2F/amq.default/publish", { routing_key: "page.from", properties, payload, payload_encoding: "string" });
    }
    await go(page, base, "queues/%2F/page.from");
    await press(page, "Look");
    const message = (text) => dialog(page).getByRole("article").filter({ hasText: text });
    await press(dialog(page), "Look");
    await message("three").waitFor();
    await dialog(page).getByLabel("Header", { exact: true }).fill("number");
    await dialog(page).getByLabel("Value of the header").fill("two");
    await press(dialog(page), "Look");
    await gone(message("three"));
    await press(message("two"), "Delete message");
    await press(dialog(page).last(), "Delete");
    await dialog(page).getByText("No such messages").waitFor();
    await page.keyboard.press("Escape");
    await gone(dialog(page));
    await press(page, "Move");
    await dialog(page).getByLabel("Name").fill("page.to");
    await dialog(page).getByLabel("How many").fill("1");
    await press(dialog(page), "Move");
    await dialog(page).getByText("1 message moved").waitFor();
    await page.keyboard.press("Escape");
    await api.until("queues/%2F/page.to", (queue) => queue.messages_ready === 1);
    await press(page, "Pause");
    await page.getByText("The queue is paused").waitFor();
    await press(page, "Resume");
    await page.getByText("1 message waits and nobody consumes").waitFor();
    await press(page, "Arguments");
    await dialog(page).getByLabel("Arguments: key 1").fill("x-max-length");
    await dialog(page).getByLabel("Arguments: value 1").fill("7");
    await dialog(page).getByLabel("Arguments: type 1").selectOption("number");
    await press(dialog(page), "Set");
    await gone(dialog(page));
    await api.until("queues/%2F/page.from", (queue) => queue.arguments["x-max-length"] === 7);
    for (const name of ["page.from", "page.to"]) await api.del(`queues/%2F/${name}`);
  }],
  ["exchange: declared, bound to, published to, unbound, deleted", async ({ page, base, api }) => {
    await go(page, base, "exchanges");
    await press(page, "New exchange");
    await dialog(page).getByLabel("Name").fill("page.topics");
    await dialog(page).getByLabel("Type", { exact: true }).selectOption("topic");
    await press(dialog(page), "Declare exchange");
    await page.getByRole("heading", { level: 1, name: "page.topics" }).waitFor();
    await page.getByRole("region", { name: "Bindings from this exchange" }).getByRole("button", { name: "Bind" }).click();
    await dialog(page).getByLabel("Queue").fill("page/one two");
    await dialog(page).getByLabel("Routing key").fill("tea.#");
    await press(dialog(page), "Bind");
    await gone(dialog(page));
    await row(page, "tea.#").waitFor();
    await press(page, "Publish");
    await dialog(page).getByLabel("Routing key").fill("coffee");
    await press(dialog(page), "Publish");
    await dialog(page).getByText("no queue took it").waitFor();
    await dialog(page).getByLabel("Routing key").fill("tea.green");
    await press(dialog(page), "Publish");
    await dialog(page).getByText("routed to a queue").waitFor();
    await page.keyboard.press("Escape");
    await row(page, "tea.#").getByRole("button", { name: "Unbind" }).click();
    await confirm(page, "Unbind");
    await gone(row(page, "tea.#"));
    await press(page, "Delete");
    await confirm(page, "Delete exchange");
    assert.equal(await api.get("exchanges/%2F/page.topics"), undefined);
  }],
  ["queue: bound, purged, deleted", async ({ page, base, api }) => {
    await go(page, base, "queues/%2F/page%2Fone%20two");
    await press(page, "Bind");
    await dialog(page).getByLabel("From exchange").fill("amq.direct");
    await dialog(page).getByLabel("Routing key").fill("key");
    await press(dialog(page), "Bind");
    await gone(dialog(page));
    await row(page, "amq.direct").waitFor();
    await press(page, "Purge");
    await confirm(page, "Purge");
    await api.until("queues/%2F/page%2Fone%20two", (queue) => queue.messages === 0);
    await press(page, "Delete");
    await confirm(page, "Delete queue");
    await page.getByRole("heading", { level: 1, name: "Queues" }).waitFor();
    assert.equal(await api.get("queues/%2F/page%2Fone%20two"), undefined);
    await go(page, base, "queues/%2F/page%2Fone%20two");
    await page.getByText("There is no such queue").waitFor();
  }],
];

const administration = [
  ["policy: set, shown at its queue, edited, deleted", async ({ page, base, api }) => {
    await api.put("queues/%2F/page.policed", { durable: true });
    await go(page, base, "policies");
    await press(page, "New policy");
    await dialog(page).getByLabel("Name").fill("page-policy");
    await dialog(page).getByLabel("Pattern").fill("^page\\.");
    await dialog(page).getByLabel("Definition: key 1").fill("max-length");
    await dialog(page).getByLabel("Definition: value 1").fill("many");
    await press(dialog(page), "Set policy");
    await dialog(page).getByText('max-length is a number, not "many"').waitFor();
    await dialog(page).getByLabel("Definition: value 1").fill("1000");
    await press(dialog(page), "Set policy");
    await gone(dialog(page));
    await row(page, "page-policy").getByText("1000").waitFor();
    await go(page, base, "queues/%2F/page.policed");
    await page.getByRole("region", { name: "Queue" }).getByText("max-length").waitFor();
    await go(page, base, "policies");
    await row(page, "page-policy").getByRole("button", { name: "Edit" }).click();
    await dialog(page).getByLabel("Definition: value 1").fill("5");
    await press(dialog(page), "Save");
    await gone(dialog(page));
    assert.equal((await api.get("policies/%2F/page-policy")).definition["max-length"], 5);
    await row(page, "page-policy").getByRole("button", { name: "Delete" }).click();
    await confirm(page, "Delete policy");
    await gone(row(page, "page-policy"));
    await api.del("queues/%2F/page.policed");
  }],
  ["operator policy: set and deleted", async ({ page, base, api }) => {
    await go(page, base, "policies");
    await press(page, "New operator policy");
    await dialog(page).getByLabel("Name").fill("page-operator");
    await dialog(page).getByLabel("Pattern").fill("^page-none$");
    await dialog(page).getByLabel("Definition: key 1").fill("max-length");
    await dialog(page).getByLabel("Definition: value 1").fill("7");
    await press(dialog(page), "Set policy");
    await gone(dialog(page));
    await row(page, "page-operator").getByRole("button", { name: "Delete" }).click();
    await confirm(page, "Delete policy");
    await gone(row(page, "page-operator"));
    assert.equal(await api.get("operator-policies/%2F/page-operator"), undefined);
  }],
  ["vhost: added, edited, limited", async ({ page, base, api }) => {
    await go(page, base, "vhosts");
    await press(page, "New vhost");
    await dialog(page).getByLabel("Name").fill("page-vhost");
    await dialog(page).getByLabel("Description").fill("made by a test");
    await press(dialog(page), "Add vhost");
    await page.getByRole("heading", { level: 1, name: "page-vhost" }).waitFor();
    await page.getByText("made by a test").waitFor();
    await page.getByRole("region", { name: "Limits" }).getByRole("button", { name: "Set" }).click();
    await dialog(page).getByLabel("Of").selectOption("max-queues");
    await dialog(page).getByLabel("At most").fill("12");
    await press(dialog(page), "Set limit");
    await gone(dialog(page));
    await row(page, "max-queues").getByText("12").waitFor();
    assert.equal((await api.get("vhost-limits/page-vhost"))[0].value["max-queues"], 12);
    await go(page, base, "limits");
    await row(page, "max-queues").getByRole("button", { name: "Clear" }).click();
    await confirm(page, "Clear");
    await gone(row(page, "max-queues"));
  }],
  ["user: added, permitted", async ({ page, base }) => {
    await go(page, base, "users");
    await press(page, "New user");
    await dialog(page).getByLabel("Name").fill("page-user");
    await dialog(page).locator("input[type=password]").first().fill("secret one");
    await dialog(page).getByLabel("Again").fill("secret two");
    await press(dialog(page), "Add user");
    await dialog(page).getByText("The two passwords differ").waitFor();
    await dialog(page).getByLabel("Again").fill("secret one");
    await press(dialog(page), "Add user");
    await page.getByRole("heading", { level: 1, name: "page-user" }).waitFor();
    await page.getByText("no permission in any vhost").waitFor();
    await page.getByRole("region", { name: "Permissions", exact: true }).getByRole("button", { name: "Set" }).click();
    await dialog(page).getByLabel("Vhost").selectOption("page-vhost");
    await dialog(page).getByLabel("Configure").fill("^own");
    await press(dialog(page), "Set permissions");
    await gone(dialog(page));
    await row(page, "^own").waitFor();
    await page.getByRole("region", { name: "Topic permissions" }).getByRole("button", { name: "Set" }).click();
    await dialog(page).getByLabel("Vhost").selectOption("page-vhost");
    await dialog(page).getByLabel("Write").fill("^tea");
    await press(dialog(page), "Set topic permissions");
    await gone(dialog(page));
    await row(page, "^tea").waitFor();
  }],
  ["user: a new tag does not lose the password", async ({ page, base, api }) => {
    await go(page, base, "users/page-user");
    await page.reload();
    const before = (await api.get("users/page-user")).password_hash;
    await page.locator(".title").getByRole("button", { name: "Edit" }).click();
    await dialog(page).getByLabel("Tags").fill("monitoring");
    await press(dialog(page), "Save");
    await gone(dialog(page));
    const user = await api.get("users/page-user");
    assert.deepEqual([user.tags].flat(), ["monitoring"]);
    assert.equal(user.password_hash, before);
  }],
  ["a user without the tag administrator is told what it may not see", async ({ page, base }) => {
    await page.evaluate(() => sessionStorage.clear());
    await page.reload();
    await signIn(page, base, "page-user", "secret one");
    assert.equal(await page.getByRole("link", { name: "Users", exact: true }).count(), 0);
    await go(page, base, "users");
    await page.getByText("You may not see users").waitFor();
    await page.getByRole("navigation", { name: "Pages" }).waitFor();
    await page.evaluate(() => sessionStorage.clear());
    await page.reload();
    await signIn(page, base);
  }],
  ["user and vhost: deleted after their names are typed", async ({ page, base, api }) => {
    await go(page, base, "users/page-user");
    await press(page, "Delete");
    assert.ok(await dialog(page).getByRole("button", { name: "Delete user" }).isDisabled());
    await confirm(page, "Delete user", "page-user");
    await go(page, base, "vhosts/page-vhost");
    await press(page, "Delete");
    await confirm(page, "Delete vhost", "page-vhost");
    await page.getByRole("heading", { level: 1, name: "Vhosts" }).waitFor();
    assert.equal(await api.get("users/page-user"), undefined);
    assert.equal(await api.get("vhosts/page-vhost"), undefined);
  }],
  ["parameters: a global one set, changed, cleared", async ({ page, base, api }) => {
    await go(page, base, "parameters");
    const panel = page.getByRole("region", { name: "Global parameters" });
    await press(panel, "New");
    await dialog(page).getByLabel("Name").fill("page_parameter");
    await dialog(page).getByLabel("Value").fill("{tea}");
    await press(dialog(page), "Set parameter");
    await dialog(page).getByText("The value is not JSON").waitFor();
    await dialog(page).getByLabel("Value").fill('{"tea": "green"}');
    await press(dialog(page), "Set parameter");
    await gone(dialog(page));
    await row(page, "page_parameter").getByText("green").waitFor();
    await row(page, "page_parameter").getByRole("button", { name: "Edit" }).click();
    await dialog(page).getByLabel("Value").fill('"black"');
    await press(dialog(page), "Save");
    await gone(dialog(page));
    assert.equal((await api.get("global-parameters/page_parameter")).value, "black");
    await row(page, "page_parameter").getByRole("button", { name: "Clear" }).click();
    await confirm(page, "Clear");
    await gone(row(page, "page_parameter"));
  }],
  ["tracing: a trace made, its file taken away, stopped, deleted", async ({ page, base, api }) => {
    await go(page, base, "tracing");
    await page.getByText("No traces are running").waitFor();
    await press(page, "New trace");
    await dialog(page).getByLabel("Name", { exact: true }).fill("../page");
    await press(dialog(page), "Add trace");
    await dialog(page).getByText("Invalid trace name").waitFor();
    await dialog(page).getByLabel("Name", { exact: true }).fill("page");
    await dialog(page).getByLabel("Format").selectOption("json");
    await dialog(page).getByLabel("Max payload bytes").fill("3");
    await press(dialog(page), "Add trace");
    await gone(dialog(page));
    const traces = page.getByRole("region", { name: "Traces" });
    await traces.getByRole("row", { name: "page" }).getByText("running").waitFor();
    await api.post("exchanges/%2F/amq.topic/publish", { routing_key: "page.traced", properties: {}, payload: "green tea", payload_encoding: "string" });
    await traces.getByRole("row", { name: "page" }).getByRole("button", { name: "Stop" }).click();
    await confirm(page, "Stop");
    await page.getByText("No traces are running").waitFor();
    const files = page.getByRole("region", { name: "Trace log files" });
    const [download] = await Promise.all([page.waitForEvent("download"), files.getByRole("row", { name: "page.log" }).getByRole("button", { name: "Download" }).click()]);
    assert.equal(download.suggestedFilename(), "page.log");
    const lines = (await readFile(await download.path(), "utf8")).trim().split("\n");
    const { type, routing_keys, payload } = JSON.parse(lines[0]);
    assert.deepEqual([type, routing_keys, payload], ["published", ["page.traced"], Buffer.from("gre").toString("base64")]);
    await files.getByRole("row", { name: "page.log" }).getByRole("button", { name: "Delete" }).click();
    await confirm(page, "Delete");
    await page.getByText("No files").waitFor();
  }],
  ["definitions: taken away and brought back", async ({ page, base, api }) => {
    await api.put("queues/%2F/page.defined", { durable: true });
    await go(page, base, "definitions");
    const [download] = await Promise.all([page.waitForEvent("download"), press(page, "Download")]);
    const definitions = JSON.parse(await readFile(await download.path(), "utf8"));
    assert.ok(definitions.queues.some(({ name }) => name === "page.defined"));
    await api.del("queues/%2F/page.defined");
    await page.getByLabel("File").setInputFiles({ name: "bad.json", mimeType: "application/json", buffer: Buffer.from("{") });
    await page.getByText("bad.json is not JSON").waitFor();
    const only = { queues: definitions.queues.filter(({ name }) => name === "page.defined") };
    await page.getByLabel("File").setInputFiles({ name: "d.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(only)) });
    await press(page, "Import");
    await page.getByText("The definitions are imported").waitFor();
    assert.ok(await api.get("queues/%2F/page.defined"));
    await api.del("queues/%2F/page.defined");
    // A stream cannot be here: nothing is imported, or all but the stream.
    const stream = { ...only.queues[0], name: "page.stream", arguments: { "x-queue-type": "stream" } };
    const mixed = JSON.stringify({ queues: [...only.queues, stream] });
    await page.getByLabel("File").setInputFiles({ name: "mixed.json", mimeType: "application/json", buffer: Buffer.from(mixed) });
    await press(page, "Import");
    await page.getByText("Nothing was imported").waitFor();
    await page.getByLabel("Leave out what cannot be here").check();
    await press(page, "Import");
    await page.getByText("Left out:").waitFor();
    await page.getByRole("listitem").filter({ hasText: "page.stream" }).waitFor();
    await api.del("queues/%2F/page.defined");
  }],
];

const clients = [
  ["connections: listed, shown, closed with a reason", async ({ page, base, api, load }) => {
    load.start("-x", "1", "-y", "1", "-u", "page.load", "-r", "50", "-c", "10", "-q", "20", "-z", "600");
    const list = await api.until("connections", (all) => all?.length >= 2);
    await go(page, base, "connections");
    await page.locator("tbody tr").nth(1).waitFor();
    await page.locator("tbody a").first().click();
    await page.getByRole("region", { name: "Where does it wait" }).waitFor();
    await page.getByRole("region", { name: "Channels" }).locator("tbody tr").waitFor();
    assert.ok(list.some(({ name }) => page.url().includes(encodeURIComponent(name))), page.url());
    await press(page, "Close");
    await dialog(page).getByLabel("Reason").fill("a test closes it");
    await confirm(page, "Close connection");
    await page.getByRole("heading", { level: 1, name: "Connections" }).waitFor();
    load.stop();
  }],
  ["queue: a live chart, its consumer, rates", async ({ page, base, api, load }) => {
    load.start("-x", "1", "-y", "1", "-u", "page.load", "-r", "50", "-c", "10", "-q", "20", "-z", "600");
    await api.until("queues/%2F/page.load", (queue) => queue?.consumers > 0);
    await go(page, base, "queues/%2F/page.load");
    const rates = page.getByRole("region", { name: "Rates" });
    await rates.getByText(/Publish [1-9]/).waitFor();
    await page.getByRole("region", { name: "Consumers" }).locator("tbody tr").waitFor();
    await go(page, base, "consumers");
    await row(page, "page.load").waitFor();
    await go(page, base, "channels");
    await page.locator("tbody tr").getByText("confirms").first().waitFor();
    await page.locator("tbody a").first().click();
    await page.getByRole("region", { name: "Held" }).waitFor();
    load.stop();
    await api.until("queues/%2F/page.load", (queue) => !queue || queue.consumers === 0);
    await api.del("queues/%2F/page.load");
  }],
  ["waits: the broker's own waits and how long confirms took are shown", async ({ page, base, api, load }) => {
    load.start("-u", "page.confirmed", "-c", "10", "-x", "1", "-y", "0", "-r", "50", "-f", "persistent");
    await api.until("leveret/confirm-latency", ({ steps }) => steps.some(({ counts }) => counts.some((count) => count > 0)));
    await go(page, base, "waits");
    const facts = page.getByRole("list", { name: "What the broker waits for" });
    await facts.getByText("Every connection is read.").waitFor();
    await facts.getByText(/^Writes: .*Syncs: /).waitFor();
    await page.getByText(/^Most confirms now take (less than )?\d/).waitFor();
    await page.locator(".heat ol").getByText("< 50 µs").waitFor();
    await page.locator(".heat ol").getByText("< 1 s").waitFor();
    await page.waitForFunction(() => {
      const canvas = document.querySelector(".heat canvas");
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const colours = new Set();
      for (let at = 0; at < data.length; at += 4) colours.add(data.slice(at, at + 3).join());
      return colours.size > 1;
    });
    load.stop();
    await api.del("queues/%2F/page.confirmed");
  }],
  ["top: what is busiest comes first, by what the reader chooses", async ({ page, base, api, load }) => {
    await api.put("queues/%2F/page.idle", { durable: true });
    load.start("-u", "page.busy", "-x", "1", "-y", "1", "-r", "200");
    await api.until("queues/%2F/page.busy", (queue) => (queue?.message_stats?.publish ?? 0) > 100);
    await go(page, base, "top");
    await page.getByRole("table", { name: "Threads" }).locator("tbody tr").first().waitFor();
    const queues = page.getByRole("table", { name: "Queues" });
    await queues.locator("tbody tr").first().getByRole("link", { name: "page.busy" }).waitFor();
    await queues.locator("tbody tr").first().getByText("running").waitFor();
    await page.getByRole("table", { name: "Channels" }).getByText("running").first().waitFor();
    await queues.getByRole("button", { name: "Memory" }).click();
    await page.waitForFunction(() => location.hash.includes("by-queue=memory"));
    await queues.locator('th[aria-sort="descending"]').getByText("Memory").waitFor();
    await queues.getByRole("link", { name: "page.busy" }).click();
    await page.getByRole("heading", { name: "page.busy" }).waitFor();
    load.stop();
    await api.until("queues/%2F/page.busy", (queue) => !queue || queue.consumers === 0);
    for (const name of ["page.busy", "page.idle"]) await api.del(`queues/%2F/${name}`);
  }],
  ["waits: a queue that nobody consumes is named", async ({ page, base, api }) => {
    await api.put("queues/%2F/page.waits", { durable: true });
    await api.post("exchanges/%2F/amq.default/publish", { routing_key: "page.waits", payload: "x", payload_encoding: "string", properties: {} });
    await api.until("queues/%2F/page.waits", (queue) => queue.messages_ready === 1);
    await go(page, base, "waits");
    await row(page, "page.waits").getByText("nobody consumes").waitFor();
    await api.del("queues/%2F/page.waits");
  }],
];

/** Fewer where the broker under test is slow to declare them. */
const MANY = Number(process.env.MANY ?? 10_000);
const last = (at) => `many.${String(MANY - 1 - at).padStart(5, "0")}`;

const many = [
  ["ten thousand queues: one page of them is asked for, sorted and filtered by the broker", async ({ page, base, api }) => {
    const queues = Array.from({ length: MANY }, (_, at) => ({ name: `many.${String(at).padStart(5, "0")}`, durable: false, auto_delete: false, arguments: {} }));
    await api.put("vhosts/page-many", {});
    await api.put("permissions/page-many/guest", { configure: ".*", write: ".*", read: ".*" });
    await api.post("definitions/page-many", { queues });
    let most = 0;
    const measure = async (response) => {
      if (response.url().includes("/api/queues")) most = Math.max(most, (await response.body().catch(() => "")).length);
    };
    page.on("response", measure);
    await page.reload();
    await go(page, base, "queues");
    await page.getByLabel("Vhost").selectOption("page-many");
    await page.getByText(`of ${MANY.toLocaleString("en-US")}`).waitFor();
    assert.equal(await page.locator("tbody tr").count(), 50);
    await page.getByRole("button", { name: "Name" }).click();
    await page.locator("tbody tr").first().getByText(last(0)).waitFor();
    await page.getByRole("button", { name: "Next page" }).click();
    await page.locator("tbody tr").first().getByText(last(50)).waitFor();
    await page.getByLabel("Filter queues by name").fill("many.0012");
    await page.getByText("1-10 of 10").waitFor();
    await page.getByLabel("Regex").click();
    await page.getByLabel("Filter queues by name").fill("^many\\.0{4}[12]$");
    await page.getByText("1-2 of 2").waitFor();
    assert.match(page.url(), /sort=name/);
    page.off("response", measure);
    assert.ok(most > 0 && most < 200_000, `${most} bytes`);
  }],
  ["ten thousand queues: the longest page is drawn, and a filter asks for what it shows", async ({ page, base }) => {
    await go(page, base, "queues?size=500");
    await page.getByText(`1-500 of ${MANY.toLocaleString("en-US")}`).waitFor();
    assert.equal(await page.locator("tbody tr").count(), 500);
    const asked = new Set();
    const note = (request) => {
      const url = new URL(request.url());
      if (url.pathname.startsWith("/api/queues")) asked.add(url.search);
    };
    page.on("request", note);
    await page.getByLabel("Filter queues by name").fill("many.001");
    await page.getByText("1-100 of 100").waitFor();
    page.off("request", note);
    assert.equal(await page.locator("tbody tr").count(), 100);
    // What was shown before may have been asked for once more; letters on the way to the filter are not.
    const filtered = [...asked].filter((search) => search.includes("name=many"));
    assert.equal(filtered.length, 1, filtered.join(" "));
    assert.match(filtered[0], /page_size=500/);
  }],
  ["ten thousand queues: search finds one of them", async ({ page, base }) => {
    await go(page, base, "");
    await page.keyboard.press("/");
    await page.keyboard.type("many.00471");
    await page.getByRole("option").getByText("many.00471").waitFor();
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { level: 1, name: "many.00471" }).waitFor();
  }],
];

const comfort = [
  ["keyboard: places, rows, help", async ({ page, base }) => {
    await go(page, base, "");
    await page.locator(".tiles").waitFor();
    await page.keyboard.press("g");
    await page.keyboard.press("e");
    await page.getByRole("heading", { level: 1, name: "Exchanges" }).waitFor();
    await row(page, "amq.fanout").waitFor();
    await page.keyboard.press("j");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    await page.getByRole("region", { name: "Bindings from this exchange" }).waitFor();
    await page.keyboard.press("?");
    await dialog(page).getByText("Search everything").waitFor();
    await page.keyboard.press("Escape");
    await gone(dialog(page));
    await page.keyboard.press("g");
    await page.keyboard.press("q");
    await page.getByRole("heading", { level: 1, name: "Queues" }).waitFor();
    await page.keyboard.press("n");
    await dialog(page).getByLabel("Name").waitFor();
    await page.keyboard.press("Escape");
    await gone(dialog(page));
  }],
  ["theme: chosen and kept", async ({ page, base }) => {
    await go(page, base, "");
    const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
    assert.equal(await theme(), "light");
    await page.getByRole("button", { name: /^Theme: / }).click();
    await page.getByRole("button", { name: /^Theme: / }).click();
    assert.equal(await theme(), "dark");
    await page.reload();
    await page.locator(".tiles").waitFor();
    assert.equal(await theme(), "dark");
    await page.getByRole("button", { name: /^Theme: / }).click();
    assert.equal(await theme(), "light");
  }],
  ["deep links: an object's address opens it, with and without the #", async ({ page, base }) => {
    await go(page, base, "exchanges/%2F/amq.topic");
    await page.reload();
    await page.getByRole("heading", { level: 1, name: "amq.topic" }).waitFor();
    if (process.env.NOT_SERVED_BY_BROKER) return;
    await page.goto(`${base}exchanges/%2F/amq.headers`);
    await page.getByRole("heading", { level: 1, name: "amq.headers" }).waitFor();
  }],
  ["files: policy, tags, compression", async ({ base }) => {
    if (process.env.NOT_SERVED_BY_BROKER) return;
    const index = await fetch(base);
    assert.match(index.headers.get("content-security-policy"), /^default-src 'self'/);
    assert.equal(index.headers.get("x-frame-options"), "DENY");
    assert.match(index.headers.get("content-type"), /^text\/html/);
    const script = await fetch(`${base}page.js`, { headers: { "accept-encoding": "gzip" } });
    assert.equal(script.headers.get("content-encoding"), "gzip");
    const tag = script.headers.get("etag");
    assert.equal((await fetch(`${base}page.js`, { headers: { "if-none-match": tag } })).status, 304);
  }],
  ["broker away: the last data stays, and the page says so", async ({ page, base }) => {
    await go(page, base, "exchanges");
    await row(page, "amq.fanout").waitFor();
    await page.route("**/api/exchanges**", (route) => route.abort());
    await page.getByRole("alert").getByText("cannot be reached").waitFor();
    assert.ok(await row(page, "amq.fanout").isVisible());
    await page.unroute("**/api/exchanges**");
    await gone(page.getByRole("alert"));
  }],
  ["a list that lacks something says so", async ({ page, base }) => {
    const warning = '299 - "connections of rabbit@b are not all there: it does not answer in time"';
    // Of the vhost that an earlier case has chosen, if it has.
    const connections = /\/api\/(vhosts\/[^/]+\/)?connections/;
    await page.route(connections, (route) => route.fulfill({ headers: { warning }, json: [] }));
    await go(page, base, "connections");
    await page.getByRole("status").getByText("connections of rabbit@b are not all there").waitFor();
    await page.unroute(connections);
    await gone(page.getByText("This list is not whole"));
  }],
  ["what the broker does not offer is said to be so", async ({ page, base }) => {
    await page.route("**/api/deprecated-features", (route) => route.fulfill({ status: 501, body: '{"error":"not_implemented","reason":"not there yet"}' }));
    await go(page, base, "feature-flags");
    await page.getByText("Deprecated features: not available").waitFor();
    await page.getByText("not there yet").waitFor();
    await page.unroute("**/api/deprecated-features");
  }],
];

const PAGES = [
  "", "waits", "events", "queues", "queues/page-many/many.00001", "exchanges", "exchanges/%2F/amq.topic", "connections", "channels", "consumers", "policies",
  "vhosts", "vhosts/%2F", "users", "users/guest", "limits", "parameters", "definitions", "tracing", "nodes", "feature-flags",
];

/** Every page, light and dark: names for what can be used, contrast, one heading, no sideways scrolling. */
const accessible = ["light", "dark"].map((scheme) => [
  `accessible: every page, ${scheme}`,
  async ({ page, base }) => {
    await page.emulateMedia({ colorScheme: scheme });
    for (const route of PAGES) {
      await go(page, base, route);
      await page.locator("main h1").first().waitFor({ state: "attached" });
      await gone(page.locator("main .loading"));
      assert.deepEqual(await page.evaluate(looks), [], `#/${route}`);
    }
    await page.emulateMedia({ colorScheme: "light" });
  },
]);

const events = [
  ["events: what happens is shown while it happens", async ({ page, base, api }) => {
    await go(page, base, "events");
    await page.getByRole("heading", { level: 1, name: "Events" }).waitFor();
    await api.put("queues/%2F/told", { durable: true });
    await row(page, "told").getByText("queue.created").waitFor();
    await api.del("queues/%2F/told");
    await page.getByLabel("Filter events").fill("queue.deleted");
    await row(page, "told").getByText("queue.deleted").waitFor();
    await gone(row(page, "queue.created"));
    await row(page, "told").getByText(/facts?$/).click();
    await page.getByText("rabbit_classic_queue").first().waitFor();
  }],
];

const end = [
  ["ten thousand queues: gone again", async ({ api }) => {
    await api.del("vhosts/page-many");
    assert.equal((await api.get("queues?page=1&name=many.&page_size=1")).filtered_count, 0);
  }],
  ["sign out", async ({ page, base }) => {
    await go(page, base, "");
    await page.locator("summary").getByText("guest").click();
    await press(page, "Sign out");
    await page.getByRole("button", { name: "Sign in" }).waitFor();
    assert.equal(await page.evaluate(() => sessionStorage.getItem("leveret.credentials")), null);
  }],
];

/** A browser, a broker and a provider of their own: the page goes to another host there. */
async function withProvider(program, steps) {
  const provider = await new Provider().start();
  const { base, stop } = await broker(program, provider);
  const { context, page, close } = await open();
  page.setDefaultTimeout(15_000);
  const faults = [];
  context.on("weberror", (error) => faults.push(error.error().stack));
  context.on("console", (message) => /Content Security Policy/.test(message.text()) && faults.push(message.text()));
  try {
    await page.goto(base);
    await steps({ page, base, provider });
    assert.deepEqual(faults, []);
  } finally {
    await close();
    await stop();
    provider.stop();
  }
}

const byProvider = [
  ["sign in by OAuth 2: to the provider and back", ({ load }) => withProvider(load.program, async ({ page, base, provider }) => {
    await page.goto(`${base}#/exchanges`);
    await page.getByRole("button", { name: "Sign in with Example" }).waitFor();
    assert.equal(await page.getByLabel("Password").count(), 0);
    await press(page, "Sign in with Example");
    await page.getByText("Continue").click();
    await page.locator("summary").getByText("bob").waitFor();
    await page.getByRole("heading", { level: 1, name: "Exchanges" }).waitFor();
    assert.equal(page.url(), `${base}#/exchanges`);
    assert.equal(provider.grants[0].client_id, "page");
    const kept = await page.evaluate(() => [JSON.stringify(localStorage), document.cookie].join(" "));
    assert.ok(!kept.includes("ey"), kept);
    await page.reload();
    await page.locator("summary").getByText("bob").click();
    await press(page, "Sign out");
    await page.getByRole("button", { name: "Sign in with Example" }).waitFor();
    assert.equal(await page.evaluate(() => JSON.stringify(sessionStorage)), "{}");
  })],
  ["sign in by OAuth 2: a short token is renewed", ({ load }) => withProvider(load.program, async ({ page, provider }) => {
    provider.seconds = 6;
    await press(page, "Sign in with Example");
    await page.getByText("Continue").click();
    await page.locator("summary").getByText("bob").waitFor();
    const first = await page.evaluate(() => sessionStorage.getItem("leveret.credentials"));
    provider.seconds = 600;
    await page.waitForFunction((old) => sessionStorage.getItem("leveret.credentials") !== old, first);
    assert.equal(provider.grants.at(-1).grant_type, "refresh_token");
    await page.reload();
    await page.locator("summary").getByText("bob").waitFor();
  })],
  ["sign in by OAuth 2: what goes wrong is said", ({ load }) => withProvider(load.program, async ({ page, base, provider }) => {
    await press(page, "Sign in with Example");
    await page.getByText("Refuse").click();
    await page.getByRole("alert").getByText("The provider says: bob does not want to").waitFor();
    provider.scope = "rabbit.read:*/*";
    await press(page, "Sign in with Example");
    await page.getByText("Continue").click();
    await page.getByRole("alert").getByText("no scope for a tag").waitFor();
    // An answer to what nobody asked is left alone.
    await page.goto(`${base}js/oidc-oauth/login-callback.html?code=x&state=y`);
    await page.getByRole("button", { name: "Sign in with Example" }).waitFor();
    assert.equal(provider.grants.length, 1);
    provider.stop();
    await press(page, "Sign in with Example");
    await page.getByRole("alert").getByText("the provider cannot be reached").waitFor();
  })],
];

export const tests = [...signing, ...byProvider, ...messaging, ...administration, ...clients, ...many, ...comfort, ...events, ...accessible, ...end];
