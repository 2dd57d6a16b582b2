/** Where messages wait, in the whole broker: alarms, publishers, sockets, queues, consumers. */

import { query } from "../api";
import { count, span } from "../format";
import { usePoll } from "../poll";
import { href } from "../router";
import { may } from "../session";
import type { Channel, ConfirmLatency, Connection, Node, Page, Queue, Waits } from "../types";
import { alarmsOf, brokerFacts, connectionVerdict, queueVerdict } from "../waits";
import { Empty, Notice, Panel, Problem, QueueLink, State } from "../ui/basics";
import { Heat } from "../ui/heat";
import { LocalTable } from "../ui/list";
import { nameOf } from "./connections";

const STEP_MS = 2000;
const MOST = 15;

/** The first objects of a list by one field, the largest first. */
function useTop<Row extends object>(list: string, field: string, size = MOST, isDown = true) {
  const polled = usePoll<Page<Row> | Row[]>(query(list, { page: 1, page_size: size, sort: field, sort_reverse: isDown, pagination: true }), STEP_MS);
  const rows = polled.data === undefined ? undefined : Array.isArray(polled.data) ? polled.data : polled.data.items;
  return { ...polled, rows };
}

export function WaitsPage() {
  const nodes = usePoll<Node[]>(may("monitoring") ? "nodes" : null, STEP_MS);
  const alarms = alarmsOf(nodes.data);
  return (
    <>
      <h1>Where does it wait</h1>
      <p class="lead">
        From the publisher's socket to the consumer's ack: what holds messages up now, told from what the broker reports. A queue's or connection's own
        page shows each stage.
      </p>
      <Panel title="Alarms">
        {alarms.map((alarm) => (
          <Notice key={alarm.title} tone="bad" title={alarm.title}>
            {alarm.text}
          </Notice>
        ))}
        {alarms.length === 0 && <Empty title={nodes.data ? "No alarm: publishers are not held back" : "Alarms are shown to users with the tag monitoring"} />}
      </Panel>
      {may("monitoring") && <Broker />}
      <Queues field="messages_ready" title="Queues with most ready messages" empty="No queue holds a ready message" />
      <Queues field="messages_unacknowledged" title="Queues with most unacked messages" empty="No message is with a consumer" />
      <Publishers />
      <Sockets />
    </>
  );
}

/** The broker as a whole: whom it does not read, and its disk. */
function Broker() {
  const { data, error } = usePoll<Waits>("leveret/waits", STEP_MS);
  return (
    <Panel title="The broker">
      {error && <Problem error={error} what="the broker" />}
      {data && (
        <ul aria-label="What the broker waits for">
          {brokerFacts(data).map((fact) => (
            <li key={fact}>{fact}</li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

function Queues({ field, title, empty }: { field: "messages_ready" | "messages_unacknowledged"; title: string; empty: string }) {
  const { rows, error } = useTop<Queue>("queues", field);
  const waiting = rows?.filter((row) => (row[field] ?? 0) > 0);
  return (
    <Panel title={title}>
      {error && <Problem error={error} what="queues" />}
      {waiting?.length === 0 && <Empty title={empty} />}
      {waiting && waiting.length > 0 && (
        <LocalTable
          label={title}
          rows={waiting}
          rowKey={(row) => `${row.vhost}/${row.name}`}
          rowHref={(row) => href(["queues", row.vhost, row.name])}
          columns={[
            { key: "name", title: "Queue", cell: (row) => <QueueLink vhost={row.vhost} name={row.name} /> },
            { key: "vhost", title: "Vhost", cell: (row) => row.vhost },
            { key: "ready", title: "Ready", isNumber: true, cell: (row) => count(row.messages_ready) },
            { key: "unacked", title: "Unacked", isNumber: true, cell: (row) => count(row.messages_unacknowledged) },
            { key: "consumers", title: "Consumers", isNumber: true, cell: (row) => count(row.consumers) },
            { key: "why", title: "Why", cell: (row) => <Verdict of={queueVerdict(row)} /> },
          ]}
        />
      )}
    </Panel>
  );
}

function Verdict({ of }: { of: ReturnType<typeof queueVerdict> }) {
  return <span class={`verdict ${of.tone}`}>{of.text}</span>;
}

/** Channels that wait for confirms, and how long a confirm takes. */
function Publishers() {
  const { rows, error } = useTop<Channel>("channels", "messages_unconfirmed", 100);
  const latency = usePoll<ConfirmLatency>(may("monitoring") ? "leveret/confirm-latency?age=300&incr=5" : null, STEP_MS);
  const waiting = rows?.filter((row) => (row.messages_unconfirmed ?? 0) > 0);
  return (
    <Panel title="Publishers that wait for confirms">
      {error && <Problem error={error} what="channels" />}
      {latency.error && <Problem error={latency.error} what="confirms" />}
      {latency.data && <Heat latency={latency.data} at={latency.at} />}
      {waiting?.length === 0 && <Empty title="Nothing is unconfirmed" />}
      {waiting && waiting.length > 0 && (
        <LocalTable
          label="Channels with most unconfirmed messages"
          rows={waiting.slice(0, MOST)}
          rowKey={(row) => row.name}
          rowHref={(row) => href(["channels", row.name])}
          columns={[
            { key: "name", title: "Channel", cell: (row) => <a href={href(["channels", row.name])}>{row.name}</a> },
            { key: "user", title: "User", cell: (row) => row.user },
            { key: "state", title: "State", cell: (row) => <State of={row.state} /> },
            { key: "unconfirmed", title: "Unconfirmed", isNumber: true, cell: (row) => count(row.messages_unconfirmed) },
          ]}
        />
      )}
    </Panel>
  );
}

/** Connections the broker does not read from, slows, or cannot send to. */
function Sockets() {
  const { rows, error } = useTop<Connection>("connections", "send_pend");
  // "blocked", "blocking" and "flow" come before "running".
  const blocked = useTop<Connection>("connections", "state", MOST, false);
  const all = new Map([...(rows ?? []), ...(blocked.rows ?? [])].map((row) => [row.name, row]));
  const waiting = [...all.values()].filter((row) => (row.send_pend ?? 0) > 0 || !["running", undefined].includes(row.state));
  return (
    <Panel title="Connections that are blocked, slowed or read slowly">
      {error && <Problem error={error} what="connections" />}
      {rows && waiting.length === 0 && <Empty title="None" />}
      {waiting.length > 0 && (
        <LocalTable
          label="Connections that wait"
          rows={waiting}
          rowKey={(row) => row.name}
          rowHref={(row) => href(["connections", row.name])}
          columns={[
            { key: "name", title: "Connection", cell: (row) => <a href={href(["connections", row.name])}>{nameOf(row)}</a> },
            { key: "user", title: "User", cell: (row) => row.user },
            { key: "state", title: "State", cell: (row) => <State of={row.state} /> },
            { key: "pending", title: "Waiting to be sent", isNumber: true, cell: (row) => count(row.send_pend) },
            { key: "age", title: "Blocked for", isNumber: true, cell: (row) => (typeof row.last_blocked_age === "number" ? span(row.last_blocked_age * 1000) : "") },
            { key: "why", title: "Why", cell: (row) => <Verdict of={connectionVerdict(row, undefined)} /> },
          ]}
        />
      )}
    </Panel>
  );
}
