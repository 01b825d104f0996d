//! Domain types of Tocsin and their invariants. No I/O, and no clock: time is always an argument.
//!
//! Read in the order of the flow: an [`application`] defines classes and rules; [`subscriber`]s hold devices and
//! [`subscription`]s; [`event`]s arrive in batches; matches make [`notification`]s, which travel in batches; a
//! [`receipt`] closes each of them.

pub mod application; // applications: classes, rules, channels, templates, retention
pub mod definition; // parses the YAML definition of an application and reports every problem
pub mod subscriber; // subscribers and their devices
pub mod subscription; // subscriptions to event classes
pub mod lifecycle; // changes in the life of subscriptions, and their events
pub mod consent; // consent to subscriptions: double opt-in and its evidence
pub mod filter; // filters of subscriptions: predicates over events
pub mod ldap; // LDAP filters: predicates over subscribers
pub mod preferences; // preferences of subscribers: classes, channels and quiet hours
pub mod pages; // branding and titles of hosted pages
pub mod segment; // segments: saved filters over subscribers
pub mod suppression; // suppressed addresses, with causes
pub mod feedback; // delivery feedback: classes of reports, and their log
pub mod event; // event batches: packed rows of one class
pub mod broadcast; // broadcasts: messages of people to an audience, as a rule for one event
pub mod actor; // actors of changes
pub mod trace_context; // W3C trace contexts
pub mod mark; // checkpoints of event sources
pub mod chronicle; // chronicles: per-key aggregates of an event class
pub mod notification; // notification batches, packed in columns
pub mod delivery_policy; // delivery policy of a class: digests, hours, priority, fall-back
pub mod edit; // edits of suspended notifications by operators
pub mod content; // content of formatted notifications
pub mod inbox; // inbox items and broadcasts
pub mod collection; // collections of replicated rows, and conflict resolution
pub mod notifybc; // collections of NotifyBC records
pub mod replica; // messages of the synchronisation protocol
pub mod exchange; // exchanges between systems: ports, routes, properties
pub mod receipt; // receipts: dispositions and attempts
pub mod reason_code; // codes of reasons why a notification was not made, not sent, or waits
pub mod mail_provider; // mails to mailbox providers by day
pub mod state; // state of matching between batches, as pages

pub mod field; // typed fields and rows
mod stored_row; // stored rows under later versions of their class
pub mod id; // typed ids
pub mod problem; // problems of an input: path, message and hint
pub mod time; // timestamps with microseconds
pub mod duration_buckets; // logarithmic buckets of durations
pub mod date_text; // parses dates of feeds, mails and pages
pub mod windows_zones; // Windows time zone names
pub mod http_date; // HTTP dates and `Retry-After`
pub mod plural; // number agreement in English sentences
pub mod length; // text lengths in receivers' units, and truncation
pub mod mailbox; // mailbox addresses: parsed, checked and compared
pub mod hours; // hours of the day in a time zone
pub mod schedule; // schedules: recurrence rules of RFC 5545 in time zones
pub mod value; // values of fields
pub mod json; // limits for JSON from outside

pub mod exact_json; // lossless JSON
pub mod media_type; // media types
pub mod csv_text; // splits a stream into CSV records
pub mod merge_patch; // JSON merge patch (RFC 7396)
pub mod charset; // character encodings
pub mod markup; // HTML escaping
pub mod folder; // durable folders
pub mod stack; // a large stack for recursive libraries
pub mod percent; // strict percent-decoding
pub mod pack; // varints and length-prefixed bytes of packed forms
