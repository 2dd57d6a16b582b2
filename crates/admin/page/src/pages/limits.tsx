/** Limits of vhosts and users. */

import { useState } from "preact/hooks";

import { del, path, put } from "../api";
import { count } from "../format";
import { usePoll } from "../poll";
import { href } from "../router";
import { table } from "../types";
import { Empty, Panel, Problem } from "../ui/basics";
import { Choice, Confirm, Dialog, Form, Opener, Text } from "../ui/form";
import { LocalTable } from "../ui/list";

type Kind = "vhost" | "user";

const NAMES: Record<Kind, readonly (readonly [string, string])[]> = {
  vhost: [
    ["max-connections", "connections"],
    ["max-queues", "queues"],
  ],
  user: [
    ["max-connections", "connections"],
    ["max-channels", "channels"],
  ],
};

interface Limit {
  of: string;
  name: string;
  value: number;
}

interface Row {
  vhost?: string;
  user?: string;
  value: unknown;
}

export function LimitsPage() {
  return (
    <>
      <h1>Limits</h1>
      <LimitsPanel kind="vhost" />
      <LimitsPanel kind="user" />
    </>
  );
}

/** Limits of one vhost or user, or of all of them. */
export function LimitsPanel({ kind, name }: { kind: Kind; name?: string }) {
  const address = name === undefined ? `${kind}-limits` : path(`${kind}-limits`, name);
  const { data, error } = usePoll<Row[]>(address, 5000);
  const rows: Limit[] = (Array.isArray(data) ? data : []).flatMap((row) =>
    Object.entries(table(row.value)).map(([limit, value]) => ({ of: row.vhost ?? row.user ?? name ?? "", name: limit, value: Number(value) })),
  );
  const title = name === undefined ? `Limits of ${kind}s` : "Limits";
  return (
    <Panel title={title} actions={<Opener label="Set">{(close) => <SetLimit kind={kind} name={name} close={close} />}</Opener>}>
      {error && <Problem error={error} what="limits" />}
      {data && rows.length === 0 && <Empty title="No limits are set" />}
      {rows.length > 0 && (
        <LocalTable
          label={title}
          rows={rows}
          rowKey={(row) => `${row.of} ${row.name}`}
          columns={[
            { key: "of", title: kind === "vhost" ? "Vhost" : "User", sort: "of", cell: (row) => <a href={href([`${kind}s`, row.of])}>{row.of}</a> },
            { key: "name", title: "Limit", sort: "name", cell: (row) => row.name },
            { key: "value", title: "At most", isNumber: true, sort: "value", cell: (row) => (row.value < 0 ? "no limit" : count(row.value)) },
            { key: "clear", title: "", cell: (row) => <Opener label="Clear">{(close) => <ClearLimit kind={kind} of={row} close={close} />}</Opener> },
          ]}
        />
      )}
    </Panel>
  );
}

function SetLimit({ kind, name, close }: { kind: Kind; name?: string; close: () => void }) {
  const [of, setOf] = useState(name ?? (kind === "vhost" ? "/" : ""));
  const [limit, setLimit] = useState(NAMES[kind][0]![0]);
  const [most, setMost] = useState("");
  const save = async () => {
    await put(path(`${kind}-limits`, of, limit), { value: Number(most) });
    close();
  };
  return (
    <Dialog title={`Limit of a ${kind}`} onClose={close}>
      <Form submit="Set limit" onSubmit={save} onCancel={close}>
        {name === undefined && <Text label={kind === "vhost" ? "Vhost" : "User"} value={of} set={setOf} required autoFocus />}
        <Choice label="Of" value={limit} set={setLimit} of={NAMES[kind]} />
        <Text label="At most" type="number" value={most} set={setMost} required help="0 allows none. What is there already stays." />
      </Form>
    </Dialog>
  );
}

function ClearLimit({ kind, of, close }: { kind: Kind; of: Limit; close: () => void }) {
  const act = async () => {
    await del(path(`${kind}-limits`, of.of, of.name));
    close();
  };
  return (
    <Confirm title="Clear the limit" submit="Clear" onClose={close} act={act}>
      <p>
        {of.of} may then have any number ({of.name}).
      </p>
    </Confirm>
  );
}
