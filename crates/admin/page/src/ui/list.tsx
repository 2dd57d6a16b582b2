/**
 * A list that the broker pages, sorts and filters: only what is on the screen is ever fetched, so it
 * is as quick with ten thousand objects as with ten. What is asked for is in the address.
 */

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { query as withQuery } from "../api";
import { count } from "../format";
import { usePoll } from "../poll";
import { ask, route } from "../router";
import { useStore } from "../store";
import type { Page } from "../types";
import { Empty, Notice, Problem } from "./basics";
import { type Column, Table } from "./table";

const SIZES = ["25", "50", "100", "250", "500"];
const DEFAULT_SIZE = "50";
const LIST_STEP_MS = 5000;

/** How long the reader has stopped typing before the broker is asked. */
const TYPING_MS = 250;

export interface ListProps<Row> {
  /** In the plural: "queues". */
  what: string;
  address: string;
  /** The fields that the cells read, so that the broker sends no others. */
  fields?: string[];
  columns: Column<Row>[];
  rowKey: (row: Row) => string;
  rowHref?: (row: Row) => string;
  first?: { by: string; isDown: boolean };
  actions?: ComponentChildren;
  empty: ComponentChildren;
}

export function List<Row extends object>(props: ListProps<Row>) {
  const { what, columns, rowKey, rowHref, actions, empty } = props;
  const { query } = useStore(route);
  const asked = {
    name: query.get("name") ?? "",
    isRegex: query.get("regex") === "1",
    page: Number(query.get("page") ?? 1),
    size: query.get("size") ?? DEFAULT_SIZE,
    by: query.get("sort") ?? props.first?.by ?? "name",
    isDown: query.has("sort") ? query.get("dir") === "down" : (props.first?.isDown ?? false),
  };
  const [extra, setExtra] = useChosen(what, columns);
  const address = withQuery(props.address, {
    page: asked.page,
    page_size: asked.size,
    name: asked.name,
    use_regex: asked.isRegex,
    pagination: true,
    sort: asked.by,
    sort_reverse: asked.isDown,
    columns: props.fields?.join(","),
  });
  const polled = usePoll<Page<Row> | Row[]>(address, LIST_STEP_MS, { keep: true });
  const page = useMemo(() => paged(polled.data, asked), [polled.data, address]);
  // The last page went away with its objects: RabbitMQ then refuses the request.
  useEffect(() => {
    if (polled.error?.status === 400 && asked.page > 1) ask({ page: null });
  }, [polled.error]);

  const sort = (by: string) => ask({ sort: by, dir: asked.by === by && !asked.isDown ? "down" : "up", page: null });
  const shown = columns.filter((column) => !column.isExtra || extra.has(column.key));
  const isFiltered = asked.name !== "";
  return (
    <>
      <Toolbar what={what} asked={asked} page={page} columns={columns} extra={extra} setExtra={setExtra}>
        {actions}
      </Toolbar>
      {polled.error && <Problem error={polled.error} what={what} />}
      {polled.warning !== "" && (
        <Notice tone="warn" title="This list is not whole">
          The broker says: {polled.warning}. The page tries again by itself.
        </Notice>
      )}
      {page && page.items.length > 0 && (
        <Table
          label={what}
          columns={shown}
          rows={page.items}
          rowKey={rowKey}
          rowHref={rowHref}
          sort={{ by: asked.by, isDown: asked.isDown }}
          onSort={sort}
        />
      )}
      {page && page.items.length === 0 && !polled.error && (isFiltered ? <NoneMatch what={what} name={asked.name} /> : empty)}
      {!page && !polled.error && <p class="loading">Loading {what}</p>}
    </>
  );
}

function NoneMatch({ what, name }: { what: string; name: string }) {
  return (
    <Empty title={`No ${what} match "${name}"`}>
      <button type="button" class="link" onClick={() => ask({ name: null, regex: null, page: null })}>
        Clear the filter
      </button>
    </Empty>
  );
}

interface AskedList {
  name: string;
  isRegex: boolean;
  page: number;
  size: string;
  by: string;
  isDown: boolean;
}

/** A broker that does not page this list sends all of it; then the page does the rest. */
function paged<Row extends object>(data: Page<Row> | Row[] | undefined, asked: AskedList): Page<Row> | undefined {
  if (data === undefined || !Array.isArray(data)) return data;
  const rows = sorted(data.filter((row) => isMatch(row, asked)), asked);
  const size = Number(asked.size);
  const pages = Math.max(1, Math.ceil(rows.length / size));
  const page = Math.min(asked.page, pages);
  const items = rows.slice((page - 1) * size, page * size);
  return { items, page, page_count: pages, page_size: size, item_count: items.length, filtered_count: rows.length, total_count: data.length };
}

function isMatch(row: object, { name, isRegex }: AskedList): boolean {
  if (name === "") return true;
  const own = String(field(row, "name") ?? field(row, "user") ?? "");
  if (!isRegex) return own.toLowerCase().includes(name.toLowerCase());
  try {
    return new RegExp(name).test(own);
  } catch {
    return false; // half a pattern, still being typed
  }
}

export function field(row: object, dotted: string): unknown {
  return dotted.split(".").reduce<unknown>((of, key) => (of as Record<string, unknown> | undefined)?.[key], row);
}

