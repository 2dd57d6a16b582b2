/** All queues, and declaring one. */

import { path, put } from "../api";
import { count, percent, rate } from "../format";
import { QUEUE_ARGUMENTS } from "../known";
import { go, href } from "../router";
import { vhost as chosenVhost } from "../settings";
import { useStore } from "../store";
import { type Queue, rateOf } from "../types";
import { type Argument, Arguments, tableOf } from "../ui/arguments";
import { Badge, Empty, QueueLink, State } from "../ui/basics";
import { Check, Choice, Dialog, Form, Opener, Text } from "../ui/form";
import { List } from "../ui/list";
import type { Column } from "../ui/table";
import { VhostChoice } from "./vhost-choice";
import { useState } from "preact/hooks";

const FIELDS = [
  "name", "vhost", "type", "durable", "auto_delete", "exclusive", "arguments", "state", "policy", "operator_policy",
  "messages", "messages_ready", "messages_unacknowledged", "message_bytes", "memory", "consumers", "consumer_capacity", "consumer_utilisation",
  "message_stats.publish_details.rate", "message_stats.deliver_get_details.rate", "message_stats.ack_details.rate", "message_stats.redeliver_details.rate",
];

/** A rate is sorted by what it is shown from; a queue that was never used has none. */
const rateColumn = (key: string, title: string, isExtra = false): Column<Queue> => ({
  key,
  title,
  isNumber: true,
  isExtra,
  sort: `message_stats.${key}_details.rate`,
  cell: (row) => rate(rateOf(row.message_stats, key) ?? 0),
});

const numbers = (key: string & keyof Queue, title: string, isExtra = false): Column<Queue> => ({
  key,
  title,
  isNumber: true,
  isExtra,
  sort: key,
  cell: (row) => count(row[key]),
});

const COLUMNS: Column<Queue>[] = [
  { key: "name", title: "Name", sort: "name", cell: (row) => <QueueLink vhost={row.vhost} name={row.name} /> },
  { key: "features", title: "Features", cell: (row) => <Features of={row} /> },
  { key: "state", title: "State", sort: "state", cell: (row) => <State of={row.state} /> },
  numbers("messages_ready", "Ready"),
  numbers("messages_unacknowledged", "Unacked"),
  numbers("messages", "Total"),
  rateColumn("publish", "In"),
  rateColumn("deliver_get", "Deliver"),
  rateColumn("ack", "Ack"),
  numbers("consumers", "Consumers"),
  rateColumn("redeliver", "Redeliver", true),
  { key: "capacity", title: "Capacity", help: "How much of the time a message could be delivered at once", isNumber: true, isExtra: true, sort: "consumer_capacity", cell: (row) => percent(row.consumer_capacity ?? row.consumer_utilisation) },
  numbers("message_bytes", "Bytes", true),
  numbers("memory", "Memory", true),
  { key: "type", title: "Type", sort: "type", isExtra: true, cell: (row) => row.type ?? "classic" },
  { key: "policy", title: "Policy", sort: "policy", isExtra: true, cell: (row) => row.policy },
];

const VHOST: Column<Queue> = { key: "vhost", title: "Vhost", sort: "vhost", cell: (row) => row.vhost };

export function QueuesPage() {
  const vhost = useStore(chosenVhost);
  const columns = vhost === "" ? [COLUMNS[0]!, VHOST, ...COLUMNS.slice(1)] : COLUMNS;
  const declare = <Opener label="New queue" tone="primary">{(close) => <DeclareQueue close={close} />}</Opener>;
  return (
    <>
      <h1>Queues</h1>
      <List<Queue>
        what="queues"
        address={vhost === "" ? "queues" : path("queues", vhost)}
        fields={FIELDS}
        columns={columns}
        rowKey={(row) => `${row.vhost}/${row.name}`}
        rowHref={(row) => href(["queues", row.vhost, row.name])}
        actions={declare}
        empty={<Empty title="No queues yet">Clients declare them, or you do with "New queue".</Empty>}
      />
    </>
  );
}

const KNOWN: [string, string, string][] = [
  ["x-message-ttl", "TTL", "Messages expire"],
  ["x-expires", "Exp", "The queue expires when it is not used"],
  ["x-max-length", "Lim", "Limited number of messages"],
  ["x-max-length-bytes", "Lim B", "Limited bytes"],
  ["x-overflow", "Ovfl", "What happens at the limit is set"],
  ["x-dead-letter-exchange", "DLX", "Dead letters go to an exchange"],
  ["x-max-priority", "Pri", "Priorities"],
  ["x-single-active-consumer", "SAC", "One consumer at a time"],
  ["x-confirm-on", "Conf", "When a message is confirmed is set"],
];

/** What a queue is, in a few letters each; the title says it in words. */
export function Features({ of }: { of: Queue }) {
  const type = of.type ?? (of.arguments["x-queue-type"] as string | undefined) ?? "classic";
  return (
    <span class="badges">
      {type !== "classic" && <Badge tone="accent">{type}</Badge>}
      {of.durable ? <Badge title="Durable: survives a restart">D</Badge> : <Badge tone="warn" title="Transient: gone after a restart">transient</Badge>}
      {of.auto_delete && <Badge title="Deleted when its last consumer goes">AD</Badge>}
      {of.exclusive && <Badge title="Belongs to one connection">Excl</Badge>}
      {KNOWN.filter(([key]) => key in of.arguments).map(([key, text, about]) => (
        <Badge key={key} title={`${about}: ${key} = ${String(of.arguments[key])}`}>
          {text}
        </Badge>
      ))}
      {of.policy && <Badge title={`Policy ${of.policy}`}>{of.policy}</Badge>}
      {of.operator_policy && <Badge title={`Operator policy ${of.operator_policy}`}>{of.operator_policy}</Badge>}
    </span>
  );
}

const TYPES = [
  ["", "default of the vhost"],
  ["classic", "classic"],
  ["quorum", "quorum"],
  ["stream", "stream"],
] as const;

export function DeclareQueue({ close }: { close: () => void }) {
  const [vhost, setVhost] = useState(chosenVhost.get() || "/");
  const [name, setName] = useState("");
  const [type, setType] = useState<(typeof TYPES)[number][0]>("");
  const [durable, setDurable] = useState(true);
  const [autoDelete, setAutoDelete] = useState(false);
  const [rows, setRows] = useState<Argument[]>([]);
  const declare = async () => {
    const args = { ...tableOf(rows), ...(type ? { "x-queue-type": type } : {}) };
    await put(path("queues", vhost, name), { durable, auto_delete: autoDelete, arguments: args });
    close();
    go(["queues", vhost, name]);
  };
  return (
    <Dialog title="New queue" onClose={close}>
      <Form submit="Declare queue" onSubmit={declare} onCancel={close}>
        <VhostChoice value={vhost} set={setVhost} />
        <Text label="Name" value={name} set={setName} required autoFocus />
        <Choice label="Type" value={type} set={setType} of={TYPES} />
        <Check label="Durable" value={durable} set={setDurable} help="The queue, and its persistent messages, survive a restart." />
        <Check label="Auto-delete" value={autoDelete} set={setAutoDelete} help="Deleted when its last consumer goes." />
        <Arguments label="Arguments" rows={rows} set={setRows} known={QUEUE_ARGUMENTS} />
      </Form>
    </Dialog>
  );
}
