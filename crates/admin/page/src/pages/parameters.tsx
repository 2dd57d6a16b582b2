/** Runtime parameters of vhosts, and global ones. */

import { useState } from "preact/hooks";

import { del, path, put } from "../api";
import { value as shown } from "../format";
import { usePoll } from "../poll";
import { may } from "../session";
import { vhost as chosenVhost } from "../settings";
import { useStore } from "../store";
import { Empty, Panel, Problem } from "../ui/basics";
import { Area, Confirm, Dialog, Form, Opener, Text } from "../ui/form";
import { LocalTable } from "../ui/list";
import { VhostChoice } from "./vhost-choice";

interface Parameter {
  /** Global parameters have neither. */
  component?: string;
  vhost?: string;
  name: string;
  value: unknown;
}

export function ParametersPage() {
  return (
    <>
      <h1>Parameters</h1>
      <Parameters title="Parameters of vhosts" about="Limits, operator policies, shovels and federation upstreams are kept here, too." />
      <Parameters isGlobal title="Global parameters" about="Kept for the whole broker." />
    </>
  );
}

function addressOf({ component, vhost, name }: Parameter): string {
  return component === undefined ? path("global-parameters", name) : path("parameters", component, vhost ?? "/", name);
}

function Parameters({ isGlobal = false, title, about }: { isGlobal?: boolean; title: string; about: string }) {
  const vhost = useStore(chosenVhost);
  const { data, error } = usePoll<Parameter[]>(isGlobal ? "global-parameters" : "parameters", 5000);
  const rows = (Array.isArray(data) ? data : []).filter((row) => isGlobal || vhost === "" || row.vhost === vhost);
  const canEdit = may(isGlobal ? "administrator" : "policymaker");
  return (
    <Panel
      title={title}
      note={data && String(rows.length)}
      actions={canEdit && <Opener label="New">{(close) => <EditParameter isGlobal={isGlobal} close={close} />}</Opener>}
    >
      <p class="help">{about}</p>
      {error && <Problem error={error} what={title.toLowerCase()} />}
      {data && rows.length === 0 && <Empty title="None are set" />}
      {rows.length > 0 && (
        <LocalTable
          label={title}
          rows={rows}
          rowKey={addressOf}
          columns={[
            { key: "name", title: "Name", sort: "name", cell: (row) => row.name },
            ...(isGlobal
              ? []
              : [
                  { key: "component", title: "Component", sort: "component", cell: (row: Parameter) => row.component },
                  { key: "vhost", title: "Vhost", sort: "vhost", cell: (row: Parameter) => row.vhost },
                ]),
            { key: "value", title: "Value", cell: (row) => <code>{shown(row.value)}</code> },
            {
              key: "actions",
              title: "",
              cell: (row) =>
                canEdit && (
                  <span class="actions">
                    <Opener label="Edit">{(close) => <EditParameter isGlobal={isGlobal} of={row} close={close} />}</Opener>
                    <Opener label="Clear">{(close) => <ClearParameter of={row} close={close} />}</Opener>
                  </span>
                ),
            },
          ]}
        />
      )}
    </Panel>
  );
}

function EditParameter({ isGlobal, of, close }: { isGlobal: boolean; of?: Parameter; close: () => void }) {
  const [vhost, setVhost] = useState(of?.vhost ?? (chosenVhost.get() || "/"));
  const [component, setComponent] = useState(of?.component ?? "");
  const [name, setName] = useState(of?.name ?? "");
  const [text, setText] = useState(of ? JSON.stringify(of.value, null, 2) : "{}");
  const save = async () => {
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch {
      throw new Error("The value is not JSON; a text stands between quotes");
    }
    const parameter: Parameter = isGlobal ? { name, value } : { component, vhost, name, value };
    await put(addressOf(parameter), parameter);
    close();
  };
  return (
    <Dialog title={of ? `Edit ${of.name}` : isGlobal ? "New global parameter" : "New parameter"} onClose={close}>
      <Form submit={of ? "Save" : "Set parameter"} onSubmit={save} onCancel={close}>
        {!of && !isGlobal && <VhostChoice value={vhost} set={setVhost} />}
        {!of && !isGlobal && <Text label="Component" value={component} set={setComponent} required autoFocus />}
        {!of && <Text label="Name" value={name} set={setName} required />}
        <Area label="Value" value={text} set={setText} help="JSON." />
      </Form>
    </Dialog>
  );
}

function ClearParameter({ of, close }: { of: Parameter; close: () => void }) {
  const act = async () => {
    await del(addressOf(of));
    close();
  };
  return (
    <Confirm title={`Clear ${of.name}`} submit="Clear" onClose={close} act={act}>
      <p>What it configures ends at once.</p>
    </Confirm>
  );
}
