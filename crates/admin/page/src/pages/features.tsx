/** Feature flags and deprecated features. */

import { put, path } from "../api";
import { usePoll } from "../poll";
import { may } from "../session";
import { Badge, Empty, Panel, Problem } from "../ui/basics";
import { Confirm, Opener } from "../ui/form";
import { LocalTable } from "../ui/list";

interface Flag {
  name: string;
  state: string;
  desc?: string;
  stability?: string;
  provided_by?: string;
}

interface Deprecated {
  name: string;
  deprecation_phase: string;
  desc?: string;
}

export function FeaturesPage() {
  const flags = usePoll<Flag[]>("feature-flags", 10_000);
  const deprecated = usePoll<Deprecated[]>("deprecated-features", 10_000);
  return (
    <>
      <h1>Feature flags</h1>
      <Panel title="Feature flags" note={flags.data && String(flags.data.length)}>
        {flags.error && <Problem error={flags.error} what="feature flags" />}
        {flags.data && (
          <LocalTable
            label="Feature flags"
            rows={flags.data}
            rowKey={(row) => row.name}
            columns={[
              { key: "name", title: "Name", sort: "name", cell: (row) => <code>{row.name}</code> },
              { key: "state", title: "State", sort: "state", cell: (row) => <Badge tone={row.state === "enabled" ? "good" : "warn"}>{row.state}</Badge> },
              { key: "stability", title: "Stability", sort: "stability", cell: (row) => row.stability },
              { key: "desc", title: "Description", cell: (row) => row.desc },
              {
                key: "enable",
                title: "",
                cell: (row) => row.state === "disabled" && may("administrator") && <Opener label="Enable">{(close) => <Enable name={row.name} close={close} />}</Opener>,
              },
            ]}
          />
        )}
      </Panel>
      <Panel title="Deprecated features" note={deprecated.data && String(deprecated.data.length)}>
        {deprecated.error && <Problem error={deprecated.error} what="deprecated features" />}
        {deprecated.data?.length === 0 && <Empty title="None" />}
        {deprecated.data && deprecated.data.length > 0 && (
          <LocalTable
            label="Deprecated features"
            rows={deprecated.data}
            rowKey={(row) => row.name}
            columns={[
              { key: "name", title: "Name", sort: "name", cell: (row) => <code>{row.name}</code> },
              { key: "phase", title: "Phase", sort: "deprecation_phase", cell: (row) => row.deprecation_phase.replaceAll("_", " ") },
              { key: "desc", title: "Description", cell: (row) => row.desc },
            ]}
          />
        )}
      </Panel>
    </>
  );
}

function Enable({ name, close }: { name: string; close: () => void }) {
  const act = async () => {
    await put(path("feature-flags", name, "enable"), { name });
    close();
  };
  return (
    <Confirm title={`Enable ${name}`} submit="Enable" onClose={close} act={act}>
      <p>A feature flag cannot be disabled again.</p>
    </Confirm>
  );
}
