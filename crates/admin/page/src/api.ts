/** Requests to the broker's HTTP API, and what went wrong with them in words. */

import { credentials, signOut } from "./session";

/** Beside the page, wherever `management.path_prefix` put it. */
const BASE = new URL("api/", document.baseURI);

/** Longer than any answer of a healthy broker takes. */
const PATIENCE_MS = 20_000;

export class ApiError extends Error {
  constructor(
    readonly status: number,
    reason: string,
  ) {
    super(reason);
  }

  /** The broker has no such function, as opposed to no such object. */
  get isMissing(): boolean {
    return this.status === 404 || this.status === 405 || this.status === 501;
  }
}

export interface Asked {
  headers?: Record<string, string>;
  signal?: AbortSignal;
  /** It may take long, as a file does. */
  isLong?: boolean;
  /** Called with what the broker adds to its answer: what a list lacks. */
  warned?: (text: string) => void;
}

/** `path("queues", "/", "a b")` is `queues/%2F/a%20b`. */
export function path(...parts: string[]): string {
  return parts.map(encodeURIComponent).join("/");
}

export function query(address: string, params: Record<string, string | number | boolean | undefined>): string {
  const given = Object.entries(params).filter(([, value]) => value !== undefined);
  const search = new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
  return search ? `${address}?${search}` : address;
}

export const get = <T>(address: string, asked?: Asked) => request<T>("GET", address, undefined, asked);
export const put = <T = unknown>(address: string, body: unknown) => request<T>("PUT", address, body);
export const post = <T = unknown>(address: string, body: unknown) => request<T>("POST", address, body);
export const del = (address: string, headers?: Record<string, string>) =>
  request("DELETE", address, undefined, { headers });

/** A file, however long it takes. */
export async function file(address: string): Promise<Blob> {
  const response = await send("GET", address, undefined, { isLong: true });
  if (response.ok) return response.blob();
  if (response.status === 401) await checkSession(address);
  throw new ApiError(response.status, reasonIn(await response.text(), response.status));
}

async function request<T>(method: string, address: string, body: unknown, asked: Asked = {}): Promise<T> {
  const response = await send(method, address, body, asked);
  const text = await response.text();
  const warning = response.headers.get("warning")?.split('"')[1];
  if (response.ok && warning !== undefined) asked.warned?.(warning);
  if (response.ok) return (text === "" ? undefined : JSON.parse(text)) as T;
  if (response.status === 401) await checkSession(address);
  throw new ApiError(response.status, reasonIn(text, response.status));
}

async function send(method: string, address: string, body: unknown, asked: Asked): Promise<Response> {
  const headers: Record<string, string> = { accept: "application/json, */*;q=0.5", ...asked.headers };
  const known = credentials();
  if (known !== null) headers.authorization = known;
  if (body !== undefined) headers["content-type"] = "application/json";
  const late = AbortSignal.timeout(PATIENCE_MS);
  try {
    return await fetch(new URL(address, BASE), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: asked.isLong ? asked.signal : asked.signal ? AbortSignal.any([asked.signal, late]) : late,
      // Without this the browser asks for a password by itself on a 401.
      credentials: "omit",
      cache: "no-store",
    });
  } catch (error) {
    if (asked.signal?.aborted) throw error;
    const why = late.aborted ? `no answer within ${PATIENCE_MS / 1000} s` : "the broker cannot be reached";
    throw new ApiError(0, why);
  }
}

/** A 401 also means "your tags do not allow this": only a refused `whoami` ends the session. */
async function checkSession(address: string): Promise<void> {
  if (address === "whoami") return;
  const response = await send("GET", "whoami", undefined, {}).catch(() => null);
  if (response?.status === 401) signOut("The broker no longer accepts this user name and password, or the token has ended.");
}

function reasonIn(text: string, status: number): string {
  try {
    const { reason, error } = JSON.parse(text) as { reason?: unknown; error?: unknown };
    const words = typeof reason === "string" ? reason : reason !== undefined ? JSON.stringify(reason) : error;
    if (typeof words === "string" && words !== "") return words;
  } catch {
    // Not JSON: a proxy's page, for example.
  }
  return STATUS[status] ?? `the broker answered ${status}`;
}

const STATUS: Record<number, string> = {
  400: "the broker refused this request",
  401: "this user may not do that",
  403: "this user may not do that",
  404: "not found",
  405: "the broker does not offer this",
  413: "too large",
  429: "too many requests; try again in a moment",
  501: "this broker does not offer this yet",
  502: "the proxy in front of the broker has no answer from it",
  503: "the broker is not ready",
};
