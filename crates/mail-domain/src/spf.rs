mod check_host; // the result for one address (RFC 7208, section 4)
mod macros; // expansion of macros (section 7)
mod policy; // syntax of records (section 12)
mod walk; // number of lookups of a whole record (section 4.6.4)

use std::net::IpAddr;

use tocsin_connect::dns::{Answer, LookupError, Resolver};

use self::{
    check_host::{Outcome, SpfResult, check_host},
    policy::{Mechanism, Policy, Qualifier},
    walk::{Walk, walk},
};
use crate::finding::{Check, Finding, Record};

/// Lookups of terms in one evaluation; more are a permanent error.
const LOOKUPS_MAX: u32 = 10;

/// Lookups of terms without an answer; more are a permanent error.
const VOID_LOOKUPS_MAX: u32 = 2;

const SOURCE: &str = "RFC 7208";

/// Parses a text as a record, for fuzz targets. Panics if the parser is wrong.
pub(crate) fn check_parsers(text: &str) {
    let Ok(policy) = Policy::parse(text) else { return };
    let rest = policy.redirect.iter().map(|target| format!("redirect={}", target.text()));
    let rest = rest.chain(policy.explanation.iter().map(|target| format!("exp={}", target.text())));
    let terms: Vec<String> = policy.directives.iter().map(|directive| directive.text.clone()).chain(rest).collect();
    assert_eq!(Policy::parse(&format!("v=spf1 {}", terms.join(" "))), Ok(policy.clone()), "{text}");
    for target in policy.targets() {
        let expanded = target.expanded(&macros::Values {
            address: [192, 0, 2, 1].into(),
            domain: "example.org",
            local: "postmaster",
            sender_domain: "mail.example.org",
            helo: "example.net",
            validated: "unknown",
        });
        assert!(expanded.len() <= 253, "{text}: {expanded}");
    }
}

/// Whether a TXT record is an SPF record (section 4.5).
fn is_policy(text: &str) -> bool {
    let version = text.split(' ').next().unwrap_or_default();
    version.eq_ignore_ascii_case("v=spf1")
}

/// The SPF records of a domain.
async fn policies(resolver: &Resolver, domain: &str) -> Result<Vec<String>, LookupError> {
    resolver.txt(domain).await.map(of_answer)
}

fn of_answer(texts: Answer<String>) -> Vec<String> {
    texts.into_records().into_iter().filter(|text| is_policy(text)).collect()
}

/// Examines the record of a return domain, and its result for each sending address.
pub(crate) async fn examine(resolver: &Resolver, domain: &str, addresses: &[IpAddr]) -> Vec<Finding> {
    let check = Check { name: "spf", subject: domain };
    let answer = resolver.txt(domain).await;
    let is_absent = matches!(answer, Ok(Answer::NoSuchName { .. }));
    let found = match answer.map(of_answer) {
        Ok(found) => found,
        Err(error) => return vec![check.unknown(SOURCE, "the SPF record", &error)],
    };
    let text = match found.as_slice() {
        [] => {
            let reason = if is_absent { "the name does not exist" } else { "the name has no such record" };
            let finding = check.fail("RFC 7208, section 3", format!("there is no SPF record: {reason}"));
            let finding = match addresses {
                [] => finding.advice("publish a record that names the sending servers; `--ip` adds them to this one"),
                _ => finding.advice("publish a record that names the sending servers"),
            };
            return vec![finding.publish(Record::txt(domain, &with_addresses("v=spf1 -all", addresses)))];
        }
        [text] => text.trim_end_matches(' '),
        several => {
            let text = format!("there are {} SPF records, so the result is a permanent error", several.len());
            let finding = check.fail("RFC 7208, section 4.5", text).advice("replace them by one record");
            return vec![finding.publish(Record::txt(domain, &merged(several)))];
        }
    };
    let policy = match Policy::parse(text) {
        Ok(policy) => policy,
        Err(error) => {
            let finding = check.fail("RFC 7208, section 4.6", format!("the record is not well-formed: {error}"));
            return vec![match error.term() {
                Some(term) => finding
                    .advice(format!("correct the term, or remove it from the record: {text}"))
                    .publish(Record::txt(domain, &without(text, |other| other == term))),
                None => finding.advice(format!("correct the record: {text}")),
            }];
        }
    };
    let mut findings = ending(check, domain, text, &policy);
    let walked = walk(resolver, domain, &policy).await;
    findings.extend(limits(check, domain, text, &walked));
    for address in addresses {
        findings.push(result_of_address(resolver, check, text, domain, *address).await);
    }
    if addresses.is_empty() {
        findings.push(
            check
                .info(SOURCE, "no sending address is known, so no result was evaluated")
                .advice("specify them with --ip"),
        );
    }
    findings
}

