/** A table whose rows are reached with the arrow keys. */

import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";

export interface Column<Row> {
  /** Unique in its table; kept when the reader hides it. */
  key: string;
  title: string;
  help?: string;
  /** The API's field to sort by; without it the column cannot be sorted. */
  sort?: string;
  isNumber?: boolean;
  /** Not shown until the reader asks for it. */
  isExtra?: boolean;
  cell: (row: Row) => ComponentChildren;
}

export interface TableProps<Row> {
  label: string;
  columns: Column<Row>[];
  rows: Row[];
  rowKey: (row: Row) => string;
  rowHref?: (row: Row) => string;
  sort?: { by: string; isDown: boolean };
  onSort?: (by: string) => void;
}

export function Table<Row>({ label, columns, rows, rowKey, rowHref, sort, onSort }: TableProps<Row>) {
  const body = useRef<HTMLTableSectionElement>(null);
  return (
    <div class="scroll">
      <table aria-label={label}>
        <thead>
          <tr>
            {columns.map((column) => (
              <Head key={column.key} column={column} sort={sort} onSort={onSort} />
            ))}
          </tr>
        </thead>
        <tbody ref={body} onKeyDown={(event) => moveRow(event, body.current)}>
          {rows.map((row, at) => (
            <tr
              key={rowKey(row)}
              // One stop for the tab key, then arrows; links inside are reached as usual.
              tabIndex={rowHref ? (at === 0 ? 0 : -1) : undefined}
              data-href={rowHref?.(row)}
            >
              {columns.map((column) => (
                <td key={column.key} class={column.isNumber ? "num" : undefined}>
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface HeadProps<Row> {
  column: Column<Row>;
  sort?: { by: string; isDown: boolean };
  onSort?: (by: string) => void;
}

function Head<Row>({ column, sort, onSort }: HeadProps<Row>) {
  const { sort: field, title, help, isNumber } = column;
  const isSorted = field !== undefined && sort?.by === field;
  return (
    <th
      scope="col"
      class={isNumber ? "num" : undefined}
      title={help}
      aria-sort={isSorted ? (sort?.isDown ? "descending" : "ascending") : undefined}
    >
      {field !== undefined && onSort ? (
        <button type="button" onClick={() => onSort(field)}>
          {title}
          <span class="arrow" aria-hidden="true">
            {isSorted ? (sort?.isDown ? "\u2193" : "\u2191") : ""}
          </span>
        </button>
      ) : (
        title
      )}
    </th>
  );
}

function moveRow(event: KeyboardEvent, body: HTMLTableSectionElement | null): void {
  const from = (event.target as HTMLElement).closest("tr");
  if (!body || !from || event.ctrlKey || event.metaKey || event.altKey) return;
  if ((event.target as HTMLElement).matches("input, select, textarea")) return;
  const rows = [...body.rows];
  const at = rows.indexOf(from);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
  if (to !== undefined) {
    event.preventDefault();
    rows[Math.min(rows.length - 1, Math.max(0, to))]?.focus();
  } else if (event.key === "Enter" && event.target === from && from.dataset.href) {
    location.hash = from.dataset.href;
  }
}

/** Puts the focus on the first row of the page's first table: the keys `j` and arrow down. */
export function focusRows(): boolean {
  const row = document.querySelector<HTMLElement>("main tbody tr[tabindex]");
  row?.focus();
  return row !== null;
}
