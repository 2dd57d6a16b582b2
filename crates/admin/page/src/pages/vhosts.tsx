/** Vhosts: all of them, and one. */

import { useState } from "preact/hooks";

import { del, path, post, put } from "../api";
import { count, rate } from "../format";
import { changed, usePoll } from "../poll";
import { go, href } from "../router";
import { history, useSeries } from "../series";
import { vhost as chosenVhost } from "../settings";
import { type Permission, rateOf, table, tagsOf, type TopicPermission, type Vhost } from "../types";
import { Badge, Empty, Facts, Notice, Pairs, Panel, Problem, State, Title } from "../ui/basics";
import { Chart } from "../ui/chart";
import { Check, Choice, Confirm, Dialog, Form, Opener, Text } from "../ui/form";
import { List } from "../ui/list";
import { LimitsPanel } from "./limits";
import { PermissionsPanel, TopicPermissionsPanel } from "./permissions";
import { lengthLines, rateLines } from "./rates";

export function VhostsPage() {
  return (
    <>
      <h1>Vhosts</h1>
      <List<Vhost>
        what="vhosts"
        address="vhosts"
        columns={[
          { key: "name", title: "Name", sort: "name", cell: (row) => <a href={href(["vhosts", row.name])}>{row.name}</a> },
          { key: "description", title: "Description", sort: "description", cell: (row) => row.description },
          { key: "state", title: "State", cell: (row) => <VhostState of={row} /> },
          { key: "ready", title: "Ready", isNumber: true, sort: "messages_ready", cell: (row) => count(row.messages_ready ?? 0) },
          { key: "unacked", title: "Unacked", isNumber: true, sort: "messages_unacknowledged", cell: (row) => count(row.messages_unacknowledged ?? 0) },
          { key: "publish", title: "Publish", isNumber: true, sort: "message_stats.publish_details.rate", cell: (row) => rate(rateOf(row.message_stats, "publish") ?? 0) },
          { key: "deliver", title: "Deliver", isNumber: true, sort: "message_stats.deliver_get_details.rate", cell: (row) => rate(rateOf(row.message_stats, "deliver_get") ?? 0) },
        ]}
        rowKey={(row) => row.name}
        rowHref={(row) => href(["vhosts", row.name])}
        actions={<Opener label="New vhost" tone="primary">{(close) => <EditVhost close={close} />}</Opener>}
        empty={<Empty title="No vhosts that you may see" />}
      />
    </>
  );
}

function VhostState({ of }: { of: Vhost }) {
  const states = [...new Set(Object.values(table(of.cluster_state)).map(String))];
  return (
    <span class="badges">
      {states.length === 0 ? <State of={undefined} /> : states.map((state) => <State key={state} of={state} />)}
      {of.tracing && <Badge tone="warn">tracing</Badge>}
      {of.protected_from_deletion && <Badge>protected</Badge>}
    </span>
  );
}