/// The end of the record: `all` or `redirect`.
fn ending(check: Check<'_>, domain: &str, text: &str, policy: &Policy) -> Vec<Finding> {
    let source = "RFC 7208, section 5.1";
    let position = policy.directives.iter().position(|directive| directive.mechanism == Mechanism::All);
    let is_all = |term: &str| term.trim_start_matches(['+', '-', '~', '?']).eq_ignore_ascii_case("all");
    let replaced = |all: &str| {
        let kept = without(text, is_all);
        Record::txt(domain, &format!("{kept} {all}"))
    };
    let mut findings = Vec::new();
    match position.map(|at| policy.directives[at].qualifier) {
        Some(Qualifier::Pass) => findings.push(
            check
                .fail(source, "`+all` permits every server of the world to send for the domain")
                .advice("end the record with `-all`")
                .publish(replaced("-all")),
        ),
        Some(Qualifier::Neutral) => findings.push(
            check
                .warn(source, "`?all` makes no statement about other servers")
                .advice("end the record with `-all`, or with `~all` for a time of trial")
                .publish(replaced("~all")),
        ),
        None if policy.redirect.is_none() => findings.push(
            check
                .warn("RFC 7208, section 4.7", "the record has no `all`, so it makes no statement about other servers")
                .advice("end the record with `-all`, or with `~all` for a time of trial")
                .publish(replaced("~all")),
        ),
        Some(Qualifier::Fail | Qualifier::SoftFail) | None => {}
    }
    if let Some(at) = position {
        let ignored = policy.directives[at + 1..].iter().map(|directive| directive.text.as_str());
        let ignored: Vec<&str> = ignored.chain(policy.redirect.as_ref().map(|_| "redirect")).collect();
        if !ignored.is_empty() {
            let text = format!("terms after `all`, and `redirect` beside it, are ignored: {}", ignored.join(" "));
            findings.push(check.warn(source, text).advice("move the terms before `all`, or remove them"));
        }
    }
    findings
}

/// The limits of lookups, problems of included records, and `ptr`.
fn limits(check: Check<'_>, domain: &str, text: &str, walked: &Walk) -> Vec<Finding> {
    let source = "RFC 7208, section 4.6.4";
    let mut findings: Vec<Finding> = Vec::new();
    for problem in &walked.problems {
        let finding = check.fail("RFC 7208, section 5.2", problem.text.clone());
        findings.push(finding.advice("correct or remove the term: its evaluation is a permanent error"));
    }
    for (name, error) in &walked.failures {
        findings.push(check.unknown(SOURCE, &format!("{name}, which the record needs,"), error));
    }
    let costs = walked.costs.iter().filter(|(_, lookups)| *lookups > 0);
    let costs: Vec<String> = costs.map(|(term, lookups)| format!("{term} {lookups}")).collect();
    if walked.lookups > LOOKUPS_MAX {
        let text = format!("the record needs {} lookups of at most {LOOKUPS_MAX}: a permanent error", walked.lookups);
        findings.push(check.fail(source, text).advice(format!(
            "replace terms by `ip4` and `ip6`, which need no lookup, or remove them; lookups by term: {}",
            costs.join(", ")
        )));
    }
    if walked.void_lookups > VOID_LOOKUPS_MAX {
        let text = format!(
            "{} terms name something that does not exist, of at most {VOID_LOOKUPS_MAX}: a permanent error",
            walked.void_lookups
        );
        findings.push(check.fail(source, text).advice(format!("remove them: {}", walked.void_terms.join(" "))));
    } else if walked.void_lookups > 0 {
        let text = format!("terms name something that does not exist: {}", walked.void_terms.join(" "));
        findings.push(check.warn(source, text).advice("remove them"));
    }
    if walked.has_ptr {
        let is_ptr = |term: &str| {
            let name = term.trim_start_matches(['+', '-', '~', '?']);
            name.get(..3).is_some_and(|name| name.eq_ignore_ascii_case("ptr"))
        };
        let (kept, finding) = (
            without(text, is_ptr),
            check.warn("RFC 7208, section 5.5", "`ptr` is slow and must not be published; some receivers ignore it"),
        );
        findings.push(match kept == text {
            true => finding.advice("ask the owner of the included record to replace it"),
            false => finding.advice("name the addresses instead").publish(Record::txt(domain, &kept)),
        });
    }
    if findings.is_empty() {
        let text = format!("the record is well-formed and needs {} of {LOOKUPS_MAX} lookups: {text}", walked.lookups);
        findings.push(check.ok(SOURCE, text));
    }
    findings
}

