/** What the node is busiest with: threads by time on a processor; shards, queues, connections and channels by what passes them, memory, letters. */

import { path, query } from "../api";
import { byteRate, bytes, count, percent, rate } from "../format";
import { usePoll } from "../poll";
import { ask, href, route } from "../router";
import { useStore } from "../store";
import type { Node, Top, TopRow } from "../types";
import { Empty, Panel, Problem, QueueLink } from "../ui/basics";
import { type Column, Table } from "../ui/table";

const STEP_MS = 2000;
const SIZES = ["10", "20", "50", "100"];

type Sort = "reduction_delta" | "memory" | "message_queue_len";

interface Sorts {
  type: string;
  title: string;
  /** What is counted of them. */
  done: string;
  show: (perSecond: number) => string;
  hasMemory: boolean;
  hasLetters: boolean;
}

const KINDS: Sorts[] = [
  // Milliseconds in a second.
  { type: "thread", title: "Threads", done: "CPU", show: (ms) => percent(ms / 1000), hasMemory: false, hasLetters: false },
  { type: "shard", title: "Shards", done: "Messages", show: rate, hasMemory: true, hasLetters: true },
  { type: "queue", title: "Queues", done: "Messages", show: rate, hasMemory: true, hasLetters: false },
  { type: "connection", title: "Connections", done: "Bytes", show: byteRate, hasMemory: true, hasLetters: true },
  { type: "channel", title: "Channels", done: "Messages", show: rate, hasMemory: false, hasLetters: false },
];

export function TopPage({ node }: { node?: string }) {
  const nodes = usePoll<Node[]>(node === undefined ? "nodes?columns=name" : null, 60_000);
  const name = node ?? nodes.data?.[0]?.name;
  const { query: asked } = useStore(route);
  const size = asked.get("rows") ?? SIZES[0]!;
  return (
    <>
      <h1>Busiest</h1>
      <p class="lead">What takes the node's processors and memory now. The largest come first; a column's title chooses by what.</p>
      <div class="toolbar">
        <select aria-label="Rows of each table" value={size} onChange={(event) => ask({ rows: event.currentTarget.value })}>
          {SIZES.map((it) => (
            <option key={it} value={it}>
              {it} rows
            </option>
          ))}
        </select>
      </div>
      {nodes.error && <Problem error={nodes.error} what="nodes" />}
      {name !== undefined && KINDS.map((kind) => <Kind key={kind.type} node={name} size={size} of={kind} />)}
    </>
  );
}

function Kind({ node, size, of }: { node: string; size: string; of: Sorts }) {
  const { query: asked } = useStore(route);
  const key = `by-${of.type}`;
  const by = (asked.get(key) ?? "reduction_delta") as Sort;
  const { data, error } = usePoll<Top>(query(path("top", node), { type: of.type, row_count: size, sort: by }), STEP_MS, { keep: true });
  const columns: Column<TopRow>[] = [
    { key: "name", title: of.title, cell: (row) => <Name of={row} /> },
    { key: "done", title: of.done, sort: "reduction_delta", isNumber: true, cell: (row) => of.show(row.reduction_delta) },
  ];
  if (of.hasMemory) columns.push({ key: "memory", title: "Memory", sort: "memory", isNumber: true, cell: (row) => bytes(row.memory) });
  if (of.hasLetters) {
    const help = "What was sent to it and waits for its turn";
    columns.push({ key: "letters", title: "Mailbox", help, sort: "message_queue_len", isNumber: true, cell: (row) => count(row.message_queue_len) });
  }
  columns.push({ key: "status", title: "Status", cell: (row) => row.status });
  return (
    <Panel title={of.title}>
      {error && <Problem error={error} what={of.title.toLowerCase()} />}
      {data?.processes.length === 0 && <Empty title="None" />}
      {data && data.processes.length > 0 && (
        <Table
          label={of.title}
          rows={data.processes}
          rowKey={(row) => row.pid}
          columns={columns}
          sort={{ by, isDown: true }}
          onSort={(next) => ask({ [key]: next === "reduction_delta" ? null : next })}
        />
      )}
    </Panel>
  );
}

function Name({ of: { name } }: { of: TopRow }) {
  if (name.queue_name !== undefined) return <QueueLink vhost={name.vhost ?? "/"} name={name.queue_name} />;
  if (name.connection_name === undefined) return <>{name.name}</>;
  if (name.channel_number === undefined) return <a href={href(["connections", name.connection_name])}>{name.connection_name}</a>;
  const channel = `${name.connection_name} (${name.channel_number})`;
  return <a href={href(["channels", channel])}>{channel}</a>;
}
