//! Fuzz targets: one function for each parser of external input. A fuzzer calls it with any bytes, and `cargo test`
//! with the corpus.
//!
//! A target fails by a panic: the parser panicked, accepted input above a limit, or violated an invariant that the
//! target asserts, for example that a text that is parsed and written parses to the same value.

mod expressions; // CEL, JMESPath, event patterns, filters of NotifyBC
mod feedback; // mails that came back, return addresses, webhooks of providers
mod dns; // records of mail domains
mod files; // CSV, JSON, XML, feeds, LDIF, mail
mod http; // bodies, CloudEvents, header fields, SCIM, cursors and tokens
mod notifybc; // dumps of NotifyBC
mod notifybc_texts; // texts of NotifyBC requests
mod ldap; // messages, filters, distinguished names
mod smtp; // SMTP sessions
mod texts; // definitions, templates, schedules, dates, addresses

use tocsin_model::field::{Field, FieldType, Fields};

/// A target: its name and its function.
pub struct Target {
    /// The name, which is also that of its folder in `corpus`.
    pub name: &'static str,
    /// Panics if the parser is wrong.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "cel", run: expressions::cel },
    Target { name: "charset", run: files::charset },
    Target { name: "cloud_events", run: http::cloud_events },
    Target { name: "csv", run: files::csv },
    Target { name: "cursors", run: http::cursors },
    Target { name: "dates", run: texts::dates },
    Target { name: "definition", run: texts::definition },
    Target { name: "dn", run: ldap::dn },
    Target { name: "edits", run: http::edits },
    Target { name: "event_pattern", run: expressions::event_pattern },
    Target { name: "feed", run: files::feed },
    Target { name: "feedback", run: feedback::feedback },
    Target { name: "header_fields", run: http::header_fields },
    Target { name: "http_body", run: http::body },
    Target { name: "jmespath", run: expressions::jmespath },
    Target { name: "json_files", run: files::json },
    Target { name: "ldap_filter", run: ldap::filter },
    Target { name: "ldap_message", run: ldap::message },
    Target { name: "ldif", run: files::ldif },
    Target { name: "mail", run: files::mail },
    Target { name: "mail_domain", run: dns::mail_domain },
    Target { name: "mailbox", run: texts::mailbox },
    Target { name: "mongodump", run: notifybc::mongodump },
    Target { name: "mongoexport", run: notifybc::mongoexport },
    Target { name: "notifybc_filter", run: expressions::notifybc },
    Target { name: "notifybc_form", run: notifybc_texts::form },
    Target { name: "notifybc_query", run: notifybc_texts::query },
    Target { name: "notifybc_texts", run: notifybc_texts::texts },
    Target { name: "schedule", run: texts::schedule },
    Target { name: "scim", run: http::scim },
    Target { name: "smtp", run: smtp::conversation },
    Target { name: "template", run: texts::template },
    Target { name: "xml", run: files::xml },
];

/// Runs a target on an input.
///
/// # Panics
/// There is no such target, or the parser is wrong.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.unwrap_or_else(|| panic!("no fuzz target is called {name}")).run)(input);
}

/// The fields of a class.
fn fields(of: &[(&str, FieldType)]) -> Fields {
    Fields::new(of.iter().map(|(name, kind)| Field::new(name.parse().expect("a name"), *kind)).collect())
}
