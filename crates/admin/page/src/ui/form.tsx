/** Dialogs and the fields in them. */

import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";

import { useAction } from "../poll";
import { capital, Notice } from "./basics";

export interface DialogProps {
  title: string;
  onClose: () => void;
  wide?: boolean;
  children: ComponentChildren;
}

/** The browser's own dialog: it keeps the focus inside and closes on Escape. */
export function Dialog({ title, onClose, wide, children }: DialogProps) {
  const box = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    box.current?.showModal();
  }, []);
  return (
    <dialog
      ref={box}
      aria-labelledby={id}
      class={wide ? "wide" : undefined}
      onClose={onClose}
      // A click on the backdrop hits the dialog itself; one inside hits what is in it.
      onMouseDown={(event) => event.target === box.current && onClose()}
    >
      <div class="sheet">
        <header>
          <h2 id={id}>{title}</h2>
          <button type="button" class="icon" aria-label="Close" onClick={onClose}>
            {"\u00d7"}
          </button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

export interface FormProps {
  submit: string;
  danger?: boolean;
  disabled?: boolean;
  /** Resolves when the broker has done it. */
  onSubmit: () => Promise<void>;
  onCancel?: () => void;
  children?: ComponentChildren;
}

export function Form({ submit, danger, disabled, onSubmit, onCancel, children }: FormProps) {
  const { run, error, busy } = useAction();
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        run(onSubmit);
      }}
    >
      <div class="fields">{children}</div>
      {error && <Notice tone="bad" title={`${capital(error)}${/[.!?]$/.test(error) ? "" : "."}`} />}
      <footer>
        {onCancel && (
          <button type="button" onClick={onCancel}>
            Cancel
          </button>
        )}
        <button type="submit" class={danger ? "danger" : "primary"} disabled={busy || disabled}>
          {submit}
        </button>
      </footer>
    </form>
  );
}

/** A form that asks before something is lost. With `word`, the reader has to type it. */
export interface ConfirmProps {
  title: string;
  submit: string;
  word?: string;
  onClose: () => void;
  act: () => Promise<void>;
  children: ComponentChildren;
}

export function Confirm({ title, submit, word, onClose, act, children }: ConfirmProps) {
  const [typed, setTyped] = useState("");
  return (
    <Dialog title={title} onClose={onClose}>
      <Form danger submit={submit} disabled={word !== undefined && typed !== word} onSubmit={act} onCancel={onClose}>
        <div>{children}</div>
        {word !== undefined && (
          <Field label={`Type ${word} to confirm`}>
            {(id) => <input id={id} autoComplete="off" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />}
          </Field>
        )}
      </Form>
    </Dialog>
  );
}

export interface FieldProps {
  label: string;
  help?: ComponentChildren;
  children: (id: string, describedBy: string | undefined) => ComponentChildren;
}

export function Field({ label, help, children }: FieldProps) {
  const id = useId();
  const about = `${id}-help`;
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children(id, help ? about : undefined)}
      {help && (
        <p class="help" id={about}>
          {help}
        </p>
      )}
    </div>
  );
}

export interface TextProps {
  label: string;
  value: string;
  set: (value: string) => void;
  help?: ComponentChildren;
  type?: "text" | "password" | "number";
  placeholder?: string;
  required?: boolean;
  autoFocus?: boolean;
  list?: string[];
}

export function Text({ label, value, set, help, type = "text", placeholder, required, autoFocus, list }: TextProps) {
  const options = useId();
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (autoFocus) input.current?.focus();
  }, []);
  // Preact's types know `list` only where `type` cannot be a password.
  const kind: Record<string, string> = list ? { type, list: options } : { type };
  return (
    <Field label={label} help={help}>
      {(id, about) => (
        <>
          <input
            ref={input}
            id={id}
            {...kind}
            value={value}
            required={required}
            placeholder={placeholder}
            aria-describedby={about}
            autoComplete={type === "password" ? "new-password" : "off"}
            spellcheck={false}
            onInput={(event) => set(event.currentTarget.value)}
          />
          {list && (
            <datalist id={options}>
              {list.map((option) => (
                <option key={option} value={option} />
              ))}
            </datalist>
          )}
        </>
      )}
    </Field>
  );
}

export interface ChoiceProps<T extends string> {
  label: string;
  value: T;
  set: (value: T) => void;
  of: readonly (readonly [T, string])[];
  help?: ComponentChildren;
}

export function Choice<T extends string>({ label, value, set, of, help }: ChoiceProps<T>) {
  return (
    <Field label={label} help={help}>
      {(id, about) => (
        <select id={id} value={value} aria-describedby={about} onChange={(event) => set(event.currentTarget.value as T)}>
          {of.map(([key, text]) => (
            <option key={key} value={key}>
              {text}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

export function Check({ label, value, set, help }: { label: string; value: boolean; set: (value: boolean) => void; help?: string }) {
  return (
    <div class="field">
      <label class="check">
        <input type="checkbox" checked={value} onChange={() => set(!value)} />
        {label}
      </label>
      {help && <p class="help">{help}</p>}
    </div>
  );
}

export function Area({ label, value, set, help, rows = 5 }: { label: string; value: string; set: (value: string) => void; help?: ComponentChildren; rows?: number }) {
  return (
    <Field label={label} help={help}>
      {(id, about) => (
        <textarea id={id} rows={rows} value={value} aria-describedby={about} spellcheck={false} onInput={(event) => set(event.currentTarget.value)} />
      )}
    </Field>
  );
}

/** A button that opens something, which is given a way to close itself. */
export function Opener({ label, tone, title, disabled, children }: { label: string; tone?: "primary" | "danger"; title?: string; disabled?: boolean; children: (close: () => void) => ComponentChildren }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <button type="button" class={tone} title={title} disabled={disabled} onClick={() => setOpen(true)}>
        {label}
      </button>
      {isOpen && children(() => setOpen(false))}
    </>
  );
}
