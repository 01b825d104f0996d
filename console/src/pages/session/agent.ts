/** Browser and system of a user agent, such as `Firefox on Linux`; a program is named by its first word. */
export function agentName(agent: string | null): string | null {
  if (agent === null || agent === "") return null;
  const browser = /Edg\//.test(agent)
    ? "Edge"
    : /Firefox\//.test(agent)
      ? "Firefox"
      : /Chrome\//.test(agent)
        ? "Chrome"
        : /Safari\//.test(agent)
          ? "Safari"
          : null;
  const system = /Windows/.test(agent)
    ? "Windows"
    : /Android/.test(agent)
      ? "Android"
      : /iPhone|iPad/.test(agent)
        ? "iOS"
        : /Mac OS X/.test(agent)
          ? "macOS"
          : /Linux/.test(agent)
            ? "Linux"
            : null;
  if (browser === null) return agent.split(/[\s/]/)[0] ?? null;
  return system === null ? browser : `${browser} · ${system}`;
}
