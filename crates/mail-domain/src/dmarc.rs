use tocsin_connect::dns::{LookupError, Resolver, organizational_domain};

use crate::{
    finding::{Check, Finding, Record},
    subject::Selector,
    tags::Tags,
};

/// Alignment modes of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Alignment {
    pub is_strict_spf: bool,
    pub is_strict_dkim: bool,
}

/// The findings about the policy, and its alignment modes if there is a usable policy.
pub(crate) async fn examine(resolver: &Resolver, domain: &str) -> (Vec<Finding>, Option<Alignment>) {
    let organizational = organizational_domain(domain).unwrap_or_else(|| domain.to_owned());
    let mut place = domain.to_owned();
    let mut found = policies(resolver, &place).await;
    if found.as_ref().is_ok_and(Vec::is_empty) && organizational != domain {
        place = organizational;
        found = policies(resolver, &place).await;
    }
    let name = format!("_dmarc.{place}");
    let check = Check { name: "dmarc", subject: &name };
    let own = format!("_dmarc.{domain}");
    match found.as_deref() {
        Err(error) => (vec![check.unknown("RFC 7489, section 6.6.3", "the DMARC policy", error)], None),
        Ok([]) => {
            let check = Check { subject: &own, ..check };
            let finding = check.fail("RFC 7489, section 6.6.3", "there is no DMARC policy");
            let advice = "publish a policy; large receivers require one of bulk senders";
            let record = Record::txt(&own, &format!("v=DMARC1; p=quarantine; rua=mailto:dmarc@{domain}"));
            (vec![finding.advice(advice).publish(record)], None)
        }
        Ok([text]) => policy(resolver, check, &place, domain, text).await,
        Ok(several) => {
            let text = format!("there are {} DMARC policies, so receivers apply none", several.len());
            let finding = check.fail("RFC 7489, section 6.6.3", text);
            let advice = "keep one of them, for example the first";
            (vec![finding.advice(advice).publish(Record::txt(&name, &several[0]))], None)
        }
    }
}

async fn policies(resolver: &Resolver, domain: &str) -> Result<Vec<String>, LookupError> {
    let texts = resolver.txt(&format!("_dmarc.{domain}")).await?.into_records();
    let is_policy = |text: &String| {
        let version = text.split(';').next().unwrap_or_default();
        version.split_once('=').is_some_and(|(name, value)| name.trim() == "v" && value.trim() == "DMARC1")
    };
    Ok(texts.into_iter().filter(is_policy).collect())
}

async fn policy(
    resolver: &Resolver,
    check: Check<'_>,
    place: &str,
    domain: &str,
    text: &str,
) -> (Vec<Finding>, Option<Alignment>) {
    let source = "RFC 7489, section 6.3";
    let name = check.subject;
    let wrong = |problem: String| {
        let finding = check.fail(source, format!("the policy is not well-formed: {problem}: {text}"));
        let record = Record::txt(name, &format!("v=DMARC1; p=quarantine; rua=mailto:dmarc@{place}"));
        (vec![finding.advice("correct the record").publish(record)], None)
    };
    let tags = match Tags::parse(text) {
        Ok(tags) => tags,
        Err(problem) => return wrong(problem),
    };
    let Some(of_domain) = tags.value("p") else { return wrong("`p` is missing".to_owned()) };
    let known = |value: &str| ["none", "quarantine", "reject"].iter().any(|known| known.eq_ignore_ascii_case(value));
    for tag in ["p", "sp"] {
        if let Some(value) = tags.value(tag).filter(|value| !known(value)) {
            return wrong(format!("`{tag}` is `{value}`, not none, quarantine or reject"));
        }
    }
    for tag in ["adkim", "aspf"] {
        if let Some(value) = tags.value(tag).filter(|value| !matches!(*value, "r" | "s")) {
            return wrong(format!("`{tag}` is `{value}`, not r or s"));
        }
    }
    let share = match tags.value("pct").map(str::parse::<u8>) {
        None => 100,
        Some(Ok(share)) if share <= 100 => share,
        Some(_) => return wrong("`pct` is not a number from 0 to 100".to_owned()),
    };
    let effective = tags.value("sp").filter(|_| place != domain).unwrap_or(of_domain).to_ascii_lowercase();
    let replaced = |tag: &str, value: &str| {
        let parts = text.split(';').map(str::trim).filter(|part| !part.is_empty());
        let parts = parts.map(|part| match part.split_once('=').map(|(name, _)| name.trim()) {
            Some(name) if name == tag => format!("{tag}={value}"),
            _ => part.to_owned(),
        });
        Record::txt(name, &parts.collect::<Vec<_>>().join("; "))
    };
    let mut findings = Vec::new();
    if effective == "none" {
        let tag = if place != domain && tags.value("sp").is_some() { "sp" } else { "p" };
        let finding = check.warn(source, format!("`{tag}=none` only reports: forged mail of the domain is delivered"));
        let advice = "set `quarantine` or `reject` once the reports name no other legitimate sender";
        findings.push(finding.advice(advice).publish(replaced(tag, "quarantine")));
    }
    if share < 100 {
        let finding = check.warn(source, format!("the policy applies to {share} % of failing mails only (`pct`)"));
        findings.push(finding.advice("remove `pct`").publish(replaced("pct", "100")));
    }
    findings.extend(reports(resolver, check, place, text, &tags).await);
    if findings.is_empty() {
        let of = if place == domain { "" } else { " of the organizational domain" };
        findings.push(check.ok(source, format!("the policy{of} is {effective}: {text}")));
    }
    let is_strict = |tag: &str| tags.value(tag) == Some("s");
    (findings, Some(Alignment { is_strict_spf: is_strict("aspf"), is_strict_dkim: is_strict("adkim") }))
}

