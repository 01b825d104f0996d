//! The words of the definition language: which keys there are, what they take, and what they mean. `read` checks by
//! this table, and the JSON Schema is made from it.

use std::time::Duration;

pub(super) use super::shape::{Keys, Shape, optional, required};
use crate::{
    chronicle::{CHRONICLES_MAX, KEY_FIELDS_MAX},
    collection::{FIELDS_MAX, RAISES_MAX, SHARES_MAX},
};

pub(super) const DAY: u64 = 86_400;

pub(super) const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

pub static APPLICATION: Shape = Shape::Object(&[
    required("application", &Shape::Name, "The name of the application."),
    optional("description", &Shape::Text, "What it is for."),
    optional("events", &EVENTS, "Event classes: what can happen."),
    optional(
        "attributes",
        &ATTRIBUTES,
        "The attributes of subscribers that rules may read, as `subscriber.attributes.NAME`, with their types. A subscriber \
         whose value is of another type counts as having none.",
    ),
    optional("subscriptions", &SUBSCRIPTIONS, "Subscription classes: what subscribers can care about."),
    optional("notifications", &NOTIFICATIONS, "Notification classes: what can be told, and how it reads."),
    optional(
        "partials",
        &PARTIALS,
        "What templates include, extend or import, by name: layouts, fragments, stylesheets.",
    ),
    optional(
        "functions",
        &FUNCTIONS,
        "Functions of its own, for rules and filters in every dialect but event patterns.",
    ),
    optional("rules", &RULES, "Who cares about what: each rule joins an event class to a subscription class."),
    optional("channels", &CHANNELS, "How it leaves: configured instances of a protocol."),
    optional(
        "sources",
        &SOURCES,
        "Where events come from. Without one of the kind `http`, the source `api` may submit all classes.",
    ),
    optional(
        "collections",
        &COLLECTIONS,
        "Rows that devices keep replicas of and edit while they are offline; each device has its own part of them.",
    ),
    optional("retention", &RETENTION, "How long finished work is kept."),
    optional("limits", &LIMITS, "How much of everything it may have."),
]);

