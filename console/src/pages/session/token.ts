// One-time token of a link, in the fragment: `/console/login#TOKEN`. A fragment reaches no log and no proxy.

let token: string | null | undefined;

/** Takes the token out of the address, so that it stays in no history. */
export function takeToken(): string | null {
  if (token !== undefined) return token;
  const fragment = location.hash.slice(1);
  token = /^[\w-]{16,}$/.test(fragment) ? fragment : null;
  if (token !== null) history.replaceState(history.state, "", location.pathname + location.search);
  return token;
}

export function hasToken(): boolean {
  return takeToken() !== null;
}

export function forgetToken() {
  token = null;
}
