// Texts in English, German and French. A page replaces some of them by the property `texts`.

/** All texts. `{count}` is replaced by a number. */
export interface Texts {
  readonly title: string;
  readonly unreadOne: string;
  readonly unreadMany: string;
  readonly all: string;
  readonly unread: string;
  readonly archived: string;
  readonly markRead: string;
  readonly markUnread: string;
  readonly archive: string;
  readonly unarchive: string;
  readonly markAllRead: string;
  readonly more: string;
  readonly empty: string;
  readonly emptyUnread: string;
  readonly emptyArchived: string;
  readonly waiting: string;
  readonly refused: string;
  readonly removed: string;
  readonly failed: string;
  readonly close: string;
  readonly isUnread: string;
  readonly arrived: string;
}

const EN: Texts = {
  title: "Notifications",
  unreadOne: "1 unread notification",
  unreadMany: "{count} unread notifications",
  all: "All",
  unread: "Unread",
  archived: "Archived",
  markRead: "Mark as read",
  markUnread: "Mark as unread",
  archive: "Archive",
  unarchive: "Move to inbox",
  markAllRead: "Mark all as read",
  more: "Show older",
  empty: "No notifications",
  emptyUnread: "No unread notifications",
  emptyArchived: "No archived notifications",
  waiting: "No connection. Trying again.",
  refused: "Your session has expired. Reload the page.",
  removed: "This inbox does not exist.",
  failed: "The change was not saved. Try again.",
  close: "Close",
  isUnread: "Unread",
  arrived: "New: {subject}",
};

const DE: Texts = {
  title: "Benachrichtigungen",
  unreadOne: "1 ungelesene Benachrichtigung",
  unreadMany: "{count} ungelesene Benachrichtigungen",
  all: "Alle",
  unread: "Ungelesen",
  archived: "Archiv",
  markRead: "Als gelesen markieren",
  markUnread: "Als ungelesen markieren",
  archive: "Archivieren",
  unarchive: "In den Posteingang",
  markAllRead: "Alle als gelesen markieren",
  more: "Ältere anzeigen",
  empty: "Keine Benachrichtigungen",
  emptyUnread: "Keine ungelesenen Benachrichtigungen",
  emptyArchived: "Keine archivierten Benachrichtigungen",
  waiting: "Keine Verbindung. Neuer Versuch läuft.",
  refused: "Die Sitzung ist abgelaufen. Laden Sie die Seite neu.",
  removed: "Dieser Posteingang existiert nicht.",
  failed: "Die Änderung wurde nicht gespeichert. Versuchen Sie es erneut.",
  close: "Schließen",
  isUnread: "Ungelesen",
  arrived: "Neu: {subject}",
};

const FR: Texts = {
  title: "Notifications",
  unreadOne: "1 notification non lue",
  unreadMany: "{count} notifications non lues",
  all: "Toutes",
  unread: "Non lues",
  archived: "Archivées",
  markRead: "Marquer comme lue",
  markUnread: "Marquer comme non lue",
  archive: "Archiver",
  unarchive: "Remettre dans la boîte",
  markAllRead: "Tout marquer comme lu",
  more: "Afficher les plus anciennes",
  empty: "Aucune notification",
  emptyUnread: "Aucune notification non lue",
  emptyArchived: "Aucune notification archivée",
  waiting: "Pas de connexion. Nouvel essai en cours.",
  refused: "Votre session a expiré. Rechargez la page.",
  removed: "Cette boîte n’existe pas.",
  failed: "La modification n’a pas été enregistrée. Réessayez.",
  close: "Fermer",
  isUnread: "Non lue",
  arrived: "Nouveau : {subject}",
};

const LANGUAGES: Record<string, Texts> = { en: EN, de: DE, fr: FR };

/** The texts of a language tag such as `de-AT`; English for others. */
export function textsOf(language: string, replaced: Partial<Texts> = {}): Texts {
  return { ...(LANGUAGES[language.toLowerCase().split("-")[0] ?? "en"] ?? EN), ...replaced };
}

const UNITS: readonly [Intl.RelativeTimeFormatUnit, number][] = [
  ["year", 31_536_000],
  ["month", 2_592_000],
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
];

/** A time relative to now, such as `5 min. ago`. */
export function ago(time: string, language: string, now = Date.now()): string {
  const seconds = (Date.parse(time) - now) / 1_000;
  const format = new Intl.RelativeTimeFormat(language, { numeric: "auto", style: "short" });
  const unit = UNITS.find(([, length]) => Math.abs(seconds) >= length);
  return unit === undefined ? format.format(0, "second") : format.format(Math.trunc(seconds / unit[1]), unit[0]);
}
