/** Connections: all of them, and one with its channels. */

import { useState } from "preact/hooks";

import { del, path } from "../api";
import { byteRate, bytes, count, NONE, value, when } from "../format";
import { usePoll } from "../poll";
import { go, href } from "../router";
import { history, useSeries } from "../series";
import { vhost as chosenVhost } from "../settings";
import { useStore } from "../store";
import { type Channel, type Connection, type Stats, table } from "../types";
import { connectionStages, connectionVerdict } from "../waits";
import { Badge, Empty, Facts, Pairs, Panel, Problem, State, Title } from "../ui/basics";
import { Chart } from "../ui/chart";
import { Confirm, Opener, Text } from "../ui/form";
import { List, LocalTable } from "../ui/list";
import { Stages } from "../ui/stages";
import type { Column } from "../ui/table";
import { CHANNEL_COLUMNS } from "./channels";
import { rateLines } from "./rates";

const FIELDS = [
  "name", "vhost", "user", "user_provided_name", "state", "ssl", "protocol", "channels", "connected_at", "peer_host", "peer_port",
  "client_properties", "recv_oct", "send_oct", "recv_oct_details.rate", "send_oct_details.rate", "send_pend", "node", "timeout",
];

/** What the client calls itself, or its address. */
export function nameOf(connection: Connection): string {
  return connection.user_provided_name ?? connection.client_properties?.connection_name ?? connection.name;
}

const COLUMNS: Column<Connection>[] = [
  {
    key: "name",
    title: "Name",
    sort: "name",
    cell: (row) => (
      <>
        <a href={href(["connections", row.name])}>{nameOf(row)}</a>
        {nameOf(row) !== row.name && <div class="muted">{row.name}</div>}
      </>
    ),
  },
  { key: "vhost", title: "Vhost", sort: "vhost", cell: (row) => row.vhost },
  { key: "user", title: "User", sort: "user", cell: (row) => row.user },
  { key: "state", title: "State", sort: "state", cell: (row) => <State of={row.state} /> },
  { key: "tls", title: "TLS", sort: "ssl", cell: (row) => (row.ssl ? <Badge tone="good">TLS</Badge> : <span class="muted">no</span>) },
  { key: "channels", title: "Channels", isNumber: true, sort: "channels", cell: (row) => count(row.channels) },
  { key: "recv", title: "From client", isNumber: true, sort: "recv_oct_details.rate", cell: (row) => byteRate(row.recv_oct_details?.rate) },
  { key: "send", title: "To client", isNumber: true, sort: "send_oct_details.rate", cell: (row) => byteRate(row.send_oct_details?.rate) },
  { key: "client", title: "Client", cell: (row) => <Client of={row} /> },
  { key: "connected", title: "Connected", sort: "connected_at", isExtra: true, cell: (row) => when(row.connected_at) },
  { key: "protocol", title: "Protocol", sort: "protocol", isExtra: true, cell: (row) => row.protocol },
  { key: "pending", title: "Waiting to be sent", sort: "send_pend", isNumber: true, isExtra: true, cell: (row) => count(row.send_pend) },
  { key: "received", title: "Received", sort: "recv_oct", isNumber: true, isExtra: true, cell: (row) => bytes(row.recv_oct) },
  { key: "sent", title: "Sent", sort: "send_oct", isNumber: true, isExtra: true, cell: (row) => bytes(row.send_oct) },
  { key: "heartbeat", title: "Heartbeat", sort: "timeout", isNumber: true, isExtra: true, cell: (row) => heartbeat(row) },
];

function Client({ of }: { of: Connection }) {
  const { product, version, platform } = table(of.client_properties);
  if (product === undefined) return <span class="muted">{NONE}</span>;
  return <span title={value(platform)}>{`${value(product)} ${version === undefined ? "" : value(version)}`}</span>;
}

const heartbeat = ({ timeout }: Connection) => (timeout === undefined ? NONE : timeout === 0 ? "off" : `${timeout} s`);

