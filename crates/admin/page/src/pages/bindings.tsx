/** Bindings of a queue or an exchange: which there are, adding and removing one. */

import { useState } from "preact/hooks";

import { del, path, post } from "../api";
import { BINDING_ARGUMENTS } from "../known";
import { usePoll } from "../poll";
import type { Binding } from "../types";
import { type Argument, Arguments, tableOf } from "../ui/arguments";
import { Empty, ExchangeLink, Pairs, Panel, Problem, QueueLink } from "../ui/basics";
import { Choice, Confirm, Dialog, Form, Opener, Text } from "../ui/form";
import { LocalTable } from "../ui/list";
import type { Column } from "../ui/table";

const STEP_MS = 5000;

export interface BindingsProps {
  vhost: string;
  name: string;
  /** What the other ends are seen from: a queue (bindings to it), or one side of an exchange. */
  of: "queue" | "source" | "destination";
}

const TITLES = { queue: "Bindings", source: "Bindings from this exchange", destination: "Bindings to this exchange" };

export function Bindings({ vhost, name, of }: BindingsProps) {
  const own = name === "" ? "amq.default" : name;
  const address = of === "queue" ? path("queues", vhost, name, "bindings") : path("exchanges", vhost, own, "bindings", of);
  const { data, error } = usePoll<Binding[]>(address, STEP_MS);
  const isDefault = of !== "queue" && name === "";
  const bind = (
    <Opener label="Bind" title={TITLES[of]}>
      {(close) => <Bind vhost={vhost} name={name} of={of} close={close} />}
    </Opener>
  );
  return (
    <Panel title={TITLES[of]} note={data && String(data.length)} actions={!isDefault && bind}>
      {error && <Problem error={error} what="bindings" />}
      {data && data.length === 0 && <Empty title={isDefault ? "The default exchange has no bindings of its own" : "No bindings"} />}
      {data && data.length > 0 && (
        <LocalTable
          label={TITLES[of]}
          rows={data}
          rowKey={(row) => `${row.source}>${row.destination_type}>${row.destination}>${row.properties_key}`}
          columns={columns(of)}
        />
      )}
    </Panel>
  );
}

function columns(of: BindingsProps["of"]): Column<Binding>[] {
  const other: Column<Binding> =
    of === "source"
      ? {
          key: "destination",
          title: "To",
          sort: "destination",
          cell: (row) => (
            <>
              {row.destination_type === "queue" ? <QueueLink vhost={row.vhost} name={row.destination} /> : <ExchangeLink vhost={row.vhost} name={row.destination} />}{" "}
              <span class="muted">{row.destination_type}</span>
            </>
          ),
        }
      : { key: "source", title: "From", sort: "source", cell: (row) => <ExchangeLink vhost={row.vhost} name={row.source} /> };
  return [
    other,
    { key: "routing_key", title: "Routing key", sort: "routing_key", cell: (row) => <code>{row.routing_key}</code> },
    { key: "arguments", title: "Arguments", cell: (row) => <Pairs of={row.arguments} empty="" /> },
    {
      key: "unbind",
      title: "",
      // Every queue is bound to the default exchange for ever.
      cell: (row) => row.source !== "" && <Opener label="Unbind">{(close) => <Unbind of={row} close={close} />}</Opener>,
    },
  ];
}

function Unbind({ of, close }: { of: Binding; close: () => void }) {
  const act = async () => {
    const type = of.destination_type === "queue" ? "q" : "e";
    await del(path("bindings", of.vhost, "e", of.source, type, of.destination, of.properties_key));
    close();
  };
  return (
    <Confirm title="Unbind" submit="Unbind" onClose={close} act={act}>
      <p>
        Messages with the key <code>{of.routing_key}</code> will no longer go from {of.source} to {of.destination}.
      </p>
    </Confirm>
  );
}

function Bind({ vhost, name, of, close }: BindingsProps & { close: () => void }) {
  const [other, setOther] = useState("");
  const [type, setType] = useState<"q" | "e">("q");
  const [key, setKey] = useState("");
  const [rows, setRows] = useState<Argument[]>([]);
  const bind = async () => {
    const [source, kind, destination] = of === "source" ? [name, type, other] : [other, of === "queue" ? "q" : "e", name];
    await post(path("bindings", vhost, "e", source, kind, destination), { routing_key: key, arguments: tableOf(rows) });
    close();
  };
  return (
    <Dialog title={of === "source" ? `Bind from ${name}` : `Bind to ${name}`} onClose={close}>
      <Form submit="Bind" onSubmit={bind} onCancel={close}>
        {of === "source" && (
          <Choice
            label="To"
            value={type}
            set={setType}
            of={[
              ["q", "a queue"],
              ["e", "an exchange"],
            ]}
          />
        )}
        <Text label={of !== "source" ? "From exchange" : type === "q" ? "Queue" : "Exchange"} value={other} set={setOther} required autoFocus />
        <Text label="Routing key" value={key} set={setKey} help="Topic exchanges: * is one word, # is any number of them." />
        <Arguments label="Arguments" rows={rows} set={setRows} known={BINDING_ARGUMENTS} />
      </Form>
    </Dialog>
  );
}