static COLLECTIONS: Shape = Shape::Entries { keys: Keys::Names, of: &COLLECTION, most: 200 };
static COLLECTION: Shape = Shape::Object(&[
    optional("description", &Shape::Text, "What it is for."),
    optional(
        "built_in",
        &Shape::Choice(&["profile", "devices", "subscriptions", "inbox"]),
        "What of the subscriber the platform tells by it. Then fields, partition and conflicts are given.",
    ),
    optional("fields", &FIELDS, "The fields of a row. Beside them every row has an `id`. Required if not built in."),
    optional(
        "schema",
        &Shape::Any,
        "A JSON Schema (draft 4 to 2020-12) that each row must fit that is written, by its fields and without those that are \
         empty. Rows that are there stay as they are.",
    ),
    optional(
        "direction",
        &Shape::Choice(&["both", "down", "up"]),
        "Which way rows go: `down` to devices, `up` from them; `both` if not given.",
    ),
    optional(
        "partition",
        &PARTITION,
        "Whose the rows are: `everyone`, or ways of which one must fit. A device sees no other rows. Required if not built in.",
    ),
    optional(
        "may_leave",
        &Shape::Boolean,
        "Whether a device may give a row away by an edit after which it does not see it any more; false if not given.",
    ),
    optional("conflicts", &CONFLICTS, "What becomes of edits that meet."),
    optional("raise", &RAISES, "Events that changes of its rows raise, whoever makes them."),
]);
static RAISES: Shape = Shape::List { of: &RAISE, most: RAISES_MAX };
static RAISE: Shape = Shape::Object(&[
    optional("on", &CHANGES, "By which changes; by all if not given. Each raises one event at most."),
    optional("of", &KEY, "Of updates, only by those that change one of these fields; by all if not given."),
    required("event", &Shape::Name, "The class of the events."),
    optional(
        "fields",
        &RAISED_FIELDS,
        "What the fields of an event say: `id`, `change` (`insert`, `update` or `remove`), `at`, `row.FIELD` as it is after \
         the change or was last, or `before.FIELD`.",
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
        "Fields of the row, each with what of the subscriber it must be equal to: `subscriber.id`, or `attributes.NAME`, \
         of which any value counts if it is a list.",
    ),
    optional("rows", &ROW_VALUES, "Only rows whose fields have this value, or one of these."),
    optional("audience", &Shape::Name, "A segment: only its members. Anybody if not given."),
    optional(
        "through",
        &THROUGH,
        "A field that holds the id of a row of another collection: whoever has that row has this one.",
    ),
]);
static IDENTITIES: Shape = Shape::Entries { keys: Keys::Fields, of: &Shape::Text, most: 4 };
static ROW_VALUES: Shape = Shape::Entries { keys: Keys::Fields, of: &Shape::Any, most: 8 };
static THROUGH: Shape = Shape::Entries { keys: Keys::Fields, of: &Shape::Name, most: 1 };
static CONFLICTS: Shape = Shape::Object(&[
    optional(
        "track",
        &Shape::Choice(&["column", "row"]),
        "Whether edits meet that changed the same field, or the same row; `column` if not given.",
    ),
    optional(
        "resolver",
        &RESOLVER,
        "Which edit stays: that of the `server`, of the `client`, or the `first` or `last` by what its author knew of the \
         server; `last` if not given.",
    ),
    optional("fields", &COMBINED, "Fields whose edits are put together instead."),
]);
static RESOLVER: Shape = Shape::Either(&[&Shape::Choice(&["server", "client", "first", "last"]), &OWN_RESOLVER]);
static OWN_RESOLVER: Shape = Shape::Object(&[
    optional(
        "predicate",
        &Shape::Text,
        "In CEL over `event.client`, `event.server` and `event.base`: the edit of the device stays where it holds.",
    ),
    optional(
        "process",
        &COMMAND,
        "A program by its whole path, with its arguments: it is asked line by line. `delivery.allow_programs` must allow it.",
    ),
    optional(
        "timeout",
        &Shape::Duration { least: Duration::from_millis(10), most: Duration::from_secs(30) },
        "How long it may think about one question; 5 s if not given. After that the server wins.",
    ),
]);
static COMMAND: Shape = Shape::List { of: &Shape::Text, most: 32 };
static COMBINED: Shape =
    Shape::Entries { keys: Keys::Fields, of: &Shape::Choice(&["max", "min", "sum", "merge"]), most: FIELDS_MAX };

static EVENTS: Shape = Shape::Entries { keys: Keys::Names, of: &EVENT, most: 1_000 };
static EVENT: Shape = Shape::Object(&[
    optional("description", &Shape::Text, "What it means."),
    required("fields", &FIELDS, "The fields of an event."),
    optional(
        "chronicles",
        &CHRONICLES,
        "What is kept of its events, key by key: last value, high and low, counts and sums. Rules see them as `chronicle`.",
    ),
    optional(
        "ordered",
        &ORDERED,
        "Ordered mode: what a subscription is told of events of one key leaves in their order, also over retries. In any \
         order if not given.",
    ),
    optional(
        "retention",
        &KEEP,
        "How long its finished batches are kept, but no shorter than those that tell of them; `retention.finished` of the \
         application if not given.",
    ),
    optional(
        "throttle",
        &THROTTLE,
        "How fast its events may make notifications; further events of the class wait, other classes go on. No throttle if \
         not given.",
    ),
]);
static ORDERED: Shape = Shape::Object(&[optional(
    "by",
    &KEY,
    "The fields of the event that make the key; all events of the class have one order if not given.",
)]);
static CHRONICLES: Shape = Shape::Entries { keys: Keys::Chronicles, of: &CHRONICLE, most: CHRONICLES_MAX };
static CHRONICLE: Shape = Shape::Object(&[
    optional("description", &Shape::Text, "What it means."),
    optional("by", &KEY, "The fields of the event that make the key; one entry for all events if not given."),
    optional(
        "of",
        &Shape::Text,
        "The value that it follows, in CEL over `event`: a boolean, integer, number, string or timestamp. Without it, it \
         only counts.",
    ),
    optional("when", &Shape::Text, "A predicate over `event`, in CEL: it takes these events only. All if not given."),
    optional(
        "time",
        &Shape::Text,
        "The event's own time, in CEL over `event`. The time at which it was accepted if not given.",
    ),
    optional(
        "window",
        &WINDOW,
        "How far back it reaches: a duration, or the beginning of the hour, day, week or month. For ever if not given.",
    ),
    optional("reset", &Shape::Text, "A predicate over `event`, in CEL: with such an event an entry begins anew."),
    optional(
        "keys",
        &Shape::Integer { least: 1, most: 10_000_000 },
        "Most keys; for one more the key is forgotten whose last event is the longest ago. 100,000 if not given.",
    ),
]);
static KEY: Shape = Shape::Either(&[&Shape::Name, &KEY_FIELDS]);
static KEY_FIELDS: Shape = Shape::List { of: &Shape::Name, most: KEY_FIELDS_MAX };
static WINDOW: Shape = Shape::Either(&[&SLIDING, &CALENDAR]);
static SLIDING: Shape = Shape::Duration { least: seconds(60), most: seconds(366 * DAY) };
static CALENDAR: Shape = Shape::Object(&[
    required("every", &Shape::Choice(&["hour", "day", "week", "month"]), "What it begins anew with; weeks on Monday."),
    optional("time_zone", &Shape::Text, "The IANA name of a time zone, such as `Europe/Vienna`; `UTC` if not given."),
    optional(
        "starts",
        &Shape::Text,
        "The wall-clock time at which its days begin, such as `09:30`; midnight if not given.",
    ),
]);

