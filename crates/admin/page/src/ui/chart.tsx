/** A live line chart on a canvas, with a legend that is text: it can be read aloud and copied. */

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";

import type { Series } from "../series";
import { theme } from "../settings";
import { useStore } from "../store";
import { short } from "../format";

export interface ChartProps {
  title: string;
  series: Series;
  show?: (value: unknown) => string;
  height?: number;
  /** Seconds on the time axis. */
  window?: number;
}

export function Chart({ title, series, show = short, height = 168, window: seconds = 300 }: ChartProps) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const colours = useStore(theme);
  const names = series.lines.map((line) => line.label).join("|");
  const shown = useRef(show);
  shown.current = show;
  const latest = useRef(series);
  latest.current = series;

  // The plot itself: made again when its lines or the colours change.
  useEffect(() => {
    const box = place.current!;
    const made = new uPlot(options(box, latest.current, hidden, height, (v) => shown.current(v)), data(latest.current), box);
    plot.current = made;
    draw(made, latest.current, seconds);
    const resized = new ResizeObserver(() => made.setSize({ width: box.clientWidth, height }));
    resized.observe(box);
    return () => {
      resized.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [names, colours, height, hidden, seconds]);

  useEffect(() => {
    if (plot.current) draw(plot.current, series, seconds);
  }, [series, seconds]);

  const toggle = (label: string) => {
    const next = new Set(hidden);
    if (!next.delete(label)) next.add(label);
    setHidden(next);
  };
  const now = series.lines.map((line) => `${line.label} ${show(line.values.at(-1) ?? undefined)}`).join(", ");
  return (
    <figure class="chart">
      <figcaption>
        <h3>{title}</h3>
        <ul class="legend">
          {series.lines.map((line) => (
            <li key={line.label}>
              <button
                type="button"
                class={`key ink-${line.colour}`}
                aria-pressed={!hidden.has(line.label)}
                title={hidden.has(line.label) ? "Show this line" : "Hide this line"}
                onClick={() => toggle(line.label)}
              >
                <span class="dot" />
                {line.label} <b>{show(line.values.at(-1) ?? undefined)}</b>
              </button>
            </li>
          ))}
        </ul>
      </figcaption>
      <div class="plot" ref={place} role="img" aria-label={`${title}, now: ${now}`} />
    </figure>
  );
}

function data(series: Series): uPlot.AlignedData {
  return [series.times, ...series.lines.map((line) => line.values)] as uPlot.AlignedData;
}

function draw(plot: uPlot, series: Series, seconds: number): void {
  plot.setData(data(series), false);
  const end = series.times.at(-1) ?? Date.now() / 1000;
  plot.setScale("x", { min: end - seconds, max: end });
}

function options(
  box: HTMLElement,
  series: Series,
  hidden: ReadonlySet<string>,
  height: number,
  show: (value: unknown) => string,
): uPlot.Options {
  const style = getComputedStyle(box);
  const colour = (name: string) => style.getPropertyValue(`--${name}`).trim();
  const axis = {
    stroke: colour("muted"),
    font: `11px ${style.fontFamily}`,
    grid: { stroke: colour("line"), width: 1 },
    ticks: { show: false },
  };
  return {
    width: Math.max(120, box.clientWidth),
    height,
    // The last time on the axis is as wide as half of it beyond the end.
    padding: [8, 26, 0, 0],
    legend: { show: false },
    cursor: { points: { size: 6 }, y: false, drag: { x: false, y: false } },
    scales: {
      x: { time: true, auto: false },
      // From zero: the height of a line is then its size. An idle chart still has an axis.
      y: { range: (_plot, _low, high) => [0, Math.max(1, (high ?? 0) * 1.1)] },
    },
    axes: [
      { ...axis, space: 70, size: 24, values: (_plot, splits) => splits.map(clock) },
      { ...axis, space: 32, size: 64, values: (_plot, splits) => splits.map((value) => show(value)) },
    ],
    series: [
      {},
      ...series.lines.map((line) => ({
        label: line.label,
        stroke: colour(`chart-${line.colour}`),
        width: 1.5,
        show: !hidden.has(line.label),
        points: { show: false },
        spanGaps: false,
      })),
    ],
    plugins: [tip(show)],
  };
}

const clock = (seconds: number) => new Date(seconds * 1000).toLocaleTimeString("sv-SE");

/** The values under the pointer. */
function tip(show: (value: unknown) => string): uPlot.Plugin {
  const box = document.createElement("div");
  box.className = "tip";
  box.hidden = true;
  return {
    hooks: {
      init: (plot) => {
        plot.over.append(box);
        plot.over.addEventListener("mouseleave", () => (box.hidden = true));
      },
      setCursor: (plot) => {
        const at = plot.cursor.idx;
        box.hidden = at === null || at === undefined;
        if (at === null || at === undefined) return;
        const lines = plot.series.slice(1).flatMap((line, number) => {
          if (line.show === false) return [];
          return [`${String(line.label)} ${show(plot.data[number + 1]?.[at] ?? undefined)}`];
        });
        box.textContent = [clock(plot.data[0][at] ?? 0), ...lines].join("\n");
        const left = plot.cursor.left ?? 0;
        box.classList.toggle("left", left > plot.over.clientWidth / 2);
        box.style.left = `${left}px`;
      },
    },
  };
}
