/**
 * Where a message waits, told from what the API reports now: the stages from the publisher's socket
 * to the consumer's ack, and at which of them something is held.
 */

import { bytes, count, percent, plural, rate, span } from "./format";
import type { Channel, Connection, Consumer, Node, Queue, Waits } from "./types";
import { rateOf } from "./types";
import type { Tone } from "./ui/basics";

export interface Stage {
  key: string;
  title: string;
  /** What is held here, as the reader sees it; `undefined` when the broker does not report it. */
  held: string | undefined;
  tone: Tone;
  about: string;
}

export interface Verdict {
  /** The stage that holds things up, if one does. */
  stage: string;
  tone: Tone;
  text: string;
  /** What can be done about it. */
  advice?: string;
}

const UNTOLD = "The broker's API does not report this stage.";

export interface Alarm {
  kind: "memory" | "disk";
  node: string;
  title: string;
  text: string;
}

export function alarmsOf(nodes: Node[] | undefined): Alarm[] {
  return (nodes ?? []).flatMap((node) => {
    const alarms: Alarm[] = [];
    if (node.mem_alarm === true) {
      alarms.push({
        kind: "memory",
        node: node.name,
        title: `Publishers are blocked: memory alarm on ${node.name}`,
        text: `${bytes(node.mem_used)} are in use and the limit is ${bytes(node.mem_limit)}. The alarm ends by itself when memory falls below the limit: let consumers catch up, purge what nobody needs, or raise vm_memory_high_watermark (leveret ctl set_vm_memory_high_watermark).`,
      });
    }
    if (node.disk_free_alarm === true) {
      alarms.push({
        kind: "disk",
        node: node.name,
        title: `Publishers are blocked: disk alarm on ${node.name}`,
        text: `${bytes(node.disk_free)} are free and the limit is ${bytes(node.disk_free_limit)}. Make room on the data directory's disk, drain or purge queues, or lower disk_free_limit (leveret ctl set_disk_free_limit).`,
      });
    }
    return alarms;
  });
}

/** What the broker as a whole waits for, in sentences: connections, the disk, the log. */
export function brokerFacts({ connections, disk, log, unconfirmed_bytes }: Waits): string[] {
  const kinds: [number, string][] = [
    [connections.alarm, "not read because of an alarm"],
    [connections.disk, "not read until the disk has caught up"],
    [connections.rate, "not read because of a limit of its rate"],
    [connections.answer, "waiting for the answer to a command"],
    [connections.output, "not read until its client reads what it is sent"],
  ];
  const held = kinds.filter(([many]) => many > 0).map(([many, why]) => `${plural(many, "connection")} ${why}.`);
  const each = (ms: number | null, rate_: number) => (ms === null ? "none now" : `${ms.toFixed(ms < 10 ? 2 : 0)} ms each, ${rate(rate_)}`);
  return [
    ...(held.length > 0 ? held : ["Every connection is read."]),
    `${bytes(disk.unwritten_bytes)} wait to be written to the disk, ${bytes(unconfirmed_bytes)} of memory is for messages whose publishers are not told yet.`,
    `Writes: ${each(disk.write_ms, disk.writes_per_second)}. Syncs: ${each(disk.sync_ms, disk.syncs_per_second)}.`,
    `The log has ${bytes(log.disk_bytes)} of files for ${bytes(log.messages_bytes)} of messages, of which ${bytes(log.memory_bytes)} are in memory.`,
  ];
}

/** The most messages that the consumers of a queue may hold unacked; infinite when one has no limit. */
export function roomOf(consumers: Consumer[] | undefined): number | undefined {
  if (consumers === undefined || consumers.length === 0) return undefined;
  return consumers.reduce((room, { ack_required, prefetch_count }) => {
    return room + (ack_required && prefetch_count > 0 ? prefetch_count : Infinity);
  }, 0);
}

