// Editor of definitions and documents. The editor itself (CodeMirror) is loaded when it is first shown.
import { lazy, Suspense } from "react";
import type { Schema } from "../../api/client";
import { Loading } from "../states";

export type Problem = Schema<"ProblemItem">;

/** A problem with its severity, for the margin and the list below the text. */
export interface Finding extends Problem {
  severity: "error" | "warning";
}

export interface EditorProps {
  value: string;
  onChange?: (value: string) => void;
  label: string;
  language: "yaml" | "json" | "text";
  /** Keys, values and expressions are completed for a definition of an application. */
  completes?: "application";
  /** Checks the text 400 ms after the last key, and at once by Ctrl-S. */
  check?: (text: string, signal: AbortSignal) => Promise<Finding[]>;
  /** Receives the result of each check; null while the text is not checked. */
  onFindings?: (findings: Finding[] | null) => void;
  readOnly?: boolean;
  /** Line to show first, from 1. */
  line?: number;
  size?: "normal" | "tall";
}

/** Moves the editor to a finding; filled while an editor is shown. */
export interface EditorHandle {
  goTo: (line: number, column: number) => void;
}

const View = lazy(() => import("./view"));

export function Editor(props: EditorProps & { handle?: { current: EditorHandle | null } }) {
  return (
    <Suspense fallback={<Loading lines={12} />}>
      <View {...props} />
    </Suspense>
  );
}
