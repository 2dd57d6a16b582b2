/** The frame of the page: where to go, search, vhost, pace, theme; and the page the address names. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

import { helpShown, KEYS, PLACES } from "./keys";
import { PACES, pace, usePoll } from "./poll";
import { href, type Route, route } from "./router";
import { may, session, signOut } from "./session";
import { chosenTheme, nextTheme, vhost } from "./settings";
import { useStore } from "./store";
import type { Node } from "./types";
import { alarmsOf } from "./waits";
import { ChannelPage, ChannelsPage, ConsumersPage } from "./pages/channels";
import { ConnectionPage, ConnectionsPage } from "./pages/connections";
import { DefinitionsPage } from "./pages/definitions";
import { EventsPage } from "./pages/events";
import { ExchangePage, ExchangesPage } from "./pages/exchanges";
import { FeaturesPage } from "./pages/features";
import { LimitsPage } from "./pages/limits";
import { NodePage, NodesPage } from "./pages/node";
import { OverviewPage } from "./pages/overview";
import { ParametersPage } from "./pages/parameters";
import { PoliciesPage } from "./pages/policies";
import { QueuePage } from "./pages/queue";
import { QueuesPage } from "./pages/queues";
import { Logo, SignIn } from "./pages/signin";
import { TopPage } from "./pages/top";
import { TracingPage } from "./pages/tracing";
import { UserPage, UsersPage } from "./pages/users";
import { VhostPage, VhostsPage } from "./pages/vhosts";
import { useVhosts } from "./pages/vhost-choice";
import { WaitsPage } from "./pages/waits";
import { Empty } from "./ui/basics";
import { Dialog } from "./ui/form";
import { Search } from "./ui/search";

export function App() {
  const { who } = useStore(session);
  if (who === undefined) return <p class="loading">Signing in</p>;
  if (who === null) return <SignIn />;
  return <Frame name={who.name} tags={who.tags} />;
}

type Entry = [string, string[], "administrator" | "monitoring" | "policymaker" | null];

const GROUPS: [string, Entry[]][] = [
  [
    "Broker",
    [
      ["Overview", [], null],
      ["Where does it wait", ["waits"], null],
      ["Busiest", ["top"], "administrator"],
      ["Events", ["events"], "administrator"],
    ],
  ],
  [
    "Messaging",
    [
      ["Queues", ["queues"], null],
      ["Exchanges", ["exchanges"], null],
      ["Connections", ["connections"], null],
      ["Channels", ["channels"], null],
      ["Consumers", ["consumers"], null],
    ],
  ],
  [
    "Administration",
    [
      ["Policies", ["policies"], null],
      ["Vhosts", ["vhosts"], null],
      ["Users", ["users"], "administrator"],
      ["Limits", ["limits"], "administrator"],
      ["Parameters", ["parameters"], "policymaker"],
      ["Definitions", ["definitions"], "administrator"],
      ["Tracing", ["tracing"], "administrator"],
      ["Nodes", ["nodes"], "monitoring"],
      ["Feature flags", ["feature-flags"], "administrator"],
    ],
  ],
];

function Frame({ name, tags }: { name: string; tags: string[] }) {
  const at = useStore(route);
  const isHelp = useStore(helpShown);
  const main = useRef<HTMLElement>(null);
  const here = at.parts.join("/");
  useEffect(() => {
    const title = main.current?.querySelector("h1")?.textContent?.trim();
    document.title = title ? `${title} - Leveret` : "Leveret";
    window.scrollTo(0, 0);
  }, [here]);
  return (
    <div class="frame">
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), main.current?.focus())}>
        Skip to the content
      </a>
      <aside>
        <div>
          <a class="brand" href={href([])}>
            <Logo /> Leveret
          </a>
          <nav aria-label="Pages">
            {GROUPS.map(([group, entries]) => (
              <Group key={group} title={group} entries={entries.filter(([, , tag]) => tag === null || may(tag))} here={at.parts[0] ?? ""} />
            ))}
          </nav>
        </div>
      </aside>
      <header class="bar">
        <Search />
        <VhostFilter />
        <AlarmLight />
        <span class="space" />
        <PaceSwitch />
        <ThemeSwitch />
        <button type="button" class="icon" aria-label="Keys" title="Keys (?)" onClick={() => helpShown.set(true)}>
          ?
        </button>
        <details class="menu right">
          <summary class="button">{name}</summary>
          <div>
            <p class="muted">{tags.join(", ") || "no tags"}</p>
            <button type="button" onClick={() => signOut()}>
              Sign out
            </button>
          </div>
        </details>
      </header>
      <main id="main" ref={main} tabIndex={-1} key={here}>
        <Body of={at} />
      </main>
      {isHelp && <Help />}
    </div>
  );
}

function Group({ title, entries, here }: { title: string; entries: Entry[]; here: string }) {
  return (
    <section>
      <h2>{title}</h2>
      <ul>
        {entries.map(([label, parts]) => (
          <li key={label}>
            <a href={href(parts)} aria-current={(parts[0] ?? "") === here ? "page" : undefined}>
              {label}
            </a>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Body({ of: { parts } }: { of: Route }): ComponentChildren {
  const [page = "", one, two] = parts;
  switch (page) {
    case "":
      return <OverviewPage />;
    case "waits":
      return <WaitsPage />;
    case "top":
      return <TopPage node={one} />;
    case "events":
      return <EventsPage />;
    case "queues":
      return one !== undefined && two !== undefined ? <QueuePage vhost={one} name={two} /> : <QueuesPage />;
    case "exchanges":
      return one !== undefined && two !== undefined ? <ExchangePage vhost={one} name={two} /> : <ExchangesPage />;
    case "connections":
      return one !== undefined ? <ConnectionPage name={one} /> : <ConnectionsPage />;
    case "channels":
      return one !== undefined ? <ChannelPage name={one} /> : <ChannelsPage />;
    case "consumers":
      return <ConsumersPage />;
    case "users":
      return one !== undefined ? <UserPage name={one} /> : <UsersPage />;
    case "vhosts":
      return one !== undefined ? <VhostPage name={one} /> : <VhostsPage />;
    case "policies":
      return <PoliciesPage />;
    case "parameters":
      return <ParametersPage />;
    case "limits":
      return <LimitsPage />;
    case "definitions":
      return <DefinitionsPage />;
    case "tracing":
      return <TracingPage />;
    case "nodes":
      return one !== undefined ? <NodePage name={one} /> : <NodesPage />;
    case "feature-flags":
      return <FeaturesPage />;
    default:
      return (
        <Empty title="There is no such page">
          <a href={href([])}>To the overview</a>
        </Empty>
      );
  }
}

function VhostFilter() {
  const chosen = useStore(vhost);
  const names = useVhosts();
  if (names.length < 2 && chosen === "") return null;
  return (
    <label class="vhost">
      <span>Vhost</span>
      <select value={chosen} onChange={(event) => vhost.set(event.currentTarget.value)}>
        <option value="">all</option>
        {[...new Set([...names, chosen])].filter((name) => name !== "").map((name) => (
          <option key={name}>{name}</option>
        ))}
      </select>
    </label>
  );
}

/** An alarm is seen from every page. */
function AlarmLight() {
  const { data } = usePoll<Node[]>(may("monitoring") ? "nodes?columns=name,mem_alarm,disk_free_alarm" : null, 5000);
  const alarms = alarmsOf(data);
  if (alarms.length === 0) return null;
  return (
    <a class="badge bad" href={href([])}>
      {[...new Set(alarms.map(({ kind }) => kind))].join(" and ")} alarm
    </a>
  );
}

