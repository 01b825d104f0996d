//! The id of a subscriber that is added as an entry.

use tocsin_model::id::SubscriberId;
use tocsin_store::entries::EntryWriter;

use crate::{
    dn::Rdn,
    entry::Attribute,
    ldap_error::{Code, LdapError},
    password::generate,
};

/// Chooses the id of a new subscriber: its `uid`, else the value of its name if that is free, else a random one.
pub(super) fn free_id(
    tree: &dyn EntryWriter,
    attributes: &[Attribute],
    rdn: &Rdn,
    rdn_key: &str,
    above: &str,
) -> Result<SubscriberId, LdapError> {
    let is_free = |id: &SubscriberId| Ok::<_, LdapError>(tree.reader().subscriber(id)?.is_none());
    for id in requested_ids(attributes, rdn) {
        if is_free(&id)? {
            return Ok(id);
        }
    }
    // A renamed subscriber keeps its id, so even the id made of the full name may be in use.
    let own = generate()?;
    let short = rdn_key.chars().take(100).collect::<String>();
    let last = [rdn_key.to_owned(), format!("{rdn_key},{above}"), format!("{short} {own}")];
    for id in last.iter().filter_map(|candidate| id_of(candidate)) {
        if is_free(&id)? {
            return Ok(id);
        }
    }
    Err(LdapError::new(Code::EntryAlreadyExists, "every id that this entry could get is in use"))
}

/// Candidate ids of a new subscriber, most preferred first.
pub(super) fn requested_ids(attributes: &[Attribute], rdn: &Rdn) -> impl Iterator<Item = SubscriberId> {
    let uid = attributes.iter().find(|attribute| &*attribute.kind.key == "uid").map(|found| found.values[0].to_vec());
    let value = rdn.assertions.first().map(|(_, value)| value.clone());
    let texts = [uid, value].into_iter().flatten().filter_map(|value| String::from_utf8(value).ok());
    texts.filter_map(|text| id_of(&text))
}

/// Number of characters that an id keeps of a name that is too long.
const ID_HEAD: usize = 200;

/// Makes a subscriber id of a name. An id has neither `/` nor control characters, is not `.` or `..`, and has at most
/// 255 characters. These characters are percent-encoded, and a longer name is cut and ends with its hash. `None`: the
/// name is empty.
fn id_of(name: &str) -> Option<SubscriberId> {
    if let Ok(id) = name.parse() {
        return Some(id);
    }
    let mut text = String::with_capacity(name.len() + 8);
    for c in name.chars() {
        match c {
            '.' if matches!(name, "." | "..") => text.push_str("%2E"),
            '/' => text.push_str("%2F"),
            c if c.is_control() => {
                c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| text.push_str(&format!("%{byte:02X}")));
            }
            c => text.push(c),
        }
    }
    if text.chars().count() > 255 {
        use base64::Engine;
        let hash = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
        let hash = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(&hash.as_ref()[..18]);
        text = format!("{}~{hash}", text.chars().take(ID_HEAD).collect::<String>());
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b28_an_id_can_be_made_of_any_entry_name() {
        for (name, id) in [
            ("vera", "vera"),
            ("a b.c%d@e", "a b.c%d@e"),
            ("a/b", "a%2Fb"),
            ("/", "%2F"),
            (".", "%2E"),
            ("..", "%2E%2E"),
            ("Jörg/Ö", "Jörg%2FÖ"),
            ("a\nb\u{85}", "a%0Ab%C2%85"),
        ] {
            assert_eq!(id_of(name).expect(name).as_str(), id);
        }
        let long = |end: &str| id_of(&format!("{}/{end}", "ü".repeat(300))).expect("an id");
        assert_eq!(long("a").as_str().chars().count(), ID_HEAD + 25);
        assert!(long("a") == long("a") && long("a") != long("b"));
        assert_eq!(id_of(""), None);
    }
}
