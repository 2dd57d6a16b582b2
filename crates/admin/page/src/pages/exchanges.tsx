/** Exchanges: all of them, and one with its bindings. */

import { useState } from "preact/hooks";

import { del, path, put, query } from "../api";
import { rate } from "../format";
import { EXCHANGE_ARGUMENTS, EXCHANGE_TYPES } from "../known";
import { usePoll } from "../poll";
import { go, href } from "../router";
import { history, useSeries } from "../series";
import { vhost as chosenVhost } from "../settings";
import { useStore } from "../store";
import { type Exchange, type Overview, rateOf } from "../types";
import { type Argument, Arguments, tableOf } from "../ui/arguments";
import { Badge, DEFAULT_EXCHANGE, Empty, ExchangeLink, Facts, Pairs, Panel, Problem, QueueLink, Title } from "../ui/basics";
import { Chart } from "../ui/chart";
import { Check, Choice, Confirm, Dialog, Form, Opener, Text } from "../ui/form";
import { List, LocalTable } from "../ui/list";
import type { Column } from "../ui/table";
import { Bindings } from "./bindings";
import { Publish } from "./messages";
import { rateLines } from "./rates";
import { VhostChoice } from "./vhost-choice";

const FIELDS = [
  "name", "vhost", "type", "durable", "auto_delete", "internal", "arguments", "policy",
  "message_stats.publish_in_details.rate", "message_stats.publish_out_details.rate",
];

const COLUMNS: Column<Exchange>[] = [
  { key: "name", title: "Name", sort: "name", cell: (row) => <ExchangeLink vhost={row.vhost} name={row.name} /> },
  { key: "type", title: "Type", sort: "type", cell: (row) => row.type },
  { key: "features", title: "Features", cell: (row) => <Features of={row} /> },
  { key: "in", title: "In", isNumber: true, sort: "message_stats.publish_in_details.rate", cell: (row) => rate(rateOf(row.message_stats, "publish_in") ?? 0) },
  { key: "out", title: "Out", isNumber: true, sort: "message_stats.publish_out_details.rate", cell: (row) => rate(rateOf(row.message_stats, "publish_out") ?? 0) },
];

const VHOST: Column<Exchange> = { key: "vhost", title: "Vhost", sort: "vhost", cell: (row) => row.vhost };

export function ExchangesPage() {
  const vhost = useStore(chosenVhost);
  const columns = vhost === "" ? [COLUMNS[0]!, VHOST, ...COLUMNS.slice(1)] : COLUMNS;
  return (
    <>
      <h1>Exchanges</h1>
      <List<Exchange>
        what="exchanges"
        address={vhost === "" ? "exchanges" : path("exchanges", vhost)}
        fields={FIELDS}
        columns={columns}
        rowKey={(row) => `${row.vhost}/${row.name}`}
        rowHref={(row) => href(["exchanges", row.vhost, row.name || "amq.default"])}
        actions={<Opener label="New exchange" tone="primary">{(close) => <DeclareExchange close={close} />}</Opener>}
        empty={<Empty title="No exchanges" />}
      />
    </>
  );
}

function Features({ of }: { of: Exchange }) {
  return (
    <span class="badges">
      {of.durable ? <Badge title="Durable: survives a restart">D</Badge> : <Badge tone="warn" title="Transient: gone after a restart">transient</Badge>}
      {of.auto_delete && <Badge title="Deleted when its last binding goes">AD</Badge>}
      {of.internal && <Badge title="Clients cannot publish to it; only exchanges can">internal</Badge>}
      {of.arguments["alternate-exchange"] !== undefined && <Badge title={`Unroutable messages go to ${String(of.arguments["alternate-exchange"])}`}>AE</Badge>}
      {of.policy && <Badge title={`Policy ${of.policy}`}>{of.policy}</Badge>}
    </span>
  );
}

