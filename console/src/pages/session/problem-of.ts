import type { ProblemError } from "../../api/problems";
import { hasMessage, translate } from "../../locales";

/** The error of a field, by its path: in the present language if its code is known. */
export function problemOf(error: ProblemError | null, path: string): string | null {
  const found = error?.problem.problems?.find((item) => item.path === path);
  if (found === undefined) return null;
  const key = `session.problem.${found.code}`;
  return hasMessage(key) ? translate(key) : found.message;
}
