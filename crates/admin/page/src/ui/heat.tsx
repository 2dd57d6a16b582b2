/**
 * How long confirms take, as a heat map: time to the right, latency upwards, brightness the share of
 * confirms. The API has no such histogram; each channel's mean follows from what it has (Little's
 * law: what is unconfirmed, divided by the rate of confirms).
 */

import { useEffect, useRef } from "preact/hooks";

import { theme } from "../settings";
import { useStore } from "../store";
import { type Channel, rateOf } from "../types";

/** Upper ends of the rows, in milliseconds. */
const ROWS: [number, string][] = [
  [0.5, "0.5 ms"],
  [1, "1 ms"],
  [2, "2 ms"],
  [5, "5 ms"],
  [10, "10 ms"],
  [20, "20 ms"],
  [50, "50 ms"],
  [100, "100 ms"],
  [500, "500 ms"],
  [1000, "1 s"],
  [Infinity, "longer"],
];

const COLUMNS = 150;
const ROW_PX = 12;

export function Heat({ channels, at }: { channels: Channel[]; at: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const columns = useRef<{ at: number; shares: number[] }[]>([]);
  const colours = useStore(theme);
  if (at > (columns.current.at(-1)?.at ?? 0)) {
    columns.current = [...columns.current, { at, shares: sharesOf(channels) }].slice(-COLUMNS);
  }
  useEffect(() => {
    if (canvas.current) paint(canvas.current, columns.current);
  }, [at, colours]);
  const now = columns.current.at(-1)?.shares ?? [];
  const top = now.indexOf(Math.max(...now, 0));
  const words = now.some((share) => share > 0) ? `Most confirms now take up to ${ROWS[top]?.[1] ?? ""}.` : "No confirms at the moment.";
  return (
    <figure class="heat">
      <figcaption>
        <h3>Confirm latency</h3>
        <span class="muted">{words}</span>
      </figcaption>
      <div>
        <ol aria-hidden="true">
          {[...ROWS].reverse().map(([, label]) => (
            <li key={label}>{label}</li>
          ))}
        </ol>
        <canvas ref={canvas} width={COLUMNS} height={ROWS.length} role="img" aria-label={`Confirm latency over time. ${words}`} />
      </div>
      <p class="help">
        An estimate: unconfirmed messages divided by the rate of confirms, per channel, for the channels with most unconfirmed. The broker does not
        report single confirms' latency.
      </p>
    </figure>
  );
}

/** For each row, the share of confirms in it. */
function sharesOf(channels: Channel[]): number[] {
  const weights = ROWS.map(() => 0);
  for (const channel of channels) {
    const confirms = rateOf(channel.message_stats, "confirm") ?? 0;
    if (!channel.confirm || confirms <= 0) continue;
    const ms = ((channel.messages_unconfirmed ?? 0) / confirms) * 1000;
    const row = ROWS.findIndex(([most]) => ms <= most);
    weights[row] = (weights[row] ?? 0) + confirms;
  }
  const all = weights.reduce((sum, weight) => sum + weight, 0);
  return weights.map((weight) => (all > 0 ? weight / all : 0));
}

function paint(canvas: HTMLCanvasElement, columns: { shares: number[] }[]): void {
  const brush = canvas.getContext("2d");
  if (!brush) return;
  const style = getComputedStyle(canvas);
  canvas.style.height = `${ROWS.length * ROW_PX}px`;
  brush.globalAlpha = 1;
  brush.fillStyle = style.getPropertyValue("--sunk");
  brush.fillRect(0, 0, canvas.width, canvas.height);
  brush.fillStyle = style.getPropertyValue("--accent");
  columns.forEach(({ shares }, at) => {
    const x = COLUMNS - columns.length + at;
    shares.forEach((share, row) => {
      // A small share must still be seen.
      brush.globalAlpha = share > 0 ? 0.15 + 0.85 * share : 0;
      brush.fillRect(x, ROWS.length - 1 - row, 1, 1);
    });
  });
}
