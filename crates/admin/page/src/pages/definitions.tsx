/** Definitions: everything but messages, as a file to take away and to bring. */

import { useState } from "preact/hooks";

import { get, path, post } from "../api";
import { count } from "../format";
import { useAction } from "../poll";
import { Facts, Notice, Panel } from "../ui/basics";
import { Check, Choice, Field, Form } from "../ui/form";
import { useVhosts } from "./vhost-choice";

type Definitions = Record<string, unknown>;

export function DefinitionsPage() {
  return (
    <>
      <h1>Definitions</h1>
      <p class="lead">
        Users, vhosts, permissions, parameters, policies, exchanges, queues and bindings; no messages. RabbitMQ's files are taken here, and ours by
        RabbitMQ.
      </p>
      <div class="grid two">
        <Export />
        <Import />
      </div>
    </>
  );
}

function useScope(): [string, (vhost: string) => void, [string, string][]] {
  const [vhost, setVhost] = useState("");
  const options: [string, string][] = [["", "the whole broker"], ...useVhosts().map((name): [string, string] => [name, `vhost ${name}`])];
  return [vhost, setVhost, options];
}

const addressOf = (vhost: string) => (vhost === "" ? "definitions" : path("definitions", vhost));

function Export() {
  const [vhost, setVhost, options] = useScope();
  const { run, error, busy } = useAction();
  const download = async () => {
    const definitions = await get<Definitions>(addressOf(vhost));
    const file = new Blob([`${JSON.stringify(definitions, null, 2)}\n`], { type: "application/json" });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(file);
    const day = new Date().toISOString().slice(0, 10);
    link.download = `definitions${vhost === "" ? "" : `-${vhost.replace(/[^\w.-]+/g, "_")}`}-${day}.json`;
    link.click();
    URL.revokeObjectURL(link.href);
  };
  return (
    <Panel title="Export">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          run(download);
        }}
      >
        <div class="fields">
          <Choice label="Of" value={vhost} set={setVhost} of={options} help="The file of the whole broker holds the hashes of passwords: keep it safe." />
        </div>
        {error && <Notice tone="bad" title={`The export failed: ${error}.`} />}
        <footer>
          <button type="submit" class="primary" disabled={busy}>
            Download
          </button>
        </footer>
      </form>
    </Panel>
  );
}

const PARTS = ["users", "vhosts", "permissions", "topic_permissions", "parameters", "global_parameters", "policies", "exchanges", "queues", "bindings"];

function Import() {
  const [vhost, setVhost, options] = useScope();
  const [definitions, setDefinitions] = useState<Definitions>();
  const [problem, setProblem] = useState("");
  const [skips, setSkips] = useState(false);
  const [leftOut, setLeftOut] = useState<string[]>();
  const read = async (file: File | undefined) => {
    setLeftOut(undefined);
    setProblem("");
    setDefinitions(undefined);
    if (!file) return;
    try {
      setDefinitions(JSON.parse(await file.text()) as Definitions);
    } catch (error) {
      setProblem(`${file.name} is not JSON: ${error instanceof Error ? error.message : String(error)}`);
    }
  };
  const send = async () => {
    setLeftOut(undefined);
    const answer = await post<{ left_out?: string[] } | undefined>(`${addressOf(vhost)}${skips ? "?skip_unsupported=true" : ""}`, definitions);
    setLeftOut(answer?.left_out ?? []);
  };
  return (
    <Panel title="Import">
      <Form submit="Import" disabled={definitions === undefined} onSubmit={send}>
        <Choice label="Into" value={vhost} set={setVhost} of={options} />
        <Field label="File" help="What is there already stays; users, policies and parameters of the same name are replaced.">
          {(id, about) => <input id={id} type="file" accept=".json,application/json" aria-describedby={about} onChange={(event) => void read(event.currentTarget.files?.[0])} />}
        </Field>
        <Check
          label="Leave out what cannot be here"
          value={skips}
          set={setSkips}
          help="Streams, what belongs to plugins, and what needs something that is not there. Without this the file is refused and nothing of it imported."
        />
        {problem && <Notice tone="bad" title={problem} />}
        {definitions && (
          <Facts
            rows={PARTS.map((part): [string, string] | null => {
              const of = definitions[part];
              return Array.isArray(of) ? [part.replaceAll("_", " "), count(of.length)] : null;
            })}
          />
        )}
        {leftOut && (
          <Notice tone={leftOut.length === 0 ? "good" : "warn"} title="The definitions are imported.">
            {leftOut.length > 0 && (
              <>
                <p>Left out:</p>
                <ul>
                  {leftOut.map((what) => (
                    <li key={what}>{what}</li>
                  ))}
                </ul>
              </>
            )}
          </Notice>
        )}
      </Form>
    </Panel>
  );
}
