/** Choosing a vhost in a form. */

import { usePoll } from "../poll";
import type { Vhost } from "../types";
import { Choice } from "../ui/form";

const STEP_MS = 60_000;

/** The names of the vhosts that the signed-in user may see. */
export function useVhosts(): string[] {
  const { data } = usePoll<Vhost[]>("vhosts?columns=name", STEP_MS);
  return (Array.isArray(data) ? data : []).map(({ name }) => name).sort();
}

export function VhostChoice({ value, set }: { value: string; set: (vhost: string) => void }) {
  const names = useVhosts();
  const options = names.includes(value) ? names : [value, ...names];
  return <Choice label="Vhost" value={value} set={set} of={options.map((name) => [name, name] as const)} />;
}
