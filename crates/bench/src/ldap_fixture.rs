//! LDIF fixture: generated entries, identical for every server.

use std::io::{self, Write};

use crate::examples::stock::SEED;

/// Suffix entry.
pub const SUFFIX: &str = "o=site";
/// Parent of the person entries.
pub const MEMBERS: &str = "ou=members,o=site";
/// Ordinary user, who has write access by a rule.
pub const USER: &str = "cn=user.0,ou=members,o=site";
/// Password of every user.
pub const PASSWORD: &str = "secret";
/// Fast hash, supported by both servers, so that the directory is measured and not the hash.
const HASH: &str = "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=";

const SYLLABLES: &[&str] = &["an", "bel", "cor", "dun", "eck", "fos", "gar", "hol", "iv", "jan", "kel", "lind"];
const WORDS: &[&str] =
    &["market", "alert", "weather", "stock", "travel", "delay", "news", "sport", "order", "ship", "gate"];

fn word(chance: &mut fastrand::Rng) -> String {
    let mut word: String = (0..chance.usize(2..4)).filter_map(|_| chance.choice(SYLLABLES)).copied().collect();
    word[..1].make_ascii_uppercase();
    word
}

fn words(chance: &mut fastrand::Rng, count: usize) -> String {
    (0..count).filter_map(|_| chance.choice(WORDS)).copied().collect::<Vec<_>>().join(" ")
}

/// Attributes of a person: 20 including the object class, about 1 KB. Deterministic by number.
pub fn attributes(number: u64) -> Vec<(&'static str, String)> {
    let mut chance = fastrand::Rng::with_seed(SEED ^ number);
    let (first, last) = (word(&mut chance), word(&mut chance));
    let phone = |chance: &mut fastrand::Rng| format!("+1 555 {:07}", chance.u32(..10_000_000));
    vec![
        ("objectClass", "inetOrgPerson".to_owned()),
        ("cn", format!("user.{number}")),
        ("uid", format!("user.{number}")),
        ("mail", format!("{first}.{last}.{number}@example.com")),
        ("displayName", format!("{first} {last}")),
        ("initials", format!("{}{}", &first[..1], &last[..1])),
        ("givenName", first),
        ("sn", last),
        ("telephoneNumber", phone(&mut chance)),
        ("mobile", phone(&mut chance)),
        ("title", words(&mut chance, 2)),
        ("departmentNumber", chance.u32(..500).to_string()),
        ("employeeNumber", number.to_string()),
        ("employeeType", words(&mut chance, 1)),
        ("street", format!("{} {} Street", chance.u32(..9_999), word(&mut chance))),
        ("l", word(&mut chance)),
        ("st", words(&mut chance, 1)),
        ("postalCode", chance.u32(10_000..100_000).to_string()),
        ("description", words(&mut chance, 60)),
        ("userPassword", HASH.to_owned()),
    ]
}

/// DN of a person.
pub fn name(number: u64) -> String {
    format!("cn=user.{number},{MEMBERS}")
}

/// Writes `groups` groups of ten members each, and their parent. The ordinary user is a member of one in a hundred.
///
/// # Errors
/// If the writer fails.
pub fn write_groups(out: &mut impl Write, groups: u64, people: u64) -> io::Result<()> {
    out.write_all(b"dn: ou=groups,o=site\nobjectClass: organizationalUnit\nou: groups\n\n")?;
    for group in 0..groups {
        write!(out, "dn: cn=group.{group},ou=groups,{SUFFIX}\nobjectClass: groupOfNames\ncn: group.{group}\n")?;
        let first = if group % 100 == 0 { 0 } else { 1 + group * 7_919 % people.max(2) };
        let members: std::collections::BTreeSet<u64> =
            (0..10).map(|place| if place == 0 { first } else { first + place * 31 } % people.max(1)).collect();
        for member in members {
            writeln!(out, "member: {}", name(member))?;
        }
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Writes the base entries and `count` people. `first`: whether the suffix entry is included.
///
/// # Errors
/// If the writer fails.
pub fn write(out: &mut impl Write, count: u64, first: bool) -> io::Result<()> {
    if first {
        out.write_all(b"dn: o=site\nobjectClass: organization\no: site\n\n")?;
    }
    write!(out, "dn: {MEMBERS}\nobjectClass: organizationalUnit\nou: members\n\n")?;
    for number in 0..count {
        writeln!(out, "dn: {}", name(number))?;
        for (attribute, value) in attributes(number) {
            writeln!(out, "{attribute}: {value}")?;
        }
        out.write_all(b"\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_20_attributes_and_are_deterministic() {
        let written = || {
            let mut out = Vec::new();
            write(&mut out, 100, true).expect("writing to memory succeeds");
            String::from_utf8(out).expect("ASCII")
        };
        assert_eq!(written(), written());
        assert_eq!(attributes(7).len(), 20);
        assert!((70_000..120_000).contains(&written().len()), "{}", written().len());
    }
}
