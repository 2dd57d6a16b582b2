/** Traces: copies of messages in files. What runs, a form for a new one, the files. */

import { useState } from "preact/hooks";

import { del, file, path, put } from "../api";
import { bytes, count, rate } from "../format";
import { useAction, usePoll } from "../poll";
import { vhost as chosenVhost } from "../settings";
import { useStore } from "../store";
import type { Trace, TraceFile } from "../types";
import { Badge, Empty, Notice, Panel, Problem, QueueLink } from "../ui/basics";
import { Choice, Confirm, Dialog, Form, Opener, Text } from "../ui/form";
import { LocalTable } from "../ui/list";
import { VhostChoice } from "./vhost-choice";

const STEP_MS = 5000;

export function TracingPage() {
  return (
    <>
      <h1>Tracing</h1>
      <p class="lead">A trace writes a copy of each message that is published or delivered in a vhost to a file. It costs speed: every message becomes two or more.</p>
      <Traces />
      <Files />
    </>
  );
}

function Traces() {
  const chosen = useStore(chosenVhost);
  const { data, error } = usePoll<Trace[]>("traces", STEP_MS);
  const rows = (Array.isArray(data) ? data : []).filter(({ vhost }) => chosen === "" || vhost === chosen);
  return (
    <Panel
      title="Traces"
      note={data && String(rows.length)}
      actions={
        <Opener label="New trace" tone="primary">
          {(close) => <NewTrace close={close} />}
        </Opener>
      }
    >
      {error && <Problem error={error} what="traces" />}
      {data && rows.length === 0 && <Empty title="No traces are running" />}
      {rows.length > 0 && (
        <LocalTable
          label="Traces"
          rows={rows}
          rowKey={({ vhost, name }) => path(vhost, name)}
          columns={[
            { key: "name", title: "Name", sort: "name", cell: (row) => row.name },
            { key: "vhost", title: "Vhost", sort: "vhost", cell: (row) => row.vhost },
            { key: "pattern", title: "Pattern", cell: (row) => <code>{row.pattern}</code> },
            { key: "format", title: "Format", cell: (row) => row.format },
            { key: "limit", title: "Payload limit", isNumber: true, cell: (row) => (row.max_payload_bytes === undefined ? "unlimited" : bytes(row.max_payload_bytes)) },
            { key: "state", title: "State", cell: (row) => <TraceState of={row} /> },
            { key: "rate", title: "Rate", isNumber: true, cell: (row) => rate(row.queue?.message_stats?.deliver_no_ack_details?.rate) },
            { key: "queued", title: "Queued", isNumber: true, cell: (row) => row.queue && <>{count(row.queue.messages)} <QueueLink vhost={row.vhost} name={row.queue.name} /></> },
            { key: "written", title: "Written", isNumber: true, cell: (row) => count(row.written) },
            { key: "lost", title: "Not written", isNumber: true, cell: (row) => count(row.not_written) },
            { key: "user", title: "User", cell: (row) => row.tracer_connection_username },
            { key: "stop", title: "", cell: (row) => <Opener label="Stop">{(close) => <StopTrace of={row} close={close} />}</Opener> },
          ]}
        />
      )}
    </Panel>
  );
}

function TraceState({ of }: { of: Trace }) {
  if (of.state === "running") return <Badge tone="good">running</Badge>;
  return (
    <>
      <Badge tone="bad">stopped</Badge> {of.reason}
    </>
  );
}

const FORMATS = [
  ["text", "Text"],
  ["json", "JSON"],
] as const;

function NewTrace({ close }: { close: () => void }) {
  const [vhost, setVhost] = useState(chosenVhost.get() || "/");
  const [name, setName] = useState("");
  const [format, setFormat] = useState<"text" | "json">("text");
  const [pattern, setPattern] = useState("#");
  const [most, setMost] = useState("");
  const [user, setUser] = useState("");
  const [password, setPassword] = useState("");
  const begin = async () => {
    await put(path("traces", vhost, name), {
      format,
      pattern,
      ...(most === "" ? {} : { max_payload_bytes: Number(most) }),
      ...(user === "" ? {} : { tracer_connection_username: user, tracer_connection_password: password }),
    });
    close();
  };
  return (
    <Dialog title="New trace" onClose={close}>
      <Form submit="Add trace" onSubmit={begin} onCancel={close}>
        <VhostChoice value={vhost} set={setVhost} />
        <Text label="Name" value={name} set={setName} required autoFocus help="The file has this name, with .log at its end." />
        <Choice label="Format" value={format} set={setFormat} of={FORMATS} />
        <Text label="Pattern" value={pattern} set={setPattern} required help="#, publish.#, deliver.#, #.amq.direct, #.myqueue" />
        <Text label="Max payload bytes" type="number" value={most} set={setMost} help="Longer payloads are cut. Empty: none is. 0: no payloads." />
        <Text label="Tracer connection username" value={user} set={setUser} help="In whose name the trace gets its messages. Empty: the user of the configuration (guest)." />
        <Text label="Tracer connection password" type="password" value={password} set={setPassword} />
      </Form>
    </Dialog>
  );
}

function StopTrace({ of, close }: { of: Trace; close: () => void }) {
  const act = async () => {
    await del(path("traces", of.vhost, of.name));
    close();
  };
  return (
    <Confirm title={`Stop ${of.name}`} submit="Stop" onClose={close} act={act}>
      <p>Nothing more is written. The file {of.file} stays.</p>
    </Confirm>
  );
}

function Files() {
  const { data, error } = usePoll<TraceFile[]>("trace-files", STEP_MS);
  const rows = Array.isArray(data) ? data : [];
  return (
    <Panel title="Trace log files" note={data && String(rows.length)}>
      {error && <Problem error={error} what="files" />}
      {data && rows.length === 0 && <Empty title="No files" />}
      {rows.length > 0 && (
        <LocalTable
          label="Trace log files"
          rows={rows}
          rowKey={({ name }) => name}
          columns={[
            { key: "name", title: "Name", sort: "name", cell: (row) => row.name },
            { key: "size", title: "Size", isNumber: true, sort: "size", cell: (row) => bytes(row.size) },
            { key: "actions", title: "", cell: (row) => <FileActions of={row} /> },
          ]}
        />
      )}
    </Panel>
  );
}

function FileActions({ of }: { of: TraceFile }) {
  const { run, error, busy } = useAction();
  const download = async () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await file(path("trace-files", of.name)));
    link.download = of.name;
    link.click();
    URL.revokeObjectURL(link.href);
  };
  return (
    <span class="actions">
      <button type="button" disabled={busy} onClick={() => run(download)}>
        Download
      </button>
      <Opener label="Delete">{(close) => <DeleteFile of={of} close={close} />}</Opener>
      {error && <Notice tone="bad" title={`The download failed: ${error}.`} />}
    </span>
  );
}

function DeleteFile({ of, close }: { of: TraceFile; close: () => void }) {
  const act = async () => {
    await del(path("trace-files", of.name));
    close();
  };
  return (
    <Confirm title={`Delete ${of.name}`} submit="Delete" onClose={close} act={act}>
      <p>What is in it is gone: {bytes(of.size)}.</p>
    </Confirm>
  );
}
