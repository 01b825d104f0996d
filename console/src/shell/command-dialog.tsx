// What the page shows, as a `tocsin` command and as `curl`.
import { Button, Dialog } from "../components/controls";
import { Command } from "../components/states";
import { useT } from "../locales";
import { commandLines, type CommandForms } from "./command";

export default function CommandDialog({ command, close }: { command: CommandForms; close: () => void }) {
  const t = useT();
  return (
    <Dialog
      title={t("common.asCommand")}
      onClose={close}
      actions={<Button onClick={close}>{t("common.close")}</Button>}
    >
      <div className="stack">
        {commandLines(command, location.origin).map((line) => (
          <div key={line.name} className="stack-tight">
            <h3 className="label">{line.name}</h3>
            <Command text={line.text} />
          </div>
        ))}
        {command.curl !== undefined && <p className="muted">{t("common.keyVariable")}</p>}
      </div>
    </Dialog>
  );
}
