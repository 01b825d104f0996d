// The menu of the user: profile, theme, density, language, help, logout.
import { useNavigate } from "@tanstack/react-router";
import { stopLive } from "../api/live";
import { forgetEverything } from "../api/query";
import { request } from "../api/client";
import { changeSession, logOut, useSession } from "../api/session";
import { useGo } from "../components/link";
import type { MenuGroup } from "../components/menu";
import { languages, presentLanguage, setLanguage, useT, type Language } from "../locales";
import { changeSettings, useSettings } from "../settings";
import { showProblem } from "./act";

const languageNames: Record<Language, string> = { en: "English", de: "Deutsch", fr: "Français" };

export function useUserMenu(showHelp: () => void): MenuGroup[] {
  const t = useT();
  const session = useSession();
  const settings = useSettings();
  const go = useGo();
  const leave = useLogOut();
  return [
    {
      title: session.kind === "key" ? t("common.user.key", { name: session.name }) : session.name,
      entries: [
        { id: "profile", text: t("common.user.profile"), icon: "user", run: () => go("/profile") },
        { id: "help", text: t("common.user.shortcuts"), icon: "keyboard", note: "?", run: showHelp },
      ],
    },
    {
      title: t("common.user.theme"),
      entries: (["system", "light", "dark", "contrast"] as const).map((theme) => ({
        id: `theme-${theme}`,
        text: t(`common.theme.${theme}`),
        checked: settings.theme === theme,
        run: () => changeSettings({ theme }),
      })),
    },
    {
      title: t("common.user.density"),
      entries: (["comfortable", "compact"] as const).map((density) => ({
        id: `density-${density}`,
        text: t(`common.density.${density}`),
        checked: settings.density === density,
        run: () => changeSettings({ density }),
      })),
    },
    {
      title: t("common.user.language"),
      entries: languages.map((language) => ({
        id: `language-${language}`,
        text: languageNames[language],
        checked: presentLanguage() === language,
        run: () => void chooseLanguage(language, session.kind === "user" ? session.name : null),
      })),
    },
    ...(session.kind === "user"
      ? [{ entries: [{ id: "logout", text: t("common.user.logout"), icon: "logout" as const, run: leave }] }]
      : []),
  ];
}

/** Changes the language of this browser, and of the user. */
export async function chooseLanguage(language: Language, user: string | null) {
  changeSettings({ language });
  await setLanguage(language);
  if (user === null) return;
  try {
    await request("PATCH", `/v1/users/${encodeURIComponent(user)}`, { body: { language } });
    changeSession({ language });
  } catch (error) {
    showProblem(error);
  }
}

export function useLogOut(): () => void {
  const navigate = useNavigate();
  return () => {
    logOut().then(() => {
      stopLive();
      forgetEverything();
      void navigate({ to: "/login", search: {} } as never);
    }, showProblem);
  };
}

export { languageNames };
