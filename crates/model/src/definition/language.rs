//! Keys of the definition language, with their types and descriptions. `read` checks by this table, and the JSON
//! Schema is made from it.

use std::time::Duration;

pub(super) use super::shape::{Keys, Shape, optional, required};
use crate::{
    chronicle::{CHRONICLES_MAX, KEY_FIELDS_MAX},
    collection::{FIELDS_MAX, RAISES_MAX, SHARES_MAX},
    consent::{ATTEMPTS_MAX, MESSAGES_MAX},
};

pub(super) const DAY: u64 = 86_400;

pub(super) const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

pub static APPLICATION: Shape = Shape::Object(&[
    required("application", &Shape::Name, "The name of the application."),
    optional("description", &Shape::Text, "A description for readers."),
    optional("events", &EVENTS, "Event classes, with their fields."),
    optional(
        "attributes",
        &ATTRIBUTES,
        "Attributes of subscribers that rules may read, as `subscriber.attributes.NAME`, with their types. A value of \
         another type counts as missing.",
    ),
    optional("subscriptions", &SUBSCRIPTIONS, "Subscription classes, with their parameters."),
    optional("notifications", &NOTIFICATIONS, "Notification classes: their fields and templates."),
    optional(
        "partials",
        &PARTIALS,
        "Partials that templates include, extend or import, by name: layouts, fragments, stylesheets.",
    ),
    optional(
        "functions",
        &FUNCTIONS,
        "Functions of the application, for rules and filters in every dialect but event patterns.",
    ),
    optional("rules", &RULES, "Rules: each matches the events of a class with the subscriptions of a class."),
    optional("channels", &CHANNELS, "Channels through which notifications leave: configured instances of a protocol."),
    optional(
        "sources",
        &SOURCES,
        "Sources of events. Without one of the kind `http`, the source `api` may submit all classes.",
    ),
    optional(
        "collections",
        &COLLECTIONS,
        "Collections: rows that devices replicate and edit offline; each device has its own part of them.",
    ),
    optional("retention", &RETENTION, "Retention of finished work."),
    optional("limits", &LIMITS, "Limits of the application."),
    optional("pages", &PAGES, "Hosted pages that subscribers see: branding, and the titles of classes."),
]);

static PAGES: Shape = Shape::Object(&[
    optional(
        "name",
        &Shape::Text,
        "Name of the sender, the heading of each page; `pages.name` of the installation if not given.",
    ),
    optional("logo", &Shape::Text, "HTTPS address of a logo; that of the installation if not given."),
    optional(
        "accent",
        &Shape::Text,
        "Colour of buttons and links, such as `#0a6ebd`; that of the installation if not given.",
    ),
    optional("footer", &Shape::Text, "Text at the end of each page; that of the installation if not given."),
    optional("imprint", &Shape::Text, "HTTPS address of the imprint; that of the installation if not given."),
    optional("notifications", &CLASSES, "Titles and descriptions of notification classes, for subscribers."),
    optional("subscriptions", &CLASSES, "Titles and descriptions of subscription classes, for subscribers."),
]);
static CLASSES: Shape = Shape::Entries { keys: Keys::Names, of: &CLASS, most: 1_000 };
static CLASS: Shape = Shape::Object(&[
    optional("title", &TEXTS, "The title, as a text or as texts by language; made from the name if not given."),
    optional(
        "description",
        &TEXTS,
        "The description, as a text or as texts by language; that of the class if not given.",
    ),
]);
static TEXTS: Shape = Shape::Either(&[&Shape::Text, &BY_LANGUAGE]);
static BY_LANGUAGE: Shape = Shape::Entries { keys: Keys::Free, of: &Shape::Text, most: 100 };

