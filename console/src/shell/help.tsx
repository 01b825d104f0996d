// Help: the shortcuts of the shell and of the open page.
import { Button, Dialog, Switch } from "../components/controls";
import { useT } from "../locales";
import { changeSettings, useSettings } from "../settings";
import { activeShortcuts, type Shortcut } from "./shortcuts";

export default function Help({ close }: { close: () => void }) {
  const t = useT();
  const { singleKeys } = useSettings();
  const shortcuts = activeShortcuts();
  const groups: [Shortcut["group"], string][] = [
    ["global", t("common.help.global")],
    ["list", t("common.help.list")],
    ["page", t("common.help.page")],
  ];
  return (
    <Dialog
      title={t("common.help.title")}
      size="large"
      onClose={close}
      actions={<Button onClick={close}>{t("common.close")}</Button>}
    >
      <div className="help">
        {groups.map(([group, title]) => {
          const seen = new Set<string>();
          const list = shortcuts.filter(
            (shortcut) => shortcut.group === group && !seen.has(shortcut.keys) && seen.add(shortcut.keys),
          );
          if (list.length === 0) return null;
          return (
            <section key={group}>
              <h3 className="label">{title}</h3>
              <dl>
                {list.map((shortcut) => (
                  <div key={shortcut.keys}>
                    <dt>
                      {shortcut.keys.split(/[ +]/).map((key, index) => (
                        <kbd key={index}>{key}</kbd>
                      ))}
                    </dt>
                    <dd>{shortcut.text}</dd>
                  </div>
                ))}
              </dl>
            </section>
          );
        })}
      </div>
      <Switch
        label={t("common.help.singleKeys")}
        checked={singleKeys}
        onValue={(value) => changeSettings({ singleKeys: value })}
      />
    </Dialog>
  );
}
