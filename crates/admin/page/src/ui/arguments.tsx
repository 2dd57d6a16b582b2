/** Rows of key, type and value: arguments of queues, exchanges and bindings, headers, policies' definitions. */

import { useId } from "preact/hooks";

export type Kind = "text" | "number" | "boolean" | "json";

export interface Argument {
  key: string;
  kind: Kind;
  text: string;
}

/** A key the broker knows: its kind, what it does, and the values if there are few. */
export interface KnownKey {
  key: string;
  kind: Kind;
  about: string;
  values?: string[];
}

/** Reads the rows; an error names the row it is about. */
export function tableOf(rows: Argument[]): Record<string, unknown> {
  const result: Record<string, unknown> = {};
  for (const { key, kind, text } of rows) {
    if (key.trim() === "") {
      if (text.trim() !== "") throw new Error(`The value "${text}" has no key`);
      continue;
    }
    result[key.trim()] = valueOf(key, kind, text);
  }
  return result;
}

function valueOf(key: string, kind: Kind, text: string): unknown {
  if (kind === "text") return text;
  if (kind === "boolean") {
    if (text !== "true" && text !== "false") throw new Error(`${key} is true or false, not "${text}"`);
    return text === "true";
  }
  if (kind === "number") {
    const number = Number(text);
    if (text.trim() === "" || !Number.isFinite(number)) throw new Error(`${key} is a number, not "${text}"`);
    return number;
  }
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`The value of ${key} is not JSON`);
  }
}

export function rowsOf(of: Record<string, unknown>): Argument[] {
  return Object.entries(of).map(([key, value]) => {
    if (typeof value === "string") return { key, kind: "text", text: value };
    if (typeof value === "number") return { key, kind: "number", text: String(value) };
    if (typeof value === "boolean") return { key, kind: "boolean", text: String(value) };
    return { key, kind: "json", text: JSON.stringify(value) };
  });
}

export interface ArgumentsProps {
  label: string;
  rows: Argument[];
  set: (rows: Argument[]) => void;
  known: readonly KnownKey[];
}

export function Arguments({ label, rows, set, known }: ArgumentsProps) {
  const keys = useId();
  // One empty row is always there to be written into.
  const shown = rows.at(-1)?.key === "" ? rows : [...rows, { key: "", kind: "text" as Kind, text: "" }];
  const change = (at: number, part: Partial<Argument>) => {
    const next = shown.map((row, number) => (number === at ? { ...row, ...part } : row));
    const about = known.find(({ key }) => key === part.key);
    if (about) next[at] = { ...next[at]!, kind: about.kind, text: next[at]!.text || (about.values?.[0] ?? "") };
    set(next);
  };
  return (
    <fieldset class="arguments">
      <legend>{label}</legend>
      <datalist id={keys}>
        {known.map(({ key, about }) => (
          <option key={key} value={key} label={about} />
        ))}
      </datalist>
      {shown.map((row, at) => {
        const about = known.find(({ key }) => key === row.key);
        return (
          <div class="argument" key={at}>
            <input
              aria-label={`${label}: key ${at + 1}`}
              placeholder="key"
              list={keys}
              value={row.key}
              spellcheck={false}
              onInput={(event) => change(at, { key: event.currentTarget.value })}
            />
            <select aria-label={`${label}: type ${at + 1}`} value={row.kind} onChange={(event) => change(at, { kind: event.currentTarget.value as Kind })}>
              <option value="text">text</option>
              <option value="number">number</option>
              <option value="boolean">boolean</option>
              <option value="json">JSON</option>
            </select>
            <Value label={`${label}: value ${at + 1}`} row={row} values={about?.values} set={(text) => change(at, { text })} />
            <button
              type="button"
              class="icon"
              aria-label={`${label}: remove ${row.key || `row ${at + 1}`}`}
              disabled={at === shown.length - 1}
              onClick={() => set(shown.filter((_, number) => number !== at))}
            >
              {"\u00d7"}
            </button>
            {about && <p class="help">{about.about}</p>}
          </div>
        );
      })}
    </fieldset>
  );
}

function Value({ label, row, values, set }: { label: string; row: Argument; values?: string[]; set: (text: string) => void }) {
  const options = values ?? (row.kind === "boolean" ? ["true", "false"] : undefined);
  if (options) {
    return (
      <select aria-label={label} value={row.text} onChange={(event) => set(event.currentTarget.value)}>
        {!options.includes(row.text) && <option value={row.text}>{row.text}</option>}
        {options.map((option) => (
          <option key={option}>{option}</option>
        ))}
      </select>
    );
  }
  return <input aria-label={label} placeholder="value" value={row.text} spellcheck={false} onInput={(event) => set(event.currentTarget.value)} />;
}
