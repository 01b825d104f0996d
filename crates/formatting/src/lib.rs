//! Formats notifications: templates in, message content out.
//!
//! The templates of a notification class are compiled once into a [`Formatter`], which any number of threads share.
//! Templates are sandboxed: they can read the [`Scope`] and the application's partials only, no files and no network.
//! Their steps, depth, intermediate values and output are bounded. Values are escaped for their target: HTML, JSON, or
//! none.
//!
//! | variable | value |
//! |---|---|
//! | `magnitude`, `place`, ... | the fields of the notification, by their names |
//! | `event.<field>`, `sub.<field>` | the event and the subscription that matched, as in rules |
//! | `subscriber` | `id`, `locale`, `time_zone`, and `attributes.<name>`; an attribute that the subscriber lacks is none |
//! | `device` | `name`, `channel`, `address` |
//! | `notification` | `id`, `rule`, `matched_at`, `accepted_at` |
//! | `digest` | for a class with a digest: `items`, each with the fields, `event` and `notification` of one notification, in order; `count`, their total number; `more`, the number that is not among the items |
//! | filters | numbers, money, dates, times and plurals in the reader's locale; see the guide |
//!
//! An unknown name is an error, reported at compile time where possible. A field without a value is rendered as empty
//! text, in JSON as `null`.
//!
//! This crate has no access to channels, stores or clocks. The time zone database is the one bundled with `jiff`.

mod parts; // parts of a message's content, and formatting errors

mod limits; // limits of formatted content
mod merge; // texts with the tokens of NotifyBC

mod template; // one part of one template

mod formatter; // compiles templates, selects them by locale and channel, renders them

mod compile; // template compiler: partials, MJML, positions of problems

mod mjml; // MJML to HTML

mod tree; // documents as a sequence of operations, for workers
mod xml; // XML parser that produces such documents
pub mod worker; // worker processes that run libxml2 and libxslt
mod xslt; // XSLT stylesheets
pub mod xsd; // validation of XML documents by XML Schema

pub mod document; // transforms messages of exchanges, by templates and stylesheets

mod template_depth; // bounds the depth of a template before the engine parses it

mod sandbox; // bounds the values that a template creates

mod scope; // the variables of a template

mod filters; // template filters: locale-aware numbers, money, dates and times; bounded versions of engine filters

mod locale_data; // locale data from CLDR: number and date formats

mod plural; // plural rules from CLDR

mod locale; // lookup of language tags with fallback

mod sms; // SMS: alphabets and segments

mod plain; // HTML to plain text

pub mod lint; // template checks: unknown names, likely mistakes

#[doc(hidden)]
pub mod fuzzing; // entry points for fuzz targets

#[cfg(test)]
mod tests;

pub use formatter::{Formatted, Formatter, Preview, PreviewedPart};
pub use limits::{HEADER_BYTES_MAX, OUTPUT_BYTES_MAX};
pub use parts::{FormatError, Part};
pub use scope::{DeviceScope, DigestItem, DigestScope, EventScope, KnownVariables, LinkScope, Scope};
pub use sms::{ShortMessage, measure as measure_sms};
