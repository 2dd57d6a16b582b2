/** Signing in. */

import { useEffect, useRef, useState } from "preact/hooks";

import { begin, type Provider, type Ways, ways } from "../oauth";
import { session, signIn, signOut } from "../session";
import { useStore } from "../store";
import { Notice } from "../ui/basics";

export function SignIn() {
  const state = useStore(session);
  const [how, setHow] = useState<Ways | null>(null);
  useEffect(() => {
    // What cannot say how it lets people in is asked in the way that all know.
    ways().then(setHow, () => setHow({ providers: [], hasPassword: true }));
  }, []);
  const reason = state.who === null ? state.reason : "";
  return (
    <main class="signin">
      <div class="card">
        <Logo />
        <h1>Leveret</h1>
        {reason && <Notice tone="bad" title={reason} />}
        {how?.providers.map((provider) => <ByProvider key={provider.label} of={provider} />)}
        {how?.hasPassword && <ByPassword />}
      </div>
    </main>
  );
}

function ByProvider({ of }: { of: Provider }) {
  const [busy, setBusy] = useState(false);
  return (
    <button
      type="button"
      class="primary"
      disabled={busy}
      onClick={() => {
        setBusy(true);
        begin(of).catch((error: Error) => {
          setBusy(false);
          signOut(`${error.message}.`);
        });
      }}
    >
      Sign in with {of.label}
    </button>
  );
}

function ByPassword() {
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const [busy, setBusy] = useState(false);
  const first = useRef<HTMLInputElement>(null);
  useEffect(() => first.current?.focus(), []);
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        setBusy(true);
        void signIn(name, password).finally(() => setBusy(false));
      }}
    >
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
  );
}

export function Logo() {
  return <img class="logo" src="./icon.svg" alt="" width="24" height="24" />;
}
