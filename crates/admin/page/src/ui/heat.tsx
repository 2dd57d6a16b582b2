/**
 * How long confirms took, as a heat map: time to the right, latency upwards, brightness the share of
 * confirms. The broker counts them as they come, one message of each channel at a time.
 */

import { useEffect, useRef } from "preact/hooks";

import { theme } from "../settings";
import { useStore } from "../store";
import type { ConfirmLatency } from "../types";

/** Rows of the map: below so many milliseconds; the last one takes what is longer. */
const ROWS = 15;
const COLUMNS = 60;
const ROW_PX = 12;

export function Heat({ latency, at }: { latency: ConfirmLatency; at: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const colours = useStore(theme);
  const columns = latency.steps.slice(-COLUMNS).map(({ counts }) => sharesOf(counts));
  useEffect(() => {
    if (canvas.current) paint(canvas.current, columns);
  }, [at, colours]);
  const now = columns.at(-1) ?? [];
  const top = now.indexOf(Math.max(...now, 0));
  const words = now.some((share) => share > 0) ? `Most confirms now take ${wordsOf(latency, top)}.` : "No confirms at the moment.";
  const labels = Array.from({ length: ROWS }, (_, row) => labelOf(latency, row));
  return (
    <figure class="heat">
      <figcaption>
        <h3>Confirm latency</h3>
        <span class="muted">{words}</span>
      </figcaption>
      <div>
        <ol aria-hidden="true">
          {labels.reverse().map((label) => (
            <li key={label}>{label}</li>
          ))}
        </ol>
        <canvas ref={canvas} width={COLUMNS} height={ROWS} role="img" aria-label={`Confirm latency over time. ${words}`} />
      </div>
      <p class="help">From the moment a message came until its confirm was sent, as the broker measured it: one message of each channel at a time.</p>
    </figure>
  );
}

function labelOf({ below_ms }: ConfirmLatency, row: number): string {
  const below = below_ms[row];
  if (row === ROWS - 1 || below === null || below === undefined) return "longer";
  if (below < 1) return `< ${below * 1000} µs`;
  return below < 1000 ? `< ${below} ms` : `< ${below / 1000} s`;
}

function wordsOf(latency: ConfirmLatency, row: number): string {
  const label = labelOf(latency, row);
  return label === "longer" ? `${labelOf(latency, row - 1).replace("< ", "")} or longer` : `less than ${label.replace("< ", "")}`;
}

/** For each row, the share of confirms in it. */
function sharesOf(counts: number[]): number[] {
  const rows = counts.slice(0, ROWS - 1);
  rows.push(counts.slice(ROWS - 1).reduce((sum, more) => sum + more, 0));
  const all = rows.reduce((sum, count) => sum + count, 0);
  return rows.map((count) => (all > 0 ? count / all : 0));
}

function paint(canvas: HTMLCanvasElement, columns: number[][]): void {
  const brush = canvas.getContext("2d");
  if (!brush) return;
  const style = getComputedStyle(canvas);
  canvas.style.height = `${ROWS * ROW_PX}px`;
  brush.globalAlpha = 1;
  brush.fillStyle = style.getPropertyValue("--sunk");
  brush.fillRect(0, 0, canvas.width, canvas.height);
  brush.fillStyle = style.getPropertyValue("--accent");
  columns.forEach((shares, at) => {
    const x = COLUMNS - columns.length + at;
    shares.forEach((share, row) => {
      // A small share must still be seen.
      brush.globalAlpha = share > 0 ? 0.15 + 0.85 * share : 0;
      brush.fillRect(x, ROWS - 1 - row, 1, 1);
    });
  });
}