static SUBSCRIPTIONS: Shape = Shape::Entries { keys: Keys::Names, of: &SUBSCRIPTION, most: 1_000 };
static SUBSCRIPTION: Shape = Shape::Object(&[
    optional("description", &Shape::Text, "What it means."),
    optional("fields", &FIELDS, "The parameters of a subscription; rules see them as `sub`."),
    optional(
        "filter",
        &FILTER,
        "The dialects in which a subscription may have a filter of its own over the event, the first for those that name \
         none; no filters if not given.",
    ),
    optional(
        "schedule",
        &Shape::Choice(&["forbidden", "optional", "required"]),
        "Whether a subscription has a schedule of its own, for rules with `schedule: subscription`; `forbidden` if not \
         given.",
    ),
]);
static FILTER: Shape = Shape::Either(&[&DIALECT, &DIALECTS]);
pub(super) static DIALECT: Shape = Shape::Choice(&["cel", "jmespath", "event_pattern"]);
static DIALECTS: Shape = Shape::List { of: &DIALECT, most: 3 };

static NOTIFICATIONS: Shape = Shape::Entries { keys: Keys::Names, of: &NOTIFICATION, most: 1_000 };
static NOTIFICATION: Shape = Shape::Object(&[
    optional("description", &Shape::Text, "What it means."),
    optional("fields", &NOTIFICATION_FIELDS, "What it tells; templates see the fields by their names."),
    optional(
        "batch_size",
        &Shape::Integer { least: 1, most: 100_000 },
        "Most notifications of one batch; 2500 if not given.",
    ),
    optional("expires_after", &EXPIRY, "After this time from the match it is not worth sending; never if not given."),
    optional(
        "retention",
        &KEEP,
        "How long its finished batches are kept; `retention.finished` of the application if not given.",
    ),
    optional(
        "critical",
        &Shape::Boolean,
        "Whether it is told in quiet hours and against preferences as well; false if not given.",
    ),
    optional(
        "send_hours",
        &Shape::Text,
        "The only hours at which it is sent, by the subscriber's clock, such as `09:00-18:00 mo-fr`; what comes at other \
         hours waits. Any hour if not given.",
    ),
    optional(
        "digest",
        &DIGEST,
        "Those for the same subscriber, device and locale are one message, which sees them as `digest.items`.",
    ),
    optional(
        "multicast",
        &MULTICAST,
        "Those that say the same leave as one message to several recipients, who do not see each other.",
    ),
    optional(
        "priority",
        &Shape::Choice(&["urgent", "high", "normal", "low"]),
        "Which goes first where several wait for a channel; `normal` if not given. Nothing waits for ever: what is low \
         goes before what became due half an hour after it.",
    ),
    optional(
        "fallback",
        &FALLBACK,
        "Channels that are tried, in order, when the one before has failed for good or takes too long.",
    ),
    optional(
        "computed",
        &COMPUTED,
        "Fields that are computed when it is formatted: each an expression of Jinja over all that templates see.",
    ),
    required("content", &CONTENT, "How it reads."),
]);
static COMPUTED: Shape = Shape::Entries { keys: Keys::NotificationFields, of: &Shape::Text, most: 64 };
static MULTICAST: Shape = Shape::Object(&[optional(
    "recipient_limit",
    &Shape::Integer { least: 2, most: 1_000 },
    "Most recipients of one message; 50 if not given.",
)]);
static FALLBACK: Shape = Shape::List { of: &FALLBACK_STEP, most: 8 };
static FALLBACK_STEP: Shape = Shape::Object(&[
    required("channel", &Shape::Name, "The channel that is tried."),
    optional(
        "after",
        &Shape::Duration { least: seconds(1), most: seconds(30 * DAY) },
        "After so long without delivery by the one before it is tried, even if attempts are left; only when that has \
         failed for good if not given.",
    ),
]);
static DIGEST: Shape = Shape::Object(&[
    optional("by", &DIGEST_BY, "Fields of the class in which those of one message agree as well; none if not given."),
    optional(
        "window",
        &Shape::Text,
        "How long they are gathered: `batch` for those of one batch, a time such as `10m` after the first, `hourly`, or \
         `daily 08:00`, by the subscriber's clock. `batch` if not given.",
    ),
    optional(
        "items_max",
        &Shape::Integer { least: 1, most: 10_000 },
        "Most that the templates see one by one; `digest.more` counts the rest. 100 if not given.",
    ),
]);
static DIGEST_BY: Shape = Shape::List { of: &Shape::Name, most: 16 };
static EXPIRY: Shape = Shape::Duration { least: seconds(1), most: seconds(3_650 * DAY) };

