use std::net::IpAddr;

use tocsin_connect::dns::{Answer, LookupError, Resolver};

use crate::{
    finding::{Check, Finding, Record},
    reverse::is_private,
};

/// Exchangers whose addresses are looked up; further ones are ignored.
const EXCHANGERS_MAX: usize = 16;

/// Place of an address that the operator knows.
const ADDRESS: &str = "<its address>";

/// Purpose of the domain, for texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Domain of the sender: replies go there.
    From,
    /// Domain of the return address: bounces go there.
    Return,
    /// Both.
    FromAndReturn,
}

impl Role {
    fn mail(self) -> &'static str {
        match self {
            Role::From => "replies do not arrive, and receivers reject a sender without a mailbox",
            Role::Return => "bounces do not arrive",
            Role::FromAndReturn => "bounces and replies do not arrive",
        }
    }
}

/// The findings about the exchangers of a domain, and their addresses.
pub(crate) async fn examine(resolver: &Resolver, domain: &str, role: Role) -> (Vec<Finding>, Vec<IpAddr>) {
    let check = Check { name: "mx", subject: domain };
    let source = "RFC 5321, section 5.1";
    let example = Record::of(domain, "MX", format!("10 mail.{domain}."));
    let exchangers = match resolver.mx(domain).await {
        Ok(Answer::Records { records, .. }) => records,
        Ok(Answer::NoSuchName { .. }) => {
            let finding = check.fail(source, format!("the domain does not exist, so {}", role.mail()));
            return (vec![finding.advice("correct the name, or publish it").publish(example)], Vec::new());
        }
        Ok(Answer::NoRecord { .. }) => return implicit(resolver, check, domain, role).await,
        Err(error) => return (vec![check.unknown(source, "the MX record", &error)], Vec::new()),
    };
    if exchangers.iter().any(|exchanger| exchanger.is_null()) {
        let text = format!("the null MX says that the domain accepts no mail, so {}", role.mail());
        let finding = check.fail("RFC 7505, section 4.2", text);
        let advice = "publish a mail server in its place, or use a domain with one";
        return (vec![finding.advice(advice).publish(example)], Vec::new());
    }
    let (mut findings, mut addresses, mut failed) = (Vec::new(), Vec::new(), 0);
    let mut without_address = Vec::new();
    let examined = &exchangers[..exchangers.len().min(EXCHANGERS_MAX)];
    for exchanger in examined {
        let host = exchanger.exchange.as_str();
        let record = format!("{} {host}.", exchanger.preference);
        if host.parse::<IpAddr>().is_ok() {
            let finding = check.warn(source, format!("MX {record} is an address, not the name of a host"));
            findings.push(finding.advice("publish the name of the server"));
            failed += 1;
            continue;
        }
        match resolver.addresses(host).await {
            Ok(Answer::Records { records, .. }) => {
                if records.iter().all(|address| is_private(*address)) {
                    let finding = check.warn("RFC 6890, section 2.2", format!("{host} has no public address"));
                    findings.push(finding.advice("publish its public address, or examine the public zone with --dns"));
                }
                addresses.extend(records);
            }
            Ok(_) => {
                let finding = check.warn(source, format!("MX {record} names a host without an address"));
                let record = Record::of(host, "A", ADDRESS.to_owned());
                findings.push(finding.advice("publish its address, or remove the record").publish(record));
                without_address.push(host);
                failed += 1;
            }
            Err(error @ LookupError::InvalidName(_)) => {
                findings.push(check.warn(source, format!("MX {record}: {error}")).advice("correct the record"));
                failed += 1;
            }
            Err(error) => findings.push(check.unknown(source, &format!("the address of {host}"), &error)),
        }
    }
    if failed == examined.len() {
        let finding = check.fail(source, format!("no mail exchanger can be reached, so {}", role.mail()));
        let finding = finding.advice("publish the address of a mail server");
        let hosts = without_address.iter().map(|host| Record::of(host, "A", ADDRESS.to_owned()));
        findings.push(hosts.fold(finding, Finding::publish));
    } else if findings.is_empty() {
        let names: Vec<&str> = exchangers.iter().map(|exchanger| exchanger.exchange.as_str()).collect();
        findings.push(check.ok(source, format!("mail exchangers: {}", names.join(", "))));
    }
    (findings, addresses)
}

/// A domain without MX: its own address receives its mail.
async fn implicit(resolver: &Resolver, check: Check<'_>, domain: &str, role: Role) -> (Vec<Finding>, Vec<IpAddr>) {
    let source = "RFC 5321, section 5.1";
    let example = Record::of(domain, "MX", format!("10 mail.{domain}."));
    match resolver.addresses(domain).await {
        Ok(answer) if answer.records().is_empty() => {
            let finding = check.fail(source, format!("there is neither MX nor address, so {}", role.mail()));
            (vec![finding.advice("publish a mail server").publish(example)], Vec::new())
        }
        Ok(answer) => {
            let text = "there is no MX record, so mail goes to the address of the domain";
            let finding = check.warn(source, text).advice("publish the mail server");
            (vec![finding.publish(Record::of(domain, "MX", format!("10 {domain}.")))], answer.into_records())
        }
        Err(error) => (vec![check.unknown(source, "the address of the domain", &error)], Vec::new()),
    }
}