static COLLECTIONS: Shape = Shape::Entries { keys: Keys::Names, of: &COLLECTION, most: 200 };
static COLLECTION: Shape = Shape::Object(&[
    optional("description", &Shape::Text, "A description for readers."),
    optional(
        "built_in",
        &Shape::Choice(&["profile", "devices", "subscriptions", "inbox"]),
        "Built-in content: the subscriber's own data. Fields, partition and conflicts are then fixed.",
    ),
    optional("fields", &FIELDS, "The fields of a row. Beside them every row has an `id`. Required if not built in."),
    optional(
        "schema",
        &Shape::Any,
        "A JSON Schema (draft 4 to 2020-12) that every written row must satisfy, by its fields without the empty \
         ones. Existing rows stay as they are.",
    ),
    optional(
        "direction",
        &Shape::Choice(&["both", "down", "up"]),
        "Direction of replication: `down` to devices, `up` from them; `both` if not given.",
    ),
    optional(
        "partition",
        &PARTITION,
        "Partitioning: `everyone`, or shares, one of which must select the subscriber. A device sees no other rows. \
         Required if not built in.",
    ),
    optional(
        "may_leave",
        &Shape::Boolean,
        "Whether a device may edit a row so that it leaves the device's own partition; false if not given.",
    ),
    optional("conflicts", &CONFLICTS, "Detection and resolution of conflicting edits."),
    optional("raise", &RAISES, "Events raised by changes of its rows."),
]);
static RAISES: Shape = Shape::List { of: &RAISE, most: RAISES_MAX };
static RAISE: Shape = Shape::Object(&[
    optional("on", &CHANGES, "Kinds of changes; all if not given. Each raises one event at most."),
    optional("of", &KEY, "Fields: an update raises an event only if it changes one of them; any update if not given."),
    required("event", &Shape::Name, "The class of the events."),
    optional(
        "fields",
        &RAISED_FIELDS,
        "Values of the event's fields: `id`, `change` (`insert`, `update` or `remove`), `at`, `row.FIELD` after the \
         change or before a removal, or `before.FIELD`.",
    ),
]);
static CHANGES: Shape = Shape::Either(&[&CHANGE, &CHANGES_LISTED]);
static CHANGES_LISTED: Shape = Shape::List { of: &CHANGE, most: RAISES_MAX };
static CHANGE: Shape = Shape::Choice(&["insert", "update", "remove"]);
static RAISED_FIELDS: Shape = Shape::Entries { keys: Keys::Fields, of: &Shape::Text, most: FIELDS_MAX };
static PARTITION: Shape = Shape::Either(&[&Shape::Choice(&["everyone"]), &SHARES]);
static SHARES: Shape = Shape::List { of: &SHARE, most: SHARES_MAX };
static SHARE: Shape = Shape::Object(&[
    optional(
        "match",
        &IDENTITIES,
        "Fields of the row, each with the property of the subscriber that it must equal: `subscriber.id`, or \
         `attributes.NAME`, any item of which counts if it is a list.",
    ),
    optional("rows", &ROW_VALUES, "Restriction to rows whose fields have this value, or one of these."),
    optional("audience", &Shape::Name, "A segment: restriction to its members. All subscribers if not given."),
    optional(
        "through",
        &THROUGH,
        "A field with the id of a row of another collection: a subscriber that has that row has this one.",
    ),
]);
static IDENTITIES: Shape = Shape::Entries { keys: Keys::Fields, of: &Shape::Text, most: 4 };
static ROW_VALUES: Shape = Shape::Entries { keys: Keys::Fields, of: &Shape::Any, most: 8 };
static THROUGH: Shape = Shape::Entries { keys: Keys::Fields, of: &Shape::Name, most: 1 };
static CONFLICTS: Shape = Shape::Object(&[
    optional(
        "track",
        &Shape::Choice(&["column", "row"]),
        "Granularity of conflict detection: the same field (`column`) or the same row; `column` if not given.",
    ),
    optional(
        "resolver",
        &RESOLVER,
        "The edit that is kept: that of the `server`, of the `client`, or the one based on the `first` or `last` \
         state of the server; `last` if not given.",
    ),
    optional("fields", &COMBINED, "Fields whose edits are merged instead."),
]);
static RESOLVER: Shape = Shape::Either(&[&Shape::Choice(&["server", "client", "first", "last"]), &OWN_RESOLVER]);
static OWN_RESOLVER: Shape = Shape::Object(&[
    optional(
        "predicate",
        &Shape::Text,
        "In CEL over `event.client`, `event.server` and `event.base`: the device's edit is kept if it holds.",
    ),
    optional(
        "process",
        &COMMAND,
        "Absolute path of a program, with its arguments; it decides line by line. `delivery.allow_programs` must \
         allow it.",
    ),
    optional(
        "timeout",
        &Shape::Duration { least: Duration::from_millis(10), most: Duration::from_secs(30) },
        "Timeout of one decision; 5 s if not given. After that the server's edit is kept.",
    ),
]);
static COMMAND: Shape = Shape::List { of: &Shape::Text, most: 32 };
static COMBINED: Shape =
    Shape::Entries { keys: Keys::Fields, of: &Shape::Choice(&["max", "min", "sum", "merge"]), most: FIELDS_MAX };

