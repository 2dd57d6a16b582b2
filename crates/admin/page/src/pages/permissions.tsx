/** Permissions of a user in vhosts, or of a vhost's users. */

import { useState } from "preact/hooks";

import { del, path, put } from "../api";
import { type Polled, usePoll } from "../poll";
import { href } from "../router";
import type { Permission, TopicPermission, User } from "../types";
import { Empty, Panel, Problem } from "../ui/basics";
import { Choice, Confirm, Dialog, Form, Opener, Text } from "../ui/form";
import { LocalTable } from "../ui/list";
import { VhostChoice } from "./vhost-choice";

interface Place {
  user?: string;
  vhost?: string;
}

const pattern = (text: string) => (text === "" ? <span class="muted">nothing</span> : <code>{text}</code>);

export function PermissionsPanel({ user, vhost, polled }: Place & { polled: Polled<Permission[]> }) {
  const { data, error } = polled;
  return (
    <Panel
      title="Permissions"
      actions={<Opener label="Set">{(close) => <SetPermission user={user} vhost={vhost} close={close} />}</Opener>}
    >
      {error && <Problem error={error} what="permissions" />}
      {data?.length === 0 && <Empty title={vhost ? "No user may use this vhost" : "No vhost may be used"} />}
      {data && data.length > 0 && (
        <LocalTable
          label="Permissions"
          rows={data}
          rowKey={(row) => `${row.vhost} ${row.user}`}
          columns={[
            user
              ? { key: "vhost", title: "Vhost", sort: "vhost", cell: (row) => <a href={href(["vhosts", row.vhost])}>{row.vhost}</a> }
              : { key: "user", title: "User", sort: "user", cell: (row) => <a href={href(["users", row.user])}>{row.user}</a> },
            { key: "configure", title: "Configure", cell: (row) => pattern(row.configure) },
            { key: "write", title: "Write", cell: (row) => pattern(row.write) },
            { key: "read", title: "Read", cell: (row) => pattern(row.read) },
            {
              key: "actions",
              title: "",
              cell: (row) => (
                <span class="actions">
                  <Opener label="Edit">{(close) => <SetPermission user={row.user} vhost={row.vhost} of={row} close={close} />}</Opener>
                  <Opener label="Clear">{(close) => <ClearPermission of={row} close={close} />}</Opener>
                </span>
              ),
            },
          ]}
        />
      )}
    </Panel>
  );
}

function UserOrVhost({ place, user, setUser, vhost, setVhost }: { place: Place; user: string; setUser: (user: string) => void; vhost: string; setVhost: (vhost: string) => void }) {
  const users = usePoll<User[]>(place.user === undefined ? "users?columns=name" : null, 60_000);
  const names = (Array.isArray(users.data) ? users.data : []).map(({ name }) => name);
  return (
    <>
      {place.user === undefined && <Text label="User" value={user} set={setUser} list={names} required autoFocus />}
      {place.vhost === undefined && <VhostChoice value={vhost} set={setVhost} />}
    </>
  );
}

function SetPermission({ of, close, ...place }: Place & { of?: Permission; close: () => void }) {
  const [user, setUser] = useState(place.user ?? "");
  const [vhost, setVhost] = useState(place.vhost ?? "/");
  const [configure, setConfigure] = useState(of?.configure ?? ".*");
  const [write, setWrite] = useState(of?.write ?? ".*");
  const [read, setRead] = useState(of?.read ?? ".*");
  const save = async () => {
    await put(path("permissions", vhost, user), { configure, write, read });
    close();
  };
  return (
    <Dialog title={`Permissions${place.user ? ` of ${place.user}` : ""}${place.vhost ? ` in ${place.vhost}` : ""}`} onClose={close}>
      <Form submit="Set permissions" onSubmit={save} onCancel={close}>
        <UserOrVhost place={place} user={user} setUser={setUser} vhost={vhost} setVhost={setVhost} />
        <Text label="Configure" value={configure} set={setConfigure} help="Regular expression of the queues and exchanges the user may declare and delete. Empty: none." />
        <Text label="Write" value={write} set={setWrite} help="Exchanges to publish to, and what may be bound." />
        <Text label="Read" value={read} set={setRead} help="Queues to consume, get and purge, and what may be bound from." />
      </Form>
    </Dialog>
  );
}

