// All pages: those that `pages/*/route.tsx` define.
import type { PageDefinition } from "./page";

const files = import.meta.glob<{ default: PageDefinition[] }>("./pages/*/route.tsx", { eager: true });

export const pages: readonly PageDefinition[] = Object.values(files).flatMap((file) => file.default);