static EVENTS: Shape = Shape::Entries { keys: Keys::Names, of: &EVENT, most: 1_000 };
static EVENT: Shape = Shape::Object(&[
    optional("description", &Shape::Text, "A description for readers."),
    optional("fields", &FIELDS, "The fields of an event. Required without `on`."),
    optional(
        "on",
        &Shape::Choice(&[
            "subscription.requested",
            "subscription.confirmed",
            "subscription.changed",
            "subscription.ended",
            "subscriber.created",
            "subscriber.changed",
            "subscriber.removed",
            "device.added",
            "device.removed",
            "device.confirmed",
        ]),
        "A change in the life of a subscription, a subscriber or a device: each such change is an event of this class, \
         with built-in fields. A rule on a change of a subscription reaches exactly that subscription.",
    ),
    optional("of", &LIFECYCLE_OF, "Subscription classes whose changes are events, with `on`; all if not given."),
    optional(
        "chronicles",
        &CHRONICLES,
        "Chronicles, per-key aggregates of its events: last value, minimum, maximum, counts and sums. Rules see them \
         as `chronicle`.",
    ),
    optional(
        "ordered",
        &ORDERED,
        "Ordered mode: notifications about events of one key leave in the order of the events, also over retries. In any \
         order if not given.",
    ),
    optional(
        "retention",
        &KEEP,
        "Retention of its finished batches, at least that of their notifications; `retention.finished` of the \
         application if not given.",
    ),
    optional(
        "throttle",
        &THROTTLE,
        "Limit on the rate of notifications by its events; further events of the class wait, other classes are not \
         affected. No throttle if not given.",
    ),
]);
static LIFECYCLE_OF: Shape = Shape::Either(&[&Shape::Name, &LIFECYCLE_CLASSES]);
static LIFECYCLE_CLASSES: Shape = Shape::List { of: &Shape::Name, most: 100 };
static ORDERED: Shape = Shape::Object(&[optional(
    "by",
    &KEY,
    "Fields of the ordering key; all events of the class are in one order if not given.",
)]);
static CHRONICLES: Shape = Shape::Entries { keys: Keys::Chronicles, of: &CHRONICLE, most: CHRONICLES_MAX };
static CHRONICLE: Shape = Shape::Object(&[
    optional("description", &Shape::Text, "A description for readers."),
    optional("by", &KEY, "Fields of the key; one entry for all events if not given."),
    optional(
        "of",
        &Shape::Text,
        "The aggregated value, in CEL over `event`: a boolean, integer, number, string or timestamp. Without it, it \
         only counts.",
    ),
    optional("when", &Shape::Text, "A predicate over `event`, in CEL, that selects the events. All if not given."),
    optional("time", &Shape::Text, "The event time, in CEL over `event`. The time of acceptance if not given."),
    optional(
        "window",
        &WINDOW,
        "The window: a duration, or since the beginning of the hour, day, week or month. Unbounded if not given.",
    ),
    optional("reset", &Shape::Text, "A predicate over `event`, in CEL: an event that satisfies it resets its entry."),
    optional(
        "keys",
        &Shape::Integer { least: 1, most: 10_000_000 },
        "Most keys; above this the key with the oldest last event is evicted. 100,000 if not given.",
    ),
]);
static KEY: Shape = Shape::Either(&[&Shape::Name, &KEY_FIELDS]);
static KEY_FIELDS: Shape = Shape::List { of: &Shape::Name, most: KEY_FIELDS_MAX };
static WINDOW: Shape = Shape::Either(&[&SLIDING, &CALENDAR]);
static SLIDING: Shape = Shape::Duration { least: seconds(60), most: seconds(366 * DAY) };
static CALENDAR: Shape = Shape::Object(&[
    required(
        "every",
        &Shape::Choice(&["hour", "day", "week", "month"]),
        "The period, at whose beginning entries are reset; weeks begin on Monday.",
    ),
    optional("time_zone", &Shape::Text, "The IANA name of a time zone, such as `Europe/Vienna`; `UTC` if not given."),
    optional(
        "starts",
        &Shape::Text,
        "The wall-clock time at which its days begin, such as `09:30`; midnight if not given.",
    ),
]);