export function ConnectionsPage() {
  const vhost = useStore(chosenVhost);
  return (
    <>
      <h1>Connections</h1>
      <List<Connection>
        what="connections"
        address={vhost === "" ? "connections" : path("vhosts", vhost, "connections")}
        fields={FIELDS}
        columns={COLUMNS}
        rowKey={(row) => row.name}
        rowHref={(row) => href(["connections", row.name])}
        empty={
          <Empty title="No connections">
            Clients connect to the AMQP port that the <a href={href([])}>overview</a> names.
          </Empty>
        }
      />
    </>
  );
}

export function ConnectionPage({ name }: { name: string }) {
  const address = path("connections", name);
  const { data, error, at } = usePoll<Connection>(address, 1000, { first: history("data_rates") });
  const channels = usePoll<Channel[]>(`${address}/channels`, 2000);
  const rates = useSeries(address, at, rateLines(data as Stats | undefined, ["recv_oct", "send_oct"]));
  return (
    <>
      <Title kind="Connections" back={href(["connections"])} name={data ? nameOf(data) : name} badges={data && <State of={data.state} />}>
        {data && (
          <Opener label="Close" tone="danger">
            {(close) => <Close of={data} close={close} />}
          </Opener>
        )}
      </Title>
      {error && (error.status === 404 ? <Empty title="This connection is gone">It was closed, by its client or by the broker.</Empty> : <Problem error={error} what="this connection" />)}
      {data && (
        <>
          <Stages of={address} verdict={connectionVerdict(data, channels.data)} stages={connectionStages(data, channels.data)} />
          <div class="grid two">
            <Panel title="Data">
              <Chart title="Bytes per second" series={rates} show={byteRate} />
            </Panel>
            <About of={data} />
          </div>
          <Panel title="Channels" note={channels.data && String(channels.data.length)}>
            {channels.error && <Problem error={channels.error} what="its channels" />}
            {channels.data?.length === 0 && <Empty title="No channels">A client opens one before it does anything.</Empty>}
            {channels.data && channels.data.length > 0 && (
              <LocalTable
                label="Channels"
                rows={channels.data}
                rowKey={(row) => row.name}
                rowHref={(row) => href(["channels", row.name])}
                columns={CHANNEL_COLUMNS.filter(({ key, isExtra }) => !isExtra && !["user", "vhost"].includes(key))}
              />
            )}
          </Panel>
          <Panel title="What the client says of itself">
            <Pairs of={table(data.client_properties)} empty="Nothing" />
          </Panel>
        </>
      )}
    </>
  );
}

function About({ of }: { of: Connection }) {
  return (
    <Panel title="Connection">
      <Facts
        rows={[
          ["Address", of.name],
          ["User", of.user && <a href={href(["users", of.user])}>{of.user}</a>],
          ["Vhost", of.vhost && <a href={href(["vhosts", of.vhost])}>{of.vhost}</a>],
          ["Protocol", `${of.protocol ?? NONE}${of.ssl ? ", TLS" : ", no TLS"}`],
          ["Signed in with", of.auth_mechanism],
          ["Connected", when(of.connected_at)],
          ["Heartbeat", heartbeat(of)],
          ["Largest frame", bytes(of.frame_max)],
          ["Most channels", count(of.channel_max)],
          ["Received", bytes(of.recv_oct)],
          ["Sent", bytes(of.send_oct)],
          ["Node", of.node],
          of.ssl ? ["TLS version", value(of.ssl_protocol)] : null,
          of.ssl ? ["Cipher", value(of.ssl_cipher)] : null,
          of.ssl ? ["Client certificate", value(of.peer_cert_subject)] : null,
        ]}
      />
    </Panel>
  );
}

function Close({ of, close }: { of: Connection; close: () => void }) {
  const [reason, setReason] = useState("");
  const act = async () => {
    await del(path("connections", of.name), reason ? { "x-reason": reason } : undefined);
    close();
    go(["connections"]);
  };
  return (
    <Confirm title={`Close ${nameOf(of)}`} submit="Close connection" onClose={close} act={act}>
      <p>Its unacked messages go back to their queues. Most clients connect again by themselves.</p>
      <Text label="Reason" value={reason} set={setReason} help="The client and the log get it." />
    </Confirm>
  );
}