export function queueVerdict(queue: Queue, alarms: Alarm[] = []): Verdict {
  const ready = queue.messages_ready ?? 0;
  const unacked = queue.messages_unacknowledged ?? 0;
  const consumers = queue.consumers ?? 0;
  const room = roomOf(queue.consumer_details);
  const busy = queue.consumer_capacity ?? queue.consumer_utilisation ?? undefined;
  if (queue.state === "paused") {
    return { stage: "queue", tone: "warn", text: "The queue is paused: nobody is given its messages.", advice: "Resume it when its consumers are to go on." };
  }
  if (queue.state !== undefined && !["running", "idle", "flow"].includes(queue.state)) {
    return { stage: "queue", tone: "bad", text: `The queue is ${queue.state}.` };
  }
  if (ready > 0 && consumers === 0) {
    return {
      stage: "queue",
      tone: "warn",
      text: `${waiting(ready)} and nobody consumes.`,
      advice: "Start a consumer, or see whether one lost its connection.",
    };
  }
  if (ready > 0 && room !== undefined && unacked >= room) {
    return {
      stage: "prefetch",
      tone: "warn",
      text: `${waiting(ready)} for room: the consumers hold ${count(unacked)} unacked, as many as their prefetch allows${fullFor(queue)}.`,
      advice: "Consumers are slower than publishers, or forgot to ack. Add consumers, or look at the oldest unacked message.",
    };
  }
  if (ready > 0 && busy !== undefined && busy < 0.9) {
    return {
      stage: "prefetch",
      tone: "warn",
      text: `${waiting(ready)} for ${consumers === 1 ? "the consumer" : "the consumers"}: only ${percent(busy)} of the time one could take a message at once.`,
      advice: "Consumers, their prefetch or the network limit the rate. Raise prefetch or add consumers.",
    };
  }
  if (unacked > 0 && ready === 0) {
    return { stage: "consumer", tone: "plain", text: `${plural(unacked, "message")} with consumers, not acked yet.` };
  }
  if (ready > 0) {
    return { stage: "queue", tone: "plain", text: `${plural(ready, "message")} on the way to ${plural(consumers, "consumer")}.` };
  }
  if (queue.state === "flow") {
    return { stage: "log", tone: "warn", text: "Publishers to this queue are slowed: it is given more than it can write." };
  }
  if (alarms.length > 0) {
    return { stage: "alarm", tone: "bad", text: "Nothing waits here, but publishers are blocked by an alarm." };
  }
  return { stage: "", tone: "good", text: "Nothing waits." };
}

/** For how long the consumers of a queue have been at their prefetch: the one that is longest. */
function fullFor(queue: Queue): string {
  const longest = Math.max(...(queue.consumer_details ?? []).map(({ prefetch_full_ms }) => prefetch_full_ms ?? 0), 0);
  return longest >= 1000 ? `, for ${span(longest)}` : "";
}

export function queueStages(queue: Queue, alarms: Alarm[]): Stage[] {
  const verdict = queueVerdict(queue, alarms);
  const room = roomOf(queue.consumer_details);
  const tone = (key: string, otherwise: Tone = "plain"): Tone => (verdict.stage === key ? verdict.tone : otherwise);
  const isFlow = queue.state === "flow";
  const age = headAge(queue);
  return [
    {
      key: "alarm",
      title: "Alarm",
      held: alarms.length > 0 ? "blocked" : "clear",
      tone: alarms.length > 0 ? "bad" : "plain",
      about: alarms.length > 0 ? alarms.map(({ title }) => title).join("; ") : "No alarm holds publishers back.",
    },
    {
      key: "route",
      title: "Publish",
      held: rate(rateOf(queue.message_stats, "publish") ?? 0),
      tone: "plain",
      about: "Messages routed to this queue.",
    },
    {
      key: "log",
      title: "Log",
      held: isFlow ? "flow" : "open",
      tone: tone("log"),
      about: isFlow ? "The queue slows its publishers." : "The queue takes what is published. How many messages wait to be written or synced is not reported per queue.",
    },
    {
      key: "queue",
      title: "Ready",
      held: count(queue.messages_ready),
      tone: tone("queue"),
      about: queue.messages_ready === 0 ? "No message waits for a consumer." : age === undefined ? "" : `The oldest came ${age} ago.`,
    },
    {
      key: "prefetch",
      title: "Prefetch",
      held: room === undefined ? "no consumer" : room === Infinity ? "no limit" : `${count(queue.messages_unacknowledged)} of ${count(room)}`,
      tone: tone("prefetch"),
      about: "Unacked messages the consumers hold, of those their prefetch allows.",
    },
    {
      key: "consumer",
      title: "Unacked",
      held: count(queue.messages_unacknowledged),
      tone: tone("consumer"),
      about: "Delivered to consumers and not acked yet.",
    },
    {
      key: "ack",
      title: "Ack",
      held: rate(rateOf(queue.message_stats, "ack") ?? 0),
      tone: "plain",
      about: "Messages that consumers finish.",
    },
  ];
}

function headAge(queue: Queue): string | undefined {
  return typeof queue.oldest_ready_ms === "number" ? span(queue.oldest_ready_ms) : undefined;
}