static SUBSCRIPTIONS: Shape = Shape::Entries { keys: Keys::Names, of: &SUBSCRIPTION, most: 1_000 };
static SUBSCRIPTION: Shape = Shape::Object(&[
    optional("description", &Shape::Text, "A description for readers."),
    optional("fields", &FIELDS, "The parameters of a subscription; rules see them as `sub`."),
    optional(
        "filter",
        &FILTER,
        "Dialects of the filters that a subscription may have over the event, the default first; no filters if not \
         given.",
    ),
    optional(
        "schedule",
        &Shape::Choice(&["forbidden", "optional", "required"]),
        "Whether a subscription has its own schedule, for rules with `schedule: subscription`; `forbidden` if not \
         given.",
    ),
    optional(
        "consent",
        &CONSENT,
        "Double opt-in: a subscription is pending, and not matched, until the owner of its address confirms. No \
         consent is needed if not given.",
    ),
]);
static CONSENT: Shape = Shape::Either(&[&Shape::Choice(&["double_opt_in"]), &CONSENT_POLICY]);
static CONSENT_POLICY: Shape = Shape::Object(&[
    optional("mode", &Shape::Choice(&["double_opt_in"]), "`double_opt_in` if not given."),
    optional(
        "expires_after",
        &Shape::Duration { least: seconds(60), most: seconds(366 * DAY) },
        "Lifetime of a request; a subscription that is not confirmed by then is removed. 7d if not given.",
    ),
    optional(
        "resend_after",
        &Shape::Duration { least: seconds(1), most: seconds(31 * DAY) },
        "Shortest time between two confirmation messages of a subscription; 5m if not given.",
    ),
    optional(
        "messages_per_day",
        &Shape::Integer { least: 1, most: MESSAGES_MAX as i64 },
        "Most confirmation messages of a subscription within 24 hours; 5 if not given.",
    ),
    optional(
        "attempts",
        &Shape::Integer { least: 1, most: ATTEMPTS_MAX as i64 },
        "Wrong codes after which a request takes no more codes; 5 if not given.",
    ),
    optional("text", &Shape::Text, "Text that the person agrees to. The confirmation page and the evidence have it."),
    optional("version", &Shape::Text, "Version of the text, for the evidence."),
    optional(
        "skip",
        &SKIP,
        "Ways by which a subscription may be stored as confirmed without a message, with the scope `consent:write` \
         and a proof; `[import]` if not given.",
    ),
]);
static SKIP: Shape = Shape::List { of: &Shape::Choice(&["import", "api"]), most: 2 };
static FILTER: Shape = Shape::Either(&[&DIALECT, &DIALECTS]);
pub(super) static DIALECT: Shape = Shape::Choice(&["cel", "jmespath", "event_pattern", "notifybc"]);
static DIALECTS: Shape = Shape::List { of: &DIALECT, most: 3 };

static NOTIFICATIONS: Shape = Shape::Entries { keys: Keys::Names, of: &NOTIFICATION, most: 1_000 };
static NOTIFICATION: Shape = Shape::Object(&[
    optional("description", &Shape::Text, "A description for readers."),
    optional("fields", &NOTIFICATION_FIELDS, "Its fields; templates use them by their names."),
    optional(
        "batch_size",
        &Shape::Integer { least: 1, most: 100_000 },
        "Most notifications of one batch; 2500 if not given.",
    ),
    optional(
        "expires_after",
        &EXPIRY,
        "Lifetime from the match; expired notifications are not sent. Unlimited if not given.",
    ),
    optional(
        "retention",
        &KEEP,
        "Retention of its finished batches; `retention.finished` of the application if not given.",
    ),
    optional(
        "critical",
        &Shape::Boolean,
        "Whether it is sent in quiet hours and against preferences as well; false if not given.",
    ),
    optional(
        "send_hours",
        &Shape::Text,
        "The only hours at which it is sent, in the subscriber's time zone, such as `09:00-18:00 mo-fr`; at other \
         hours it waits. Any hour if not given.",
    ),
    optional(
        "digest",
        &DIGEST,
        "Digest: notifications for the same subscriber, device and locale become one message, which sees them as \
         `digest.items`.",
    ),
    optional(
        "multicast",
        &MULTICAST,
        "Multicast: notifications with equal content leave as one message to several recipients, who do not see each \
         other.",
    ),
    optional(
        "priority",
        &Shape::Choice(&["urgent", "high", "normal", "low"]),
        "Priority in a channel's queue; `normal` if not given. Waiting raises the priority: `low` precedes anything \
         that became due half an hour later.",
    ),
    optional(
        "fallback",
        &FALLBACK,
        "Fall-back channels, tried in order when the previous one has finally failed or takes too long.",
    ),
    optional(
        "computed",
        &COMPUTED,
        "Fields computed at formatting: each a Jinja expression over the template context.",
    ),
    required("content", &CONTENT, "Templates of the content."),
]);
static COMPUTED: Shape = Shape::Entries { keys: Keys::NotificationFields, of: &Shape::Text, most: 64 };
static MULTICAST: Shape = Shape::Object(&[optional(
    "recipient_limit",
    &Shape::Integer { least: 2, most: 1_000 },
    "Most recipients of one message; 50 if not given.",
)]);
static FALLBACK: Shape = Shape::List { of: &FALLBACK_STEP, most: 8 };
static FALLBACK_STEP: Shape = Shape::Object(&[
    required("channel", &Shape::Name, "The fall-back channel."),
    optional(
        "after",
        &Shape::Duration { least: seconds(1), most: seconds(30 * DAY) },
        "Time without delivery by the previous channel after which it is tried, even if attempts are left; only after \
         its final failure if not given.",
    ),
]);
static DIGEST: Shape = Shape::Object(&[
    optional("by", &DIGEST_BY, "Further grouping fields of the class; none if not given."),
    optional(
        "window",
        &Shape::Text,
        "Collection window: `batch` for one batch, a time such as `10m` after the first notification, `hourly`, or \
         `daily 08:00`, in the subscriber's time zone. `batch` if not given.",
    ),
    optional(
        "items_max",
        &Shape::Integer { least: 1, most: 10_000 },
        "Most members that templates see individually; `digest.more` counts the rest. 100 if not given.",
    ),
]);
static DIGEST_BY: Shape = Shape::List { of: &Shape::Name, most: 16 };
static EXPIRY: Shape = Shape::Duration { least: seconds(1), most: seconds(3_650 * DAY) };

