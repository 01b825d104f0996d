//! A notification goes in, its content comes out.
//!
//! The templates of a notification class are compiled once into a [`Formatter`], which any number of threads share.
//! Templates are sandboxed: they see the [`Scope`] they are given and nothing else, no files, no other templates; their
//! steps, their depth and their output are bounded. Values are escaped for their target: HTML, JSON, or none.
//!
//! | a template sees | |
//! |---|---|
//! | `magnitude`, `place`, ... | the fields of the notification, by their names |
//! | `event.<field>`, `sub.<field>` | the event it tells of and the subscription that matched, as in rules |
//! | `subscriber` | `id`, `locale`, `time_zone`, and `attributes.<name>`, none where a subscriber has no such attribute |
//! | `device` | `name`, `channel`, `address` |
//! | `notification` | `id`, `rule`, `matched_at`, `accepted_at` |
//! | `digest` | of a class with a digest: `items`, each with the fields, `event` and `notification` of one that is told, in order; `count`, how many there are; `more`, how many of them are not among the items |
//! | `value\|number(digits)` | a number as the reader writes it: `1.234,5` |
//! | `value\|date(form)`, `value\|time(form)` | an instant in the reader's zone and language; a form may be a pattern of strftime |
//!
//! A name that does not exist is an error, found when the template is compiled where that is possible. A field without a
//! value reads as nothing, in JSON as `null`.
//!
//! One thing the engine cannot bound: `*` and `~` may make a text of 100 MB in a single step. Templates are the
//! operator's, who could as well stop the server; they must never come from a subscriber.
//!
//! Knows nothing of channels, stores or clocks. Of the time zone database it knows what `jiff` carries with it.

mod formatter; // compile, look up, render

mod scope; // what a template sees

mod filters; // numbers, dates and times for people; bounds for the others

mod language; // how a language writes numbers and dates

#[cfg(test)]
mod tests;

pub use formatter::{FormatError, Formatter, OUTPUT_BYTES_MAX, Part};
pub use scope::{DeviceScope, DigestItem, DigestScope, EventScope, KnownVariables, Scope};
