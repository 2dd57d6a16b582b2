/** The first page: is the broker well, what does it hold, what goes through it. */

import { rate, short, when, span, bytes, count } from "../format";
import { usePoll } from "../poll";
import { href } from "../router";
import { history, useSeries } from "../series";
import { may } from "../session";
import type { Node, Overview } from "../types";
import { numberOf, rateOf } from "../types";
import { alarmsOf } from "../waits";
import { Badge, Facts, Gauge, Notice, Panel, Problem } from "../ui/basics";
import { Chart } from "../ui/chart";
import { Table } from "../ui/table";
import { lengthLines, rateLines } from "./rates";

const STEP_MS = 1000;

export function OverviewPage() {
  const { data, error, at } = usePoll<Overview>("overview", STEP_MS, { first: history("lengths", "msg_rates") });
  const nodes = usePoll<Node[]>(may("monitoring") ? "nodes" : null, STEP_MS * 5);
  const lengths = useSeries("overview", at, lengthLines(data?.queue_totals));
  const rates = useSeries("overview", at, rateLines(data?.message_stats, ["publish", "confirm", "deliver_get", "ack", "redeliver"]));
  const churn = useSeries("overview", at, rateLines(data?.churn_rates, ["connection_created", "connection_closed", "channel_created", "channel_closed", "queue_created", "queue_deleted"]));
  return (
    <>
      <h1 class="hidden">Overview</h1>
      {alarmsOf(nodes.data).map((alarm) => (
        <Notice key={alarm.title} tone="bad" title={alarm.title}>
          {alarm.text}
        </Notice>
      ))}
      {nodes.data?.filter((node) => !node.running).map((node) => (
        <Notice key={node.name} tone="bad" title={`${node.name} is not running`}>
          Start the broker on that machine; its log says why it stopped.
        </Notice>
      ))}
      {error && <Problem error={error} what="the overview" />}
      {data && <Tiles of={data} />}
      <div class="grid two">
        <Panel title="Queued messages">
          <Chart title="Messages" series={lengths} />
        </Panel>
        <Panel title="Message rates">
          <Chart title="Messages per second" series={rates} show={rate} />
        </Panel>
      </div>
      {nodes.data && <Nodes of={nodes.data} />}
      <div class="grid two">
        <Panel title="Churn">
          <Chart title="Per second" series={churn} show={rate} height={140} />
        </Panel>
        {data && <Ports of={data} />}
      </div>
      {data && <About of={data} />}
    </>
  );
}

function Tiles({ of }: { of: Overview }) {
  const { queue_totals: totals, message_stats: stats, object_totals: objects } = of;
  const tiles: [string, string, string[], Record<string, string>?][] = [
    ["Ready", short(numberOf(totals, "messages_ready") ?? 0), ["queues"], { sort: "messages_ready", dir: "down" }],
    ["Unacked", short(numberOf(totals, "messages_unacknowledged") ?? 0), ["queues"], { sort: "messages_unacknowledged", dir: "down" }],
    ["Publish", rate(rateOf(stats, "publish") ?? 0), ["exchanges"], { sort: "message_stats.publish_in_details.rate", dir: "down" }],
    ["Deliver", rate(rateOf(stats, "deliver_get") ?? 0), ["queues"], { sort: "message_stats.deliver_get_details.rate", dir: "down" }],
    ["Connections", short(objects?.connections), ["connections"]],
    ["Channels", short(objects?.channels), ["channels"]],
    ["Exchanges", short(objects?.exchanges), ["exchanges"]],
    ["Queues", short(objects?.queues), ["queues"]],
    ["Consumers", short(objects?.consumers), ["consumers"]],
  ];
  return (
    <ul class="tiles">
      {tiles.map(([label, value, parts, query]) => (
        <li key={label}>
          <a href={href(parts, query)}>
            <span>{label}</span>
            <b>{value}</b>
          </a>
        </li>
      ))}
    </ul>
  );
}

function Nodes({ of }: { of: Node[] }) {
  return (
    <Panel title={of.length === 1 ? "Node" : "Nodes"}>
      {of.map((node) => (
        <div class="node" key={node.name}>
          <div>
            <a href={href(["nodes", node.name])}>{node.name}</a>
            <span class="muted">{node.running ? `up ${span(node.uptime)}` : "not running"}</span>
          </div>
          <NodeGauges of={node} />
        </div>
      ))}
    </Panel>
  );
}

/** How full the node is, beside the limits at which something happens. */
export function NodeGauges({ of }: { of: Node }) {
  return (
    <div class="gauges">
      <Gauge
        label="Memory"
        part={of.mem_used / of.mem_limit}
        tone={of.mem_alarm ? "bad" : "accent"}
        text={`${bytes(of.mem_used)} of ${bytes(of.mem_limit)}`}
      />
      <Gauge
        label="Disk"
        // Full when it is at the limit: that is where publishers are blocked.
        part={of.disk_free_limit / of.disk_free}
        tone={of.disk_free_alarm ? "bad" : "accent"}
        text={`${bytes(of.disk_free)} free, limit ${bytes(of.disk_free_limit)}`}
      />
      <Gauge label="File descriptors" part={of.fd_used / of.fd_total} text={`${count(of.fd_used)} of ${count(of.fd_total)}`} />
      {of.sockets_total > 0 && (
        <Gauge label="Sockets" part={of.sockets_used / of.sockets_total} text={`${count(of.sockets_used)} of ${count(of.sockets_total)}`} />
      )}
    </div>
  );
}

function Ports({ of }: { of: Overview }) {
  const rows = of.listeners ?? [];
  return (
    <Panel title="Ports">
      <Table
        label="Ports"
        rows={rows}
        rowKey={(row) => `${row.node} ${row.protocol} ${row.ip_address} ${row.port}`}
        columns={[
          { key: "protocol", title: "Protocol", cell: (row) => <Badge>{row.protocol}</Badge> },
          { key: "address", title: "Bound to", cell: (row) => <code>{row.ip_address}</code> },
          { key: "port", title: "Port", isNumber: true, cell: (row) => String(row.port) },
        ]}
      />
    </Panel>
  );
}

function About({ of }: { of: Overview }) {
  return (
    <Panel title="Broker">
      <Facts
        rows={[
          ["Product", of.leveret_version ? `Leveret ${of.leveret_version}` : `${of.product_name ?? "RabbitMQ"} ${of.product_version ?? ""}`],
          ["API of", `RabbitMQ ${of.rabbitmq_version ?? of.management_version ?? ""}`],
          ["Cluster", of.cluster_name],
          ["Answering node", of.node],
          ["Default queue type", of.default_queue_type],
          ["Rates", of.rates_mode],
          ["Exchange types", of.exchange_types?.map(({ name }) => name).join(", ")],
          ["Now", when(Date.now())],
        ]}
      />
    </Panel>
  );
}
