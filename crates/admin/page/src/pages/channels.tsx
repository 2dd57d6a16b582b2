/** Channels and consumers: all of them, and one channel. */

import { path } from "../api";
import { ago, count, NONE, rate, span } from "../format";
import { usePoll } from "../poll";
import { href } from "../router";
import { history, useSeries } from "../series";
import { vhost as chosenVhost } from "../settings";
import { useStore } from "../store";
import { type Channel, type Consumer, rateOf, table } from "../types";
import { Badge, Empty, ExchangeLink, Facts, Pairs, Panel, Problem, QueueLink, State, Title } from "../ui/basics";
import { Chart } from "../ui/chart";
import { List, LocalTable } from "../ui/list";
import type { Column } from "../ui/table";
import { rateLines } from "./rates";

const numbers = (key: keyof Channel, title: string, isExtra = false): Column<Channel> => ({
  key,
  title,
  isNumber: true,
  isExtra,
  sort: key,
  cell: (row) => count(row[key]),
});

const rates = (key: string, title: string, isExtra = false): Column<Channel> => ({
  key,
  title,
  isNumber: true,
  isExtra,
  sort: `message_stats.${key}_details.rate`,
  cell: (row) => rate(rateOf(row.message_stats, key) ?? 0),
});

export const CHANNEL_COLUMNS: Column<Channel>[] = [
  { key: "name", title: "Channel", sort: "name", cell: (row) => <a href={href(["channels", row.name])}>{row.name}</a> },
  { key: "vhost", title: "Vhost", sort: "vhost", cell: (row) => row.vhost },
  { key: "user", title: "User", sort: "user", cell: (row) => row.user },
  { key: "mode", title: "Mode", cell: (row) => <Mode of={row} /> },
  { key: "state", title: "State", sort: "state", cell: (row) => <State of={row.state} /> },
  numbers("messages_unconfirmed", "Unconfirmed"),
  { key: "prefetch_count", title: "Prefetch", isNumber: true, sort: "prefetch_count", cell: (row) => prefetch(row) },
  numbers("messages_unacknowledged", "Unacked"),
  numbers("consumer_count", "Consumers"),
  rates("publish", "Publish"),
  rates("confirm", "Confirm"),
  rates("deliver_get", "Deliver"),
  rates("ack", "Ack"),
  rates("redeliver", "Redeliver", true),
  rates("return_unroutable", "Returned", true),
  numbers("messages_uncommitted", "Uncommitted", true),
  numbers("acks_uncommitted", "Acks uncommitted", true),
];

const FIELDS = [
  "name", "number", "vhost", "user", "state", "confirm", "transactional", "prefetch_count", "global_prefetch_count", "messages_unacknowledged",
  "messages_unconfirmed", "messages_uncommitted", "acks_uncommitted", "consumer_count", "connection_details",
  ...["publish", "confirm", "deliver_get", "ack", "redeliver", "return_unroutable"].map((key) => `message_stats.${key}_details.rate`),
];

function prefetch({ prefetch_count: each, global_prefetch_count: all }: Channel): string {
  if (!each && !all) return "no limit";
  return [each ? count(each) : "", all ? `${count(all)} channel` : ""].filter((text) => text !== "").join(", ");
}

function Mode({ of }: { of: Channel }) {
  if (of.transactional) return <Badge title="Transactional">tx</Badge>;
  if (of.confirm) return <Badge title="Publisher confirms">confirms</Badge>;
  return <span class="muted">{NONE}</span>;
}

export function ChannelsPage() {
  const vhost = useStore(chosenVhost);
  return (
    <>
      <h1>Channels</h1>
      <List<Channel>
        what="channels"
        address={vhost === "" ? "channels" : path("vhosts", vhost, "channels")}
        fields={FIELDS}
        columns={CHANNEL_COLUMNS}
        rowKey={(row) => row.name}
        rowHref={(row) => href(["channels", row.name])}
        empty={<Empty title="No channels">A client opens one on its connection before it does anything.</Empty>}
      />
    </>
  );
}

export function ChannelPage({ name }: { name: string }) {
  const address = path("channels", name);
  const { data, error, at } = usePoll<Channel>(address, 1000, { first: history("msg_rates") });
  const series = useSeries(address, at, rateLines(data?.message_stats, ["publish", "confirm", "deliver_get", "ack", "redeliver"]));
  const held = useSeries(address, at, [
    { label: "Unacked", colour: "b", value: data?.messages_unacknowledged },
    { label: "Unconfirmed", colour: "c", value: data?.messages_unconfirmed },
  ]);
  const connection = data?.connection_details?.name;
  return (
    <>
      <Title kind="Channels" back={href(["channels"])} name={name} badges={data && <State of={data.state} />} />
      {error && (error.status === 404 ? <Empty title="This channel is gone">Its client closed it, or its connection ended.</Empty> : <Problem error={error} what="this channel" />)}
      {data && (
        <>
          <div class="grid two">
            <Panel title="Rates">
              <Chart title="Messages per second" series={series} show={rate} />
            </Panel>
            <Panel title="Held">
              <Chart title="Messages" series={held} />
            </Panel>
          </div>
          <Panel title="Channel">
            <Facts
              rows={[
                ["Connection", connection && <a href={href(["connections", connection])}>{connection}</a>],
                ["User", data.user && <a href={href(["users", data.user])}>{data.user}</a>],
                ["Vhost", data.vhost],
                ["Mode", <Mode of={data} />],
                ["Prefetch", prefetch(data)],
                ["Idle", data.idle_since ? ago(data.idle_since) : "in use"],
                ["Unacked", count(data.messages_unacknowledged)],
                ["Unconfirmed", count(data.messages_unconfirmed)],
                ["Uncommitted", count(data.messages_uncommitted)],
                ["Acks uncommitted", count(data.acks_uncommitted)],
              ]}
            />
          </Panel>
          <Consumers of={data.consumer_details} />
          <Finer of={data} />
        </>
      )}
    </>
  );
}