export function sorted<Row extends object>(rows: Row[], { by, isDown }: { by: string; isDown: boolean }): Row[] {
  const sign = isDown ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [field(one, by), field(other, by)];
    if (typeof a === "number" || typeof b === "number") return sign * (Number(a ?? 0) - Number(b ?? 0));
    return sign * String(a ?? "").localeCompare(String(b ?? ""));
  });
}

interface ToolbarProps<Row> {
  what: string;
  asked: AskedList;
  page: Page<Row> | undefined;
  columns: Column<Row>[];
  extra: ReadonlySet<string>;
  setExtra: (next: Set<string>) => void;
  children?: ComponentChildren;
}

function Toolbar<Row>({ what, asked, page, columns, extra, setExtra, children }: ToolbarProps<Row>) {
  const [typed, setTyped] = useState(asked.name);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => setTyped(asked.name), [asked.name]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const filter = (name: string) => {
    setTyped(name);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => ask({ name, page: null }), TYPING_MS);
  };
  return (
    <div class="toolbar">
      <input
        type="search"
        id="filter"
        value={typed}
        placeholder={`Filter ${what}`}
        aria-label={`Filter ${what} by name`}
        onInput={(event) => filter(event.currentTarget.value)}
      />
      <label class="check" title="Read the filter as a regular expression">
        <input type="checkbox" checked={asked.isRegex} onChange={() => ask({ regex: asked.isRegex ? null : "1", page: null })} />
        Regex
      </label>
      {page && <Pager asked={asked} page={page} what={what} />}
      <span class="space" />
      {columns.some((column) => column.isExtra) && <Chooser columns={columns} extra={extra} setExtra={setExtra} />}
      {children}
    </div>
  );
}

function Pager<Row>({ asked, page, what }: { asked: AskedList; page: Page<Row>; what: string }) {
  const total = page.filtered_count ?? page.total_count;
  const first = total === 0 ? 0 : (page.page - 1) * page.page_size + 1;
  const last = first === 0 ? 0 : first + page.items.length - 1;
  const to = (number: number) => ask({ page: number === 1 ? null : String(number) });
  return (
    <nav class="pager" aria-label={`Pages of ${what}`}>
      <span class="num" aria-live="off">
        {count(first)}-{count(last)} of {count(total)}
        {total !== page.total_count && <span class="muted"> ({count(page.total_count)} in all)</span>}
      </span>
      {page.page_count > 1 && (
        <>
          <button type="button" class="icon" disabled={page.page <= 1} aria-label="Previous page" onClick={() => to(page.page - 1)}>
            {"\u2039"}
          </button>
          <button type="button" class="icon" disabled={page.page >= page.page_count} aria-label="Next page" onClick={() => to(page.page + 1)}>
            {"\u203a"}
          </button>
        </>
      )}
      {total > Number(SIZES[0]) && (
        <select aria-label="Rows on a page" value={asked.size} onChange={(event) => ask({ size: event.currentTarget.value, page: null })}>
          {SIZES.map((size) => (
            <option key={size} value={size}>
              {size} rows
            </option>
          ))}
        </select>
      )}
    </nav>
  );
}

interface ChooserProps<Row> {
  columns: Column<Row>[];
  extra: ReadonlySet<string>;
  setExtra: (next: Set<string>) => void;
}

function Chooser<Row>({ columns, extra, setExtra }: ChooserProps<Row>) {
  const toggle = (key: string) => {
    const next = new Set(extra);
    if (!next.delete(key)) next.add(key);
    setExtra(next);
  };
  return (
    <details class="menu">
      <summary class="button">Columns</summary>
      <div>
        {columns
          .filter((column) => column.isExtra)
          .map((column) => (
            <label key={column.key} class="check">
              <input type="checkbox" checked={extra.has(column.key)} onChange={() => toggle(column.key)} />
              {column.title}
            </label>
          ))}
      </div>
    </details>
  );
}

function useChosen<Row>(what: string, columns: Column<Row>[]): [ReadonlySet<string>, (next: Set<string>) => void] {
  const key = `leveret.columns.${what}`;
  const [chosen, setChosen] = useState<ReadonlySet<string>>(() => {
    const known = new Set(columns.map((column) => column.key));
    return new Set((localStorage.getItem(key) ?? "").split(",").filter((name) => known.has(name)));
  });
  return [
    chosen,
    (next) => {
      localStorage.setItem(key, [...next].join(","));
      setChosen(next);
    },
  ];
}

/** Rows that the page has already; drawn a part at a time, however many there are. */
export interface LocalProps<Row> {
  label: string;
  columns: Column<Row>[];
  rows: Row[];
  rowKey: (row: Row) => string;
  rowHref?: (row: Row) => string;
  first?: { by: string; isDown: boolean };
}

const PART = 100;

export function LocalTable<Row extends object>({ label, columns, rows, rowKey, rowHref, first }: LocalProps<Row>) {
  const [order, setOrder] = useState(first);
  const [most, setMost] = useState(PART);
  const all = order ? sorted(rows, order) : rows;
  return (
    <>
      <Table
        label={label}
        columns={columns}
        rows={all.slice(0, most)}
        rowKey={rowKey}
        rowHref={rowHref}
        sort={order}
        onSort={(by) => setOrder({ by, isDown: order?.by === by && !order.isDown })}
      />
      {all.length > most && (
        <p class="more">
          <button type="button" class="link" onClick={() => setMost(most + PART)}>
            Show {count(Math.min(PART, all.length - most))} more of {count(all.length)}
          </button>
        </p>
      )}
    </>
  );
}
