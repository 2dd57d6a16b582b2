/** One node: what it uses, where it listens, what it was configured with. */

import { path } from "../api";
import { bytes, count, NONE, rate, span, value } from "../format";
import { usePoll } from "../poll";
import { href } from "../router";
import { history, useSeries } from "../series";
import { type Node, numberOf, samplesOf, table } from "../types";
import { alarmsOf } from "../waits";
import { Badge, Facts, Notice, Panel, Problem, State, Title } from "../ui/basics";
import { Chart } from "../ui/chart";
import { LocalTable } from "../ui/list";
import { NodeGauges } from "./overview";

export function NodesPage() {
  const { data, error } = usePoll<Node[]>("nodes", 5000);
  const only = data?.length === 1 ? data[0] : undefined;
  if (only) return <NodePage name={only.name} />;
  return (
    <>
      <h1>Nodes</h1>
      {error && <Problem error={error} what="nodes" />}
      {data && (
        <LocalTable
          label="Nodes"
          rows={data}
          rowKey={(row) => row.name}
          rowHref={(row) => href(["nodes", row.name])}
          columns={[
            { key: "name", title: "Name", sort: "name", cell: (row) => <a href={href(["nodes", row.name])}>{row.name}</a> },
            { key: "state", title: "State", cell: (row) => <State of={row.running ? "running" : "down"} /> },
            { key: "memory", title: "Memory", isNumber: true, sort: "mem_used", cell: (row) => bytes(row.mem_used) },
            { key: "disk", title: "Disk free", isNumber: true, sort: "disk_free", cell: (row) => bytes(row.disk_free) },
            { key: "uptime", title: "Uptime", isNumber: true, sort: "uptime", cell: (row) => span(row.uptime) },
          ]}
        />
      )}
    </>
  );
}

export function NodePage({ name }: { name: string }) {
  const address = path("nodes", name);
  const { data, error, at } = usePoll<Node>(address, 1000, { first: history("node_stats") });
  const memory = useSeries(address, at, [
    { label: "Used", colour: "a", value: data?.mem_used, history: samplesOf(data, "mem_used") },
    { label: "Limit", colour: "e", value: data?.mem_limit, isSteady: true },
  ]);
  const disk = useSeries(address, at, [
    { label: "Free", colour: "a", value: data?.disk_free, history: samplesOf(data, "disk_free") },
    { label: "Limit", colour: "e", value: data?.disk_free_limit, isSteady: true },
  ]);
  return (
    <>
      <Title kind="Nodes" back={href(["nodes"])} name={name} badges={data && <State of={data.running ? "running" : "down"} />} />
      {error && <Problem error={error} what="this node" />}
      {alarmsOf(data && [data]).map((alarm) => (
        <Notice key={alarm.title} tone="bad" title={alarm.title}>
          {alarm.text}
        </Notice>
      ))}
      {data?.running && (
        <>
          <Panel title="Limits">
            <NodeGauges of={data} />
          </Panel>
          <div class="grid two">
            <Panel title="Memory">
              <Chart title="Bytes" series={memory} show={bytes} />
            </Panel>
            <Panel title="Disk">
              <Chart title="Bytes" series={disk} show={bytes} />
            </Panel>
          </div>
          <div class="grid two">
            <About of={data} />
            <Memory name={name} />
          </div>
          <Io of={data} />
          <Plugins of={data} />
        </>
      )}
    </>
  );
}

function About({ of }: { of: Node }) {
  return (
    <Panel title="Node">
      <Facts
        rows={[
          ["Up for", span(of.uptime)],
          ["Process", value(of.os_pid)],
          ["Processors", count(of.processors)],
          ["Run queue", count(of.run_queue)],
          ["Rates", value(of.rates_mode)],
          ["Data directory", value(of.db_dir)],
          ["Configuration", list(of.config_files)],
          ["Log", list(of.log_files)],
          ["Sign-in mechanisms", (of.auth_mechanisms as { name: string }[] | undefined)?.map(({ name }) => name).join(", ")],
          ["Being drained", of.being_drained === undefined ? NONE : of.being_drained ? "yes" : "no"],
        ]}
      />
    </Panel>
  );
}

const list = (of: unknown): string => (Array.isArray(of) && of.length > 0 ? of.join(", ") : NONE);

/** What the memory is used for, the largest first. */
function Memory({ name }: { name: string }) {
  const { data, error } = usePoll<{ memory?: Record<string, unknown> }>(path("nodes", name, "memory"), 5000);
  const parts = Object.entries(table(data?.memory))
    .filter((part): part is [string, number] => typeof part[1] === "number" && part[1] > 0)
    .sort(([, a], [, b]) => b - a);
  return (
    <Panel title="What memory is used for">
      {error && <Problem error={error} what="the breakdown of memory" />}
      <Facts rows={parts.map(([key, size]): [string, string] => [key.replaceAll("_", " "), bytes(size)])} />
    </Panel>
  );
}

const COUNTERS: [string, string][] = [
  ["io_write_count", "Disk writes"],
  ["io_write_bytes", "Bytes written"],
  ["io_sync_count", "Disk syncs"],
  ["io_read_count", "Disk reads"],
  ["io_read_bytes", "Bytes read"],
  ["msg_store_write_count", "Messages stored"],
  ["msg_store_read_count", "Messages read back"],
  ["connection_created", "Connections opened"],
  ["connection_closed", "Connections closed"],
  ["channel_created", "Channels opened"],
  ["channel_closed", "Channels closed"],
  ["queue_created", "Queues created"],
  ["queue_deleted", "Queues deleted"],
];

function Io({ of }: { of: Node }) {
  const rows = COUNTERS.filter(([key]) => numberOf(of, key) !== undefined);
  if (rows.length === 0) return null;
  return (
    <Panel title="Counters since the start">
      <LocalTable
        label="Counters"
        rows={rows.map(([key, label]) => ({ key, label }))}
        rowKey={(row) => row.key}
        columns={[
          { key: "label", title: "Counter", cell: (row) => row.label },
          { key: "count", title: "Total", isNumber: true, cell: (row) => (row.key.endsWith("bytes") ? bytes(of[row.key]) : count(of[row.key])) },
          {
            key: "rate",
            title: "Now",
            isNumber: true,
            cell: (row) => {
              const now = of[`${row.key}_details`]?.rate;
              return row.key.endsWith("bytes") ? `${bytes(now)}/s` : rate(now);
            },
          },
        ]}
      />
    </Panel>
  );
}

function Plugins({ of }: { of: Node }) {
  const plugins = (of.enabled_plugins as string[] | undefined) ?? [];
  const applications = (of.applications as { name: string; description?: string; version?: string }[] | undefined) ?? [];
  return (
    <Panel title="Parts">
      <p class="badges">
        {plugins.map((plugin) => (
          <Badge key={plugin}>{plugin}</Badge>
        ))}
      </p>
      <LocalTable
        label="Applications"
        rows={applications}
        rowKey={(row) => row.name}
        columns={[
          { key: "name", title: "Name", sort: "name", cell: (row) => row.name },
          { key: "version", title: "Version", cell: (row) => row.version },
          { key: "description", title: "Description", cell: (row) => row.description },
        ]}
      />
    </Panel>
  );
}