export function VhostPage({ name }: { name: string }) {
  const address = path("vhosts", name);
  const { data, error, at } = usePoll<Vhost>(address, 1000, { first: history("lengths", "msg_rates") });
  const permissions = usePoll<Permission[]>(`${address}/permissions`, 5000);
  const topics = usePoll<TopicPermission[]>(`${address}/topic-permissions`, 5000);
  const lengths = useSeries(address, at, lengthLines(data));
  const rates = useSeries(address, at, rateLines(data?.message_stats, ["publish", "confirm", "deliver_get", "ack", "redeliver"]));
  return (
    <>
      <Title kind="Vhosts" back={href(["vhosts"])} name={name} badges={data && <VhostState of={data} />}>
        {data && (
          <>
            <button type="button" onClick={() => (chosenVhost.set(name), go(["queues"]))}>
              Its queues
            </button>
            <Opener label="Edit">{(close) => <EditVhost of={data} close={close} />}</Opener>
            <Opener label={data.protected_from_deletion ? "Unprotect" : "Protect"}>{(close) => <Protect of={data} close={close} />}</Opener>
            <Opener label="Delete" tone="danger">
              {(close) => <DeleteVhost of={data} close={close} />}
            </Opener>
          </>
        )}
      </Title>
      {error && (error.status === 404 ? <Empty title="There is no such vhost" /> : <Problem error={error} what="this vhost" />)}
      {data && (
        <>
          {permissions.data?.length === 0 && (
            <Notice tone="warn" title="No user has permissions in this vhost">
              Nobody can connect to it. Set permissions below.
            </Notice>
          )}
          <div class="grid two">
            <Panel title="Queued messages">
              <Chart title="Messages" series={lengths} />
            </Panel>
            <Panel title="Message rates">
              <Chart title="Messages per second" series={rates} show={rate} />
            </Panel>
          </div>
          <Panel title="Vhost">
            <Facts
              rows={[
                ["Description", data.description],
                ["Tags", tagsOf(data.tags).join(", ")],
                ["Default queue type", data.default_queue_type === "undefined" ? "classic" : data.default_queue_type],
                ["Tracing", data.tracing ? "on" : "off"],
                ["State", <Pairs of={table(data.cluster_state)} />],
              ]}
            />
          </Panel>
          <PermissionsPanel vhost={name} polled={permissions} />
          <TopicPermissionsPanel vhost={name} polled={topics} />
          <LimitsPanel kind="vhost" name={name} />
        </>
      )}
    </>
  );
}

function EditVhost({ of, close }: { of?: Vhost; close: () => void }) {
  const [name, setName] = useState(of?.name ?? "");
  const [description, setDescription] = useState(of?.description ?? "");
  const [tags, setTags] = useState(of ? tagsOf(of.tags).join(", ") : "");
  const [type, setType] = useState(of?.default_queue_type ?? "classic");
  const [tracing, setTracing] = useState(of?.tracing ?? false);
  const save = async () => {
    const body = { description, tags: tagsOf(tags).join(","), default_queue_type: type, tracing };
    await put(path("vhosts", name), body);
    close();
    go(["vhosts", name]);
  };
  return (
    <Dialog title={of ? `Edit ${of.name}` : "New vhost"} onClose={close}>
      <Form submit={of ? "Save" : "Add vhost"} onSubmit={save} onCancel={close}>
        {!of && <Text label="Name" value={name} set={setName} required autoFocus />}
        <Text label="Description" value={description} set={setDescription} />
        <Text label="Tags" value={tags} set={setTags} help="Separated by commas." />
        <Choice
          label="Default queue type"
          value={type}
          set={setType}
          of={[...new Set([type, "classic", "quorum", "stream"])].map((it) => [it, it] as const)}
        />
        <Check label="Tracing" value={tracing} set={setTracing} help="Copies of all messages go to amq.rabbitmq.trace. It costs speed." />
      </Form>
    </Dialog>
  );
}

function Protect({ of, close }: { of: Vhost; close: () => void }) {
  const address = path("vhosts", of.name, "deletion", "protection");
  const act = async () => {
    await (of.protected_from_deletion ? del(address) : post(address, {}));
    changed();
    close();
  };
  return (
    <Confirm title={`${of.protected_from_deletion ? "Unprotect" : "Protect"} ${of.name}`} submit={of.protected_from_deletion ? "Unprotect" : "Protect"} onClose={close} act={act}>
      <p>{of.protected_from_deletion ? "The vhost can then be deleted again." : "The vhost can then not be deleted until the protection is taken away."}</p>
    </Confirm>
  );
}

function DeleteVhost({ of, close }: { of: Vhost; close: () => void }) {
  const act = async () => {
    await del(path("vhosts", of.name));
    close();
    if (chosenVhost.get() === of.name) chosenVhost.set("");
    go(["vhosts"]);
  };
  return (
    <Confirm title={`Delete ${of.name}`} submit="Delete vhost" word={of.name} onClose={close} act={act}>
      <p>
        Every exchange, queue and binding in it, its {count(of.messages ?? 0)} messages, permissions and policies will be lost, and its connections are closed.
      </p>
    </Confirm>
  );
}