export function connectionVerdict(connection: Connection, channels: Channel[] | undefined): Verdict {
  const unconfirmed = sum(channels, "messages_unconfirmed");
  const full = (channels ?? []).filter(isFull);
  const unread = connection.send_pend ?? 0;
  if (connection.state === "blocked" || connection.state === "blocking") {
    const since = blockedFor(connection);
    return {
      stage: "alarm",
      tone: "bad",
      text: `The broker does not read from this connection${since ? `, for ${since}` : ""}: ${connection.last_blocked_by ?? "an alarm"}.`,
      advice: "The overview says which alarm it is and what ends it.",
    };
  }
  if (connection.state === "flow") {
    return { stage: "route", tone: "warn", text: "The broker slows this publisher: it sends more than its queues can take." };
  }
  if (unread > 0) {
    return {
      stage: "socket",
      tone: "warn",
      text: `${count(unread)} waiting to be sent: the client reads more slowly than the broker delivers.`,
      advice: "Look at the client's CPU and network; a lower prefetch keeps messages for other consumers.",
    };
  }
  if (full.length > 0) {
    return {
      stage: "prefetch",
      tone: "warn",
      text: `${plural(full.length, "channel")} of this connection ${full.length === 1 ? "holds" : "hold"} as many unacked messages as prefetch allows.`,
      advice: "The consumer is slow, or does not ack.",
    };
  }
  if (unconfirmed > 0) {
    return { stage: "log", tone: "plain", text: `${waiting(unconfirmed)} to be confirmed.` };
  }
  const unacked = sum(channels, "messages_unacknowledged");
  if (unacked > 0) return { stage: "consumer", tone: "plain", text: `${plural(unacked, "message")} with this consumer, not acked yet.` };
  return { stage: "", tone: "good", text: "Nothing waits." };
}

export function connectionStages(connection: Connection, channels: Channel[] | undefined): Stage[] {
  const verdict = connectionVerdict(connection, channels);
  const tone = (key: string): Tone => (verdict.stage === key ? verdict.tone : "plain");
  const isBlocked = connection.state === "blocked" || connection.state === "blocking";
  const limited = (channels ?? []).filter(({ prefetch_count, global_prefetch_count }) => (prefetch_count ?? 0) + (global_prefetch_count ?? 0) > 0);
  const known = channels !== undefined;
  return [
    { key: "alarm", title: "Alarm", held: isBlocked ? "blocked" : "clear", tone: tone("alarm"), about: isBlocked ? "The broker does not read from this connection." : "The broker reads from this connection." },
    { key: "route", title: "Route", held: connection.state === "flow" ? "flow" : "open", tone: tone("route"), about: "Whether the broker slows this publisher." },
    { key: "log", title: "Confirm", held: known ? count(sum(channels, "messages_unconfirmed")) : undefined, tone: tone("log"), about: known ? "Published, not confirmed yet: in the log, waiting for the disk or for a consumer's ack." : UNTOLD },
    { key: "tx", title: "Commit", held: known ? count(sum(channels, "messages_uncommitted")) : undefined, tone: "plain", about: "Published in a transaction that is not committed." },
    { key: "socket", title: "Socket", held: connection.send_pend === undefined ? undefined : count(connection.send_pend), tone: tone("socket"), about: connection.send_pend === undefined ? UNTOLD : "Waiting to be sent to the client." },
    { key: "prefetch", title: "Prefetch", held: known ? `${count(limited.filter(isFull).length)} of ${count(limited.length)} full` : undefined, tone: tone("prefetch"), about: "Channels with a prefetch limit that have reached it." },
    { key: "consumer", title: "Unacked", held: known ? count(sum(channels, "messages_unacknowledged")) : undefined, tone: tone("consumer"), about: "Delivered and not acked yet." },
  ];
}

const waiting = (messages: number) => `${plural(messages, "message")} ${messages === 1 ? "waits" : "wait"}`;

function isFull(channel: Channel): boolean {
  const unacked = channel.messages_unacknowledged ?? 0;
  const limit = channel.global_prefetch_count || (channel.prefetch_count ?? 0) * Math.max(1, channel.consumer_count ?? 1);
  return limit > 0 && unacked >= limit;
}

function blockedFor({ last_blocked_age }: Connection): string | undefined {
  return typeof last_blocked_age === "number" ? span(last_blocked_age * 1000) : undefined;
}

function sum(channels: Channel[] | undefined, key: "messages_unconfirmed" | "messages_unacknowledged" | "messages_uncommitted"): number {
  return (channels ?? []).reduce((all, channel) => all + (channel[key] ?? 0), 0);
}
