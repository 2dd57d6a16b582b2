/** What operators do to a queue and its messages: look, delete, move, pause, other arguments. */

import { useState } from "preact/hooks";

import { del, get, path, post, put, query } from "../api";
import { QUEUE_ARGUMENTS } from "../known";
import { count, plural, span } from "../format";
import { useAction } from "../poll";
import type { Looked, LookedPage, Queue } from "../types";
import { type Argument, Arguments, rowsOf, tableOf } from "../ui/arguments";
import { Badge, capital, Empty, Notice } from "../ui/basics";
import { Choice, Confirm, Dialog, Form, Opener, Text } from "../ui/form";
import { Shown } from "./messages";

/** Messages that one request shows. */
const PAGE = 20;

interface Moved {
  moved: number;
  refused: number;
  unrouted: number;
}

/** A button that does something at once, and says what went wrong. */
export function Doer({ label, act }: { label: string; act: () => Promise<void> }) {
  const { run, error, busy } = useAction();
  return (
    <>
      <button type="button" disabled={busy} onClick={() => run(act)}>
        {label}
      </button>
      {error && <Notice tone="bad" title={`${capital(error)}.`} />}
    </>
  );
}

/** Messages as they are: none is taken, none is marked. */
export function Browse({ of, close }: { of: Queue; close: () => void }) {
  const [state, setState] = useState<"ready" | "unacked">("ready");
  const [header, setHeader] = useState("");
  const [text, setText] = useState("");
  const [key, setKey] = useState("");
  const [page, setPage] = useState<LookedPage>();
  const [from, setFrom] = useState(0);
  const ask = async (position: number) => {
    const filter = { ...(header && { [`header.${header}`]: text }), routing_key: key || undefined };
    const address = query(path("queues", of.vhost, of.name, "messages"), { state, limit: PAGE, from: position, ...filter });
    setPage(await get<LookedPage>(address));
    setFrom(position);
  };
  const again = () => ask(from);
  return (
    <Dialog title={`Messages of ${of.name}`} onClose={close} wide>
      <Form submit="Look" onSubmit={() => ask(0)} onCancel={close}>
        <div class="row">
          <Choice
            label="Which"
            value={state}
            set={setState}
            of={[
              ["ready", "ready"],
              ["unacked", "unacked, with who has them"],
            ]}
          />
          <Text label="Routing key" value={key} set={setKey} />
          <Text label="Header" value={header} set={setHeader} />
          <Text label="Value of the header" value={text} set={setText} />
        </div>
        <p class="help">They stay where they are, and are not marked as redelivered.</p>
      </Form>
      {page &&
        (page.messages.length === 0 ? (
          <Empty title="No such messages">{page.next === null ? "All were looked at." : `${plural(page.looked_at, "message")} were looked at.`}</Empty>
        ) : (
          <div class="messages">
            {page.messages.map((message) => (
              <Shown key={message.position} of={message} title={String(message.position)} facts={<About of={message} />}>
                {message.state === "ready" && <Do of={of} message={message} done={again} />}
              </Shown>
            ))}
          </div>
        ))}
      {page && page.next !== null && <Doer label="Further" act={() => ask(page.next ?? 0)} />}
    </Dialog>
  );
}

function About({ of }: { of: Looked }) {
  const holder = of.holder;
  return (
    <>
      <span class="muted">{of.is_readable ? `${span(of.age_ms)} old` : "its record cannot be read"}</span>
      {of.delivery_count > 0 && <Badge tone="warn">{`came back ${count(of.delivery_count)} times`}</Badge>}
      {of.expires_at !== null && <span class="muted">{`ends in ${span(Math.max(0, of.expires_at - Date.now()))}`}</span>}
      {of.state === "unacked" && <Badge>{holder ? `with ${holder.consumer_tag} of ${holder.user ?? "?"}, ${holder.connection_name ?? "a connection"} (${holder.channel})` : "taken by get"}</Badge>}
    </>
  );
}

