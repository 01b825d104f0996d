use std::net::IpAddr;

use tocsin_connect::dns::Resolver;

use crate::{
    dkim, dmarc,
    exchangers::{self, Role},
    finding::{Check, Finding},
    reverse, spf,
    subject::Subject,
    transport,
};

/// Examines a domain. Findings come in the order: sending addresses, SPF, DKIM, DMARC, alignment, reverse DNS, mail
/// exchangers, transport.
///
/// Every lookup is bounded by the timeout of the resolver. Their number is bounded by the limits of RFC 7208 and by the
/// numbers of selectors, addresses and return domains.
pub async fn examine(resolver: &Resolver, subject: &Subject) -> Vec<Finding> {
    let Subject { domain, selectors, .. } = subject;
    let return_domains = match subject.return_domains.as_slice() {
        [] => std::slice::from_ref(domain),
        given => given,
    };
    let role = if return_domains.contains(domain) { Role::FromAndReturn } else { Role::From };
    let ((mut exchangers, exchanger_addresses), (dmarc, modes), transport) = tokio::join!(
        exchangers::examine(resolver, domain, role),
        dmarc::examine(resolver, domain),
        transport::examine(resolver, domain),
    );
    for return_domain in return_domains.iter().filter(|return_domain| *return_domain != domain) {
        exchangers.extend(exchangers::examine(resolver, return_domain, Role::Return).await.0);
    }
    let (addresses, mut findings) = sending_addresses(resolver, subject, &exchanger_addresses).await;
    for return_domain in return_domains {
        findings.extend(spf::examine(resolver, return_domain, &addresses).await);
    }
    for selector in selectors {
        findings.extend(dkim::examine(resolver, selector).await);
    }
    if selectors.is_empty() {
        let check = Check { name: "dkim", subject: domain };
        let finding = check.warn("RFC 6376, section 3.1", "no selector is known, so no key was examined");
        findings.push(finding.advice("specify it with --selector, or the server with --server and --key"));
    }
    findings.extend(dmarc);
    for return_domain in return_domains {
        findings.extend(dmarc::alignment(domain, return_domain, selectors, modes));
    }
    // The same signing domains are compared for each return domain.
    let mut known: Vec<Finding> = Vec::with_capacity(findings.len());
    findings.retain(|finding| {
        let is_new = !known.contains(finding);
        known.push(finding.clone());
        is_new
    });
    let host = subject.host_name.clone().unwrap_or_else(|| format!("mail.{domain}"));
    for address in &addresses {
        findings.extend(reverse::examine(resolver, *address, &host).await);
    }
    findings.extend(exchangers);
    findings.extend(transport);
    findings
}

/// The sending addresses: those given, else those of the hosts, else those of the mail exchangers.
async fn sending_addresses(
    resolver: &Resolver,
    subject: &Subject,
    exchangers: &[IpAddr],
) -> (Vec<IpAddr>, Vec<Finding>) {
    if !subject.addresses.is_empty() {
        return (subject.addresses.clone(), Vec::new());
    }
    let source = "RFC 7208, section 2.4";
    let (mut addresses, mut findings) = (Vec::new(), Vec::new());
    for host in &subject.hosts {
        let check = Check { name: "sender", subject: host };
        match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => addresses.push(address),
            Err(_) => match resolver.addresses(host).await {
                Ok(answer) if answer.records().is_empty() => {
                    let finding = check.fail(source, "the mail server of the channel has no address");
                    findings.push(finding.advice("correct `host` of the channel, or publish its address"));
                }
                Ok(answer) => addresses.extend(answer.into_records()),
                Err(error) => findings.push(check.unknown(source, "the address of the mail server", &error)),
            },
        }
    }
    let of_hosts = public(&addresses);
    let (addresses, from) = match of_hosts.is_empty() {
        false => (of_hosts, "those of the mail servers of the channel"),
        true => (public(exchangers), "those of the mail exchangers"),
    };
    if !addresses.is_empty() {
        let check = Check { name: "sender", subject: &subject.domain };
        let list: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
        let text = format!("sending addresses are assumed to be {from}: {}", list.join(", "));
        findings.push(check.info(source, text).advice("specify others with --ip"));
    }
    (addresses, findings)
}

/// The public addresses, each once.
fn public(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let mut public: Vec<IpAddr> = Vec::new();
    for address in addresses.iter().filter(|address| !reverse::is_private(**address)) {
        if !public.contains(address) {
            public.push(*address);
        }
    }
    public
}
