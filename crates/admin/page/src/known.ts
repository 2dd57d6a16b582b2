/** Keys the broker knows, with what they do in a line. */

import type { KnownKey } from "./ui/arguments";

/** Keys of queues that are both an argument (`x-` and the key) and a policy's key. */
const BOTH: KnownKey[] = [
  { key: "message-ttl", kind: "number", about: "Milliseconds after which a ready message expires" },
  { key: "expires", kind: "number", about: "Milliseconds without use after which the queue is deleted" },
  { key: "max-length", kind: "number", about: "Most ready messages the queue keeps" },
  { key: "max-length-bytes", kind: "number", about: "Most bytes of ready messages the queue keeps" },
  { key: "overflow", kind: "text", about: "What happens at the length limit", values: ["drop-head", "reject-publish", "reject-publish-dlx"] },
  { key: "dead-letter-exchange", kind: "text", about: "Where rejected, expired and dropped messages go" },
  { key: "dead-letter-routing-key", kind: "text", about: "Their routing key; without it they keep their own" },
  { key: "dead-letter-strategy", kind: "text", about: "How sure a dead letter arrives", values: ["at-most-once", "at-least-once"] },
  { key: "delivery-limit", kind: "number", about: "Deliveries after which a message is dropped or dead-lettered" },
  { key: "consumer-timeout", kind: "number", about: "Milliseconds a consumer may keep a message unacked" },
  { key: "confirm-on", kind: "text", about: "When a publisher's message is confirmed", values: ["first", "enqueue", "ack", "ack-lean"] },
  { key: "confirm-timeout", kind: "number", about: "Milliseconds after which a message that is not confirmed is nacked" },
  { key: "confirm-defer", kind: "number", about: "Under confirm-on ack: milliseconds until a waiting message is written to the disk" },
  { key: "confirm-on-dead-letter", kind: "text", about: "Under confirm-on ack: what a dead letter means to its publisher", values: ["nack", "ack"] },
  { key: "confirm-on-header", kind: "boolean", about: "Let a message choose its rule with the header x-confirm-on" },
  { key: "deliver-before-commit", kind: "boolean", about: "In a cluster: deliver messages before a majority of the nodes has them" },
  { key: "replication-confirm", kind: "text", about: "In a cluster: whose disks a confirmed message is on", values: ["majority", "all"] },
];

export const QUEUE_ARGUMENTS: readonly KnownKey[] = [
  { key: "x-queue-type", kind: "text", about: "Kind of queue", values: ["classic", "quorum", "stream"] },
  { key: "x-single-active-consumer", kind: "boolean", about: "One consumer gets all messages; the next takes over when it goes" },
  { key: "x-max-priority", kind: "number", about: "Highest priority of messages, 1 to 255; up to 10 is sensible" },
  ...BOTH.map((known) => ({ ...known, key: `x-${known.key}` })),
];

export const EXCHANGE_ARGUMENTS: readonly KnownKey[] = [
  { key: "alternate-exchange", kind: "text", about: "Takes the messages that no binding matches" },
  { key: "hash-header", kind: "text", about: "x-consistent-hash: the header to hash instead of the routing key" },
  { key: "hash-property", kind: "text", about: "x-consistent-hash: the property to hash instead of the routing key", values: ["message_id", "correlation_id", "timestamp"] },
  { key: "x-recent-history-length", kind: "number", about: "x-recent-history: how many messages are kept" },
];

export const BINDING_ARGUMENTS: readonly KnownKey[] = [
  { key: "x-match", kind: "text", about: "headers exchange: how many of the other arguments have to match", values: ["all", "any", "all-with-x", "any-with-x"] },
];

export const POLICY_KEYS: readonly KnownKey[] = [
  ...BOTH,
  { key: "alternate-exchange", kind: "text", about: "Exchanges: takes the messages that no binding matches" },
];

export const OPERATOR_POLICY_KEYS: readonly KnownKey[] = BOTH.filter(({ key }) =>
  ["message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit"].includes(key),
);

export const EXCHANGE_TYPES = [
  "direct",
  "fanout",
  "topic",
  "headers",
  "x-consistent-hash",
  "x-modulus-hash",
  "x-random",
  "x-local-random",
  "x-recent-history",
] as const;
