/** The stages a message passes, left to right, with the one that holds things up. */

import { useRef } from "preact/hooks";

import { NONE, span } from "../format";
import type { Stage, Verdict } from "../waits";
import { Panel } from "./basics";

export function Stages({ verdict, stages, of }: { verdict: Verdict; stages: Stage[]; of: string }) {
  const since = useSince(`${of} ${verdict.stage}`);
  const isWaiting = verdict.tone !== "good";
  return (
    <Panel
      title="Where does it wait"
      note={isWaiting && <span title="Since this page has looked; it may have begun before">for {span(since)} or longer</span>}
    >
      <p class={`verdict ${verdict.tone}`}>
        <strong>{verdict.text}</strong> {verdict.advice}
      </p>
      <ol class="stages">
        {stages.map((stage) => (
          <li key={stage.key} class={stage.tone} title={stage.about} aria-current={stage.key === verdict.stage ? "true" : undefined}>
            <span class="name">{stage.title}</span>
            <span class="held">{stage.held ?? NONE}</span>
            <span class="about">{stage.about}</span>
          </li>
        ))}
      </ol>
    </Panel>
  );
}

/** How long this page has seen the same thing, in milliseconds. */
function useSince(what: string): number {
  const seen = useRef({ what, at: Date.now() });
  if (seen.current.what !== what) seen.current = { what, at: Date.now() };
  return Date.now() - seen.current.at;
}
