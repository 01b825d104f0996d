use std::{future::Future, net::IpAddr, pin::Pin};

use tocsin_connect::dns::{Answer, LookupError, Resolver};

use super::{
    LOOKUPS_MAX, VOID_LOOKUPS_MAX, is_policy,
    macros::{DomainSpec, Values},
    policy::{Directive, Mechanism, Policy, Prefixes, Qualifier},
};

/// Mail exchangers of an `mx` term; more are a permanent error.
const EXCHANGERS_MAX: usize = 10;

/// Names of an address that `ptr` and the macro `p` use; further ones are ignored.
const NAMES_MAX: usize = 10;

/// Result of an evaluation (section 2.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpfResult {
    None,
    Neutral,
    Pass,
    Fail,
    SoftFail,
    TempError,
    PermError,
}

impl SpfResult {
    pub fn name(self) -> &'static str {
        match self {
            SpfResult::None => "none",
            SpfResult::Neutral => "neutral",
            SpfResult::Pass => "pass",
            SpfResult::Fail => "fail",
            SpfResult::SoftFail => "softfail",
            SpfResult::TempError => "temperror",
            SpfResult::PermError => "permerror",
        }
    }
}

/// A result, and the term or the problem that led to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outcome {
    pub result: SpfResult,
    pub by: Option<String>,
}

/// Evaluates the record of a domain for a mail from `postmaster@` the domain, sent from an address.
pub(super) async fn check_host(resolver: &Resolver, address: IpAddr, domain: &str) -> Outcome {
    check_sender(resolver, address, domain, "postmaster", domain, domain).await
}

/// Evaluates the record of `domain` for a sender.
pub(super) async fn check_sender(
    resolver: &Resolver,
    address: IpAddr,
    domain: &str,
    local: &str,
    sender_domain: &str,
    helo: &str,
) -> Outcome {
    let address = address.to_canonical();
    let mut evaluation = Evaluation { resolver, address, local, sender_domain, helo, lookups: 0, void_lookups: 0 };
    let found = evaluation.evaluate(domain.to_owned()).await;
    found.unwrap_or_else(|stop| match stop {
        Stop::Failed(what, error) => Outcome { result: SpfResult::TempError, by: Some(format!("{what}: {error}")) },
        Stop::Broken(problem) => Outcome { result: SpfResult::PermError, by: Some(problem) },
    })
}

struct Evaluation<'a> {
    resolver: &'a Resolver,
    address: IpAddr,
    local: &'a str,
    sender_domain: &'a str,
    helo: &'a str,
    lookups: u32,
    void_lookups: u32,
}

/// An evaluation ends without a result of the record.
enum Stop {
    /// A lookup failed: a temporary error.
    Failed(String, LookupError),
    /// A permanent error.
    Broken(String),
}

type Evaluated<'a> = Pin<Box<dyn Future<Output = Result<Outcome, Stop>> + Send + 'a>>;

