/**
 * Who is signed in. The credentials are in this tab's `sessionStorage` and nowhere else: never in
 * an address, a cookie or a log, and gone with the tab.
 */

import { ApiError, get } from "./api";
import { finish, renewed, type Tokens } from "./oauth";
import { store } from "./store";

export interface Who {
  name: string;
  tags: string[];
}

export type Session = { who: Who } | { who: null; reason: string } | { who: undefined };

/** `undefined` while it is not known whether the kept credentials are good. */
export const session = store<Session>({ who: undefined });

const KEY = "leveret.credentials";
const RENEWAL = "leveret.renewal";

/** A token is renewed so long before it ends, a short one after half of its time. */
const EARLY_S = 30;

/** The header `Authorization`. */
export function credentials(): string | null {
  return sessionStorage.getItem(KEY);
}

/** Uses what a provider has sent the user back with, or what this tab kept, if anything. */
export async function resume(): Promise<void> {
  try {
    const tokens = await finish();
    if (tokens !== null) keep(tokens);
  } catch (error) {
    return signOut(`${(error as Error).message}.`);
  }
  if (credentials() === null) return session.set({ who: null, reason: "" });
  await attempt();
  renewInTime();
}

function keep({ access, renewal }: Tokens): void {
  sessionStorage.setItem(KEY, `Bearer ${access}`);
  if (renewal === undefined) return sessionStorage.removeItem(RENEWAL);
  const at = Date.now() + Math.max(renewal.inSeconds - EARLY_S, renewal.inSeconds / 2) * 1000;
  sessionStorage.setItem(RENEWAL, JSON.stringify({ at, renewal }));
}

/** Gets the next token before this one ends. Without it the session ends as with a changed password. */
function renewInTime(): void {
  const kept = sessionStorage.getItem(RENEWAL);
  if (kept === null) return;
  const { at, renewal } = JSON.parse(kept) as { at: number; renewal: NonNullable<Tokens["renewal"]> };
  setTimeout(async () => {
    // Signed out meanwhile.
    if (sessionStorage.getItem(RENEWAL) !== kept) return;
    const tokens = await renewed(renewal).catch(() => null);
    if (tokens === null) return sessionStorage.removeItem(RENEWAL);
    keep(tokens);
    renewInTime();
  }, Math.max(at - Date.now(), 0));
}

export async function signIn(name: string, password: string): Promise<void> {
  const bytes = new TextEncoder().encode(`${name}:${password}`);
  sessionStorage.setItem(KEY, `Basic ${btoa(String.fromCharCode(...bytes))}`);
  await attempt();
}

export function signOut(reason = ""): void {
  sessionStorage.removeItem(KEY);
  sessionStorage.removeItem(RENEWAL);
  session.set({ who: null, reason });
}

async function attempt(): Promise<void> {
  try {
    const { name, tags } = await get<{ name: string; tags: string[] | string }>("whoami");
    // RabbitMQ 3.x before 3.9 gives tags as one text.
    session.set({ who: { name, tags: typeof tags === "string" ? tags.split(",") : tags } });
  } catch (error) {
    signOut(inWords(error));
  }
}

function inWords(error: unknown): string {
  if (!(error instanceof ApiError)) return String(error);
  if (error.status !== 401) return `Signing in failed: ${error.message}.`;
  if (/loopback|localhost/i.test(error.message)) return `${error.message}.`;
  if (credentials()?.startsWith("Bearer ")) {
    return "The broker does not accept this token, or it has no scope for a tag that allows the management page (tag:management, tag:policymaker, tag:monitoring, tag:administrator).";
  }
  return "User name or password is wrong, or this user has no tag that allows the management page (management, policymaker, monitoring, administrator).";
}

const RANKS = ["management", "policymaker", "monitoring", "administrator"];

/** Whether the signed-in user has this tag or one that includes it. */
export function may(tag: "policymaker" | "monitoring" | "administrator"): boolean {
  const tags = session.get().who?.tags ?? [];
  if (tags.includes("administrator")) return true;
  // Monitoring and policymaker do not include each other.
  return tags.includes(tag) && RANKS.includes(tag);
}
