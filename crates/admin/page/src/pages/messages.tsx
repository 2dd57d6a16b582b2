/** Publishing a message by hand, and getting some. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { path, post } from "../api";
import { bytes, count, plural, value } from "../format";
import type { Message } from "../types";
import { table } from "../types";
import { type Argument, Arguments, type KnownKey, tableOf } from "../ui/arguments";
import { Badge, DEFAULT_EXCHANGE, Empty, Notice, Pairs } from "../ui/basics";
import { Area, Check, Choice, Dialog, Form, Text } from "../ui/form";

const PROPERTIES: readonly KnownKey[] = [
  { key: "content_type", kind: "text", about: "For example application/json" },
  { key: "content_encoding", kind: "text", about: "For example gzip" },
  { key: "correlation_id", kind: "text", about: "Which request a reply belongs to" },
  { key: "reply_to", kind: "text", about: "The queue for replies" },
  { key: "message_id", kind: "text", about: "The application's name of the message" },
  { key: "type", kind: "text", about: "The application's kind of message" },
  { key: "app_id", kind: "text", about: "The application" },
  { key: "user_id", kind: "text", about: "Has to be the publishing user" },
  { key: "priority", kind: "number", about: "0 to the queue's x-max-priority" },
  { key: "expiration", kind: "text", about: "Milliseconds until it expires, as text" },
  { key: "timestamp", kind: "number", about: "Seconds since 1970" },
];

export interface PublishProps {
  vhost: string;
  exchange: string;
  /** Publishing to a queue: the default exchange's routing key is its name. */
  queue?: string;
  close: () => void;
}

export function Publish({ vhost, exchange, queue, close }: PublishProps) {
  const [key, setKey] = useState(queue ?? "");
  const [isPersistent, setPersistent] = useState(true);
  const [headers, setHeaders] = useState<Argument[]>([]);
  const [properties, setProperties] = useState<Argument[]>([]);
  const [payload, setPayload] = useState("");
  const [encoding, setEncoding] = useState<"string" | "base64">("string");
  const [outcome, setOutcome] = useState<{ routed: boolean; number: number }>();
  const publish = async () => {
    setOutcome(undefined);
    const body = {
      routing_key: key,
      properties: { ...tableOf(properties), delivery_mode: isPersistent ? 2 : 1, headers: tableOf(headers) },
      payload,
      payload_encoding: encoding,
    };
    const { routed } = await post<{ routed: boolean }>(path("exchanges", vhost, exchange || "amq.default", "publish"), body);
    setOutcome((old) => ({ routed, number: (old?.number ?? 0) + 1 }));
  };
  return (
    <Dialog title={queue === undefined ? "Publish a message" : `Publish to ${queue}`} onClose={close}>
      <Form submit="Publish" onSubmit={publish} onCancel={close}>
        {queue === undefined && <Text label="Routing key" value={key} set={setKey} autoFocus />}
        <Area label="Payload" value={payload} set={setPayload} rows={6} />
        <Choice
          label="The payload is"
          value={encoding}
          set={setEncoding}
          of={[
            ["string", "text"],
            ["base64", "base64, sent as the bytes it stands for"],
          ]}
        />
        <Check label="Persistent" value={isPersistent} set={setPersistent} help="Survives a restart in a durable queue." />
        <Arguments label="Properties" rows={properties} set={setProperties} known={PROPERTIES} />
        <Arguments label="Headers" rows={headers} set={setHeaders} known={[]} />
        {outcome &&
          (outcome.routed ? (
            <Notice tone="good" title="Published and routed to a queue." />
          ) : (
            <Notice tone="warn" title="Published, but no queue took it.">
              No binding matches this routing key.
            </Notice>
          ))}
      </Form>
    </Dialog>
  );
}

const MODES = [
  ["ack_requeue_true", "Put them back (nack, requeue)"],
  ["ack_requeue_false", "Take them out (ack)"],
  ["reject_requeue_true", "Put them back (reject, requeue)"],
  ["reject_requeue_false", "Reject them (to the dead-letter exchange, if there is one)"],
] as const;

export function GetMessages({ vhost, queue, close }: { vhost: string; queue: string; close: () => void }) {
  const [mode, setMode] = useState<(typeof MODES)[number][0]>("ack_requeue_true");
  const [number, setNumber] = useState("10");
  const [encoding, setEncoding] = useState<"auto" | "base64">("auto");
  const [messages, setMessages] = useState<Message[]>();
  const isTaking = mode.endsWith("false");
  const take = async () => {
    const body = { count: Number(number), ackmode: mode, encoding, truncate: 50_000 };
    setMessages(await post<Message[]>(path("queues", vhost, queue, "get"), body));
  };
  return (
    <Dialog title={`Get messages of ${queue}`} onClose={close} wide>
      <Form submit={isTaking ? "Get and remove" : "Get"} danger={isTaking} onSubmit={take} onCancel={close}>
        <div class="row">
          <Choice label="What happens to them" value={mode} set={setMode} of={MODES} />
          <Text label="How many" type="number" value={number} set={setNumber} required />
          <Choice
            label="Payload as"
            value={encoding}
            set={setEncoding}
            of={[
              ["auto", "text if it is text"],
              ["base64", "base64"],
            ]}
          />
        </div>
        <p class="help">
          {isTaking
            ? "The messages leave the queue: consumers will not get them."
            : "The messages are put back in their place, but are marked as redelivered, and their delivery count rises."}
        </p>
      </Form>
      {messages && (messages.length === 0 ? <Empty title="The queue is empty">Messages with consumers (unacked) cannot be got.</Empty> : <Messages of={messages} />)}
    </Dialog>
  );
}

function Messages({ of }: { of: Message[] }) {
  const rest = of.at(-1)?.message_count ?? 0;
  return (
    <div class="messages">
      <p class="muted" role="status">
        {plural(of.length, "message")}; {count(rest)} more in the queue.
      </p>
      {of.map((message, at) => (
        <Shown key={at} of={message} title={String(at + 1)} />
      ))}
    </div>
  );
}

/** One message with its properties and payload, what else is known of it, and what can be done with it. */
export function Shown({ of, title, facts, children }: { of: Partial<Message>; title: string; facts?: ComponentChildren; children?: ComponentChildren }) {
  const { headers, ...properties } = table(of.properties);
  return (
    <article aria-label={`Message ${title}`}>
      <header>
        <b>{title}</b>
        <span>
          {of.exchange === "" ? DEFAULT_EXCHANGE : of.exchange} / <code>{of.routing_key}</code>
        </span>
        {of.redelivered && <Badge tone="warn">redelivered</Badge>}
        <span class="muted">{bytes(of.payload_bytes)}</span>
        {facts}
        {children && <span class="actions">{children}</span>}
      </header>
      <Pairs of={properties} empty="No properties" />
      {headers !== undefined && Object.keys(table(headers)).length > 0 && <Pairs of={table(headers)} />}
      {of.payload !== undefined && <pre tabIndex={0}>{of.payload_encoding === "string" ? pretty(of.payload) : of.payload}</pre>}
      {of.payload !== undefined && of.payload_encoding !== "string" && <p class="help">Shown as {of.payload_encoding}.</p>}
    </article>
  );
}

/** JSON is easier to read over several lines. */
function pretty(text: string): string {
  if (!/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return value(text);
  }
}