impl Evaluation<'_> {
    /// The result of a domain. Included records are evaluated the same way, so the future is boxed.
    fn evaluate(&mut self, domain: String) -> Evaluated<'_> {
        Box::pin(async move {
            let none = || Outcome { result: SpfResult::None, by: Some(format!("{domain} has no SPF record")) };
            if !is_domain(&domain) {
                return Ok(none());
            }
            let failed = |error| Stop::Failed(format!("the record of {domain}"), error);
            let texts = self.resolver.txt(&domain).await.map_err(failed)?.into_records();
            let policies: Vec<&String> = texts.iter().filter(|text| is_policy(text)).collect();
            let policy = match policies.as_slice() {
                [] => return Ok(none()),
                [policy] => Policy::parse(policy).map_err(|error| Stop::Broken(format!("{domain}: {error}")))?,
                several => return Err(Stop::Broken(format!("{domain} has {} SPF records", several.len()))),
            };
            for directive in &policy.directives {
                if self.matches(directive, &domain).await? {
                    let result = match directive.qualifier {
                        Qualifier::Pass => SpfResult::Pass,
                        Qualifier::Fail => SpfResult::Fail,
                        Qualifier::SoftFail => SpfResult::SoftFail,
                        Qualifier::Neutral => SpfResult::Neutral,
                    };
                    return Ok(Outcome { result, by: Some(directive.text.clone()) });
                }
            }
            let Some(redirect) = &policy.redirect else {
                return Ok(Outcome { result: SpfResult::Neutral, by: Some("no term matches".to_owned()) });
            };
            self.count("redirect")?;
            let target = self.expanded(redirect, &domain).await;
            let outcome = self.evaluate(target).await?;
            match outcome.result {
                SpfResult::None => Err(Stop::Broken(outcome.by.unwrap_or_default())),
                _ => Ok(outcome),
            }
        })
    }

    async fn matches(&mut self, directive: &Directive, domain: &str) -> Result<bool, Stop> {
        match &directive.mechanism {
            Mechanism::All => Ok(true),
            Mechanism::Ip4(network, prefix) => Ok(is_within(self.address, IpAddr::V4(*network), *prefix)),
            Mechanism::Ip6(network, prefix) => Ok(is_within(self.address, IpAddr::V6(*network), *prefix)),
            Mechanism::Include(target) => {
                self.count(&directive.text)?;
                let target = self.expanded(target, domain).await;
                let outcome = self.evaluate(target).await?;
                match outcome.result {
                    SpfResult::Pass => Ok(true),
                    // A permanent error (section 5.2).
                    SpfResult::None => Err(Stop::Broken(outcome.by.unwrap_or_default())),
                    _ => Ok(false),
                }
            }
            Mechanism::A(target, prefixes) => {
                self.count(&directive.text)?;
                let target = self.target(target.as_ref(), domain).await;
                let addresses = self.addresses(&target).await?;
                self.count_void(&directive.text, addresses.is_empty())?;
                Ok(self.is_one_of(&addresses, *prefixes))
            }
            Mechanism::Mx(target, prefixes) => {
                self.count(&directive.text)?;
                let target = self.target(target.as_ref(), domain).await;
                let exchangers = match self.resolver.mx(&target).await {
                    Ok(answer) => answer.into_records(),
                    Err(LookupError::InvalidName(_)) => Vec::new(),
                    Err(error) => return Err(Stop::Failed(format!("the mail exchangers of {target}"), error)),
                };
                self.count_void(&directive.text, exchangers.is_empty())?;
                if exchangers.len() > EXCHANGERS_MAX {
                    return Err(Stop::Broken(format!(
                        "`{}`: {target} has more than {EXCHANGERS_MAX} mail exchangers",
                        directive.text
                    )));
                }
                for exchanger in exchangers.iter().filter(|exchanger| !exchanger.is_null()) {
                    let addresses = self.addresses(&exchanger.exchange).await?;
                    if self.is_one_of(&addresses, *prefixes) {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Mechanism::Ptr(target) => {
                self.count(&directive.text)?;
                let target = self.target(target.as_ref(), domain).await;
                // A failure of this lookup is no match (section 5.5).
                let names = self.resolver.ptr(self.address).await.map(Answer::into_records).unwrap_or_default();
                self.count_void(&directive.text, names.is_empty())?;
                for name in names.iter().take(NAMES_MAX) {
                    if is_below(name, &target) && self.is_validated(name).await {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Mechanism::Exists(target) => {
                self.count(&directive.text)?;
                let target = self.expanded(target, domain).await;
                // Always by IPv4 (section 5.7).
                let found = match self.resolver.a(&target).await {
                    Ok(answer) => !answer.records().is_empty(),
                    Err(LookupError::InvalidName(_)) => false,
                    Err(error) => return Err(Stop::Failed(format!("the address of {target}"), error)),
                };
                self.count_void(&directive.text, !found)?;
                Ok(found)
            }
        }
    }

    fn count(&mut self, term: &str) -> Result<(), Stop> {
        self.lookups += 1;
        match self.lookups > LOOKUPS_MAX {
            true => Err(Stop::Broken(format!("more than {LOOKUPS_MAX} lookups, at `{term}`"))),
            false => Ok(()),
        }
    }

    fn count_void(&mut self, term: &str, is_void: bool) -> Result<(), Stop> {
        self.void_lookups += u32::from(is_void);
        match self.void_lookups > VOID_LOOKUPS_MAX {
            true => Err(Stop::Broken(format!("more than {VOID_LOOKUPS_MAX} lookups without an answer, at `{term}`"))),
            false => Ok(()),
        }
    }

    async fn target(&self, target: Option<&DomainSpec>, domain: &str) -> String {
        match target {
            Some(target) => self.expanded(target, domain).await,
            None => domain.to_owned(),
        }
    }

    async fn expanded(&self, spec: &DomainSpec, domain: &str) -> String {
        let validated = match spec.has_validated_name() {
            true => self.validated_name(domain).await,
            false => String::new(),
        };
        spec.expanded(&Values {
            address: self.address,
            domain,
            local: self.local,
            sender_domain: self.sender_domain,
            helo: self.helo,
            validated: &validated,
        })
    }

    /// The addresses of a host in the family of the sending address.
    async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, Stop> {
        match found_addresses(self.resolver, host, self.address.is_ipv4()).await {
            Ok(addresses) => Ok(addresses),
            Err(LookupError::InvalidName(_)) => Ok(Vec::new()),
            Err(error) => Err(Stop::Failed(format!("the address of {host}"), error)),
        }
    }

    fn is_one_of(&self, addresses: &[IpAddr], prefixes: Prefixes) -> bool {
        let prefix = if self.address.is_ipv4() { prefixes.v4 } else { prefixes.v6 };
        addresses.iter().any(|network| is_within(self.address, *network, prefix))
    }

    /// Whether a name of the address leads back to it.
    async fn is_validated(&self, name: &str) -> bool {
        let addresses = found_addresses(self.resolver, name, self.address.is_ipv4()).await;
        addresses.is_ok_and(|addresses| addresses.contains(&self.address))
    }

    /// The value of the macro `p`: the domain itself, else a name below it, else any validated name.
    async fn validated_name(&self, domain: &str) -> String {
        let names = self.resolver.ptr(self.address).await.map(Answer::into_records).unwrap_or_default();
        let mut validated = Vec::new();
        for name in names.into_iter().take(NAMES_MAX) {
            if self.is_validated(&name).await {
                validated.push(name);
            }
        }
        let best = validated.iter().find(|name| name.eq_ignore_ascii_case(domain));
        let best = best.or_else(|| validated.iter().find(|name| is_below(name, domain))).or(validated.first());
        best.cloned().unwrap_or_else(|| "unknown".to_owned())
    }
}

async fn found_addresses(resolver: &Resolver, host: &str, is_v4: bool) -> Result<Vec<IpAddr>, LookupError> {
    Ok(match is_v4 {
        true => resolver.a(host).await?.into_records().into_iter().map(IpAddr::V4).collect(),
        false => resolver.aaaa(host).await?.into_records().into_iter().map(IpAddr::V6).collect(),
    })
}

/// Whether the text can be a domain of a mail: several labels of at most 63 bytes (section 4.3).
fn is_domain(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    text.len() <= 253 && text.contains('.') && text.split('.').all(|label| (1..=63).contains(&label.len()))
}

/// Whether a name is the domain or below it.
fn is_below(name: &str, domain: &str) -> bool {
    let domain = domain.strip_suffix('.').unwrap_or(domain).to_ascii_lowercase();
    name == domain || name.strip_suffix(&domain).is_some_and(|rest| rest.ends_with('.'))
}

fn is_within(address: IpAddr, network: IpAddr, prefix: u8) -> bool {
    let is_same = |left: u128, right: u128, width: u32| {
        let shift = width - u32::from(prefix);
        shift >= 128 || (left >> shift) == (right >> shift)
    };
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => is_same(address.to_bits().into(), network.to_bits().into(), 32),
        (IpAddr::V6(address), IpAddr::V6(network)) => is_same(address.to_bits(), network.to_bits(), 128),
        _ => false,
    }
}
