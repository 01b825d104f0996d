//! The nouns of Tocsin and their invariants. No I/O, and no clock: time is always an argument.
//!
//! Read in the order of the flow: an [`application`] defines classes and rules; [`subscriber`]s hold devices and
//! [`subscription`]s; [`event`]s arrive in batches; matches make [`notification`]s, which travel in batches;
//! a [`receipt`] closes each of them.

pub mod application; // what a deployment does: classes, rules, channels, formats, retention
pub mod definition; // the YAML text of an application becomes an `Application`, or every problem in it
pub mod subscriber; // whom to tell: subscribers and their devices
pub mod subscription; // what they care about
pub mod filter; // their own predicates over events
pub mod ldap; // predicates over subscribers: filters of LDAP
pub mod preferences; // what they want to be told, and when not
pub mod segment; // some of the subscribers: a saved filter
pub mod suppression; // addresses that are not written to, and why
pub mod event; // what happened: packed batches of typed rows
pub mod trace_context; // where they stand in a trace through many systems
pub mod mark; // how far a source of them has come
pub mod chronicle; // what is kept of the events of a class, key by key
pub mod notification; // what is to be told: packed batches of columns
pub mod conduct; // how it is told: together, at which hours
pub mod edit; // what an operator puts in place of it
pub mod content; // what a notification says, once it is formatted
pub mod inbox; // what a subscriber finds when it looks: items, and broadcasts that are kept once for all
pub mod collection; // rows that devices keep replicas of, and what becomes of edits that meet
pub mod replica; // what such devices and the server say to each other
pub mod exchange; // how systems talk through the platform: ports, routes, properties
pub mod receipt; // what became of it: dispositions, attempts, receipts
pub mod state; // what matching remembers between batches, as pages

pub mod field; // typed fields and the rows that hold their values
mod stored_row; // stored rows and later versions of their class
pub mod id; // ids are types
pub mod problem; // what is wrong, where, and what would be right
pub mod time; // instants, to the microsecond
pub mod date_text; // dates as feeds, mails and pages have them
pub mod windows_zones; // names of time zones of Windows
pub mod http_date; // dates of HTTP and `Retry-After`
pub mod length; // of texts, as receivers count it
pub mod mailbox; // addresses of mail: read, checked, compared
pub mod hours; // hours of the day by somebody's clock
pub mod schedule; // when something recurs: rules of RFC 5545 in time zones
pub mod value; // the one value type
pub mod json; // bounds of JSON texts from outside

pub mod exact_json; // JSON whose numbers stay as they are written
pub mod media_type; // how content says of which kind it is
pub mod csv_text; // records of CSV, cut out of a stream
pub mod merge_patch; // JSON changed by JSON
pub mod charset; // bytes from outside become text, in any known encoding
pub mod hexadecimal; // bytes as digits, for people and in links
pub mod markup; // text inside HTML
pub mod folder; // folders that survive a power loss
pub mod stack; // a large stack for libraries that recurse
pub mod pack; // varints and length-prefixed bytes, shared by the packed forms
