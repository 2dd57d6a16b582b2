/** The parts of the API's objects that the page reads. Anything may be absent: a broker says what it knows. */

export interface Details {
  rate?: number;
  samples?: { sample: number; timestamp: number }[];
}

/** Counters `x` (numbers) beside `x_details`. */
export type Stats = Record<string, number | Details | undefined>;

export interface Overview {
  rabbitmq_version?: string;
  leveret_version?: string;
  product_name?: string;
  product_version?: string;
  management_version?: string;
  erlang_version?: string;
  cluster_name?: string;
  cluster_tags?: Record<string, unknown> | unknown[];
  node?: string;
  rates_mode?: string;
  message_stats?: Stats;
  churn_rates?: Stats;
  queue_totals?: Stats;
  object_totals?: { connections: number; channels: number; exchanges: number; queues: number; consumers: number };
  listeners?: Listener[];
  contexts?: { description: string; path: string; port: number | string; node: string; ssl?: boolean }[];
  exchange_types?: { name: string; description?: string; enabled?: boolean }[];
  default_queue_type?: string;
}

export interface Listener {
  node: string;
  protocol: string;
  ip_address: string;
  port: number;
}

export interface Node extends Stats {
  [key: string]: any;
  name: string;
  running: boolean;
}

export interface Queue {
  name: string;
  vhost: string;
  type?: string;
  durable: boolean;
  auto_delete: boolean;
  exclusive: boolean;
  arguments: Record<string, unknown>;
  node?: string;
  /** The node that serves it. */
  leader?: string | null;
  /** Nodes with a copy. */
  members?: string[];
  /** Those of them that are there. */
  online?: string[];
  state?: string;
  policy?: string | null;
  operator_policy?: string | null;
  effective_policy_definition?: Record<string, unknown> | unknown[] | null;
  messages?: number;
  messages_ready?: number;
  messages_unacknowledged?: number;
  messages_persistent?: number;
  messages_ram?: number;
  messages_paged_out?: number;
  /** Dead letters that stay until their targets have them. */
  messages_dlx?: number;
  message_bytes_dlx?: number;
  message_bytes?: number;
  message_bytes_ready?: number;
  message_bytes_unacknowledged?: number;
  message_bytes_ram?: number;
  memory?: number;
  consumers?: number;
  active_consumers?: number;
  consumer_utilisation?: number | null;
  consumer_capacity?: number | null;
  idle_since?: string;
  head_message_timestamp?: number | null;
  /** How long the oldest ready message has been there. */
  oldest_ready_ms?: number | null;
  single_active_consumer_tag?: unknown;
  exclusive_consumer_tag?: string | null;
  owner_pid_details?: { name?: string };
  message_stats?: Stats;
  consumer_details?: Consumer[];
  incoming?: { exchange?: { name: string; vhost: string }; stats: Stats }[];
  deliveries?: { channel_details: { name: string; connection_name: string }; stats: Stats }[];
  [key: string]: unknown;
}

export interface Consumer {
  consumer_tag: string;
  active?: boolean;
  activity_status?: string;
  ack_required: boolean;
  prefetch_count: number;
  /** Messages it has not acked; for how long the oldest of its channel waits; whether it could take no more. */
  messages_unacknowledged?: number;
  oldest_unacked_ms?: number;
  blocked?: boolean;
  /** For how long its prefetch has been reached, since a message was there that it could not be given. */
  prefetch_full_ms?: number | null;
  exclusive: boolean;
  arguments?: Record<string, unknown>;
  consumer_timeout?: number | string;
  queue: { name: string; vhost: string };
  channel_details: { name?: string; number?: number; connection_name?: string; peer_host?: string; user?: string };
}

/** What is busiest, as RabbitMQ's top plugin tells of processes. */
export interface Top {
  processes: TopRow[];
}

export interface TopRow {
  pid: string;
  /** Of a queue, connection or channel what it is called; of a thread or shard `name`. */
  name: { name?: string; queue_name?: string; vhost?: string; connection_name?: string; channel_number?: number };
  memory: number;
  reduction_delta: number;
  message_queue_len: number;
  status: string;
}

/** How many confirms took how long: `counts[n]` of a step are those below `below_ms[n]`. */
export interface ConfirmLatency {
  below_ms: (number | null)[];
  steps: { timestamp: number; counts: number[] }[];
}

/** What holds messages up in the node as a whole. */
export interface Waits {
  alarms: string[];
  connections: { alarm: number; disk: number; answer: number; rate: number; output: number };
  disk: { unwritten_bytes: number; writes_per_second: number; write_ms: number | null; syncs_per_second: number; sync_ms: number | null };
  log: { messages_bytes: number; memory_bytes: number; disk_bytes: number };
  unconfirmed_bytes: number;
}

export interface Exchange {
  name: string;
  vhost: string;
  type: string;
  durable: boolean;
  auto_delete: boolean;
  internal: boolean;
  arguments: Record<string, unknown>;
  policy?: string | null;
  message_stats?: Stats;
  user_who_performed_action?: string;
  incoming?: { channel_details?: { name: string }; stats: Stats }[];
  outgoing?: { queue?: { name: string; vhost: string }; stats: Stats }[];
}

