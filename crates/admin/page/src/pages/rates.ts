/** The lines of the charts that several pages show. */

import type { Line } from "../series";
import { numberOf, rateOf, samplesOf, type Stats } from "../types";

const LENGTHS: [string, string, string][] = [
  // Below the others: it is often the same line.
  ["messages", "Total", "g"],
  ["messages_ready", "Ready", "a"],
  ["messages_unacknowledged", "Unacked", "b"],
];

/** Lengths of one queue, a vhost or all of them. */
export function lengthLines(of: object | undefined): Line[] {
  return LENGTHS.map(([key, label, colour]) => ({
    label,
    colour,
    value: numberOf(of, key) ?? 0,
    history: samplesOf(of as Stats, key),
  }));
}

const RATES: Record<string, [string, string]> = {
  publish: ["Publish", "a"],
  publish_in: ["Publish in", "a"],
  publish_out: ["Publish out", "b"],
  confirm: ["Confirm", "c"],
  deliver_get: ["Deliver / get", "b"],
  deliver: ["Deliver", "b"],
  deliver_no_ack: ["Deliver, no ack", "f"],
  ack: ["Ack", "d"],
  redeliver: ["Redeliver", "e"],
  get: ["Get", "f"],
  get_empty: ["Get, empty", "g"],
  return_unroutable: ["Returned", "e"],
  drop_unroutable: ["Dropped, no route", "g"],
  disk_reads: ["Disk reads", "f"],
  disk_writes: ["Disk writes", "g"],
  connection_created: ["Connections opened", "a"],
  connection_closed: ["Connections closed", "b"],
  channel_created: ["Channels opened", "c"],
  channel_closed: ["Channels closed", "d"],
  queue_created: ["Queues created", "e"],
  queue_deleted: ["Queues deleted", "g"],
  recv_oct: ["From client", "a"],
  send_oct: ["To client", "b"],
};

/** Rates of these counters. A counter that the broker has not counted yet is 0. */
export function rateLines(stats: Stats | undefined, keys: string[]): Line[] {
  return keys.map((key) => {
    const [label, colour] = RATES[key] ?? [key, "g"];
    return { label, colour, value: rateOf(stats, key) ?? 0, history: samplesOf(stats, key), isCounter: true };
  });
}
