// Entry of the console.
import { QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { queryClient } from "./api/query";
import { browserLanguage, languages, loadMessages, MessagesProvider, setLanguage, type Language } from "./locales";
import { router } from "./routes";
import { applySettings, presentSettings } from "./settings";
import { startShortcuts } from "./shell/shortcuts";
import { startTooltips } from "./shell/tooltip";
import "./theme/tokens.css";
import "./theme/base.css";

applySettings();
startTooltips();
startShortcuts();

const chosen = languages.find((known) => known === presentSettings().language) as Language | undefined;
await setLanguage(chosen ?? browserLanguage());
await loadMessages("common");

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <MessagesProvider>
      <QueryClientProvider client={queryClient}>
        <RouterProvider router={router} />
      </QueryClientProvider>
    </MessagesProvider>
  </StrictMode>,
);
