/** One box that finds queues, exchanges, connections and pages by a part of their name. */

import { useEffect, useRef, useState } from "preact/hooks";

import { get, query } from "../api";
import { plural } from "../format";
import { PLACES } from "../keys";
import { href } from "../router";
import type { Connection, Exchange, Page, Queue } from "../types";

interface Found {
  kind: string;
  name: string;
  note: string;
  to: string;
}

/** Preact's types want a `list` with this role; the list here is our own. */
const COMBOBOX: Record<string, string> = { role: "combobox", "aria-autocomplete": "list" };

const TYPING_MS = 200;
const EACH = 6;

async function look(name: string, signal: AbortSignal): Promise<Found[]> {
  const ask = <Row,>(list: string, columns: string) =>
    get<Page<Row> | Row[]>(query(list, { page: 1, page_size: EACH, name, use_regex: false, pagination: true, columns }), { signal }).then(
      (page) => (Array.isArray(page) ? page.slice(0, EACH) : page.items),
      // What this user may not see is not found.
      () => [] as Row[],
    );
  const [queues, exchanges, connections] = await Promise.all([
    ask<Queue>("queues", "name,vhost,messages"),
    ask<Exchange>("exchanges", "name,vhost,type"),
    ask<Connection>("connections", "name,user,user_provided_name"),
  ]);
  const pages = PLACES.filter(([, , title]) => title.toLowerCase().includes(name.toLowerCase()));
  return [
    ...pages.map(([, parts, title]) => ({ kind: "page", name: title, note: "", to: href(parts) })),
    ...queues.map((it) => ({ kind: "queue", name: it.name, note: `${it.vhost}, ${plural(it.messages ?? 0, "message")}`, to: href(["queues", it.vhost, it.name]) })),
    ...exchanges.filter((it) => it.name !== "").map((it) => ({ kind: "exchange", name: it.name, note: `${it.vhost}, ${it.type}`, to: href(["exchanges", it.vhost, it.name]) })),
    ...connections.map((it) => ({ kind: "connection", name: it.user_provided_name ?? it.name, note: it.user ?? "", to: href(["connections", it.name]) })),
  ];
}

export function Search() {
  const [text, setText] = useState("");
  const [found, setFound] = useState<Found[]>();
  const [at, setAt] = useState(0);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    setFound(undefined);
    if (text.trim() === "") return;
    const stop = new AbortController();
    const timer = setTimeout(async () => {
      const all = await look(text.trim(), stop.signal);
      if (stop.signal.aborted) return;
      setFound(all);
      setAt(0);
    }, TYPING_MS);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [text]);

  const leave = () => {
    setText("");
    input.current?.blur();
  };
  const open = (one: Found | undefined) => {
    if (!one) return;
    leave();
    location.hash = one.to;
  };
  const key = (event: KeyboardEvent) => {
    const last = (found?.length ?? 1) - 1;
    if (event.key === "ArrowDown") setAt(Math.min(last, at + 1));
    else if (event.key === "ArrowUp") setAt(Math.max(0, at - 1));
    else if (event.key === "Enter") open(found?.[at]);
    else if (event.key === "Escape") leave();
    else return;
    event.preventDefault();
  };
  return (
    <div class="search" role="search">
      <input
        ref={input}
        id="search"
        type="search"
        {...COMBOBOX}
        aria-label="Search queues, exchanges, connections and pages"
        aria-expanded={found !== undefined}
        aria-controls="found"
        aria-activedescendant={found && found.length > 0 ? `found-${at}` : undefined}
        placeholder="Search"
        autoComplete="off"
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={key}
        onBlur={() => setTimeout(() => setText(""), 150)}
      />
      <kbd aria-hidden="true">/</kbd>
      {found && (
        <ul id="found" role="listbox" aria-label="Found">
          {found.length === 0 && <li class="muted">Nothing has "{text}" in its name</li>}
          {found.map((one, number) => (
            <li
              key={one.to}
              id={`found-${number}`}
              role="option"
              aria-selected={number === at}
              onMouseDown={(event) => {
                event.preventDefault();
                open(one);
              }}
            >
              <span class="kind">{one.kind}</span>
              <b>{one.name}</b>
              <span class="muted">{one.note}</span>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
