// The session of this browser: who is logged in, with which scopes.
import { useSyncExternalStore } from "react";
import { onCsrfRejected, onUnauthenticated, request, setCsrf } from "./client";
import { asProblem } from "./problems";

export interface Session {
  kind: "user" | "key";
  name: string;
  display_name: string | null;
  roles: string[];
  scopes: string[];
  csrf: string | null;
  language: string | null;
  time_zone: string | null;
  has_password?: boolean;
  reauthenticated_until: string | null;
  expires_at: string | null;
  session_id?: string | null;
  server: {
    version: string;
    instance: string | null;
    directory: boolean;
    exchange: boolean;
    sync: boolean;
    notifybc: boolean;
  };
}

export interface SessionOptions {
  setup_required: boolean;
  password: boolean;
  oidc: { name: string; start_url: string } | null;
}

export type SessionState =
  | { state: "unknown" }
  | { state: "none" }
  | { state: "present"; session: Session }
  /** The session ended while pages are open: they stay, under the login dialog. */
  | { state: "expired"; session: Session };

let state: SessionState = { state: "unknown" };
const listeners = new Set<() => void>();

function set(next: SessionState) {
  state = next;
  setCsrf(next.state === "present" ? next.session.csrf : null);
  listeners.forEach((listener) => listener());
}

onUnauthenticated(() => {
  if (state.state === "present") set({ state: "expired", session: state.session });
});

onCsrfRejected(loadSession);

export function sessionState(): SessionState {
  return state;
}

export function useSessionState(): SessionState {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => state,
  );
}

/** The session; only below the shell, which is drawn with one. */
export function useSession(): Session {
  const present = useSessionState();
  if (present.state !== "present" && present.state !== "expired") throw new Error("no session");
  return present.session;
}

export async function loadSession(): Promise<SessionState> {
  try {
    set({ state: "present", session: await request<Session>("GET", "/v1/session") });
  } catch (error) {
    const problem = asProblem(error);
    if (problem.status !== 401) throw problem;
    set({ state: "none" });
  }
  return state;
}

export async function logIn(name: string, password: string) {
  set({ state: "present", session: await request<Session>("POST", "/v1/session", { body: { name, password } }) });
}

export async function logInWithToken(token: string) {
  set({ state: "present", session: await request<Session>("POST", "/v1/session/token", { body: { token } }) });
}

export async function reauthenticate(password: string) {
  set({
    state: "present",
    session: await request<Session>("POST", "/v1/session/reauthenticate", { body: { password } }),
  });
}

export interface Setup {
  token: string;
  name: string;
  password: string;
  display_name?: string;
  language?: string;
  time_zone?: string;
}

export async function setUp(setup: Setup) {
  set({ state: "present", session: await request<Session>("POST", "/v1/setup", { body: setup }) });
}

export async function logOut() {
  await request("DELETE", "/v1/session");
  set({ state: "none" });
}

/** Changes of the own user that the session repeats. */
export function changeSession(change: Partial<Session>) {
  if (state.state === "present") set({ state: "present", session: { ...state.session, ...change } });
}

/** Whether a list of scopes holds a scope; `admin` holds all. */
export function holds(scopes: readonly string[], scope: string | undefined): boolean {
  return scope === undefined || scopes.includes("admin") || scopes.includes(scope);
}

export function useCan(scope: string | undefined): boolean {
  return holds(useSession().scopes, scope);
}