static FIELDS: Shape = Shape::Entries { keys: Keys::Fields, of: &FIELD, most: 256 };
static NOTIFICATION_FIELDS: Shape = Shape::Entries { keys: Keys::NotificationFields, of: &FIELD, most: 256 };
static FIELD: Shape = Shape::Either(&[&FIELD_TYPE, &LONG_FIELD]);
static LONG_FIELD: Shape = Shape::Object(&[
    required("type", &FIELD_TYPE, "What it holds."),
    optional("required", &Shape::Boolean, "Whether a row without it is refused; false if not given."),
    optional("default", &Shape::Any, "What a row without it holds; of the field's type."),
    optional("description", &Shape::Text, "What it means."),
]);
/// A rule reads as many as it likes; what it keeps of them costs memory for each subscription.
static ATTRIBUTES: Shape = Shape::Entries { keys: Keys::Fields, of: &ATTRIBUTE, most: 256 };
static ATTRIBUTE: Shape = Shape::Either(&[&FIELD_TYPE, &LONG_ATTRIBUTE]);
static LONG_ATTRIBUTE: Shape = Shape::Object(&[
    required("type", &FIELD_TYPE, "What it holds."),
    optional("default", &Shape::Any, "What rules see of a subscriber without a value; of the attribute's type."),
    optional("description", &Shape::Text, "What it means."),
]);
static FIELD_TYPE: Shape = Shape::Choice(&["boolean", "integer", "number", "string", "timestamp", "list", "map"]);

