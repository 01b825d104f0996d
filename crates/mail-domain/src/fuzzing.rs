//! Parsers of records without lookups, for fuzz targets.

use crate::{dkim, spf, tags::Tags};

/// Parses a text as each kind of record.
///
/// # Panics
/// If a parser is wrong: the terms of a parsed SPF record do not parse to the same record, an expanded domain is longer
/// than a domain name, or a tag is not found by its name.
pub fn parse_record(text: &str) {
    spf::check_parsers(text);
    if let Ok(tags) = Tags::parse(text) {
        let first = tags.first().expect("a list has a tag");
        assert!(tags.value(first).is_some(), "{text}");
    }
    dkim::check_key(text);
}
