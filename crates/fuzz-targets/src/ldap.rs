//! LDAP: messages (RFC 4511), filters (RFC 4515), distinguished names (RFC 4514).

use tocsin_directory::{dn::Dn, schema::Schema};
use tocsin_face_ldap::{ber, fuzzing::read_message};
use tocsin_model::ldap::LdapFilter;

/// Splits a stream of bytes into messages, and parses each.
pub(crate) fn message(input: &[u8]) {
    const LONGEST: usize = 256 << 10;
    let mut rest = input;
    while let Ok(Some(length)) = ber::first_length(rest, LONGEST) {
        assert!((2..=rest.len()).contains(&length), "a message ends in what was received");
        // A prefix is never complete.
        assert!(matches!(ber::first_length(&rest[..length - 1], LONGEST), Ok(None)));
        if let Ok((id, _)) = read_message(&rest[..length]) {
            assert_ne!(id, 0, "0 is for messages of the server");
        }
        rest = &rest[length..];
    }
}

/// The normal form of a filter parses to the same filter.
pub(crate) fn filter(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(filter) = LdapFilter::parse(text) else { return };
    let again = LdapFilter::parse(filter.canonical()).expect("a normal form is a filter");
    assert_eq!(again.canonical(), filter.canonical());
}

/// A name written from its parts parses to the same name, with the same normal form.
pub(crate) fn dn(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(dn) = Dn::parse(text) else { return };
    let schema = Schema::standard();
    let normal = schema.normal_dn(&dn);
    let shown = dn.0.iter().map(|rdn| rdn.text.as_str()).collect::<Vec<_>>().join(",");
    let again = Dn::parse(&shown).unwrap_or_else(|error| panic!("{shown:?}: {error}"));
    assert_eq!(schema.normal_dn(&again), normal, "{shown:?}");
}