static CONTENT: Shape = Shape::Object(&[
    optional(
        "engine",
        &Shape::Choice(&["jinja", "xslt"]),
        "The language of `text`, `html`, `json` and `sms` that name none; `jinja` if not given.",
    ),
    required(
        "templates",
        &TEMPLATES,
        "By `<locale>/<channel>`, `<locale>`, `<channel>` or `base`, looked for in this order.",
    ),
]);
static TEMPLATES: Shape = Shape::Entries { keys: Keys::Free, of: &TEMPLATE, most: 500 };
static TEMPLATE: Shape = Shape::Object(&[
    optional("subject", &PART, "One line."),
    optional("text", &LONG_PART, "Plain text. Made from `html` if there is none."),
    optional("html", &HTML_PART, "HTML; values are escaped."),
    optional("json", &LONG_PART, "JSON, for machines; values are encoded."),
    optional("sms", &LONG_PART, "A text of a few short messages."),
    optional("headers", &HEADERS, "Headers of the mail or the request, by name; each is one line."),
]);
static HEADERS: Shape = Shape::Entries { keys: Keys::Free, of: &Shape::Text, most: 32 };
static LONG_PART: Shape = Shape::Either(&[&Shape::Text, &SOURCE_OR_XSLT]);
static HTML_PART: Shape = Shape::Either(&[&Shape::Text, &SOURCE_OR_ANY]);
static SOURCE_OR_XSLT: Shape = Shape::Object(&[
    optional("file", &Shape::Text, "A file beside the definition that holds the text."),
    optional("jinja", &PART, "A template of Jinja."),
    optional("xslt", &PART, "A stylesheet of XSLT 1.0."),
]);
static SOURCE_OR_ANY: Shape = Shape::Object(&[
    optional("file", &Shape::Text, "A file beside the definition that holds the text."),
    optional("jinja", &PART, "A template of Jinja."),
    optional("mjml", &PART, "A mail in MJML, in which Jinja fills the gaps."),
    optional("xslt", &PART, "A stylesheet of XSLT 1.0."),
]);
static PARTIALS: Shape = Shape::Entries { keys: Keys::Names, of: &HTML_PART, most: 200 };
static PART: Shape = Shape::Either(&[&Shape::Text, &FILE]);
static FILE: Shape =
    Shape::Object(&[required("file", &Shape::Text, "A file beside the definition that holds the text.")]);

static FUNCTIONS: Shape = Shape::Entries { keys: Keys::Functions, of: &FUNCTION, most: 200 };
static FUNCTION: Shape = Shape::Object(&[
    optional("description", &Shape::Text, "What it computes."),
    optional("parameters", &PARAMETERS, "The names of what it takes, in order; nothing if not given."),
    required(
        "expression",
        &Shape::Text,
        "What it gives, in CEL over its parameters. It calls no function of this section.",
    ),
]);
static PARAMETERS: Shape = Shape::List { of: &Shape::Name, most: 16 };

