/** One queue: what it holds and why, its rates, consumers and bindings, and what can be done with it. */

import { del, path, query } from "../api";
import { ago, bytes, count, NONE, percent, plural, rate, value } from "../format";
import { usePoll } from "../poll";
import { go, href } from "../router";
import { history, useSeries } from "../series";
import { may } from "../session";
import { type Consumer, type Node, type Queue, rateOf, table } from "../types";
import { alarmsOf, queueStages, queueVerdict } from "../waits";
import { Badge, Empty, ExchangeLink, Facts, Pairs, Panel, Problem, State, Title } from "../ui/basics";
import { Chart } from "../ui/chart";
import { Check, Confirm, Opener, Text } from "../ui/form";
import { LocalTable } from "../ui/list";
import { Stages } from "../ui/stages";
import { Bindings } from "./bindings";
import { GetMessages, Publish } from "./messages";
import { Browse, ChangeArguments, Move, Pause } from "./operate";
import { Features } from "./queues";
import { lengthLines, rateLines } from "./rates";
import { useState } from "preact/hooks";

const STEP_MS = 1000;

export function QueuePage({ vhost, name }: { vhost: string; name: string }) {
  const address = path("queues", vhost, name);
  const { data, error, at } = usePoll<Queue>(address, STEP_MS, { first: history("lengths", "msg_rates") });
  const nodes = usePoll<Node[]>(may("monitoring") ? "nodes?columns=name,running,mem_alarm,mem_used,mem_limit,disk_free_alarm,disk_free,disk_free_limit" : null, STEP_MS * 5);
  const lengths = useSeries(address, at, lengthLines(data));
  const rates = useSeries(address, at, rateLines(data?.message_stats, ["publish", "deliver_get", "ack", "redeliver"]));
  const title = (
    <Title kind="Queues" back={href(["queues"])} name={name} badges={data && <Features of={data} />}>
      {data && <Actions of={data} />}
    </Title>
  );
  if (!data) {
    return (
      <>
        {title}
        {error ? error.status === 404 ? <Gone vhost={vhost} /> : <Problem error={error} what="this queue" /> : <p class="loading">Loading the queue</p>}
      </>
    );
  }
  const alarms = alarmsOf(nodes.data);
  return (
    <>
      {title}
      {error && <Problem error={error} what="this queue" />}
      <Stages of={address} verdict={queueVerdict(data, alarms)} stages={queueStages(data, alarms)} />
      <div class="grid two">
        <Panel title="Length">
          <Chart title="Messages" series={lengths} />
        </Panel>
        <Panel title="Rates">
          <Chart title="Messages per second" series={rates} show={rate} />
        </Panel>
      </div>
      <div class="grid two">
        <About of={data} />
        <Holds of={data} />
      </div>
      <Consumers of={data.consumer_details} />
      <Bindings vhost={vhost} name={name} of="queue" />
      <Incoming of={data} />
    </>
  );
}

function Gone({ vhost }: { vhost: string }) {
  return (
    <Empty title={`There is no such queue in vhost ${vhost}`}>
      It was deleted, has expired, or its exclusive owner is gone. <a href={href(["queues"])}>All queues</a>
    </Empty>
  );
}

function Actions({ of }: { of: Queue }) {
  return (
    <>
      <Opener label="Publish">{(close) => <Publish vhost={of.vhost} exchange="" queue={of.name} close={close} />}</Opener>
      <Opener label="Get">{(close) => <GetMessages vhost={of.vhost} queue={of.name} close={close} />}</Opener>
      <Opener label="Look">{(close) => <Browse of={of} close={close} />}</Opener>
      <Opener label="Move">{(close) => <Move of={of} close={close} />}</Opener>
      <Opener label="Arguments">{(close) => <ChangeArguments of={of} close={close} />}</Opener>
      <Pause of={of} />
      <Opener label="Purge" tone="danger">
        {(close) => <Purge of={of} close={close} />}
      </Opener>
      <Opener label="Delete" tone="danger">
        {(close) => <Delete of={of} close={close} />}
      </Opener>
    </>
  );
}

