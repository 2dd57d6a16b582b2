/** Signing in. */

import { useEffect, useRef, useState } from "preact/hooks";

import { session, signIn } from "../session";
import { useStore } from "../store";
import { Notice } from "../ui/basics";

export function SignIn() {
  const state = useStore(session);
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const [busy, setBusy] = useState(false);
  const first = useRef<HTMLInputElement>(null);
  useEffect(() => first.current?.focus(), []);
  const reason = state.who === null ? state.reason : "";
  return (
    <main class="signin">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          setBusy(true);
          void signIn(name, password).finally(() => setBusy(false));
        }}
      >
        <Logo />
        <h1>Leveret</h1>
        {reason && <Notice tone="bad" title={reason} />}
        <div class="field">
          <label for="user">User</label>
          <input ref={first} id="user" name="username" autoComplete="username" required value={name} onInput={(event) => setName(event.currentTarget.value)} />
        </div>
        <div class="field">
          <label for="password">Password</label>
          <input
            id="password"
            name="password"
            type="password"
            autoComplete="current-password"
            value={password}
            onInput={(event) => setPassword(event.currentTarget.value)}
          />
        </div>
        <button type="submit" class="primary" disabled={busy}>
          Sign in
        </button>
      </form>
    </main>
  );
}

export function Logo() {
  return <img class="logo" src="./icon.svg" alt="" width="24" height="24" />;
}
