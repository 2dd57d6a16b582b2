/** Policies and operator policies. */

import { useState } from "preact/hooks";

import { del, path, put } from "../api";
import { OPERATOR_POLICY_KEYS, POLICY_KEYS } from "../known";
import { usePoll } from "../poll";
import { may } from "../session";
import { vhost as chosenVhost } from "../settings";
import { useStore } from "../store";
import type { Policy } from "../types";
import { type Argument, Arguments, rowsOf, tableOf } from "../ui/arguments";
import { Empty, Pairs, Panel, Problem } from "../ui/basics";
import { Choice, Confirm, Dialog, Form, Opener, Text } from "../ui/form";
import { LocalTable } from "../ui/list";
import { VhostChoice } from "./vhost-choice";

type Kind = "policies" | "operator-policies";

export function PoliciesPage() {
  return (
    <>
      <h1>Policies</h1>
      <Policies kind="policies" title="Policies" about="Set options of all queues and exchanges whose name matches. Of several, the one with the highest priority counts; a queue's own arguments go before it." />
      <Policies kind="operator-policies" title="Operator policies" about="Limits that users' policies and arguments cannot raise: the smaller value counts." />
    </>
  );
}

function Policies({ kind, title, about }: { kind: Kind; title: string; about: string }) {
  const vhost = useStore(chosenVhost);
  const { data, error } = usePoll<Policy[]>(vhost === "" ? kind : path(kind, vhost), 5000);
  const canEdit = kind === "policies" ? may("policymaker") : may("administrator");
  return (
    <Panel
      title={title}
      note={data && String(data.length)}
      actions={canEdit && <Opener label={kind === "policies" ? "New policy" : "New operator policy"} tone={kind === "policies" ? "primary" : undefined}>{(close) => <EditPolicy kind={kind} close={close} />}</Opener>}
    >
      <p class="help">{about}</p>
      {error && <Problem error={error} what={title.toLowerCase()} />}
      {data?.length === 0 && <Empty title="None are set" />}
      {data && data.length > 0 && (
        <LocalTable
          label={title}
          rows={data}
          rowKey={(row) => `${row.vhost} ${row.name}`}
          first={{ by: "priority", isDown: true }}
          columns={[
            { key: "name", title: "Name", sort: "name", cell: (row) => row.name },
            { key: "vhost", title: "Vhost", sort: "vhost", cell: (row) => row.vhost },
            { key: "pattern", title: "Pattern", sort: "pattern", cell: (row) => <code>{row.pattern}</code> },
            { key: "apply", title: "Applies to", sort: "apply-to", cell: (row) => row["apply-to"].replaceAll("_", " ") },
            { key: "priority", title: "Priority", isNumber: true, sort: "priority", cell: (row) => String(row.priority) },
            { key: "definition", title: "Definition", cell: (row) => <Pairs of={row.definition} /> },
            {
              key: "actions",
              title: "",
              cell: (row) =>
                canEdit && (
                  <span class="actions">
                    <Opener label="Edit">{(close) => <EditPolicy kind={kind} of={row} close={close} />}</Opener>
                    <Opener label="Delete">{(close) => <DeletePolicy kind={kind} of={row} close={close} />}</Opener>
                  </span>
                ),
            },
          ]}
        />
      )}
    </Panel>
  );
}

const APPLY: Record<Kind, readonly (readonly [string, string])[]> = {
  policies: [
    ["all", "queues and exchanges"],
    ["queues", "queues"],
    ["classic_queues", "classic queues"],
    ["quorum_queues", "quorum queues"],
    ["streams", "streams"],
    ["exchanges", "exchanges"],
  ],
  "operator-policies": [
    ["queues", "queues"],
    ["classic_queues", "classic queues"],
    ["quorum_queues", "quorum queues"],
    ["streams", "streams"],
  ],
};

function EditPolicy({ kind, of, close }: { kind: Kind; of?: Policy; close: () => void }) {
  const [vhost, setVhost] = useState(of?.vhost ?? (chosenVhost.get() || "/"));
  const [name, setName] = useState(of?.name ?? "");
  const [pattern, setPattern] = useState(of?.pattern ?? "");
  const [apply, setApply] = useState(of?.["apply-to"] ?? "queues");
  const [priority, setPriority] = useState(String(of?.priority ?? 0));
  const [rows, setRows] = useState<Argument[]>(rowsOf(of?.definition ?? {}));
  const save = async () => {
    const definition = tableOf(rows);
    if (Object.keys(definition).length === 0) throw new Error("A policy sets at least one key");
    await put(path(kind, vhost, name), { pattern, definition, priority: Number(priority), "apply-to": apply });
    close();
  };
  return (
    <Dialog title={of ? `Edit ${of.name}` : kind === "policies" ? "New policy" : "New operator policy"} onClose={close}>
      <Form submit={of ? "Save" : "Set policy"} onSubmit={save} onCancel={close}>
        {!of && <VhostChoice value={vhost} set={setVhost} />}
        {!of && <Text label="Name" value={name} set={setName} required autoFocus />}
        <Text label="Pattern" value={pattern} set={setPattern} required help={<>Regular expression of names, for example <code>^orders\.</code></>} />
        <div class="row">
          <Choice label="Applies to" value={apply} set={setApply} of={APPLY[kind]} />
          <Text label="Priority" type="number" value={priority} set={setPriority} />
        </div>
        <Arguments label="Definition" rows={rows} set={setRows} known={kind === "policies" ? POLICY_KEYS : OPERATOR_POLICY_KEYS} />
      </Form>
    </Dialog>
  );
}

function DeletePolicy({ kind, of, close }: { kind: Kind; of: Policy; close: () => void }) {
  const act = async () => {
    await del(path(kind, of.vhost, of.name));
    close();
  };
  return (
    <Confirm title={`Delete ${of.name}`} submit="Delete policy" onClose={close} act={act}>
      <p>
        Queues and exchanges that match <code>{of.pattern}</code> get the next policy that matches, or none, at once.
      </p>
    </Confirm>
  );
}