export interface Binding {
  source: string;
  vhost: string;
  destination: string;
  destination_type: "queue" | "exchange";
  routing_key: string;
  arguments: Record<string, unknown>;
  properties_key: string;
}

export interface Connection {
  name: string;
  node?: string;
  vhost?: string;
  user?: string;
  user_provided_name?: string;
  state?: string;
  protocol?: string;
  ssl?: boolean;
  channels?: number;
  channel_max?: number;
  frame_max?: number;
  timeout?: number;
  connected_at?: number;
  peer_host?: string;
  peer_port?: number;
  host?: string;
  port?: number;
  auth_mechanism?: string;
  client_properties?: Record<string, any>;
  recv_oct?: number;
  send_oct?: number;
  recv_oct_details?: Details;
  send_oct_details?: Details;
  send_pend?: number;
  last_blocked_by?: string | null;
  last_blocked_age?: number | string | null;
  [key: string]: unknown;
}

export interface Channel {
  name: string;
  number: number;
  vhost?: string;
  user?: string;
  state?: string;
  confirm?: boolean;
  transactional?: boolean;
  prefetch_count?: number;
  global_prefetch_count?: number;
  messages_unacknowledged?: number;
  messages_unconfirmed?: number;
  messages_uncommitted?: number;
  acks_uncommitted?: number;
  consumer_count?: number;
  idle_since?: string;
  connection_details?: { name?: string; peer_host?: string; peer_port?: number };
  message_stats?: Stats;
  consumer_details?: Consumer[];
  publishes?: { exchange?: { name: string; vhost: string }; stats: Stats }[];
  deliveries?: { queue?: { name: string; vhost: string }; stats: Stats }[];
}

export interface User {
  name: string;
  tags: string[] | string;
  password_hash?: string;
  hashing_algorithm?: string;
  limits?: Record<string, number> | unknown[];
}

export interface Vhost {
  name: string;
  description?: string;
  tags?: string[] | string;
  default_queue_type?: string;
  tracing?: boolean;
  cluster_state?: Record<string, string>;
  protected_from_deletion?: boolean;
  messages?: number;
  messages_ready?: number;
  messages_unacknowledged?: number;
  message_stats?: Stats;
  recv_oct_details?: Details;
  send_oct_details?: Details;
  metadata?: Record<string, unknown>;
  [key: string]: unknown;
}

export interface Permission {
  user: string;
  vhost: string;
  configure: string;
  write: string;
  read: string;
}

export interface TopicPermission {
  user: string;
  vhost: string;
  exchange: string;
  write: string;
  read: string;
}

export interface Policy {
  name: string;
  vhost: string;
  pattern: string;
  definition: Record<string, unknown>;
  priority: number;
  "apply-to": string;
}

export interface Page<T> {
  items: T[];
  page: number;
  page_count: number;
  page_size: number;
  item_count: number;
  filtered_count: number;
  total_count: number;
}

export interface Message {
  payload: string;
  payload_encoding: string;
  payload_bytes: number;
  redelivered: boolean;
  exchange: string;
  routing_key: string;
  message_count: number;
  properties: Record<string, unknown> | unknown[];
}

/** A message as it is in its queue. */
export interface Looked extends Partial<Message> {
  position: number;
  state: "ready" | "unacked";
  redelivered: boolean;
  payload_bytes: number;
  delivery_count: number;
  is_readable: boolean;
  age_ms?: number;
  expires_at: number | null;
  holder: { consumer_tag: string; channel: number; connection_name: string | null; user: string | null } | null;
}

export interface LookedPage {
  messages: Looked[];
  next: number | null;
  looked_at: number;
}

/** The rate of one counter; `undefined` when the broker does not count it. */
export function rateOf(stats: Stats | undefined, name: string): number | undefined {
  return (stats?.[`${name}_details`] as Details | undefined)?.rate;
}

export function samplesOf(stats: Stats | undefined, name: string): Details["samples"] {
  return (stats?.[`${name}_details`] as Details | undefined)?.samples;
}

export function numberOf(of: object | undefined, name: string): number | undefined {
  const found = (of as Record<string, unknown> | undefined)?.[name];
  return typeof found === "number" ? found : undefined;
}

/** RabbitMQ writes an empty table as an empty list here and there. */
export function table(of: unknown): Record<string, unknown> {
  return of !== null && typeof of === "object" && !Array.isArray(of) ? (of as Record<string, unknown>) : {};
}

export const tagsOf = (of: string[] | string | undefined): string[] =>
  (typeof of === "string" ? of.split(",") : (of ?? [])).map((tag) => tag.trim()).filter((tag) => tag !== "");

/** Copies of messages that are written to a file. */
export interface Trace {
  vhost: string;
  name: string;
  format: string;
  pattern: string;
  max_payload_bytes?: number;
  tracer_connection_username?: string;
  state: "running" | "stopped";
  reason?: string;
  file: string;
  written: number;
  not_written: number;
  /** While it runs. */
  queue?: { name: string; messages?: number; message_stats?: { deliver_no_ack_details?: { rate?: number } } };
}

export interface TraceFile {
  name: string;
  size: number;
}
