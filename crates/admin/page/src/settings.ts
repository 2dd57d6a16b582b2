/** What one reader of the page prefers; kept in this browser. */

import { kept, store } from "./store";

export type Theme = "auto" | "light" | "dark";

export const chosenTheme = kept<Theme>("theme", "auto", ["auto", "light", "dark"]);

const system = matchMedia("(prefers-color-scheme: dark)");

/** The theme in force. */
export const theme = store<"light" | "dark">(inForce());

function inForce(): "light" | "dark" {
  const chosen = chosenTheme.get();
  return chosen === "auto" ? (system.matches ? "dark" : "light") : chosen;
}

function apply(): void {
  // Before the store: charts read their colours from the style when the store changes.
  document.documentElement.dataset.theme = inForce();
  theme.set(inForce());
}

apply();
chosenTheme.follow(apply);
system.addEventListener("change", apply);

export function nextTheme(): void {
  const order: Theme[] = ["auto", "light", "dark"];
  chosenTheme.set(order[(order.indexOf(chosenTheme.get()) + 1) % order.length]!);
}

/** The vhost that lists show; "" is all of them. Kept in this tab. */
export const vhost = store(sessionStorage.getItem("leveret.vhost") ?? "");
vhost.follow(() => sessionStorage.setItem("leveret.vhost", vhost.get()));