function Purge({ of, close }: { of: Queue; close: () => void }) {
  const [number, setNumber] = useState("");
  const ready = of.messages_ready ?? 0;
  const lost = number === "" ? ready : Math.min(ready, Number(number));
  const act = async () => {
    await del(query(path("queues", of.vhost, of.name, "contents"), { count: number || undefined }));
    close();
  };
  return (
    <Confirm title={`Purge ${of.name}`} submit="Purge" onClose={close} act={act}>
      <p>
        {plural(lost, "ready message")} will be lost. The {count(of.messages_unacknowledged)} with consumers stay.
      </p>
      <Text label="How many" type="number" value={number} set={setNumber} help="The first ones; all without a number." />
    </Confirm>
  );
}

function Delete({ of, close }: { of: Queue; close: () => void }) {
  const [ifEmpty, setIfEmpty] = useState(false);
  const [ifUnused, setIfUnused] = useState(false);
  const act = async () => {
    await del(query(path("queues", of.vhost, of.name), { "if-empty": ifEmpty || undefined, "if-unused": ifUnused || undefined }));
    close();
    go(["queues"]);
  };
  return (
    <Confirm title={`Delete ${of.name}`} submit="Delete queue" onClose={close} act={act}>
      <p>
        The queue, its bindings and {plural(of.messages ?? 0, "message")} in it will be lost.
        {(of.consumers ?? 0) > 0 && ` ${plural(of.consumers ?? 0, "consumer")} will be cancelled.`}
      </p>
      <Check label="Only if it is empty" value={ifEmpty} set={setIfEmpty} />
      <Check label="Only if nobody consumes" value={ifUnused} set={setIfUnused} />
    </Confirm>
  );
}

function About({ of }: { of: Queue }) {
  const effective = table(of.effective_policy_definition);
  const owner = of.owner_pid_details?.name;
  return (
    <Panel title="Queue">
      <Facts
        rows={[
          ["Vhost", <a href={href(["vhosts", of.vhost])}>{of.vhost}</a>],
          ["State", <State of={of.state} />],
          ["Type", of.type ?? "classic"],
          ["Idle", of.idle_since ? ago(of.idle_since) : "in use"],
          ["Policy", of.policy ?? "none"],
          ["Operator policy", of.operator_policy ?? "none"],
          ["Effective policy", <Pairs of={effective} empty="nothing set" />],
          ["Arguments", <Pairs of={of.arguments} empty="none" />],
          owner ? ["Exclusive owner", <a href={href(["connections", owner])}>{owner}</a>] : null,
          ["Leader", of.leader ?? of.node],
          (of.members?.length ?? 0) > 1 ? ["Members", <Members of={of} />] : null,
        ]}
      />
    </Panel>
  );
}

/** The nodes that have a copy of the queue; those that are not there are said to be down. */
function Members({ of }: { of: Queue }) {
  const isOnline = (name: string) => of.online?.includes(name) ?? true;
  return (
    <ul class="pairs">
      {of.members?.map((name) => (
        <li key={name}>
          {name} {!isOnline(name) && <Badge tone="bad">down</Badge>}
        </li>
      ))}
    </ul>
  );
}

/** What is there without a part of it. */
const less = (all: number | undefined, part: number | undefined) => (all === undefined || part === undefined ? undefined : all - part);

