/** Small pieces that every page is made of. */

import type { ComponentChildren } from "preact";

import type { ApiError } from "../api";
import { NONE, value as shown } from "../format";
import { href } from "../router";

export type Tone = "plain" | "good" | "warn" | "bad" | "accent";

export function Badge({ tone = "plain", title, children }: { tone?: Tone; title?: string; children: ComponentChildren }) {
  return (
    <span class={`badge ${tone}`} title={title}>
      {children}
    </span>
  );
}

/** Something the reader has to know, in words, with what to do about it. */
export function Notice({ tone, title, children }: { tone: Tone; title: string; children?: ComponentChildren }) {
  return (
    <div class={`notice ${tone}`} role={tone === "bad" ? "alert" : "status"}>
      <strong>{title}</strong>
      {children && <div>{children}</div>}
    </div>
  );
}

/** What went wrong with a request. */
export function Problem({ error, what }: { error: ApiError; what: string }) {
  if (error.status === 401 || error.status === 403) {
    return (
      <Notice tone="plain" title={`You may not see ${what}`}>
        The broker says: {error.message}. An administrator can give your user the tag or permission it needs.
      </Notice>
    );
  }
  if (error.isMissing) {
    return (
      <Notice tone="plain" title={`${capital(what)}: not available`}>
        The broker answered {error.status}: {error.message}.
      </Notice>
    );
  }
  return (
    <Notice tone="bad" title={`Cannot load ${what}`}>
      {capital(error.message)}. The page tries again by itself.
    </Notice>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <strong>{/[.?!]$/.test(title) ? title : `${title}.`}</strong>
      {children && <p>{children}</p>}
    </div>
  );
}

export interface PanelProps {
  title: string;
  note?: ComponentChildren;
  actions?: ComponentChildren;
  children: ComponentChildren;
  id?: string;
}

export function Panel({ title, note, actions, children, id }: PanelProps) {
  return (
    <section class="panel" id={id} aria-label={title}>
      <header>
        <h2>{title}</h2>
        {note && <span class="note">{note}</span>}
        {actions && <div class="actions">{actions}</div>}
      </header>
      {children}
    </section>
  );
}

/** Names and values; `undefined` is shown as a dash, `null` rows are left out. */
export function Facts({ rows }: { rows: ([string, ComponentChildren, string?] | null)[] }) {
  return (
    <dl class="facts">
      {rows.map(
        (row) =>
          row && (
            <div key={row[0]} title={row[2]}>
              <dt>{row[0]}</dt>
              <dd>{row[1] === undefined || row[1] === null || row[1] === "" ? NONE : row[1]}</dd>
            </div>
          ),
      )}
    </dl>
  );
}

/** A field table, one line per key. */
export function Pairs({ of, empty = NONE }: { of: Record<string, unknown>; empty?: string }) {
  const keys = Object.keys(of).sort();
  if (keys.length === 0) return <span class="muted">{empty}</span>;
  return (
    <ul class="pairs">
      {keys.map((key) => (
        <li key={key}>
          <code>{key}</code> <span>{shown(of[key])}</span>
        </li>
      ))}
    </ul>
  );
}

export interface TitleProps {
  kind: string;
  name: string;
  back?: string;
  badges?: ComponentChildren;
  children?: ComponentChildren;
}

/** The head of an object's page. */
export function Title({ kind, name, back, badges, children }: TitleProps) {
  return (
    <div class="title">
      <div>
        <p class="crumbs">{back ? <a href={back}>{kind}</a> : kind}</p>
        <h1>
          {name} {badges}
        </h1>
      </div>
      {children && <div class="actions">{children}</div>}
    </div>
  );
}

export interface GaugeProps {
  label: string;
  part: number | undefined;
  text: ComponentChildren;
  tone?: Tone;
}

/** How full something is. */
export function Gauge({ label, part, text, tone = "accent" }: GaugeProps) {
  const known = part !== undefined && Number.isFinite(part);
  const full = known ? Math.min(1, Math.max(0, part)) : 0;
  return (
    <div class="gauge">
      <span>{label}</span>
      <span class="num">{text}</span>
      <meter class={tone} min={0} max={1} value={full} aria-label={label}>
        {Math.round(full * 100)} %
      </meter>
    </div>
  );
}

export function QueueLink({ vhost, name }: { vhost: string; name: string }) {
  return <a href={href(["queues", vhost, name])}>{name}</a>;
}

/** The default exchange has no name; it is written as in RabbitMQ's page. */
export const DEFAULT_EXCHANGE = "(default)";

export function ExchangeLink({ vhost, name }: { vhost: string; name: string }) {
  return <a href={href(["exchanges", vhost, name === "" ? "amq.default" : name])}>{name === "" ? DEFAULT_EXCHANGE : name}</a>;
}

export function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** The tone of a state the broker reports for a connection, channel or queue. */
export function toneOf(state: string | undefined): Tone {
  if (state === undefined) return "plain";
  if (["running", "idle", "ok"].includes(state)) return "good";
  if (["blocked", "blocking", "flow", "paused", "starting", "opening", "tuning"].includes(state)) return "warn";
  return ["down", "crashed", "stopped", "terminated", "minority"].includes(state) ? "bad" : "plain";
}

export function State({ of }: { of: string | undefined }) {
  return of ? (
    <span class={`state ${toneOf(of)}`}>
      <span class="dot" />
      {of}
    </span>
  ) : (
    <span class="muted">{NONE}</span>
  );
}
