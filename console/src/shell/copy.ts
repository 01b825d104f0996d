// Copy to the clipboard, with a toast.
import { translate } from "../locales";
import { toast } from "./toasts";

export function copy(text: string) {
  const write = navigator.clipboard === undefined ? copyBySelection(text) : navigator.clipboard.writeText(text);
  write.then(
    () => toast({ text: translate("common.copied"), tone: "info" }),
    () => toast({ text: translate("common.copyFailed"), tone: "error" }),
  );
}

// Without a secure context there is no clipboard interface.
async function copyBySelection(text: string): Promise<void> {
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "visually-hidden";
  (document.querySelector("dialog[open]") ?? document.body).append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  if (!done) throw new Error("the browser did not copy");
}