const PACE_WORDS = { live: "Live", slow: "Slow", paused: "Paused" };

function PaceSwitch() {
  const now = useStore(pace);
  return (
    <label class={`pace ${now}`} title="How often the page asks the broker (.)">
      <span class="dot" aria-hidden="true" />
      <select aria-label="How often the page asks the broker" value={now} onChange={(event) => pace.set(event.currentTarget.value as typeof now)}>
        {PACES.map((it) => (
          <option key={it} value={it}>
            {PACE_WORDS[it]}
          </option>
        ))}
      </select>
    </label>
  );
}

const THEMES = { auto: ["\u25d0", "as the system"], light: ["\u2600", "light"], dark: ["\u263d", "dark"] } as const;

function ThemeSwitch() {
  const now = useStore(chosenTheme);
  const [sign, words] = THEMES[now];
  return (
    <button type="button" class="icon" aria-label={`Theme: ${words}`} title={`Theme: ${words} (t)`} onClick={nextTheme}>
      {sign}
    </button>
  );
}

function Help() {
  return (
    <Dialog title="Keys" onClose={() => helpShown.set(false)}>
      <div class="keys">
        <dl>
          {KEYS.map(([key, words]) => (
            <div key={key}>
              <dt>
                <kbd>{key}</kbd>
              </dt>
              <dd>{words}</dd>
            </div>
          ))}
        </dl>
        <dl>
          {PLACES.map(([key, , words]) => (
            <div key={key}>
              <dt>
                <kbd>g</kbd> <kbd>{key}</kbd>
              </dt>
              <dd>{words}</dd>
            </div>
          ))}
        </dl>
      </div>
    </Dialog>
  );
}
