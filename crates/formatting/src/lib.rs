//! A notification goes in, its content comes out.
//!
//! The templates of a notification class are compiled once into a [`Formatter`], which any number of threads share.
//! Templates are sandboxed: they see the [`Scope`] they are given and the
//! application's partials and nothing else, no files and no network; their steps, their depth, what they make on their
//! way and their output are bounded. Values are escaped for their target: HTML, JSON, or none.
//!
//! | a template sees | |
//! |---|---|
//! | `magnitude`, `place`, ... | the fields of the notification, by their names |
//! | `event.<field>`, `sub.<field>` | the event it tells of and the subscription that matched, as in rules |
//! | `subscriber` | `id`, `locale`, `time_zone`, and `attributes.<name>`, none where a subscriber has no such attribute |
//! | `device` | `name`, `channel`, `address` |
//! | `notification` | `id`, `rule`, `matched_at`, `accepted_at` |
//! | `digest` | of a class with a digest: `items`, each with the fields, `event` and `notification` of one that is told, in order; `count`, how many there are; `more`, how many of them are not among the items |
//! | filters | numbers, money, dates, times and plurals as the reader writes them; see the guide |
//!
//! A name that does not exist is an error, found when the template is compiled where that is possible. A field without a
//! value reads as nothing, in JSON as `null`.
//!
//! Knows nothing of channels, stores or clocks. Of the time zone database it knows what `jiff` carries with it.

mod parts; // what a content is made of, and why one cannot be made

mod formatter; // compile, look up, render

mod compile; // texts become templates: partials, MJML, places

mod mjml; // mails in MJML

mod tree; // documents as operations, for workers
mod xml; // XML from outside becomes such a document
pub mod worker; // processes that run the XML libraries
mod xslt; // stylesheets
pub mod xsd; // documents of XML are compared with a schema

pub mod document; // messages of systems become other documents, by templates and stylesheets

mod template_depth; // depth of a template, bounded before the engine parses it

mod sandbox; // what a template may make on its way

mod scope; // what a template sees

mod filters; // numbers, money, dates and times for people; bounds for the others

mod language; // how a language writes numbers and dates

mod plural; // which form of a word a number takes

mod locale; // language tags and what they are varieties of

mod sms; // short messages: alphabets and segments

mod plain; // HTML becomes text

pub mod lint; // what probably is not meant

#[doc(hidden)]
pub mod fuzzing; // parsers for fuzz targets

#[cfg(test)]
mod tests;

pub use formatter::{Formatted, Formatter, HEADER_BYTES_MAX, OUTPUT_BYTES_MAX, Preview, PreviewedPart};
pub use parts::{FormatError, Part};
pub use scope::{DeviceScope, DigestItem, DigestScope, EventScope, KnownVariables, Scope};
pub use sms::{ShortMessage, measure as measure_sms};
