// Message files by namespace. Each page has one file in each language; English fixes the keys.
export interface Messages {
  common: typeof import("./en/common.json");
  session: typeof import("./en/session.json");
  overview: typeof import("./en/overview.json");
  attention: typeof import("./en/attention.json");
  parts: typeof import("./en/parts.json");
  events: typeof import("./en/events.json");
  notifications: typeof import("./en/notifications.json");
  applications: typeof import("./en/applications.json");
  rules: typeof import("./en/rules.json");
  explain: typeof import("./en/explain.json");
  templates: typeof import("./en/templates.json");
}

export type Namespace = keyof Messages;

type KeysOf<Name extends Namespace> = Name extends Namespace
  ? Exclude<keyof Messages[Name] & string, "default">
  : never;

/** Key of a message. Keys of a page begin with the name of its file. */
export type MessageKey = KeysOf<Namespace>;
