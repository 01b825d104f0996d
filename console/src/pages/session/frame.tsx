// Frame of the pages before there is a session.
import { useEffect, type ReactNode } from "react";
import { Bell } from "../../components/icon";
import { languages, presentLanguage, setLanguage, useT } from "../../locales";
import { changeSettings } from "../../settings";
import { languageNames } from "../../shell/user-menu";
import "./session.css";

export function SessionFrame({ title, text, children }: { title: string; text?: ReactNode; children: ReactNode }) {
  const t = useT();
  useEffect(() => {
    document.title = `${title} – Tocsin`;
  }, [title]);
  return (
    <div className="session">
      <main className="session-main">
        <div className="session-brand">
          <Bell size={28} />
          <span>Tocsin</span>
        </div>
        <div className="session-card">
          <h1>{title}</h1>
          {text !== undefined && <p className="session-text">{text}</p>}
          {children}
        </div>
      </main>
      <footer className="session-foot">
        <div role="group" aria-label={t("common.user.language")}>
          {languages.map((language) => (
            <button
              key={language}
              type="button"
              lang={language}
              className="session-language"
              aria-pressed={presentLanguage() === language}
              onClick={() => {
                changeSettings({ language });
                void setLanguage(language);
              }}
            >
              {languageNames[language]}
            </button>
          ))}
        </div>
      </footer>
    </div>
  );
}
