/** The points of live charts: the broker's samples from before the page was opened, then one per poll. */

import { useMemo, useRef } from "preact/hooks";

import type { Details } from "./types";

/** Points kept: ten minutes of one-second steps. */
const POINTS = 600;

/** What the first request asks for, so that a chart is not empty when it appears. */
const HISTORY = { age: 300, incr: 5 };

/** The parameters that ask for the history of these groups: "lengths", "msg_rates", "data_rates", "node_stats". */
export function history(...groups: string[]): Record<string, number> {
  return Object.fromEntries(
    groups.flatMap((group) => [
      [`${group}_age`, HISTORY.age],
      [`${group}_incr`, HISTORY.incr],
    ]),
  );
}

export interface Line {
  label: string;
  /** One of the chart colours in the style sheet. */
  colour: string;
  value: number | undefined;
  /** Counters' samples are turned into rates; lengths are taken as they are. */
  history?: Details["samples"];
  isCounter?: boolean;
  /** Nobody keeps what it was: it is taken for what it always was, such as a limit. */
  isSteady?: boolean;
}

export interface Series {
  /** Seconds. */
  times: number[];
  lines: { label: string; colour: string; values: (number | null)[] }[];
}

/** Adds the newest values; starts anew when `of` (the object looked at) changes. */
export function useSeries(of: string, at: number, lines: Line[]): Series {
  const kept = useRef<{ of: string; at: number; series: Series } | null>(null);
  return useMemo(() => {
    if (at === 0) return { times: [], lines: lines.map((line) => ({ ...line, values: [] })) };
    if (kept.current?.of !== of) {
      kept.current = { of, at: 0, series: fromHistory(lines) };
    }
    const { series } = kept.current;
    if (at > kept.current.at) append(series, at / 1000, lines);
    kept.current.at = at;
    // A new object, so that the chart sees a change.
    kept.current.series = { times: series.times, lines: series.lines };
    return kept.current.series;
  }, [of, at, lines.length]);
}

function append(series: Series, seconds: number, lines: Line[]): void {
  // A clock that went back would fold the chart over itself.
  if (series.times.length > 0 && seconds <= series.times.at(-1)!) return;
  series.times.push(seconds);
  lines.forEach((line, at) => series.lines[at]?.values.push(line.value ?? null));
  if (series.times.length > POINTS) {
    series.times.shift();
    for (const line of series.lines) line.values.shift();
  }
}

function fromHistory(lines: Line[]): Series {
  const points = lines.map((line) => {
    const samples = (line.history ?? [])
      .map(({ sample, timestamp }): [number, number] => [timestamp / 1000, sample])
      .sort(([a], [b]) => a - b);
    return new Map(line.isCounter ? rates(samples) : samples);
  });
  const times = [...new Set(points.flatMap((line) => [...line.keys()]))].sort((a, b) => a - b);
  // The newest sample may be newer than this machine's clock says; the live points win.
  const past = times.filter((time) => time < Date.now() / 1000 - 1);
  return {
    times: past,
    lines: lines.map(({ label, colour, value, isSteady }, at) => ({
      label,
      colour,
      values: past.map((time) => (isSteady ? value : points[at]!.get(time)) ?? null),
    })),
  };
}

function rates(samples: [number, number][]): [number, number][] {
  return samples.slice(1).map(([time, sample], at) => {
    const [before, was] = samples[at]!;
    return [time, Math.max(0, (sample - was) / (time - before))];
  });
}
