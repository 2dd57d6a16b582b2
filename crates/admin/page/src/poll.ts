/** Data that is asked for again and again while somebody looks at it. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";

import { ApiError, get, query } from "./api";
import { kept, store, useStore } from "./store";

export type Pace = "live" | "slow" | "paused";
export const PACES: readonly Pace[] = ["live", "slow", "paused"];
export const pace = kept<Pace>("pace", "live", PACES);

/** How much longer the steps are at the pace "slow". */
const SLOW = 10;

/** Counts what this page changed: everything shown is then asked for at once. */
const changes = store(0);
export const changed = () => changes.set(changes.get() + 1);

export interface Polled<T> {
  data: T | undefined;
  error: ApiError | undefined;
  /** When the data came, in milliseconds. */
  at: number;
  /** What the broker says of the data: that they lack something. */
  warning: string;
}

const NOTHING = { data: undefined, error: undefined, at: 0, warning: "" };

export interface How {
  /** Show the data of the last address until the next one answers (the next page of a list). */
  keep?: boolean;
  /** Asked for with the first request only: a chart's history. */
  first?: Record<string, string | number>;
}

/** Asks for `address` every `step` milliseconds; `null` asks nothing. */
export function usePoll<T>(address: string | null, step: number, { keep = false, first }: How = {}): Polled<T> {
  const [state, setState] = useState<Polled<T> & { of?: string | null }>(NOTHING);
  const speed = useStore(pace);
  const change = useStore(changes);
  const begun = useRef<string | null>(null);
  useEffect(() => {
    if (address === null) return;
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const next = () => {
      if (stop.signal.aborted || speed === "paused") return;
      timer = setTimeout(ask, speed === "slow" ? step * SLOW : step);
    };
    const ask = async () => {
      // Nobody looks at a hidden tab: it costs the broker nothing.
      if (document.hidden) return next();
      try {
        const full = first !== undefined && begun.current !== address ? query(address, first) : address;
        let warning = "";
        const data = await get<T>(full, { signal: stop.signal, warned: (text) => (warning = text) });
        begun.current = address;
        setState({ data, error: undefined, at: Date.now(), warning, of: address });
      } catch (error) {
        if (stop.signal.aborted) return;
        const known = error instanceof ApiError ? error : new ApiError(0, String(error));
        // A broker that restarts for a moment leaves the last data on the screen.
        setState((old) => ({ ...(old.of === address && known.status !== 404 ? old : NOTHING), error: known, of: address }));
      }
      next();
    };
    void ask();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [address, step, speed, change]);
  return state.of === address || keep ? state : NOTHING;
}

/** Runs an action of the user; the last error and whether it is under way. */
export function useAction(): { run: (action: () => Promise<void>) => void; error: string; busy: boolean } {
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const alive = useRef(true);
  useEffect(() => () => void (alive.current = false), []);
  const run = useCallback((action: () => Promise<void>) => {
    setBusy(true);
    setError("");
    action()
      .catch((problem: unknown) => alive.current && setError(problem instanceof Error ? problem.message : String(problem)))
      .finally(() => {
        if (alive.current) setBusy(false);
        changed();
      });
  }, []);
  return { run, error, busy };
}