/// Addresses of reports: `rua` and `ruf`. Those of another organization must permit it (section 7.1).
async fn reports(resolver: &Resolver, check: Check<'_>, place: &str, text: &str, tags: &Tags<'_>) -> Vec<Finding> {
    let source = "RFC 7489, section 6.2";
    let mut findings = Vec::new();
    if tags.value("rua").is_none_or(str::is_empty) {
        let finding = check.warn(source, "there is no address for aggregate reports (`rua`)");
        let record = format!("{}; rua=mailto:dmarc@{place}", text.trim_end_matches([' ', ';']));
        let advice = "add one: reports show which servers send as the domain";
        findings.push(finding.advice(advice).publish(Record::txt(check.subject, &record)));
    }
    let lists = ["rua", "ruf"].into_iter().filter_map(|tag| Some((tag, tags.value(tag)?)));
    let mut checked: Vec<String> = Vec::new();
    for (tag, uri) in lists.flat_map(|(tag, list)| list.split(',').map(move |uri| (tag, uri.trim()))) {
        // A size may follow: `mailto:a@example.org!10m`.
        let address = uri.split('!').next().unwrap_or_default();
        let address = address.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("mailto:")).map(|_| &address[7..]);
        let Some((_, host)) =
            address.and_then(|address| address.rsplit_once('@')).filter(|(_, host)| host.contains('.'))
        else {
            if !uri.is_empty() {
                let finding =
                    check.warn(source, format!("`{uri}` in `{tag}` is not a mail address, so it gets no reports"));
                findings.push(finding.advice("write `mailto:name@example.org`"));
            }
            continue;
        };
        let host = host.to_ascii_lowercase();
        let is_own = organizational_domain(&host).is_some_and(|of| Some(of) == organizational_domain(place));
        if is_own || checked.contains(&host) {
            continue;
        }
        checked.push(host.clone());
        let name = format!("{place}._report._dmarc.{host}");
        let source = "RFC 7489, section 7.1";
        match resolver.txt(&name).await {
            Ok(answer) if answer.records().iter().any(|text| text.trim_start().starts_with("v=DMARC1")) => {}
            Ok(_) => {
                let finding = check.warn(source, format!("{host} does not permit reports about {place}"));
                let advice = format!("the owner of {host} must publish this record");
                findings.push(finding.advice(advice).publish(Record::txt(&name, "v=DMARC1")));
            }
            Err(error) => findings.push(check.unknown(source, &format!("the permission of {host}"), &error)),
        }
    }
    findings
}

/// Examines whether the return domain and the signing domains are aligned with the From domain.
pub(crate) fn alignment(
    domain: &str,
    return_domain: &str,
    selectors: &[Selector],
    modes: Option<Alignment>,
) -> Vec<Finding> {
    let check = Check { name: "alignment", subject: domain };
    let source = "RFC 7489, section 3.1";
    let modes = modes.unwrap_or_default();
    let mut findings = Vec::new();
    let mut passes = false;
    let mut signing: Vec<&str> = selectors.iter().map(|selector| selector.domain.as_str()).collect();
    signing.sort_unstable();
    signing.dedup();
    let spf = [("the return domain", "SPF", "aspf", return_domain, modes.is_strict_spf)];
    let dkim = signing.iter().map(|signing| ("the signing domain", "DKIM", "adkim", *signing, modes.is_strict_dkim));
    for (what, method, tag, other, is_strict) in spf.into_iter().chain(dkim) {
        let is_equal = other.eq_ignore_ascii_case(domain);
        let relaxed =
            is_equal || organizational_domain(other).is_some_and(|of| Some(of) == organizational_domain(domain));
        let text = match (is_equal, relaxed) {
            (true, _) => format!("{what} {other} is aligned by {method}, relaxed and strict"),
            (false, true) => format!("{what} {other} is aligned by {method}, relaxed but not strict"),
            (false, false) => format!("{what} {other} is not aligned by {method}"),
        };
        let is_aligned = if is_strict { is_equal } else { relaxed };
        passes |= is_aligned;
        findings.push(match is_aligned {
            true => check.ok(source, text),
            false if is_strict && relaxed => check
                .warn(source, format!("{text}, and the policy is strict (`{tag}=s`)"))
                .advice(format!("use {domain}, or remove `{tag}` from the policy")),
            false => check.warn(source, text).advice(format!("use {domain} or a domain below or above it")),
        });
    }
    if !passes {
        let text = "neither SPF nor DKIM is aligned with the From domain, so DMARC fails for every mail";
        let advice = format!("sign with a key of {domain}, or set `return_path` to an address of {domain}");
        findings.push(check.fail(source, text).advice(advice));
    }
    findings
}