const CONSUMER_COLUMNS: Column<Consumer>[] = [
  { key: "queue", title: "Queue", sort: "queue.name", cell: (row) => <QueueLink vhost={row.queue.vhost} name={row.queue.name} /> },
  { key: "vhost", title: "Vhost", sort: "queue.vhost", cell: (row) => row.queue.vhost },
  {
    key: "channel",
    title: "Channel",
    cell: ({ channel_details: { name } }) => (name ? <a href={href(["channels", name])}>{name}</a> : NONE),
  },
  { key: "tag", title: "Tag", sort: "consumer_tag", cell: (row) => <code>{row.consumer_tag}</code> },
  { key: "prefetch", title: "Prefetch", isNumber: true, sort: "prefetch_count", cell: (row) => (row.prefetch_count === 0 ? "no limit" : count(row.prefetch_count)) },
  { key: "unacked", title: "Unacked", isNumber: true, sort: "messages_unacknowledged", cell: (row) => count(row.messages_unacknowledged) },
  { key: "oldest", title: "Oldest unacked", isNumber: true, sort: "oldest_unacked_ms", cell: (row) => (row.oldest_unacked_ms ? span(row.oldest_unacked_ms) : NONE) },
  { key: "blocked", title: "Takes more", sort: "blocked", cell: (row) => <Badge tone={row.blocked ? "warn" : "good"}>{row.blocked ? "no" : "yes"}</Badge> },
  { key: "ack", title: "Acks", sort: "ack_required", cell: (row) => (row.ack_required ? "yes" : "no") },
  { key: "active", title: "Active", sort: "active", cell: (row) => <Badge tone={row.active === false ? "plain" : "good"}>{row.activity_status?.replaceAll("_", " ") ?? "yes"}</Badge> },
  { key: "exclusive", title: "Exclusive", sort: "exclusive", cell: (row) => (row.exclusive ? "yes" : "no") },
  { key: "arguments", title: "Arguments", isExtra: true, cell: (row) => <Pairs of={table(row.arguments)} empty="" /> },
];

function Consumers({ of }: { of: Consumer[] | undefined }) {
  if (of === undefined) return null;
  return (
    <Panel title="Consumers" note={String(of.length)}>
      {of.length === 0 ? (
        <Empty title="No consumers on this channel" />
      ) : (
        <LocalTable label="Consumers" rows={of} rowKey={(row) => row.consumer_tag} columns={CONSUMER_COLUMNS.filter(({ key }) => !["channel", "vhost"].includes(key))} />
      )}
    </Panel>
  );
}

export function ConsumersPage() {
  const vhost = useStore(chosenVhost);
  return (
    <>
      <h1>Consumers</h1>
      <List<Consumer>
        what="consumers"
        address={vhost === "" ? "consumers" : path("consumers", vhost)}
        columns={CONSUMER_COLUMNS}
        first={{ by: "queue.name", isDown: false }}
        rowKey={(row) => `${row.channel_details.name} ${row.consumer_tag} ${row.queue.name}`}
        rowHref={(row) => href(["queues", row.queue.vhost, row.queue.name])}
        empty={<Empty title="No consumers">Nobody takes messages from any queue at the moment.</Empty>}
      />
    </>
  );
}

/** What the channel does with each exchange and queue, when the broker counts that finely. */
function Finer({ of }: { of: Channel }) {
  const publishes = of.publishes ?? [];
  const deliveries = of.deliveries ?? [];
  if (publishes.length + deliveries.length === 0) return null;
  return (
    <div class="grid two">
      <Panel title="Publishes by exchange">
        <LocalTable
          label="Publishes by exchange"
          rows={publishes}
          rowKey={(row) => row.exchange?.name ?? ""}
          columns={[
            { key: "exchange", title: "Exchange", cell: (row) => <ExchangeLink vhost={of.vhost ?? "/"} name={row.exchange?.name ?? ""} /> },
            { key: "publish", title: "Publish", isNumber: true, cell: (row) => rate(rateOf(row.stats, "publish") ?? 0) },
            { key: "confirm", title: "Confirm", isNumber: true, cell: (row) => rate(rateOf(row.stats, "confirm") ?? 0) },
          ]}
        />
      </Panel>
      <Panel title="Deliveries by queue">
        <LocalTable
          label="Deliveries by queue"
          rows={deliveries}
          rowKey={(row) => row.queue?.name ?? ""}
          columns={[
            { key: "queue", title: "Queue", cell: (row) => row.queue && <QueueLink vhost={row.queue.vhost} name={row.queue.name} /> },
            { key: "deliver", title: "Deliver", isNumber: true, cell: (row) => rate(rateOf(row.stats, "deliver_get") ?? 0) },
          ]}
        />
      </Panel>
    </div>
  );
}