static RULES: Shape = Shape::Entries { keys: Keys::Names, of: &RULE, most: 1_000 };
static RULE: Shape = Shape::Object(&[
    optional("description", &Shape::Text, "What it means."),
    optional(
        "on",
        &Shape::Name,
        "The event class whose events it looks at. Only a rule with a schedule can do without: it tells at each due time.",
    ),
    optional(
        "every",
        &Shape::Duration { least: seconds(1), most: seconds(366 * DAY) },
        "It is evaluated so often, counted from 1970 in UTC, over the events since the last time; at each event if neither \
         this nor `schedule` is given.",
    ),
    optional(
        "schedule",
        &RULE_SCHEDULE,
        "When it is evaluated: lines of RFC 5545, or `subscription` for each subscription's own schedule, in the \
         subscriber's time zone unless the schedule names one.",
    ),
    optional(
        "missed",
        &Shape::Choice(&["skip", "once", "all"]),
        "What becomes of runs that were missed: none is made up for, one run for all of them, or each, at most 1,000; \
         `once` if not given. Their events are told by the next run in any case.",
    ),
    optional(
        "skip_older_than",
        &Shape::Duration { least: seconds(1), most: seconds(3_650 * DAY) },
        "Runs that are later than this are skipped and counted. Never if not given; 5m with `missed: skip`.",
    ),
    required("subscription", &Shape::Name, "The subscription class that it looks through."),
    optional(
        "audience",
        &Shape::Name,
        "A segment: only subscribers who belong to it are told. Anybody is, if not given.",
    ),
    optional(
        "when",
        &Shape::Text,
        "The predicate over `event` and `sub`, in CEL. Without it and without `sql` every pair matches.",
    ),
    optional(
        "sql",
        &PART,
        "In place of `when`: a query in SQL over `events` and the subscription classes, that gives `_event`, \
         `_subscription` and fields of the notification.",
    ),
    required("notify", &Shape::Name, "The notification class that it makes."),
    optional(
        "with",
        &WITH,
        "How fields of the notification are computed, in CEL. Others take the event's field of their name.",
    ),
    optional("enabled", &Shape::Boolean, "Whether it fires at all; true if not given."),
    optional(
        "timeout",
        &Shape::Duration { least: Duration::from_millis(100), most: seconds(3_600) },
        "How long it may take over one event batch; 10s if not given. A firing that takes longer fails, and can be fired \
         again.",
    ),
    optional(
        "stop_after",
        &Shape::Integer { least: 0, most: 1_000_000 },
        "After so many failed firings in a row it is stopped until somebody resumes it; 10 if not given, 0 for never.",
    ),
    optional(
        "cooldown",
        &Shape::Duration { least: seconds(1), most: seconds(3_650 * DAY) },
        "So long after a notification a subscription gets no other by this rule.",
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
        "An expression over `event`, in CEL: a subscription gets no notification by this rule while it gives what it gave \
         at the last one.",
    ),
    optional(
        "per",
        &Shape::Text,
        "An expression over `event`, in CEL: `cooldown`, `rearm` and `changed` count for each of its values by itself.",
    ),
]);
static RULE_SCHEDULE: Shape = Shape::Either(&[&Shape::Text, &SCHEDULE_FIELDS]);
static SCHEDULE_FIELDS: Shape = Shape::Object(&[
    required("start", &Shape::Text, "Such as `2027-01-04T08:00`: the first time, and what the rule leaves open."),
    required("time_zone", &Shape::Text, "The IANA name of a time zone, such as `Europe/Vienna`."),
    optional("rule", &Shape::Text, "A rule of RFC 5545, such as `FREQ=DAILY;BYDAY=MO,TU,WE,TH,FR`."),
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
        "Delays between attempts, each counted from the attempt before. `[]` for no retry; 1m, 5m, 30m, 2h, 12h if not given.",
    ),
    optional(
        "concurrency",
        &Shape::Integer { least: 1, most: 10_000 },
        "Most sessions, connections or calls at the same time; 10 if not given.",
    ),
    optional("flow", &FLOW, "How much goes where at a time."),
    optional(
        "lease",
        &Shape::Duration { least: seconds(1), most: seconds(DAY) },
        "How long a worker may hold a work item without a sign of life; 5m if not given.",
    ),
    optional(
        "disable_after",
        &Shape::Duration { least: seconds(0), most: seconds(365 * DAY) },
        "How long the endpoint of a device may only fail before the device is switched off; 0s for ever, 5d if not given. \
         Only for channels by which the address of a device is the far side itself, such as `http` without `url`.",
    ),
    optional(
        "endpoint_event",
        &Shape::Name,
        "A class of events of this application: one tells that the endpoint of a device has failed for half of `disable_after`, \
         another that its device was switched off. Rules say who hears of it. Its fields are any of `owner`, `endpoint`, `via`, \
         `disabled`, `since`, `until`, `failures` and `reason`.",
    ),
    optional(
        "log",
        &DELIVERY_LOG,
        "What is told of deliveries beside what became of them: `status` keeps what far sides said when they took \
         something, `attempts` logs each attempt before it is made, `text` logs what is sent, cut and without personal \
         data. `[status]` if not given; what was said to refuse or defer is always kept.",
    ),
    optional(
        "log_failures",
        &FAILURE_LOG,
        "When the log tells that the channel only fails: after 20 failures in a row and every 15 minutes, if not given.",
    ),
]);
static FAILURE_LOG: Shape = Shape::Object(&[
    optional(
        "after",
        &Shape::Integer { least: 0, most: 1_000_000 },
        "After so many failures in a row; 20 if not given, 0 for never.",
    ),
    optional(
        "every",
        &Shape::Duration { least: seconds(0), most: seconds(30 * DAY) },
        "How long until the same is told again, while nothing is delivered; 15m if not given.",
    ),
]);
static DELIVERY_LOG: Shape = Shape::List { of: &Shape::Choice(&["status", "attempts", "text"]), most: 3 };
static FLOW: Shape = Shape::Object(&[
    optional(
        "per_destination",
        &Shape::Integer { least: 1, most: 10_000 },
        "Most at the same time to one destination; 20 if not given. The channel starts with five and finds out how many \
         help.",
    ),
    optional(
        "pace",
        &Shape::Choice(&["auto", "fixed"]),
        "Whether the channel finds out how many at the same time help, or there are always `per_destination`; `auto` if \
         not given.",
    ),
    optional("rate", &RATE, "How fast messages may leave; no limit if not given. The others wait."),
    optional(
        "rate_per_destination",
        &RATE,
        "How fast they may go to one destination; no limit if not given. The others wait.",
    ),
    optional(
        "failures_before_pause",
        &Shape::Integer { least: 0, most: 1_000_000 },
        "After so many failures in a row a destination is left alone, from 5 s up to 5 minutes; 20 if not given, 0 for \
         never. One that gives no answer at all counts fourfold.",
    ),
]);
static RATE: Shape = Shape::Object(&[
    required("messages", &Shape::Integer { least: 1, most: 1_000_000 }, "How many."),
    required("per", &Shape::Duration { least: seconds(1), most: seconds(DAY) }, "In which time."),
]);
static OPTIONS: Shape = Shape::Entries { keys: Keys::Free, of: &Shape::Any, most: 256 };
pub(super) static RETRY: Shape = Shape::Either(&[&DELAYS, &LONG_RETRY]);
static DELAYS: Shape = Shape::List { of: &Shape::Duration { least: seconds(0), most: seconds(30 * DAY) }, most: 100 };
static LONG_RETRY: Shape = Shape::Object(&[
    required("delays", &DELAYS, "The delays in order."),
    optional(
        "jitter",
        &Shape::Percent,
        "By how much each delay varies, so that retries do not come all at once; 10% if not given.",
    ),
]);