function DeclareExchange({ close }: { close: () => void }) {
  const overview = usePoll<Overview>("overview?columns=exchange_types", 60_000);
  const types = overview.data?.exchange_types?.map(({ name }) => name) ?? [...EXCHANGE_TYPES];
  const [vhost, setVhost] = useState(chosenVhost.get() || "/");
  const [name, setName] = useState("");
  const [type, setType] = useState("direct");
  const [durable, setDurable] = useState(true);
  const [autoDelete, setAutoDelete] = useState(false);
  const [internal, setInternal] = useState(false);
  const [rows, setRows] = useState<Argument[]>([]);
  const declare = async () => {
    await put(path("exchanges", vhost, name), { type, durable, auto_delete: autoDelete, internal, arguments: tableOf(rows) });
    close();
    go(["exchanges", vhost, name]);
  };
  return (
    <Dialog title="New exchange" onClose={close}>
      <Form submit="Declare exchange" onSubmit={declare} onCancel={close}>
        <VhostChoice value={vhost} set={setVhost} />
        <Text label="Name" value={name} set={setName} required autoFocus />
        <Choice label="Type" value={type} set={setType} of={types.map((it) => [it, it] as const)} />
        <Check label="Durable" value={durable} set={setDurable} help="Survives a restart." />
        <Check label="Auto-delete" value={autoDelete} set={setAutoDelete} help="Deleted when its last binding goes." />
        <Check label="Internal" value={internal} set={setInternal} help="Clients cannot publish to it; only exchanges can." />
        <Arguments label="Arguments" rows={rows} set={setRows} known={EXCHANGE_ARGUMENTS} />
      </Form>
    </Dialog>
  );
}

export function ExchangePage({ vhost, name: written }: { vhost: string; name: string }) {
  const name = written === "amq.default" ? "" : written;
  const address = path("exchanges", vhost, written);
  const { data, error, at } = usePoll<Exchange>(address, 1000, { first: history("msg_rates") });
  const rates = useSeries(address, at, rateLines(data?.message_stats, ["publish_in", "publish_out"]));
  const isOurs = name === "" || name.startsWith("amq.");
  return (
    <>
      <Title kind="Exchanges" back={href(["exchanges"])} name={name || DEFAULT_EXCHANGE} badges={data && <Features of={data} />}>
        {data && (
          <>
            <Opener label="Publish" disabled={data.internal} title={data.internal ? "Clients cannot publish to an internal exchange" : undefined}>
              {(close) => <Publish vhost={vhost} exchange={name} close={close} />}
            </Opener>
            <Opener label="Delete" tone="danger" disabled={isOurs} title={isOurs ? "Exchanges the broker needs cannot be deleted" : undefined}>
              {(close) => <Delete of={data} close={close} />}
            </Opener>
          </>
        )}
      </Title>
      {error && <Problem error={error} what="this exchange" />}
      {data && (
        <>
          <div class="grid two">
            <Panel title="Rates">
              <Chart title="Messages per second" series={rates} show={rate} />
            </Panel>
            <Panel title="Exchange">
              <Facts
                rows={[
                  ["Vhost", <a href={href(["vhosts", vhost])}>{vhost}</a>],
                  ["Type", data.type],
                  ["Durable", data.durable ? "yes" : "no"],
                  ["Auto-delete", data.auto_delete ? "yes" : "no"],
                  ["Internal", data.internal ? "yes" : "no"],
                  ["Policy", data.policy ?? "none"],
                  ["Arguments", <Pairs of={data.arguments} empty="none" />],
                ]}
              />
            </Panel>
          </div>
          {name === "" ? (
            <Panel title="Bindings from this exchange">
              <Empty title="Every queue is bound to it under its own name">A message whose routing key is a queue's name goes to that queue.</Empty>
            </Panel>
          ) : (
            <>
              <Bindings vhost={vhost} name={name} of="source" />
              <Bindings vhost={vhost} name={name} of="destination" />
            </>
          )}
          <Outgoing of={data} />
        </>
      )}
    </>
  );
}

/** Where its messages go, when the broker counts that finely. */
function Outgoing({ of }: { of: Exchange }) {
  if (!of.outgoing || of.outgoing.length === 0) return null;
  return (
    <Panel title="Publishes by queue">
      <LocalTable
        label="Publishes by queue"
        rows={of.outgoing}
        rowKey={(row) => row.queue?.name ?? ""}
        columns={[
          { key: "queue", title: "Queue", cell: (row) => row.queue && <QueueLink vhost={row.queue.vhost} name={row.queue.name} /> },
          { key: "publish", title: "Publish", isNumber: true, cell: (row) => rate(rateOf(row.stats, "publish") ?? 0) },
        ]}
      />
    </Panel>
  );
}

function Delete({ of, close }: { of: Exchange; close: () => void }) {
  const [ifUnused, setIfUnused] = useState(false);
  const act = async () => {
    await del(query(path("exchanges", of.vhost, of.name), { "if-unused": ifUnused || undefined }));
    close();
    go(["exchanges"]);
  };
  return (
    <Confirm title={`Delete ${of.name}`} submit="Delete exchange" onClose={close} act={act}>
      <p>The exchange and its bindings will be lost. A client that publishes to it gets its channel closed.</p>
      <Check label="Only if nothing is bound to it" value={ifUnused} set={setIfUnused} />
    </Confirm>
  );
}
