// What follows a login: language and time zone of the user, and the page that was wanted.
import { sessionState } from "../../api/session";
import { languages, setLanguage } from "../../locales";
import { changeSettings } from "../../settings";

export async function takeUserSettings() {
  const present = sessionState();
  if (present.state !== "present") return;
  const language = languages.find((known) => known === present.session.language);
  if (language !== undefined) {
    changeSettings({ language });
    await setLanguage(language);
  }
  if (present.session.time_zone !== null && present.session.time_zone !== "")
    changeSettings({ timeZone: present.session.time_zone });
}

/** A path of the console that a link asks for; anything else leads to the overview. */
export function safeTarget(to: string | undefined): string {
  if (to === undefined) return "/";
  const path = to.startsWith("/console/") ? to.slice("/console".length) : to;
  if (!/^\/(?![/\\])/.test(path) || path.startsWith("/login") || path.startsWith("/setup")) return "/";
  return path;
}
