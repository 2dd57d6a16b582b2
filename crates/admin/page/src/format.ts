/** Numbers, sizes and times as people read them. */

/** What is shown where the broker says nothing. */
export const NONE = "\u2013";

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function count(value: unknown): string {
  return typeof value === "number" && Number.isFinite(value) ? WHOLE.format(value) : NONE;
}

/** `12,400` below a hundred thousand, `1.24 M` above: room on axes and tiles. */
export function short(value: unknown): string {
  if (typeof value !== "number" || !Number.isFinite(value)) return NONE;
  if (Math.abs(value) < 100_000) return Number.isInteger(value) ? WHOLE.format(value) : digits(value);
  const [unit, letter] = value >= 1e9 ? [1e9, "G"] : value >= 1e6 ? [1e6, "M"] : [1e3, "k"];
  return `${digits(value / (unit as number))} ${letter}`;
}

function digits(value: number): string {
  const size = Math.abs(value);
  return value.toLocaleString("en-US", { maximumFractionDigits: size < 1 ? 2 : size < 100 ? 1 : 0 });
}

export function rate(value: unknown): string {
  if (typeof value !== "number" || !Number.isFinite(value)) return NONE;
  if (value === 0) return "0/s";
  const places = value < 1 ? 100 : value < 100 ? 10 : 1;
  return `${short(Math.round(value * places) / places)}/s`;
}

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export function bytes(value: unknown): string {
  if (typeof value !== "number" || !Number.isFinite(value)) return NONE;
  let size = value;
  let unit = 0;
  while (Math.abs(size) >= 1000 && unit < UNITS.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? WHOLE.format(size) : digits(size)} ${UNITS[unit]}`;
}

export const byteRate = (value: unknown) => (typeof value === "number" ? `${bytes(value)}/s` : NONE);

/** `2 d 3 h`, `4 min 5 s`, `12 s`: two units are enough to know what to do. */
export function span(ms: unknown): string {
  if (typeof ms !== "number" || !Number.isFinite(ms) || ms < 0) return NONE;
  const seconds = Math.floor(ms / 1000);
  const parts: [number, string][] = [
    [Math.floor(seconds / 86_400), "d"],
    [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [seconds % 60, "s"],
  ];
  const first = parts.findIndex(([value]) => value > 0);
  if (first < 0) return "0 s";
  return parts
    .slice(first, first + 2)
    .filter(([value], at) => at === 0 || value > 0)
    .map(([value, unit]) => `${value} ${unit}`)
    .join(" ");
}

/** A moment the broker gives as text (`2024-05-01 12:00:00`, in UTC), seconds or milliseconds. */
export function moment(value: unknown): number | undefined {
  if (typeof value === "number") return value < 1e11 ? value * 1000 : value;
  if (typeof value !== "string" || value === "") return undefined;
  const zoned = /(Z|[+-]\d\d:?\d\d)$/.test(value) ? value : `${value.replace(" ", "T")}Z`;
  const parsed = Date.parse(zoned);
  return Number.isNaN(parsed) ? undefined : parsed;
}

export function ago(value: unknown): string {
  const then = moment(value);
  return then === undefined ? NONE : `${span(Math.max(0, Date.now() - then))} ago`;
}

export function when(value: unknown): string {
  const then = moment(value);
  if (then === undefined) return NONE;
  return new Date(then).toLocaleString("sv-SE"); // 2024-05-01 12:00:00, in the reader's own zone
}

export function percent(part: unknown): string {
  return typeof part === "number" && Number.isFinite(part) ? `${Math.round(part * 100)} %` : NONE;
}

/** A value of a field table or a definition. */
export function value(of: unknown): string {
  if (of === undefined || of === null) return NONE;
  if (typeof of === "string") return of;
  // What a client is capable of: names that are all true.
  const flags = typeof of === "object" ? Object.entries(of) : [];
  if (flags.length > 0 && flags.every(([, flag]) => flag === true)) return flags.map(([name]) => name).join(", ");
  return JSON.stringify(of);
}

export function plural(of: number, one: string, many = `${one}s`): string {
  return `${count(of)} ${of === 1 ? one : many}`;
}
