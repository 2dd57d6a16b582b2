/** What the tests do beside the page: requests to the API, and clients. */

import { spawn } from "node:child_process";

export class Api {
  constructor(base) {
    this.base = new URL("api/", base);
  }

  async ask(method, path, body, name = "guest:guest") {
    const response = await fetch(new URL(path, this.base), {
      method,
      headers: { authorization: `Basic ${btoa(name)}`, "content-type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await response.text();
    if (!response.ok && response.status !== 404) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return response.ok && text !== "" ? JSON.parse(text) : undefined;
  }

  get = (path) => this.ask("GET", path);
  put = (path, body) => this.ask("PUT", path, body);
  post = (path, body) => this.ask("POST", path, body);
  del = (path) => this.ask("DELETE", path);

  /** Waits until the answer is as wanted: what the API tells of counters comes a moment later. */
  async until(path, isWanted) {
    const deadline = Date.now() + 20_000;
    for (;;) {
      const answer = await this.get(path);
      if (isWanted(answer)) return answer;
      if (Date.now() > deadline) throw new Error(`${path} stays ${JSON.stringify(answer)?.slice(0, 300)}`);
      await new Promise((done) => setTimeout(done, 100));
    }
  }
}

/** Clients that publish and consume: `leveret perf`. */
export class Load {
  running = [];

  constructor(program, amqp) {
    this.program = program;
    this.amqp = amqp;
  }

  start(...words) {
    const child = spawn(this.program, ["perf", "-h", this.amqp, ...words], { stdio: "ignore" });
    this.running.push(child);
    return child;
  }

  stop() {
    for (const child of this.running.splice(0)) child.kill();
  }
}
