// Controls of forms and pages: native elements with our look. Menus and tabs are in files of their own.
import {
  useEffect,
  useId,
  useRef,
  type ButtonHTMLAttributes,
  type InputHTMLAttributes,
  type ReactNode,
  type SelectHTMLAttributes,
  type TextareaHTMLAttributes,
} from "react";
import { useT } from "../locales";
import { Icon, type IconName } from "./icon";

export interface ButtonProps extends ButtonHTMLAttributes<HTMLButtonElement> {
  look?: "normal" | "main" | "danger" | "quiet";
  icon?: IconName;
  busy?: boolean;
}

export function Button({
  look = "normal",
  icon,
  busy = false,
  className,
  children,
  disabled,
  type = "button",
  ...rest
}: ButtonProps) {
  return (
    <button
      type={type}
      className={`button button-${look}${className === undefined ? "" : ` ${className}`}`}
      aria-busy={busy || undefined}
      disabled={disabled === true || busy}
      {...rest}
    >
      {busy ? <span className="spinner" aria-hidden="true" /> : icon !== undefined && <Icon name={icon} />}
      {children}
    </button>
  );
}

/** A button with a symbol only; its label is shown as a tooltip. */
export function IconButton({
  icon,
  label,
  className,
  ...rest
}: ButtonHTMLAttributes<HTMLButtonElement> & { icon: IconName; label: string }) {
  return (
    <button
      type="button"
      className={`icon-button${className === undefined ? "" : ` ${className}`}`}
      aria-label={label}
      data-tip={label}
      {...rest}
    >
      <Icon name={icon} />
    </button>
  );
}

/** Label, help and error around a control. `children` gets the ids to refer to. */
export function Field({
  label,
  help,
  error,
  children,
  className,
}: {
  label: string;
  help?: ReactNode;
  error?: ReactNode;
  className?: string;
  children: (ids: { id: string; "aria-describedby"?: string; "aria-invalid"?: true }) => ReactNode;
}) {
  const id = useId();
  const described = [
    help === undefined ? null : `${id}-help`,
    error === undefined || error === null ? null : `${id}-error`,
  ]
    .filter((part) => part !== null)
    .join(" ");
  const hasError = error !== undefined && error !== null;
  return (
    <div className={`field${className === undefined ? "" : ` ${className}`}`}>
      <label htmlFor={id}>{label}</label>
      {children({
        id,
        ...(described === "" ? {} : { "aria-describedby": described }),
        ...(hasError ? { "aria-invalid": true as const } : {}),
      })}
      {help !== undefined && (
        <div className="field-help" id={`${id}-help`}>
          {help}
        </div>
      )}
      {hasError && (
        <div className="field-error" id={`${id}-error`}>
          <Icon name="error" size={14} />
          <span>{error}</span>
        </div>
      )}
    </div>
  );
}

type FieldParts = { label: string; help?: ReactNode; error?: ReactNode; fieldClass?: string };

export function TextField({
  label,
  help,
  error,
  fieldClass,
  ...rest
}: FieldParts & InputHTMLAttributes<HTMLInputElement>) {
  return (
    <Field label={label} help={help} error={error} {...(fieldClass === undefined ? {} : { className: fieldClass })}>
      {(ids) => <input type="text" className="input" autoComplete="off" spellCheck={false} {...rest} {...ids} />}
    </Field>
  );
}

export function TextArea({
  label,
  help,
  error,
  fieldClass,
  ...rest
}: FieldParts & TextareaHTMLAttributes<HTMLTextAreaElement>) {
  return (
    <Field label={label} help={help} error={error} {...(fieldClass === undefined ? {} : { className: fieldClass })}>
      {(ids) => <textarea className="input" spellCheck={false} rows={4} {...rest} {...ids} />}
    </Field>
  );
}

export interface Option {
  value: string;
  text: string;
}

export function Select({
  label,
  help,
  error,
  fieldClass,
  options,
  onValue,
  ...rest
}: FieldParts &
  Omit<SelectHTMLAttributes<HTMLSelectElement>, "onChange"> & {
    options: readonly Option[];
    onValue: (value: string) => void;
  }) {
  return (
    <Field label={label} help={help} error={error} {...(fieldClass === undefined ? {} : { className: fieldClass })}>
      {(ids) => (
        <span className="select">
          <select className="input" {...rest} {...ids} onChange={(event) => onValue(event.currentTarget.value)}>
            {options.map((option) => (
              <option key={option.value} value={option.value}>
                {option.text}
              </option>
            ))}
          </select>
          <Icon name="chevron-down" size={14} />
        </span>
      )}
    </Field>
  );
}

