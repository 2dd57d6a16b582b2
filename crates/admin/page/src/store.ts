/** One value that components follow: settings, the session, the route. */

import { useEffect, useState } from "preact/hooks";

export interface Store<T> {
  get(): T;
  set(value: T): void;
  follow(listener: () => void): () => void;
}

export function store<T>(first: T): Store<T> {
  let value = first;
  const listeners = new Set<() => void>();
  return {
    get: () => value,
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const listener of [...listeners]) listener();
    },
    follow(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/** The value of a store, followed as long as the component lives. */
export function useStore<T>(of: Store<T>): T {
  const [value, setValue] = useState(of.get());
  useEffect(() => {
    // The value may have changed between the first drawing and this effect.
    setValue(() => of.get());
    return of.follow(() => setValue(() => of.get()));
  }, [of]);
  return value;
}

/** A store whose value is kept in this browser. */
export function kept<T extends string>(key: string, first: T, allowed: readonly T[]): Store<T> {
  const name = `leveret.${key}`;
  const found = localStorage.getItem(name) as T | null;
  const made = store<T>(found !== null && allowed.includes(found) ? found : first);
  made.follow(() => localStorage.setItem(name, made.get()));
  return made;
}
