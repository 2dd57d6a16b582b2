/** Users: all of them, and one with its tags, permissions and limits. */

import { useState } from "preact/hooks";

import { del, path, put } from "../api";
import { usePoll } from "../poll";
import { go, href } from "../router";
import { session } from "../session";
import { type Permission, table, tagsOf, type TopicPermission, type User } from "../types";
import { Badge, Empty, Facts, Notice, Panel, Problem, Title } from "../ui/basics";
import { Choice, Confirm, Dialog, Form, Opener, Text } from "../ui/form";
import { List } from "../ui/list";
import { LimitsPanel } from "./limits";
import { PermissionsPanel, TopicPermissionsPanel } from "./permissions";

const TAGS = ["administrator", "monitoring", "policymaker", "management", "impersonator"];

export function UsersPage() {
  return (
    <>
      <h1>Users</h1>
      <List<User>
        what="users"
        address="users"
        columns={[
          { key: "name", title: "Name", sort: "name", cell: (row) => <a href={href(["users", row.name])}>{row.name}</a> },
          { key: "tags", title: "Tags", cell: (row) => <Tags of={row.tags} /> },
          { key: "password", title: "Password", cell: (row) => <Password of={row} /> },
        ]}
        rowKey={(row) => row.name}
        rowHref={(row) => href(["users", row.name])}
        actions={<Opener label="New user" tone="primary">{(close) => <EditUser close={close} />}</Opener>}
        empty={<Empty title="No users" />}
      />
    </>
  );
}

function Tags({ of }: { of: User["tags"] }) {
  const tags = tagsOf(of);
  if (tags.length === 0) return <span class="muted">none: clients only</span>;
  return (
    <span class="badges">
      {tags.map((tag) => (
        <Badge key={tag} tone={tag === "administrator" ? "accent" : "plain"}>
          {tag}
        </Badge>
      ))}
    </span>
  );
}

function Password({ of }: { of: User }) {
  // An empty hash matches no password.
  return of.password_hash === "" ? <span class="muted">none</span> : <span>set</span>;
}

export function UserPage({ name }: { name: string }) {
  const { data, error } = usePoll<User>(path("users", name), 5000);
  const permissions = usePoll<Permission[]>(path("users", name, "permissions"), 5000);
  const topics = usePoll<TopicPermission[]>(path("users", name, "topic-permissions"), 5000);
  const isOwn = session.get().who?.name === name;
  return (
    <>
      <Title kind="Users" back={href(["users"])} name={name} badges={data && <Tags of={data.tags} />}>
        {data && (
          <>
            <Opener label="Edit">{(close) => <EditUser of={data} close={close} />}</Opener>
            <Opener label="Delete" tone="danger" disabled={isOwn} title={isOwn ? "You are signed in as this user" : undefined}>
              {(close) => <DeleteUser name={name} close={close} />}
            </Opener>
          </>
        )}
      </Title>
      {error && (error.status === 404 ? <Empty title="There is no such user" /> : <Problem error={error} what="this user" />)}
      {data && (
        <>
          {permissions.data?.length === 0 && (
            <Notice tone="warn" title="This user has no permission in any vhost">
              It cannot connect. Set permissions below.
            </Notice>
          )}
          <Panel title="User">
            <Facts
              rows={[
                ["Tags", <Tags of={data.tags} />],
                ["Password", <Password of={data} />],
                ["Hash", data.hashing_algorithm?.replace("rabbit_password_hashing_", "")],
                ["Limits", Object.entries(table(data.limits)).map(([key, value]) => `${key} ${String(value)}`).join(", ") || "none"],
              ]}
            />
          </Panel>
          <PermissionsPanel user={name} polled={permissions} />
          <TopicPermissionsPanel user={name} polled={topics} />
          <LimitsPanel kind="user" name={name} />
        </>
      )}
    </>
  );
}

function EditUser({ of, close }: { of?: User; close: () => void }) {
  const [name, setName] = useState(of?.name ?? "");
  const [how, setHow] = useState<"keep" | "password" | "none">(of ? "keep" : "password");
  const [password, setPassword] = useState("");
  const [again, setAgain] = useState("");
  const [tags, setTags] = useState(of ? tagsOf(of.tags).join(", ") : "");
  const save = async () => {
    if (how === "password" && password !== again) throw new Error("The two passwords differ");
    if (how === "password" && password === "") throw new Error("The password is empty; choose \"none\" if nobody is to sign in with one");
    const secret = how === "password" ? { password } : how === "none" ? { password_hash: "" } : { password_hash: of?.password_hash ?? "", hashing_algorithm: of?.hashing_algorithm };
    await put(path("users", name), { ...secret, tags: tagsOf(tags).join(",") });
    close();
    go(["users", name]);
  };
  const ways: ["keep" | "password" | "none", string][] = [
    ["password", of ? "a new one" : "this one"],
    ["none", "none: certificates or another backend"],
  ];
  return (
    <Dialog title={of ? `Edit ${of.name}` : "New user"} onClose={close}>
      <Form submit={of ? "Save" : "Add user"} onSubmit={save} onCancel={close}>
        {!of && <Text label="Name" value={name} set={setName} required autoFocus />}
        <Choice label="Password" value={how} set={setHow} of={of ? [["keep", "as it is"], ...ways] : ways} />
        {how === "password" && (
          <div class="row">
            <Text label="Password" type="password" value={password} set={setPassword} />
            <Text label="Again" type="password" value={again} set={setAgain} />
          </div>
        )}
        <Text
          label="Tags"
          value={tags}
          set={setTags}
          list={TAGS}
          help="Separated by commas. management: this page. policymaker: also policies. monitoring: also all connections and nodes. administrator: everything. None: clients only."
        />
      </Form>
    </Dialog>
  );
}

function DeleteUser({ name, close }: { name: string; close: () => void }) {
  const act = async () => {
    await del(path("users", name));
    close();
    go(["users"]);
  };
  return (
    <Confirm title={`Delete ${name}`} submit="Delete user" word={name} onClose={close} act={act}>
      <p>Its permissions go with it, and its connections are closed.</p>
    </Confirm>
  );
}
