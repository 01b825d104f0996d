use std::net::IpAddr;

use tocsin_connect::dns::{Answer, Resolver};

use crate::finding::{Check, Finding, Record};

/// Names of an address that are confirmed; further ones are ignored.
const NAMES_MAX: usize = 10;

/// Words in names of dynamic addresses.
const GENERIC_WORDS: [&str; 14] = [
    "dynamic",
    "dyn",
    "dhcp",
    "dsl",
    "adsl",
    "vdsl",
    "pool",
    "ppp",
    "pppoe",
    "dialup",
    "dial",
    "cable",
    "broadband",
    "customer",
];

/// Examines the reverse DNS of a sending address. `host` is the name that a new record should have.
pub(crate) async fn examine(resolver: &Resolver, address: IpAddr, host: &str) -> Vec<Finding> {
    let subject = address.to_string();
    let check = Check { name: "reverse_dns", subject: &subject };
    let source = "RFC 1912, section 2.1";
    if is_private(address) {
        let finding = check.warn("RFC 6890, section 2.2", "the address is not public, so receivers see another one");
        return vec![finding.advice("specify the public sending addresses with --ip")];
    }
    let reverse = Record::of(&reverse_name(address), "PTR", format!("{host}."));
    let forward = |name: &str| match address {
        IpAddr::V4(address) => Record::of(name, "A", address.to_string()),
        IpAddr::V6(address) => Record::of(name, "AAAA", address.to_string()),
    };
    let names = match resolver.ptr(address).await {
        Ok(answer) => answer.into_records(),
        Err(error) => return vec![check.unknown(source, "the name of the address", &error)],
    };
    if names.is_empty() {
        let finding = check.fail(source, "the address has no name (PTR); large receivers reject its mail");
        let advice = "the owner of the network, usually the hosting provider, publishes the first record";
        return vec![finding.advice(advice).publish(reverse).publish(forward(host))];
    }
    let mut findings = Vec::new();
    let (mut confirmed, mut failure) = (None, None);
    for name in names.iter().take(NAMES_MAX) {
        let found = match address {
            IpAddr::V4(address) => resolver.a(name).await.map(|answer| has(&answer, &address)),
            IpAddr::V6(address) => resolver.aaaa(name).await.map(|answer| has(&answer, &address)),
        };
        match found {
            Ok(true) => confirmed = confirmed.or(Some(name)),
            Ok(false) => {}
            Err(error) => failure = failure.or(Some((name, error))),
        }
    }
    match (confirmed, failure) {
        (Some(name), _) => {
            findings.push(check.ok(source, format!("the name is {name}, which leads back to the address")));
            if is_generic(name, address) {
                let text = format!("{name} looks like the name of a dynamic address; receivers reject such senders");
                let finding = check.warn(source, text).advice("give the address a name of its own");
                findings.push(finding.publish(reverse).publish(forward(host)));
            }
        }
        (None, Some((name, error))) => {
            findings.push(check.unknown(source, &format!("the address of its name {name}"), &error));
        }
        (None, None) => {
            let text = format!("the name {} does not lead back to the address", names[0]);
            let finding = check.fail(source, text).advice("publish the address of the name, or name the address anew");
            findings.push(finding.publish(forward(&names[0])));
        }
    }
    findings
}

fn has<T: PartialEq>(answer: &Answer<T>, wanted: &T) -> bool {
    answer.records().contains(wanted)
}

/// The name of the PTR record.
fn reverse_name(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(address) => {
            let digits: Vec<String> = format!("{:032x}", address.to_bits()).chars().rev().map(String::from).collect();
            format!("{}.ip6.arpa", digits.join("."))
        }
    }
}

/// Whether a name has the form of those that providers give to dynamic addresses: with the numbers of the address, or
/// with a word such as `dhcp`.
fn is_generic(name: &str, address: IpAddr) -> bool {
    // The domain of the provider says nothing.
    let host = tocsin_connect::dns::organizational_domain(name)
        .and_then(|domain| name.strip_suffix(&domain).map(str::to_owned))
        .unwrap_or_default();
    let words: Vec<&str> = host.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    if words.iter().any(|word| GENERIC_WORDS.contains(&word.trim_end_matches(|c: char| c.is_ascii_digit()))) {
        return true;
    }
    match address {
        IpAddr::V4(address) => {
            let octets = address.octets();
            let hexadecimal = format!("{:08x}", address.to_bits());
            let digits = |word: &&str| word.trim_start_matches(|c: char| !c.is_ascii_digit()).parse::<u8>().ok();
            let numbers: Vec<u8> = words.iter().filter_map(digits).collect();
            let has_octets = |octets: &[u8]| numbers.windows(octets.len()).any(|window| window == octets);
            let [a, b, c, d] = octets;
            host.contains(&hexadecimal) || has_octets(&[b, c, d]) || has_octets(&[a, b, c]) || has_octets(&[d, c, b])
        }
        IpAddr::V6(address) => {
            let digits = format!("{:032x}", address.to_bits());
            let plain: String = host.chars().filter(char::is_ascii_hexdigit).collect();
            plain.contains(&digits[16..])
        }
    }
}

/// Whether an address cannot send to the Internet.
pub(crate) fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            let is_shared = matches!(address.octets(), [100, 64..=127, ..]);
            address.is_private()
                || address.is_loopback()
                || address.is_link_local()
                || address.is_unspecified()
                || is_shared
        }
        IpAddr::V6(address) => {
            address.is_loopback()
                || address.is_unspecified()
                || address.is_unique_local()
                || address.is_unicast_link_local()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_dynamic_addresses_are_recognised() {
        for (name, address, expected) in [
            ("mail.example.org", "192.0.2.7", false),
            ("mx2.mail-out.example.org", "192.0.2.2", false),
            ("a7-32.smtp-out.example.org", "54.240.7.32", false),
            ("192-0-2-7.isp.example", "192.0.2.7", true),
            ("ip-192-0-2-7.isp.example.com", "192.0.2.7", true),
            ("7.2.0.192.isp.example.com", "192.0.2.7", true),
            ("c0000207.isp.example.com", "192.0.2.7", true),
            ("p4fd0.dip0.dsl.isp.example.com", "192.0.2.7", true),
            ("dhcp12.example.com", "192.0.2.7", true),
            ("host.dynamic.example.com", "192.0.2.7", true),
            ("mail.dynamic-products.com", "192.0.2.7", false),
            ("2001-0db8-0000-0000-0123-4567-89ab-cdef.isp.example.com", "2001:db8::123:4567:89ab:cdef", true),
            ("mx6.example.com", "2001:db8::123:4567:89ab:cdef", false),
        ] {
            assert_eq!(is_generic(name, address.parse().expect("an address")), expected, "{name}");
        }
    }

    #[test]
    fn reverse_names_are_those_of_the_standards() {
        assert_eq!(reverse_name([192, 0, 2, 1].into()), "1.2.0.192.in-addr.arpa");
        let name = reverse_name("2001:db8::567:89ab".parse().expect("an address"));
        assert_eq!(name, "b.a.9.8.7.6.5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa");
    }
}
