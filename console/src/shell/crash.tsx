// What is shown when a page fails: the cause, and a way on.
import type { ErrorComponentProps } from "@tanstack/react-router";
import { asProblem } from "../api/problems";
import { Failed } from "../components/states";
import { useT } from "../locales";

export function CrashPage({ error, reset }: ErrorComponentProps) {
  const t = useT();
  // After an update of the server the files of the former version are gone.
  const isOutdated = /dynamically imported module|Importing a module script failed|module script/i.test(
    asProblem(error).message,
  );
  if (isOutdated)
    return (
      <div className="empty">
        <h2>{t("common.newVersion")}</h2>
        <div className="empty-action">
          <button type="button" className="button button-main" onClick={() => location.reload()}>
            {t("common.reload")}
          </button>
        </div>
      </div>
    );
  return <Failed error={asProblem(error)} retry={reset} />;
}