function ClearPermission({ of, close }: { of: Permission; close: () => void }) {
  const act = async () => {
    await del(path("permissions", of.vhost, of.user));
    close();
  };
  return (
    <Confirm title="Clear permissions" submit="Clear" onClose={close} act={act}>
      <p>
        {of.user} may then no longer connect to vhost {of.vhost}.
      </p>
    </Confirm>
  );
}

export function TopicPermissionsPanel({ user, vhost, polled }: Place & { polled: Polled<TopicPermission[]> }) {
  const { data, error } = polled;
  return (
    <Panel
      title="Topic permissions"
      actions={<Opener label="Set">{(close) => <SetTopicPermission user={user} vhost={vhost} close={close} />}</Opener>}
    >
      {error && <Problem error={error} what="topic permissions" />}
      {data?.length === 0 && <Empty title="None">Routing keys of topic exchanges are not restricted further.</Empty>}
      {data && data.length > 0 && (
        <LocalTable
          label="Topic permissions"
          rows={data}
          rowKey={(row) => `${row.vhost} ${row.user} ${row.exchange}`}
          columns={[
            user
              ? { key: "vhost", title: "Vhost", sort: "vhost", cell: (row) => row.vhost }
              : { key: "user", title: "User", sort: "user", cell: (row) => <a href={href(["users", row.user])}>{row.user}</a> },
            { key: "exchange", title: "Exchange", sort: "exchange", cell: (row) => row.exchange },
            { key: "write", title: "Write", cell: (row) => pattern(row.write) },
            { key: "read", title: "Read", cell: (row) => pattern(row.read) },
            {
              key: "clear",
              title: "",
              cell: (row) => <Opener label="Clear">{(close) => <ClearTopic of={row} close={close} />}</Opener>,
            },
          ]}
        />
      )}
    </Panel>
  );
}

function SetTopicPermission({ close, ...place }: Place & { close: () => void }) {
  const [user, setUser] = useState(place.user ?? "");
  const [vhost, setVhost] = useState(place.vhost ?? "/");
  const [exchange, setExchange] = useState("amq.topic");
  const [write, setWrite] = useState(".*");
  const [read, setRead] = useState(".*");
  const save = async () => {
    await put(path("topic-permissions", vhost, user), { exchange, write, read });
    close();
  };
  return (
    <Dialog title="Topic permissions" onClose={close}>
      <Form submit="Set topic permissions" onSubmit={save} onCancel={close}>
        <UserOrVhost place={place} user={user} setUser={setUser} vhost={vhost} setVhost={setVhost} />
        <Text label="Topic exchange" value={exchange} set={setExchange} required />
        <Text label="Write" value={write} set={setWrite} help="Regular expression of the routing keys the user may publish with." />
        <Text label="Read" value={read} set={setRead} help="Regular expression of the binding keys the user may bind with." />
      </Form>
    </Dialog>
  );
}

function ClearTopic({ of, close }: { of: TopicPermission; close: () => void }) {
  const [all, setAll] = useState<"one" | "all">("one");
  const act = async () => {
    const parts = ["topic-permissions", of.vhost, of.user];
    await del(path(...(all === "one" ? [...parts, of.exchange] : parts)));
    close();
  };
  return (
    <Confirm title="Clear topic permissions" submit="Clear" onClose={close} act={act}>
      <Choice
        label="Which"
        value={all}
        set={setAll}
        of={[
          ["one", `of ${of.user} on ${of.exchange}`],
          ["all", `all of ${of.user} in ${of.vhost}`],
        ]}
      />
    </Confirm>
  );
}
