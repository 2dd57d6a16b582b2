/** A provider of OAuth 2 and a broker that takes its tokens, for signing in on the page. */

import { spawn } from "node:child_process";
import { createHash, generateKeyPairSync, randomUUID, sign } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { createServer as listen } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const base64url = (bytes) => Buffer.from(bytes).toString("base64url");

/** A provider with one user, who may refuse. Its tokens live `seconds` and have `scope`. */
export class Provider {
  keys = generateKeyPairSync("ec", { namedCurve: "P-256" });
  scope = "rabbit.tag:administrator rabbit.read:*/*";
  seconds = 600;
  /** What came to its token endpoint. */
  grants = [];
  codes = new Map();

  async start() {
    this.server = createServer((request, response) => this.answer(request, response));
    this.server.listen(0, "127.0.0.1");
    await once(this.server, "listening");
    this.address = `http://127.0.0.1:${this.server.address().port}`;
    return this;
  }

  async answer(request, response) {
    const { pathname, searchParams } = new URL(request.url, this.address);
    const json = (status, body) => {
      response.writeHead(status, { "content-type": "application/json", "access-control-allow-origin": "*" });
      response.end(JSON.stringify(body));
    };
    if (pathname === "/.well-known/openid-configuration") {
      return json(200, { authorization_endpoint: `${this.address}/authorize`, token_endpoint: `${this.address}/token` });
    }
    if (pathname === "/authorize") {
      const code = randomUUID();
      this.codes.set(code, Object.fromEntries(searchParams));
      const back = (params) => `${searchParams.get("redirect_uri")}?${new URLSearchParams({ ...params, state: searchParams.get("state") })}`;
      response.writeHead(200, { "content-type": "text/html" });
      const link = (text, params) => `<a href="${back(params).replaceAll("&", "&amp;")}">${text}</a>`;
      return response.end(link("Continue", { code }) + link("Refuse", { error: "access_denied", error_description: "bob does not want to" }));
    }
    if (pathname !== "/token") {
      response.writeHead(404);
      return response.end();
    }
    let body = "";
    for await (const part of request) body += part;
    const asked = Object.fromEntries(new URLSearchParams(body));
    this.grants.push(asked);
    const begun = this.codes.get(asked.code);
    const isGood =
      asked.grant_type === "refresh_token"
        ? asked.refresh_token === "again"
        : begun?.code_challenge_method === "S256" &&
          begun.code_challenge === base64url(createHash("sha256").update(asked.code_verifier).digest()) &&
          begun.redirect_uri === asked.redirect_uri &&
          begun.client_id === asked.client_id;
    if (!isGood) return json(400, { error: "invalid_grant" });
    this.codes.delete(asked.code);
    json(200, { access_token: this.token(), token_type: "Bearer", expires_in: this.seconds, refresh_token: "again" });
  }

  token() {
    const part = (value) => base64url(JSON.stringify(value));
    const exp = Math.floor(Date.now() / 1000) + this.seconds;
    const text = `${part({ alg: "ES256", kid: "k" })}.${part({ aud: "rabbit", sub: "bob", scope: this.scope, exp })}`;
    const signature = sign("sha256", text, { key: this.keys.privateKey, dsaEncoding: "ieee-p1363" });
    return `${text}.${base64url(signature)}`;
  }

  stop() {
    this.server.closeAllConnections();
    this.server.close();
  }
}

async function freePort() {
  const server = listen().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  return port;
}

/** A broker that takes the provider's tokens and nothing else; gives the page's address and what ends it. */
export async function broker(program, provider) {
  const dir = mkdtempSync(join(tmpdir(), "leveret-oauth-"));
  const pem = join(dir, "key.pem");
  writeFileSync(pem, provider.keys.publicKey.export({ type: "spki", format: "pem" }));
  const port = await freePort();
  const settings = [
    "auth_backends.1=oauth2",
    "auth_oauth2.resource_server_id=rabbit",
    `auth_oauth2.signing_keys.k=${pem}`,
    "management.oauth_enabled=true",
    "management.oauth_client_id=page",
    "management.oauth_scopes=openid rabbit.tag:administrator",
    `management.oauth_provider_url=${provider.address}`,
    "management.oauth_resource_servers.rabbit.label=Example",
    "management.path_prefix=/mq",
  ];
  const words = ["serve", "--listen", "127.0.0.1:0", "--management-tcp-port", `${port}`, "--prometheus-tcp-port", "0", "--data-dir", dir];
  const child = spawn(program, [...words, ...settings.flatMap((setting) => ["--set", setting])], { stdio: "ignore" });
  const base = `http://127.0.0.1:${port}/mq/`;
  const isUp = () => fetch(`${base}api/auth`).then((answer) => answer.ok, () => false);
  const deadline = Date.now() + 20_000;
  while (!(await isUp())) {
    if (Date.now() > deadline || child.exitCode !== null) throw new Error("the broker does not start");
    await new Promise((done) => setTimeout(done, 50));
  }
  const stop = async () => {
    child.kill();
    await once(child, "exit");
    rmSync(dir, { recursive: true, force: true });
  };
  return { base, stop };
}