async fn result_of_address(
    resolver: &Resolver,
    check: Check<'_>,
    text: &str,
    domain: &str,
    address: IpAddr,
) -> Finding {
    let source = "RFC 7208, section 2.6";
    let Outcome { result, by } = check_host(resolver, address, domain).await;
    let by = by.map(|by| format!(" ({by})")).unwrap_or_default();
    match result {
        SpfResult::Pass => check.ok(source, format!("{address} passes{by}")),
        SpfResult::TempError => check
            .fail(source, format!("the result for {address} is a temporary error{by}"))
            .advice("check the name servers of the zone, then repeat the examination"),
        SpfResult::PermError => check
            .fail(source, format!("the result for {address} is a permanent error{by}"))
            .advice("correct the record"),
        SpfResult::None | SpfResult::Neutral | SpfResult::SoftFail | SpfResult::Fail => check
            .fail(source, format!("the result for {address} is {}{by}, not pass", result.name()))
            .advice("add the address, or the name of the provider that sends")
            .publish(Record::txt(domain, &with_addresses(text, &[address]))),
    }
}

/// The record without some of its terms.
fn without(text: &str, is_removed: impl Fn(&str) -> bool) -> String {
    let terms = text.split(' ').filter(|term| !term.is_empty());
    let kept = terms.enumerate().filter(|(at, term)| *at == 0 || !is_removed(term)).map(|(_, term)| term);
    kept.collect::<Vec<_>>().join(" ")
}

/// The record with further addresses, first: they need no lookup.
fn with_addresses(text: &str, addresses: &[IpAddr]) -> String {
    let mut terms: Vec<String> = text.split(' ').filter(|term| !term.is_empty()).map(str::to_owned).collect();
    let added = addresses.iter().map(|address| match address {
        IpAddr::V4(address) => format!("ip4:{address}"),
        IpAddr::V6(address) => format!("ip6:{address}"),
    });
    terms.splice(1..1, added);
    terms.join(" ")
}

/// One record with the terms of all; the strictest `all` is last.
fn merged(records: &[String]) -> String {
    let mut terms: Vec<&str> = Vec::new();
    let mut all = None;
    let split = records.iter().flat_map(|record| record.split(' ').filter(|term| !term.is_empty()).skip(1));
    for term in split {
        match term.to_ascii_lowercase().as_str() {
            "-all" => all = Some("-all"),
            "~all" if all.is_none() => all = Some("~all"),
            "all" | "+all" | "?all" | "~all" => {}
            _ if terms.iter().any(|known| known.eq_ignore_ascii_case(term)) => {}
            _ => terms.push(term),
        }
    }
    [&["v=spf1"], terms.as_slice(), &[all.unwrap_or("~all")]].concat().join(" ")
}

#[cfg(test)]
mod tests; // evaluations against a name server

#[cfg(test)]
mod record_tests {
    use super::*;

    #[test]
    fn records_are_merged_without_duplicates() {
        let records = ["v=spf1 ip4:192.0.2.1 include:a.example ~all", "V=SPF1 include:a.example mx -all"];
        let merged = merged(&records.map(str::to_owned));
        assert_eq!(merged, "v=spf1 ip4:192.0.2.1 include:a.example mx -all");
    }

    #[test]
    fn addresses_come_first() {
        let addresses = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().expect("an address"));
        let record = with_addresses("v=spf1  mx -all", &addresses);
        assert_eq!(record, "v=spf1 ip4:192.0.2.1 ip6:2001:db8::1 mx -all");
    }
}