static FIELDS: Shape = Shape::Entries { keys: Keys::Fields, of: &FIELD, most: 256 };
static NOTIFICATION_FIELDS: Shape = Shape::Entries { keys: Keys::NotificationFields, of: &FIELD, most: 256 };
static FIELD: Shape = Shape::Either(&[&FIELD_TYPE, &LONG_FIELD]);
static LONG_FIELD: Shape = Shape::Object(&[
    required("type", &FIELD_TYPE, "Type of the field."),
    optional("required", &Shape::Boolean, "Whether a row without it is refused; false if not given."),
    optional("default", &Shape::Any, "Value of a row without it; of the field's type."),
    optional("description", &Shape::Text, "A description for readers."),
]);
/// A rule reads any number of attributes; each stored one costs memory for each subscription.
static ATTRIBUTES: Shape = Shape::Entries { keys: Keys::Fields, of: &ATTRIBUTE, most: 256 };
static ATTRIBUTE: Shape = Shape::Either(&[&FIELD_TYPE, &LONG_ATTRIBUTE]);
static LONG_ATTRIBUTE: Shape = Shape::Object(&[
    required("type", &FIELD_TYPE, "Type of the attribute."),
    optional("default", &Shape::Any, "Value for subscribers without one; of the attribute's type."),
    optional("description", &Shape::Text, "A description for readers."),
]);
static FIELD_TYPE: Shape = Shape::Choice(&["boolean", "integer", "number", "string", "timestamp", "list", "map"]);

static CONTENT: Shape = Shape::Object(&[
    optional(
        "engine",
        &Shape::Choice(&["jinja", "xslt", "notifybc"]),
        "Default language of `text`, `html`, `json` and `sms`; `jinja` if not given. With `notifybc`, all parts have \
         the tokens of NotifyBC.",
    ),
    required(
        "templates",
        &TEMPLATES,
        "Templates by `<locale>/<channel>`, `<locale>`, `<channel>` or `base`, in this order of precedence.",
    ),
]);
static TEMPLATES: Shape = Shape::Entries { keys: Keys::Free, of: &TEMPLATE, most: 500 };
static TEMPLATE: Shape = Shape::Object(&[
    optional("subject", &PART, "Subject, one line."),
    optional("text", &LONG_PART, "Plain text. Made from `html` if not given."),
    optional("html", &HTML_PART, "HTML; values are escaped."),
    optional("json", &LONG_PART, "JSON, for machines; values are encoded."),
    optional("sms", &LONG_PART, "A short text for SMS."),
    optional("headers", &HEADERS, "Headers of the mail or the request, by name; each is one line."),
    optional("mail", &MAIL_FIELDS, "Fields of a mail in place of the channel's, if it has `fields_from_content`."),
]);
static MAIL_FIELDS: Shape = Shape::Object(&[
    optional("from", &Shape::Text, "Sender in `From`, `name@domain` or `Shown Name <name@domain>`."),
    optional("return_path", &Shape::Text, "Envelope sender; the address of `from` if not given."),
    optional("list_id", &Shape::Text, "Value of `List-ID`."),
    optional("list_unsubscribe", &Shape::Text, "Value of `List-Unsubscribe`; a web address takes POST (RFC 8058)."),
]);
static HEADERS: Shape = Shape::Entries { keys: Keys::Free, of: &Shape::Text, most: 32 };
static LONG_PART: Shape = Shape::Either(&[&Shape::Text, &SOURCE_OR_XSLT]);
static HTML_PART: Shape = Shape::Either(&[&Shape::Text, &SOURCE_OR_ANY]);
static SOURCE_OR_XSLT: Shape = Shape::Object(&[
    optional("file", &Shape::Text, "A file beside the definition with the text."),
    optional("jinja", &PART, "A Jinja template."),
    optional("xslt", &PART, "An XSLT 1.0 stylesheet."),
]);
static SOURCE_OR_ANY: Shape = Shape::Object(&[
    optional("file", &Shape::Text, "A file beside the definition with the text."),
    optional("jinja", &PART, "A Jinja template."),
    optional("mjml", &PART, "A mail in MJML with Jinja placeholders."),
    optional("xslt", &PART, "An XSLT 1.0 stylesheet."),
]);
static PARTIALS: Shape = Shape::Entries { keys: Keys::Names, of: &HTML_PART, most: 200 };
static PART: Shape = Shape::Either(&[&Shape::Text, &FILE]);
static FILE: Shape = Shape::Object(&[required("file", &Shape::Text, "A file beside the definition with the text.")]);

