/** The keyboard: single keys and `g` followed by a letter, as in many tools. */

import { PACES, pace } from "./poll";
import { go } from "./router";
import { nextTheme } from "./settings";
import { store } from "./store";
import { focusRows } from "./ui/table";

/** Whether the list of keys is on the screen. */
export const helpShown = store(false);

export const PLACES: [string, string[], string][] = [
  ["o", [], "Overview"],
  ["q", ["queues"], "Queues"],
  ["e", ["exchanges"], "Exchanges"],
  ["c", ["connections"], "Connections"],
  ["h", ["channels"], "Channels"],
  ["s", ["consumers"], "Consumers"],
  ["w", ["waits"], "Where does it wait"],
  ["b", ["top"], "Busiest"],
  ["t", ["events"], "Events"],
  ["u", ["users"], "Users"],
  ["v", ["vhosts"], "Vhosts"],
  ["p", ["policies"], "Policies"],
  ["l", ["limits"], "Limits"],
  ["m", ["parameters"], "Parameters"],
  ["d", ["definitions"], "Definitions"],
  ["n", ["nodes"], "Nodes"],
  ["f", ["feature-flags"], "Feature flags"],
];

export const KEYS: [string, string][] = [
  ["/", "Search everything"],
  ["f", "Filter the list"],
  ["j or \u2193", "First row, then the arrow keys; Enter opens"],
  ["n", "New: the page's main action"],
  ["t", "Theme: system, light, dark"],
  [".", "Live, slow, paused"],
  ["?", "These keys"],
  ["Esc", "Close"],
];

/** `g` waits this long for its letter. */
const SECOND_MS = 1200;

let firstAt = 0;

export function listen(): void {
  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (target.matches("input, select, textarea") || document.querySelector("dialog[open]")) return;
    if (pressed(event.key)) event.preventDefault();
  });
}

function pressed(key: string): boolean {
  if (Date.now() - firstAt < SECOND_MS) {
    firstAt = 0;
    const place = PLACES.find(([letter]) => letter === key);
    if (place) go(place[1]);
    return place !== undefined;
  }
  switch (key) {
    case "g":
      firstAt = Date.now();
      return true;
    case "/":
      return focus("#search");
    case "f":
      return focus("#filter");
    case "j":
    case "ArrowDown":
      // A focused row has its own arrows.
      return key === "j" || document.activeElement === document.body ? focusRows() : false;
    case "n":
      return press("main button.primary");
    case "t":
      nextTheme();
      return true;
    case ".":
      pace.set(PACES[(PACES.indexOf(pace.get()) + 1) % PACES.length]!);
      return true;
    case "?":
      helpShown.set(true);
      return true;
    default:
      return false;
  }
}

function focus(selector: string): boolean {
  const found = document.querySelector<HTMLElement>(selector);
  found?.focus();
  return found !== null;
}

function press(selector: string): boolean {
  const found = document.querySelector<HTMLElement>(selector);
  found?.click();
  return found !== null;
}
