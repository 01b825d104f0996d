// Actions by confirmation level: C0 at once with undo; C1 a dialog with the count of the server; C2 also the count or
// name typed, and a reason;
// C3 also the password.
import { createContext, lazy, Suspense, use, useCallback, useState, type ReactNode } from "react";
import { asProblem } from "../api/problems";
import { invalidate } from "../api/query";
import { translate } from "../locales";
import type { CommandForms } from "./command";
import { toast } from "./toasts";

const ConfirmDialog = lazy(() => import("./confirm-dialog"));

export interface Action {
  level: "C0" | "C1" | "C2" | "C3";
  /** The question, such as "Resume notifications on channel email?". */
  title: string;
  text?: ReactNode;
  /** The verb of the button. */
  verb: string;
  danger?: boolean;
  /** Number of things that it touches, from the server: a value, or a dry run. */
  count?: number | (() => Promise<number>);
  /** What is typed at C2 and C3; the count if absent. */
  word?: string;
  command?: CommandForms;
  run: (reason: string | undefined) => Promise<unknown>;
  /** Text of the toast, also by the answer. */
  done?: string | ((answer: unknown) => string);
  undo?: () => Promise<unknown>;
  /** Paths that are read again. */
  invalidates?: readonly string[];
  after?: (answer: unknown) => void;
}

type Act = (action: Action) => void;

const ActContext = createContext<Act>(() => {});

/** Runs an action with the confirmation of its level. */
export function useAct(): Act {
  return use(ActContext);
}

export async function finish(action: Action, reason: string | undefined): Promise<void> {
  const answer = await action.run(reason);
  await invalidate(action.invalidates ?? []);
  const undo = action.undo;
  toast({
    text: typeof action.done === "function" ? action.done(answer) : (action.done ?? translate("common.done")),
    ...(undo === undefined
      ? {}
      : {
          undo: () =>
            void undo()
              .then(() => invalidate(action.invalidates ?? []))
              .catch(showProblem),
        }),
  });
  action.after?.(answer);
}

export function showProblem(error: unknown) {
  const problem = asProblem(error);
  // An ended session opens the login dialog by itself.
  if (problem.status === 401 && problem.code.startsWith("credentials_")) return;
  toast({ text: problem.message, tone: "error" });
}

export function ActProvider({ children }: { children: ReactNode }) {
  const [open, setOpen] = useState<{ action: Action; again?: boolean } | null>(null);
  const act = useCallback<Act>((action) => {
    if (action.level !== "C0") {
      setOpen({ action });
      return;
    }
    finish(action, undefined).catch((error: unknown) => {
      if (asProblem(error).code === "reauthentication_required") setOpen({ action, again: true });
      else showProblem(error);
    });
  }, []);
  return (
    <ActContext value={act}>
      {children}
      <Suspense>
        {open !== null && (
          <ConfirmDialog action={open.action} askPassword={open.again === true} close={() => setOpen(null)} />
        )}
      </Suspense>
    </ActContext>
  );
}
