/** What happened on the node, the newest first, as it happens. */

import { useState } from "preact/hooks";

import { plural, value, when } from "../format";
import { usePoll } from "../poll";
import { Empty, Pairs, Panel, Problem } from "../ui/basics";
import { LocalTable } from "../ui/list";

const STEP_MS = 2000;

interface Told {
  number: number;
  name: string;
  timestamp: number;
  facts: Record<string, unknown>;
}

/** Facts that have a column of their own. */
const OWN = ["name", "vhost", "user_who_performed_action", "timestamp_in_ms"];

export function EventsPage() {
  const { data, error } = usePoll<{ events: Told[]; last: number }>("events", STEP_MS);
  const [part, setPart] = useState("");
  const shown = data?.events.filter((event) => matches(event, part.trim().toLowerCase())).reverse();
  return (
    <>
      <h1>Events</h1>
      <p class="lead">
        Connections, channels, queues, bindings, users, policies, logins and alarms, as they come and go. A program gets the same by binding a queue to the
        exchange <code>amq.rabbitmq.event</code>.
      </p>
      <Panel title="Last events" note={data && String(shown?.length)}>
        <div class="toolbar">
          <input
            type="search"
            id="filter"
            aria-label="Filter events"
            placeholder="Filter: queue.deleted, orders, ..."
            value={part}
            onInput={(event) => setPart(event.currentTarget.value)}
          />
        </div>
        {error && <Problem error={error} what="events" />}
        {shown?.length === 0 && <Empty title={part === "" ? "Nothing happened yet" : "No event has this in it"} />}
        {shown && shown.length > 0 && (
          <LocalTable
            label="Events"
            rows={shown}
            rowKey={(row) => String(row.number)}
            columns={[
              { key: "when", title: "When", cell: (row) => when(row.timestamp) },
              { key: "event", title: "Event", cell: (row) => <code>{row.name}</code> },
              { key: "name", title: "Name", cell: (row) => (row.facts.name === undefined ? "" : value(row.facts.name)) },
              { key: "vhost", title: "Vhost", cell: (row) => (row.facts.vhost === undefined ? "" : value(row.facts.vhost)) },
              { key: "by", title: "By", cell: (row) => value(row.facts.user_who_performed_action ?? row.facts.user ?? "") },
              { key: "facts", title: "Facts", cell: (row) => <Facts of={row.facts} /> },
            ]}
          />
        )}
      </Panel>
    </>
  );
}

function Facts({ of }: { of: Told["facts"] }) {
  const rest = Object.entries(of).filter(([name, fact]) => !OWN.includes(name) && fact !== "");
  return (
    <details>
      <summary>{plural(rest.length, "fact")}</summary>
      <Pairs of={Object.fromEntries(rest)} />
    </details>
  );
}

function matches({ name, facts }: Told, part: string): boolean {
  return part === "" || name.includes(part) || JSON.stringify(facts).toLowerCase().includes(part);
}
