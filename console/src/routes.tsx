// Route tree: the pages of `pages/*/route.tsx`, loaded lazily with their texts, below the shell.
import {
  createRootRoute,
  createRoute,
  createRouter,
  lazyRouteComponent,
  Outlet,
  redirect,
  type AnyRoute,
} from "@tanstack/react-router";
import { hasToken } from "./pages/session/token";
import { holds, loadSession, sessionState } from "./api/session";
import { NotFound } from "./components/states";
import { loadMessages } from "./locales";
import type { PageDefinition } from "./page";
import { pages } from "./pages";
import { CrashPage } from "./shell/crash";
import { ForbiddenPage, NotFoundPage, Shell } from "./shell/shell";
import { initialRange } from "./shell/range";
import { parseSearch, stringifySearch } from "./shell/search";

const root = createRootRoute({ component: Outlet, notFoundComponent: () => <NotFound /> });

type Search = Record<string, unknown>;

/** A link keeps the time range of the page it is on, unless it names one. */
function keepRange({ search, next }: { search: Search; next: (search: Search) => Search }): Search {
  const { range, from, to, ...rest } = next(search);
  if (from !== undefined && to !== undefined) return { ...rest, from, to };
  if (range !== undefined) return range === initialRange ? rest : { ...rest, range };
  if (search.from !== undefined && search.to !== undefined) return { ...rest, from: search.from, to: search.to };
  return search.range === undefined ? rest : { ...rest, range: search.range };
}

const shell = createRoute({
  getParentRoute: () => root,
  id: "shell",
  component: Shell,
  search: { middlewares: [keepRange as never] },
  beforeLoad: async ({ location }) => {
    if (sessionState().state === "unknown") await loadSession();
    if (sessionState().state === "none")
      throw redirect({
        to: "/login",
        search: { next: location.href === "/" ? undefined : location.href },
      } as never);
  },
});

function route(page: PageDefinition, parent: AnyRoute): AnyRoute {
  const load = lazyRouteComponent(async () => {
    const [module] = await Promise.all([page.load(), loadMessages(page.page)]);
    return module;
  });
  return createRoute({
    getParentRoute: () => parent,
    path: page.path,
    component: page.scope === undefined ? load : scoped(page.scope, load),
    ...(page.bare === true
      ? {
          beforeLoad: async () => {
            // A link with a token starts a session of its own.
            if (!hasToken() && sessionState().state === "unknown") await loadSession();
          },
        }
      : {}),
  });
}

type LazyComponent = ReturnType<typeof lazyRouteComponent>;

function scoped(scope: string, Component: LazyComponent): LazyComponent {
  const Scoped = () => {
    const present = sessionState();
    const scopes = present.state === "present" || present.state === "expired" ? present.session.scopes : [];
    return holds(scopes, scope) ? <Component /> : <ForbiddenPage scope={scope} />;
  };
  return Object.assign(Scoped, { preload: Component.preload }) as LazyComponent;
}

const tree = root.addChildren([
  ...pages.filter((page) => page.bare === true).map((page) => route(page, root)),
  shell.addChildren([
    ...pages.filter((page) => page.bare !== true).map((page) => route(page, shell)),
    // Any other address: not found, within the shell.
    createRoute({ getParentRoute: () => shell, path: "$", component: NotFoundPage }),
  ]),
]);

export const router = createRouter({
  routeTree: tree,
  basepath: "/console",
  parseSearch,
  stringifySearch,
  defaultPreload: "intent",
  defaultPreloadDelay: 50,
  scrollRestoration: true,
  defaultErrorComponent: CrashPage,
  defaultNotFoundComponent: NotFoundPage,
  defaultPendingMs: 300,
});
