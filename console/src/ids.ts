// Ids of the API and the pages that show them.

const kinds: [RegExp, (id: string, match: RegExpExecArray) => string][] = [
  [/^eb-\d+$/, (id) => `/events/${id}`],
  [/^e-(\d+)-\d+$/, (id, match) => `/events/eb-${match[1]!}?event=${id}`],
  [/^nb-\d+$/, (id) => `/notifications/batches/${id}`],
  [/^n-\d+-\d+$/, (id) => `/notifications/${id}`],
  [/^s-\d+$/, (id) => `/subscribers/subscriptions/${id}`],
  [/^m-\d+$/, (id) => `/exchanges/messages/${id}`],
  [/^b-\d+$/, (id) => `/inbox/broadcasts/${id}`],
  [/^d-[\w-]+$/, (id) => `/sync/devices/${id}`],
];

/** Path of the page of an id, without a request; null if its form is not known. */
export function idPath(id: string): string | null {
  const trimmed = id.trim();
  for (const [form, path] of kinds) {
    const match = form.exec(trimmed);
    if (match !== null) return path(trimmed, match);
  }
  return null;
}

/** Path of the page of an object as search and attention name it. */
export function objectPath(object: { kind: string; id: string; application?: string | null }): string | null {
  const id = encodeURIComponent(object.id);
  const application = encodeURIComponent(object.application ?? "");
  switch (object.kind) {
    case "application":
      return `/applications/${id}`;
    case "rule":
      return `/rules?application=${application}&rule=${id}`;
    case "channel":
      return `/channels?application=${application}&channel=${id}`;
    case "source":
      return `/sources?application=${application}&source=${id}`;
    case "subscriber":
      return `/subscribers/${id}`;
    case "segment":
      return `/segments/${id}`;
    case "exchange":
      return `/exchanges/${id}`;
    case "user":
      return `/admin?user=${id}`;
    case "key":
      return `/admin?key=${id}`;
    case "entry":
      return `/directory?dn=${id}`;
    case "schedule":
      return `/schedules?application=${application}`;
    case "page":
      return object.id;
    default:
      return idPath(object.id);
  }
}

/** Path of the page of an object by its path in the API, such as `/v1/subscribers/ada/devices/phone`. */
export function linkPath(link: string | null | undefined): string | null {
  const parts = (link ?? "").split("/");
  return parts[1] === "v1" && parts.length >= 4 ? `/${parts[2]!}/${parts[3]!}` : null;
}

const audited: Record<string, string> = {
  applications: "application",
  exchanges: "exchange",
  keys: "key",
  segments: "segment",
  subscribers: "subscriber",
  subscriptions: "subscription",
  users: "user",
};

/** Name of the object of a request in the audit log, such as `subscriber:ada`; null for other paths. */
export function auditObject(path: string): string | null {
  const [, version, kind, id] = path.split("/");
  const name = audited[kind ?? ""];
  return version !== "v1" || name === undefined || id === undefined || id === ""
    ? null
    : `${name}:${decodeURIComponent(id)}`;
}