function Do({ of, message, done }: { of: Queue; message: Looked; done: () => Promise<void> }) {
  const address = path("queues", of.vhost, of.name, "messages", String(message.position));
  const then = (act: () => Promise<unknown>) => async () => {
    await act();
    await done();
  };
  return (
    <>
      <Doer label="To the front" act={then(() => post(query(`${address}/requeue`, { to: "front" }), undefined))} />
      <Doer label="To the end" act={then(() => post(query(`${address}/requeue`, { to: "end" }), undefined))} />
      <Opener label="Move">{(close) => <Move of={of} positions={[message.position]} close={() => (close(), void done())} />}</Opener>
      <Opener label="Delete message" tone="danger">
        {(close) => (
          <Confirm title={`Delete message ${message.position}`} submit="Delete" onClose={close} act={then(() => del(address))}>
            <p>It will be lost.</p>
          </Confirm>
        )}
      </Opener>
    </>
  );
}

/** Moves some messages, or the first ones of a queue. */
export function Move({ of, positions, close }: { of: Queue; positions?: number[]; close: () => void }) {
  const [kind, setKind] = useState<"to_queue" | "to_exchange">("to_queue");
  const [target, setTarget] = useState("");
  const [key, setKey] = useState("");
  const [number, setNumber] = useState("");
  const [header, setHeader] = useState("");
  const [text, setText] = useState("");
  const [outcome, setOutcome] = useState<Moved>();
  const move = async () => {
    setOutcome(undefined);
    const which = positions ? { positions } : { count: number === "" ? undefined : Number(number), filter: header ? { headers: { [header]: text } } : undefined };
    const body = { [kind]: target, routing_key: kind === "to_exchange" && key !== "" ? key : undefined, ...which };
    setOutcome(await post<Moved>(path("queues", of.vhost, of.name, "move"), body));
  };
  return (
    <Dialog title={positions ? `Move message ${positions.join(", ")}` : `Move messages of ${of.name}`} onClose={close}>
      <Form submit="Move" onSubmit={move} onCancel={close}>
        <Choice
          label="To"
          value={kind}
          set={setKind}
          of={[
            ["to_queue", "a queue"],
            ["to_exchange", "an exchange"],
          ]}
        />
        <Text label="Name" value={target} set={setTarget} required autoFocus />
        {kind === "to_exchange" && <Text label="Routing key" value={key} set={setKey} help="Without one each message keeps its own." />}
        {!positions && (
          <>
            <Text label="How many" type="number" value={number} set={setNumber} help="The first ones; all without a number." />
            <Text label="Only with this header" value={header} set={setHeader} />
            {header !== "" && <Text label="Its value" value={text} set={setText} />}
          </>
        )}
        <p class="help">Each message is stored there before it leaves this queue.</p>
        {outcome && (
          <Notice tone={outcome.refused + outcome.unrouted > 0 ? "warn" : "good"} title={`${plural(outcome.moved, "message")} moved.`}>
            {outcome.refused > 0 && <p>{count(outcome.refused)} refused: the target is full, or this user may not write there. They stay.</p>}
            {outcome.unrouted > 0 && <p>{count(outcome.unrouted)} routed nowhere. They stay.</p>}
          </Notice>
        )}
      </Form>
    </Dialog>
  );
}

export function Pause({ of }: { of: Queue }) {
  const isPaused = of.state === "paused";
  const address = path("queues", of.vhost, of.name, isPaused ? "resume" : "pause");
  return <Doer label={isPaused ? "Resume" : "Pause"} act={async () => void (await put(address, undefined))} />;
}

/** Other arguments for the queue as it is. */
export function ChangeArguments({ of, close }: { of: Queue; close: () => void }) {
  const [rows, setRows] = useState<Argument[]>(rowsOf(of.arguments));
  const act = async () => {
    await put(path("queues", of.vhost, of.name, "arguments"), tableOf(rows));
    close();
  };
  return (
    <Dialog title={`Arguments of ${of.name}`} onClose={close}>
      <Form submit="Set" onSubmit={act} onCancel={close}>
        <Arguments label="Arguments" rows={rows} set={setRows} known={QUEUE_ARGUMENTS} />
        <p class="help">They hold at once, and survive a restart. Whoever declares the queue has to name the same ones from now on. Its type cannot change.</p>
      </Form>
    </Dialog>
  );
}