interface ToggleProps {
  label: ReactNode;
  checked: boolean;
  onValue: (value: boolean) => void;
  disabled?: boolean;
}

export function Switch({ label, checked, onValue, disabled }: ToggleProps) {
  return (
    <label className="switch">
      <input
        type="checkbox"
        role="switch"
        checked={checked}
        disabled={disabled}
        onChange={(event) => onValue(event.currentTarget.checked)}
      />
      <span className="switch-track" aria-hidden="true" />
      <span>{label}</span>
    </label>
  );
}

export function Checkbox({ label, checked, onValue, disabled }: ToggleProps) {
  return (
    <label className="checkbox">
      <input
        type="checkbox"
        checked={checked}
        disabled={disabled}
        onChange={(event) => onValue(event.currentTarget.checked)}
      />
      <span>{label}</span>
    </label>
  );
}

/** Choice of a few, all visible. */
export function Segmented<Value extends string>({
  label,
  value,
  options,
  onValue,
}: {
  label: string;
  value: Value;
  options: readonly { value: Value; text: string }[];
  onValue: (value: Value) => void;
}) {
  const name = useId();
  return (
    <fieldset className="segmented">
      <legend className="visually-hidden">{label}</legend>
      {options.map((option) => (
        <label key={option.value}>
          <input
            type="radio"
            name={name}
            value={option.value}
            checked={option.value === value}
            onChange={() => onValue(option.value)}
          />
          <span>{option.text}</span>
        </label>
      ))}
    </fieldset>
  );
}

/** Field that filters a list; `/` focuses it. Calls `onValue` 250 ms after the last key, at once on Enter. */
export function FilterField({
  label,
  value,
  onValue,
  placeholder,
}: {
  label: string;
  value: string;
  onValue: (value: string) => void;
  placeholder?: string;
}) {
  const t = useT();
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (field.current !== null && document.activeElement !== field.current) field.current.value = value;
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const change = (next: string, ms: number) => {
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onValue(next.trim()), ms);
  };
  return (
    <span className="filter">
      <Icon name="search" size={14} />
      <input
        ref={field}
        type="search"
        className="input"
        data-filter=""
        aria-label={label}
        placeholder={placeholder ?? label}
        defaultValue={value}
        autoComplete="off"
        spellCheck={false}
        onChange={(event) => change(event.currentTarget.value, 250)}
        onKeyDown={(event) => {
          if (event.key === "Enter") change(event.currentTarget.value, 0);
          if (event.key === "Escape" && event.currentTarget.value !== "") {
            event.currentTarget.value = "";
            change("", 0);
            event.stopPropagation();
          }
        }}
      />
      <kbd aria-label={t("common.filterKey")}>/</kbd>
    </span>
  );
}

export interface DialogProps {
  title: string;
  onClose: () => void;
  children: ReactNode;
  actions?: ReactNode;
  size?: "small" | "medium" | "large";
  /** Stays until an action: Escape and a click beside it do nothing. */
  stays?: boolean;
  className?: string;
}

/** Modal dialog. The focus returns to where it was. */
export function Dialog({ title, onClose, children, actions, size = "medium", stays = false, className }: DialogProps) {
  const t = useT();
  const element = useRef<HTMLDialogElement>(null);
  const heading = useId();
  useEffect(() => {
    const before = document.activeElement;
    const dialog = element.current!;
    if (!dialog.open) dialog.showModal();
    // The first field, or else the first action, which is the safe one; not the cross in the head.
    const field = dialog.querySelector<HTMLElement>(
      ".dialog-body :is(input, select, textarea):not([hidden], [readonly], :disabled)",
    );
    (field ?? dialog.querySelector<HTMLElement>(".dialog-actions button:not(:disabled)"))?.focus();
    return () => {
      dialog.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={element}
      className={`dialog dialog-${size}${className === undefined ? "" : ` ${className}`}`}
      aria-labelledby={heading}
      onCancel={(event) => {
        event.preventDefault();
        if (!stays) onClose();
      }}
      onPointerDown={(event) => {
        if (event.target === element.current && !stays) onClose();
      }}
    >
      <div className="dialog-box">
        <header className="dialog-head">
          <h2 id={heading}>{title}</h2>
          {!stays && (
            <button type="button" className="icon-button" aria-label={t("common.close")} onClick={onClose}>
              <Icon name="close" />
            </button>
          )}
        </header>
        <div className="dialog-body">{children}</div>
        {actions !== undefined && <footer className="dialog-actions">{actions}</footer>}
      </div>
    </dialog>
  );
}
