/**
 * Where the page is: the part of the address after `#`, as in RabbitMQ's page, so that links from
 * dashboards and runbooks (`#/queues/%2F/orders`) go on working.
 */

import { store } from "./store";

export interface Route {
  parts: string[];
  query: URLSearchParams;
}

export const route = store<Route>(parse(location.hash));

window.addEventListener("hashchange", () => route.set(parse(location.hash)));

function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#?\/?/, "").split("?", 2);
  return { parts: path.split("/").filter((part) => part !== "").map(decoded), query: new URLSearchParams(query) };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // an address typed by hand
  }
}

/** The address of a page: each part is encoded, so names may hold slashes. */
export function href(parts: string[], query?: Record<string, string>): string {
  const search = new URLSearchParams(query).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${search ? `?${search}` : ""}`;
}

export function go(parts: string[], query?: Record<string, string>): void {
  location.hash = href(parts, query);
}

/** Changes what is asked of the page (sort, filter, tab) with no new entry in the history. */
export function ask(changes: Record<string, string | null>): void {
  const { parts, query } = route.get();
  const next = new URLSearchParams(query);
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === "") next.delete(key);
    else next.set(key, value);
  }
  history.replaceState(null, "", href(parts, Object.fromEntries(next)));
  route.set(parse(location.hash));
}