static FUNCTIONS: Shape = Shape::Entries { keys: Keys::Functions, of: &FUNCTION, most: 200 };
static FUNCTION: Shape = Shape::Object(&[
    optional("description", &Shape::Text, "A description for readers."),
    optional("parameters", &PARAMETERS, "Parameter names, in order; none if not given."),
    required(
        "expression",
        &Shape::Text,
        "The result, in CEL over its parameters. It cannot call other functions of this section.",
    ),
]);
static PARAMETERS: Shape = Shape::List { of: &Shape::Name, most: 16 };

static RULES: Shape = Shape::Entries { keys: Keys::Names, of: &RULE, most: 1_000 };
static RULE: Shape = Shape::Object(&[
    optional("description", &Shape::Text, "A description for readers."),
    optional(
        "on",
        &Shape::Name,
        "The event class. Optional for a rule with a schedule, which then notifies at each due time.",
    ),
    optional(
        "every",
        &Shape::Duration { least: seconds(1), most: seconds(366 * DAY) },
        "Interval of its evaluation, counted from 1970 in UTC, over the events since the last time; at each event if \
         neither this nor `schedule` is given.",
    ),
    optional(
        "schedule",
        &RULE_SCHEDULE,
        "Schedule of its evaluation: lines of RFC 5545, or `subscription` for each subscription's own schedule, in \
         the subscriber's time zone unless the schedule names one.",
    ),
    optional(
        "missed",
        &Shape::Choice(&["skip", "once", "all"]),
        "Policy for missed runs: none is run later, one run replaces all of them, or each is run, at most 1,000; \
         `once` if not given. The next run processes their events in any case.",
    ),
    optional(
        "skip_older_than",
        &Shape::Duration { least: seconds(1), most: seconds(3_650 * DAY) },
        "Runs with a larger delay are skipped and counted. Never if not given; 5m with `missed: skip`.",
    ),
    required("subscription", &Shape::Name, "The subscription class."),
    optional("audience", &Shape::Name, "A segment: only its members are notified. All subscribers if not given."),
    optional(
        "when",
        &Shape::Text,
        "The predicate over `event` and `sub`, in CEL. Without it and without `sql` every pair matches.",
    ),
    optional(
        "sql",
        &PART,
        "In place of `when`: an SQL query over `events` and the subscription classes that returns `_event`, \
         `_subscription` and fields of the notification.",
    ),
    required("notify", &Shape::Name, "The notification class."),
    optional(
        "with",
        &WITH,
        "CEL expressions of notification fields. Other fields take the event's field of their name.",
    ),
    optional("enabled", &Shape::Boolean, "Whether it is active; true if not given."),
    optional(
        "timeout",
        &Shape::Duration { least: Duration::from_millis(100), most: seconds(3_600) },
        "Timeout of the evaluation of one event batch; 10s if not given. A firing that exceeds it fails, and can be \
         repeated.",
    ),
    optional(
        "stop_after",
        &Shape::Integer { least: 0, most: 1_000_000 },
        "Consecutive failures after which it is stopped until an operator resumes it; 10 if not given, 0 for never.",
    ),
    optional(
        "cooldown",
        &Shape::Duration { least: seconds(1), most: seconds(3_650 * DAY) },
        "Cool-down: time after a notification in which the subscription gets no other by this rule.",
    ),
    optional(
        "rearm",
        &Shape::Text,
        "A predicate over `event` and `sub`, in CEL: after a notification a subscription gets no other by this rule until \
         an event has satisfied it.",
    ),
    optional(
        "changed",
        &Shape::Text,
        "An expression over `event`, in CEL: a subscription gets no notification by this rule while its value equals \
         that at the last notification.",
    ),
    optional(
        "per",
        &Shape::Text,
        "State key, in CEL over `event`: `cooldown`, `rearm` and `changed` apply to each of its values separately.",
    ),
    optional(
        "after",
        &Shape::Duration { least: seconds(1), most: seconds(366 * DAY) },
        "Delay of its notifications, from the acceptance of the event. When it is due, the rule is evaluated again with \
         the subscription as it is then. At once if not given.",
    ),
    optional(
        "key",
        &Shape::Text,
        "Correlation key of a delayed notification, in CEL over `event`: an event of `cancel_on` with an equal key \
         cancels it.",
    ),
    optional(
        "cancel_on",
        &CANCEL_ON,
        "Event classes that cancel a delayed notification: names, or each with an expression over its event, in place \
         of `key`. A class with `on` cancels the notifications of its subscription.",
    ),
]);
static CANCEL_ON: Shape = Shape::Either(&[&Shape::Text, &CANCEL_CLASSES, &CANCEL_KEYS]);
static CANCEL_CLASSES: Shape = Shape::List { of: &Shape::Text, most: 16 };
static CANCEL_KEYS: Shape = Shape::Entries { keys: Keys::Free, of: &Shape::Text, most: 16 };
static RULE_SCHEDULE: Shape = Shape::Either(&[&Shape::Text, &SCHEDULE_FIELDS]);
static SCHEDULE_FIELDS: Shape = Shape::Object(&[
    required("start", &Shape::Text, "First time, such as `2027-01-04T08:00`; also completes absent parts of the rule."),
    required("time_zone", &Shape::Text, "The IANA name of a time zone, such as `Europe/Vienna`."),
    optional("rule", &Shape::Text, "A recurrence rule of RFC 5545, such as `FREQ=DAILY;BYDAY=MO,TU,WE,TH,FR`."),
]);
static WITH: Shape = Shape::Entries { keys: Keys::Free, of: &Shape::Text, most: 256 };

