/**
 * Who is signed in. The credentials are in this tab's `sessionStorage` and nowhere else: never in
 * an address, a cookie or a log, and gone with the tab.
 */

import { ApiError, get } from "./api";
import { store } from "./store";

export interface Who {
  name: string;
  tags: string[];
}

export type Session = { who: Who } | { who: null; reason: string } | { who: undefined };

/** `undefined` while it is not known whether the kept credentials are good. */
export const session = store<Session>({ who: undefined });

const KEY = "leveret.credentials";

export function credentials(): string | null {
  return sessionStorage.getItem(KEY);
}

/** Uses what this tab kept, if anything. */
export async function resume(): Promise<void> {
  if (credentials() === null) return session.set({ who: null, reason: "" });
  await attempt();
}

export async function signIn(name: string, password: string): Promise<void> {
  const bytes = new TextEncoder().encode(`${name}:${password}`);
  sessionStorage.setItem(KEY, btoa(String.fromCharCode(...bytes)));
  await attempt();
}

export function signOut(reason = ""): void {
  sessionStorage.removeItem(KEY);
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