function Holds({ of }: { of: Queue }) {
  const rows: [string, unknown, unknown][] = [
    ["Ready", of.messages_ready, of.message_bytes_ready],
    ["Unacked", of.messages_unacknowledged, of.message_bytes_unacknowledged],
    ["Total", of.messages, of.message_bytes],
    ["In memory", of.messages_ram, of.message_bytes_ram],
    ["Persistent", of.messages_persistent, of.message_bytes_persistent],
    ["On the disk only", less(of.messages, of.messages_ram), less(of.message_bytes, of.message_bytes_ram)],
    ["Transient, on the disk only", of.messages_paged_out, of.message_bytes_paged_out],
  ];
  if (of.messages_dlx) {
    rows.push(["Dead letters on their way", of.messages_dlx, of.message_bytes_dlx]);
  }
  return (
    <Panel title="Holds">
      <table class="small">
        <thead>
          <tr>
            <th scope="col">Messages</th>
            <th scope="col" class="num">
              Number
            </th>
            <th scope="col" class="num">
              Bytes of bodies
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map(([label, number, size]) => (
            <tr key={label}>
              <th scope="row">{label}</th>
              <td class="num">{count(number)}</td>
              <td class="num">{bytes(size)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <Facts
        rows={[
          ["Memory of the queue", bytes(of.memory)],
          ["Consumers", count(of.consumers)],
          ["Consumer capacity", percent(of.consumer_capacity ?? of.consumer_utilisation), "How much of the time a message could be delivered at once"],
        ]}
      />
    </Panel>
  );
}

function Consumers({ of }: { of: Consumer[] | undefined }) {
  if (of === undefined) return null;
  return (
    <Panel title="Consumers" note={String(of.length)}>
      {of.length === 0 ? (
        <Empty title="No consumers">Messages stay in the queue until somebody consumes them.</Empty>
      ) : (
        <LocalTable
          label="Consumers"
          rows={of}
          rowKey={(row) => `${row.channel_details.name} ${row.consumer_tag}`}
          columns={[
            {
              key: "channel",
              title: "Channel",
              cell: ({ channel_details: { name } }) => (name ? <a href={href(["channels", name])}>{name}</a> : NONE),
            },
            { key: "tag", title: "Tag", sort: "consumer_tag", cell: (row) => <code>{row.consumer_tag}</code> },
            { key: "prefetch", title: "Prefetch", isNumber: true, sort: "prefetch_count", cell: (row) => (row.prefetch_count === 0 ? "no limit" : count(row.prefetch_count)) },
            { key: "ack", title: "Acks", cell: (row) => (row.ack_required ? "yes" : "no") },
            {
              key: "active",
              title: "Active",
              cell: (row) => <Badge tone={row.active === false ? "plain" : "good"}>{row.activity_status?.replaceAll("_", " ") ?? (row.active === false ? "no" : "yes")}</Badge>,
            },
            { key: "exclusive", title: "Exclusive", cell: (row) => (row.exclusive ? "yes" : "no") },
            { key: "arguments", title: "Arguments", cell: (row) => <Pairs of={table(row.arguments)} empty="" /> },
          ]}
        />
      )}
    </Panel>
  );
}

/** Where messages come from and where they go, when the broker counts that finely. */
function Incoming({ of }: { of: Queue }) {
  const incoming = of.incoming ?? [];
  const deliveries = of.deliveries ?? [];
  if (incoming.length === 0 && deliveries.length === 0) return null;
  return (
    <div class="grid two">
      <Panel title="Publishes by exchange">
        <LocalTable
          label="Publishes by exchange"
          rows={incoming}
          rowKey={(row) => value(row.exchange?.name)}
          columns={[
            { key: "exchange", title: "Exchange", cell: (row) => <ExchangeLink vhost={of.vhost} name={row.exchange?.name ?? ""} /> },
            { key: "publish", title: "Publish", isNumber: true, cell: (row) => rate(rateOf(row.stats, "publish") ?? 0) },
          ]}
        />
      </Panel>
      <Panel title="Deliveries by channel">
        <LocalTable
          label="Deliveries by channel"
          rows={deliveries}
          rowKey={(row) => row.channel_details.name}
          columns={[
            { key: "channel", title: "Channel", cell: (row) => <a href={href(["channels", row.channel_details.name])}>{row.channel_details.name}</a> },
            { key: "deliver", title: "Deliver", isNumber: true, cell: (row) => rate(rateOf(row.stats, "deliver_get") ?? 0) },
          ]}
        />
      </Panel>
    </div>
  );
}