static CHANNELS: Shape = Shape::Entries { keys: Keys::Names, of: &CHANNEL, most: 200 };
static CHANNEL: Shape = Shape::Object(&[
    required("protocol", &Shape::Name, "The protocol: `smtp`, `http`, `file`."),
    optional(
        "options",
        &OPTIONS,
        "Options of the protocol. `${NAME}` and `${NAME:-default}` come from the environment; `$$` is a dollar sign.",
    ),
    optional(
        "retry",
        &RETRY,
        "Retry delays, each counted from the previous attempt. `[]` for no retry; 1m, 5m, 30m, 2h, 12h if not given.",
    ),
    optional(
        "concurrency",
        &Shape::Integer { least: 1, most: 10_000 },
        "Most concurrent sessions, connections or calls; 10 if not given.",
    ),
    optional("flow", &FLOW, "Flow control per destination."),
    optional(
        "lease",
        &Shape::Duration { least: seconds(1), most: seconds(DAY) },
        "Lease of a work item: a worker that does not renew it in this time loses the item; 5m if not given.",
    ),
    optional(
        "disable_after",
        &Shape::Duration { least: seconds(0), most: seconds(365 * DAY) },
        "Time after which a device whose endpoint only fails is disabled; 0s for never, 5d if not given. Only for \
         channels where a device's address is the receiving server, such as `http` without `url`.",
    ),
    optional(
        "endpoint_event",
        &Shape::Name,
        "An event class of this application: one event when the endpoint of a device has failed for half of `disable_after`, \
         another when its device is disabled. Rules decide who is notified. Its fields are any of `owner`, `endpoint`, `via`, \
         `disabled`, `since`, `until`, `failures` and `reason`.",
    ),
    optional(
        "log",
        &DELIVERY_LOG,
        "Logging of deliveries besides their outcomes: `status` keeps the receiver's text of a delivered notification, \
         `attempts` logs each attempt before it is made, `text` logs the sent text, shortened and without personal \
         data. `[status]` if not given; the text of a refusal or deferral is always kept.",
    ),
    optional(
        "log_failures",
        &FAILURE_LOG,
        "When continued failure of the channel is logged: after 20 failures in a row and every 15 minutes, if not given.",
    ),
]);
static FAILURE_LOG: Shape = Shape::Object(&[
    optional(
        "after",
        &Shape::Integer { least: 0, most: 1_000_000 },
        "Consecutive failures before the first log line; 20 if not given, 0 for never.",
    ),
    optional(
        "every",
        &Shape::Duration { least: seconds(0), most: seconds(30 * DAY) },
        "Interval of repeated log lines while nothing is delivered; 15m if not given.",
    ),
]);
static DELIVERY_LOG: Shape = Shape::List { of: &Shape::Choice(&["status", "attempts", "text"]), most: 3 };
static FLOW: Shape = Shape::Object(&[
    optional(
        "per_destination",
        &Shape::Integer { least: 1, most: 10_000 },
        "Concurrency limit of one destination; 20 if not given. The channel starts with five and adapts.",
    ),
    optional(
        "pace",
        &Shape::Choice(&["auto", "fixed"]),
        "Whether the concurrency of a destination adapts (`auto`), or is always `per_destination`; `auto` if not \
         given.",
    ),
    optional("rate", &RATE, "Rate limit of the channel; none if not given. Further messages wait."),
    optional(
        "rate_per_destination",
        &RATE,
        "Rate limit of each destination; none if not given. Further messages wait.",
    ),
    optional(
        "failures_before_pause",
        &Shape::Integer { least: 0, most: 1_000_000 },
        "Consecutive failures after which a destination is paused, for 5 s up to 5 minutes; 20 if not given, 0 for \
         never. A failure without an answer counts four times.",
    ),
]);
static RATE: Shape = Shape::Object(&[
    required("messages", &Shape::Integer { least: 1, most: 1_000_000 }, "Number of messages."),
    required("per", &Shape::Duration { least: seconds(1), most: seconds(DAY) }, "Time span."),
]);
static OPTIONS: Shape = Shape::Entries { keys: Keys::Free, of: &Shape::Any, most: 256 };
pub(super) static RETRY: Shape = Shape::Either(&[&DELAYS, &LONG_RETRY]);
static DELAYS: Shape = Shape::List { of: &Shape::Duration { least: seconds(0), most: seconds(30 * DAY) }, most: 100 };
static LONG_RETRY: Shape = Shape::Object(&[
    required("delays", &DELAYS, "The delays in order."),
    optional(
        "jitter",
        &Shape::Percent,
        "Jitter: each delay varies by up to this, so that retries do not coincide; 10% if not given.",
    ),
]);

