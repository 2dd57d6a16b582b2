/**
 * Signing in by OAuth 2: the authorization code with PKCE (RFC 7636), from this page to the provider and back. The page
 * has no secret of its own. Tokens are in this tab's `sessionStorage`, as other credentials are.
 */

import { get } from "./api";

/** What `GET /api/auth` says. */
interface Settings {
  oauth_enabled: boolean;
  oauth_disable_basic_auth?: boolean;
  oauth_client_id?: string;
  oauth_scopes?: string;
  oauth_authorization_endpoint_params?: Record<string, string>;
  oauth_token_endpoint_params?: Record<string, string>;
  oauth_resource_servers?: Record<string, Server>;
}

interface Server {
  id: string;
  label?: string;
  oauth_provider_url: string;
  oauth_metadata_url?: string;
  oauth_client_id?: string;
  oauth_scopes?: string;
  oauth_initiated_logon_type?: "idp_initiated";
}

/** One way to sign in. */
export interface Provider {
  label: string;
  /** Where one begins, if that is not here. */
  start?: string;
  metadata: string;
  client: string;
  scopes: string;
  forAuthorization: Record<string, string>;
  forToken: Record<string, string>;
}

export interface Ways {
  providers: Provider[];
  /** By name and password, too. */
  hasPassword: boolean;
}

/** What the provider is to bring back, kept while its page is shown. */
interface Started {
  state: string;
  verifier: string;
  provider: Provider;
  /** Where the user was. */
  hash: string;
}

export interface Tokens {
  access: string;
  /** How the next one is got, if the provider lets us. */
  renewal?: { refresh: string; provider: Provider; endpoint: string; inSeconds: number };
}

const STARTED = "leveret.oauth";

/** Longer than any answer of a healthy provider takes. */
const PATIENCE_MS = 20_000;

/** The address that providers send the user back to: the one of RabbitMQ's page, so that none has to be told another. */
const back = () => new URL("js/oidc-oauth/login-callback.html", document.baseURI).href;

export async function ways(): Promise<Ways> {
  const settings = await get<Settings>("auth");
  if (!settings.oauth_enabled) return { providers: [], hasPassword: true };
  const servers = Object.values(settings.oauth_resource_servers ?? {});
  const providers = servers.map((server) => ({
    label: server.label ?? server.id,
    ...(server.oauth_initiated_logon_type === "idp_initiated" ? { start: server.oauth_provider_url } : {}),
    metadata: server.oauth_metadata_url ?? `${server.oauth_provider_url.replace(/\/$/, "")}/.well-known/openid-configuration`,
    client: server.oauth_client_id ?? settings.oauth_client_id ?? "",
    scopes: server.oauth_scopes ?? settings.oauth_scopes ?? "",
    forAuthorization: settings.oauth_authorization_endpoint_params ?? {},
    forToken: settings.oauth_token_endpoint_params ?? {},
  }));
  return { providers, hasPassword: !settings.oauth_disable_basic_auth };
}

/** Goes to the provider's page. */
export async function begin(provider: Provider): Promise<void> {
  if (provider.start !== undefined) return location.assign(provider.start);
  // Browsers have no digest on a page that anybody could have changed on its way.
  if (!window.isSecureContext) throw new Error("Signing in this way needs HTTPS");
  const { authorization_endpoint } = await metadata(provider);
  const [state, verifier] = [random(), random()];
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier));
  const started: Started = { state, verifier, provider, hash: location.hash };
  sessionStorage.setItem(STARTED, JSON.stringify(started));
  const address = new URL(authorization_endpoint);
  const params = {
    ...provider.forAuthorization,
    response_type: "code",
    client_id: provider.client,
    redirect_uri: back(),
    scope: provider.scopes,
    state,
    code_challenge: base64url(new Uint8Array(digest)),
    code_challenge_method: "S256",
  };
  for (const [name, value] of Object.entries(params)) if (value !== "") address.searchParams.set(name, value);
  location.assign(address);
}

/** What the provider has sent the user back with; `null` if nobody comes back. The address is the page's own again. */
export async function finish(): Promise<Tokens | null> {
  const kept = sessionStorage.getItem(STARTED);
  const answer = new URLSearchParams(location.search);
  if (kept === null || !answer.has("state")) return null;
  sessionStorage.removeItem(STARTED);
  const { state, verifier, provider, hash } = JSON.parse(kept) as Started;
  const page = new URL(document.baseURI);
  history.replaceState(null, "", `${page.pathname.replace(/[^/]*$/, "")}${hash}`);
  // Nobody is told of this by itself.
  dispatchEvent(new HashChangeEvent("hashchange"));
  if (answer.get("state") !== state) throw new Error("The provider's answer belongs to another attempt to sign in");
  const code = answer.get("code");
  if (code === null) throw new Error(`The provider says: ${answer.get("error_description") ?? answer.get("error")}`);
  const { token_endpoint } = await metadata(provider);
  return tokens(provider, token_endpoint, { grant_type: "authorization_code", code, redirect_uri: back(), code_verifier: verifier });
}

/** The next token. */
export function renewed({ refresh, provider, endpoint }: NonNullable<Tokens["renewal"]>): Promise<Tokens> {
  return tokens(provider, endpoint, { grant_type: "refresh_token", refresh_token: refresh });
}

async function tokens(provider: Provider, endpoint: string, asked: Record<string, string>): Promise<Tokens> {
  const body = new URLSearchParams({ ...provider.forToken, client_id: provider.client, ...asked });
  const answer = await json<{ access_token?: string; refresh_token?: string; expires_in?: number }>(endpoint, { method: "POST", body });
  if (!answer.access_token) throw new Error("The provider gave no token");
  const { access_token: access, refresh_token: refresh, expires_in: inSeconds } = answer;
  return refresh && inSeconds ? { access, renewal: { refresh, provider, endpoint, inSeconds } } : { access };
}

function metadata(provider: Provider): Promise<{ authorization_endpoint: string; token_endpoint: string }> {
  return json(provider.metadata, {});
}

async function json<T>(address: string, how: RequestInit): Promise<T> {
  const host = new URL(address).host;
  const failed = (why: string) => new Error(`${host}: ${why}`);
  const asked = { ...how, signal: AbortSignal.timeout(PATIENCE_MS), credentials: "omit" as const };
  const response = await fetch(address, asked).catch(() => {
    throw failed("the provider cannot be reached, or does not let this page ask it (CORS)");
  });
  const answer = (await response.json().catch(() => ({}))) as T & { error?: string; error_description?: string };
  if (!response.ok) throw failed(answer.error_description ?? answer.error ?? `status ${response.status}`);
  return answer;
}

/** 256 bits. */
function random(): string {
  return base64url(crypto.getRandomValues(new Uint8Array(32)));
}

function base64url(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}