static SOURCES: Shape = Shape::Entries { keys: Keys::Names, of: &SOURCE, most: 200 };
static SOURCE: Shape = Shape::Object(&[
    required(
        "kind",
        &Shape::Name,
        "How events come: `http` if others submit them, or a kind that runs by itself, such as `directory`.",
    ),
    optional(
        "events",
        &SOURCE_EVENTS,
        "The event classes that it may submit; all if not given. One that runs by itself has one.",
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
        "Batches and receipts, counted from when their last notification was closed; 7d if not given.",
    ),
    optional("idempotency", &KEEP, "Answers kept for `Idempotency-Key` and ids of CloudEvents; 2d if not given."),
]);
static KEEP: Shape = Shape::Duration { least: seconds(1), most: seconds(3_650 * DAY) };

static LIMITS: Shape = Shape::Object(&[
    optional("subscriptions", &COUNT, "Subscriptions; more are refused. 100,000,000 if not given."),
    optional(
        "distinct_filters",
        &COUNT,
        "Filters that differ; subscriptions with further ones are refused. 10,000,000 if not given.",
    ),
    optional(
        "unindexed_filters",
        &COUNT,
        "Filters that no index answers; subscriptions with further ones are refused. 1,000 if not given.",
    ),
    optional(
        "notifications_per_event",
        &COUNT,
        "Notifications of one event; those beyond it are suspended. 100,000,000 if not given.",
    ),
    optional(
        "throttle",
        &THROTTLE,
        "How fast it may make notifications; events beyond it wait. No throttle if not given.",
    ),
    optional(
        "schedule_throttle",
        &THROTTLE,
        "How fast its rules with a schedule may make notifications; further runs wait, events go on. No throttle if not \
         given.",
    ),
    optional(
        "skip_older_than",
        &Shape::Duration { least: seconds(1), most: seconds(3_650 * DAY) },
        "Event batches that waited longer are skipped by event rules and listed; state sees them. Never if not given.",
    ),
    optional(
        "schedule_interval",
        &Shape::Duration { least: seconds(1), most: seconds(DAY) },
        "The least time between two due times of a subscription's schedule; subscriptions with others are refused. `1m` if not \
         given. What is stored already stays.",
    ),
]);
static COUNT: Shape = Shape::Integer { least: 0, most: 1_000_000_000 };
static THROTTLE: Shape = Shape::Object(&[
    required("notifications", &Shape::Integer { least: 1, most: 1_000_000_000 }, "How many."),
    required("per", &Shape::Duration { least: seconds(1), most: seconds(DAY) }, "In which time."),
]);