static SOURCES: Shape = Shape::Entries { keys: Keys::Names, of: &SOURCE, most: 200 };
static SOURCE: Shape = Shape::Object(&[
    required(
        "kind",
        &Shape::Name,
        "Kind of the source: `http` if clients submit events, or a kind that the platform runs, such as `directory`.",
    ),
    optional(
        "events",
        &SOURCE_EVENTS,
        "Event classes that it may submit; all if not given. A source that the platform runs has one.",
    ),
    optional(
        "options",
        &OPTIONS,
        "Options of the kind. `${NAME}` and `${NAME:-default}` come from the environment; `$$` is a dollar sign.",
    ),
]);
static SOURCE_EVENTS: Shape = Shape::List { of: &Shape::Name, most: 1_000 };

static RETENTION: Shape = Shape::Object(&[
    optional(
        "finished",
        &KEEP,
        "Retention of batches and receipts, counted from the end of their last notification; 7d if not given.",
    ),
    optional(
        "idempotency",
        &KEEP,
        "Retention of answers for `Idempotency-Key` and ids of CloudEvents; 2d if not given.",
    ),
]);
static KEEP: Shape = Shape::Duration { least: seconds(1), most: seconds(3_650 * DAY) };

static LIMITS: Shape = Shape::Object(&[
    optional("subscriptions", &COUNT, "Most subscriptions; further ones are refused. 100,000,000 if not given."),
    optional(
        "distinct_filters",
        &COUNT,
        "Most distinct filters; subscriptions with further ones are refused. 10,000,000 if not given.",
    ),
    optional(
        "unindexed_filters",
        &COUNT,
        "Most filters without index support; subscriptions with further ones are refused. 1,000 if not given.",
    ),
    optional(
        "notifications_per_event",
        &COUNT,
        "Most notifications of one event; further ones are suspended. 100,000,000 if not given.",
    ),
    optional(
        "delayed_notifications",
        &COUNT,
        "Most notifications of delayed rules that wait; a rule that makes more fails and is listed. 1,000,000 if not \
         given.",
    ),
    optional("throttle", &THROTTLE, "Rate limit of notifications; events above it wait. No throttle if not given."),
    optional(
        "schedule_throttle",
        &THROTTLE,
        "Rate limit of notifications by scheduled rules; further runs wait, events are not affected. No throttle if \
         not given.",
    ),
    optional(
        "skip_older_than",
        &Shape::Duration { least: seconds(1), most: seconds(3_650 * DAY) },
        "Event batches that waited longer are skipped by event rules and listed; chronicles and rule state still \
         process them. Never if not given.",
    ),
    optional(
        "schedule_interval",
        &Shape::Duration { least: seconds(1), most: seconds(DAY) },
        "Shortest interval of a subscription's schedule; subscriptions with shorter ones are refused. `1m` if not \
         given. Existing ones stay.",
    ),
]);
static COUNT: Shape = Shape::Integer { least: 0, most: 1_000_000_000 };
static THROTTLE: Shape = Shape::Object(&[
    required("notifications", &Shape::Integer { least: 1, most: 1_000_000_000 }, "Number of notifications."),
    required("per", &Shape::Duration { least: seconds(1), most: seconds(DAY) }, "Time span."),
]);
