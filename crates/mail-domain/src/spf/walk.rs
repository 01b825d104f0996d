use std::{future::Future, pin::Pin};

use tocsin_connect::dns::{LookupError, Resolver};

use super::{
    macros::{DomainSpec, Values},
    policies,
    policy::{Mechanism, Policy},
};

/// Lookups after which a walk ends: far above the limit, and a record that includes itself has no end.
const LOOKUPS_END: u32 = 40;

/// The lookups of a record if no address matches: the most that an evaluation can need.
#[derive(Debug, Default)]
pub(super) struct Walk {
    pub lookups: u32,
    pub void_lookups: u32,
    pub void_terms: Vec<String>,
    /// Lookups of each term of the first record.
    pub costs: Vec<(String, u32)>,
    pub has_ptr: bool,
    /// Included records that are missing or not well-formed.
    pub problems: Vec<Problem>,
    /// Lookups that failed.
    pub failures: Vec<(String, LookupError)>,
}

/// A term whose evaluation is a permanent error.
#[derive(Debug)]
pub(super) struct Problem {
    pub text: String,
}

/// Walks over a record and those that it includes.
pub(super) async fn walk(resolver: &Resolver, domain: &str, policy: &Policy) -> Walk {
    let mut walk = Walk::default();
    let has_all = policy.directives.iter().any(|directive| directive.mechanism == Mechanism::All);
    for directive in &policy.directives {
        let before = walk.lookups;
        walk.term(resolver, domain, &directive.mechanism, &directive.text).await;
        walk.costs.push((directive.text.clone(), walk.lookups - before));
    }
    if let Some(redirect) = policy.redirect.as_ref().filter(|_| !has_all) {
        let before = walk.lookups;
        let text = format!("redirect={}", redirect.text());
        walk.policy_of(resolver, domain, redirect, &text).await;
        walk.costs.push((text, walk.lookups - before));
    }
    walk
}

impl Walk {
    /// Counts the lookups of a term. `include` leads to further terms, so the future is boxed.
    fn term<'a>(
        &'a mut self,
        resolver: &'a Resolver,
        domain: &'a str,
        mechanism: &'a Mechanism,
        text: &'a str,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            if self.lookups > LOOKUPS_END {
                return;
            }
            match mechanism {
                Mechanism::All | Mechanism::Ip4(..) | Mechanism::Ip6(..) => {}
                Mechanism::Include(target) => self.policy_of(resolver, domain, target, text).await,
                Mechanism::A(target, _) => {
                    self.lookups += 1;
                    let Some(name) = known(target.as_ref(), domain) else { return };
                    let found = resolver.addresses(&name).await.map(|answer| answer.records().is_empty());
                    self.note(text, format!("the address of {name}"), found);
                }
                Mechanism::Mx(target, _) => {
                    self.lookups += 1;
                    let Some(name) = known(target.as_ref(), domain) else { return };
                    let found = resolver.mx(&name).await.map(|answer| answer.records().is_empty());
                    self.note(text, format!("the mail exchangers of {name}"), found);
                }
                Mechanism::Ptr(_) => {
                    self.lookups += 1;
                    self.has_ptr = true;
                }
                // It usually depends on the address, so an absent name says nothing.
                Mechanism::Exists(_) => self.lookups += 1,
            }
        })
    }

    /// Walks over an included record, or one that `redirect` names.
    async fn policy_of(&mut self, resolver: &Resolver, domain: &str, target: &DomainSpec, text: &str) {
        self.lookups += 1;
        let Some(name) = known(Some(target), domain) else { return };
        let problem = |problem: String| Problem { text: format!("`{text}`: {problem}") };
        let found = match policies(resolver, &name).await {
            Ok(found) => found,
            Err(LookupError::InvalidName(_)) => Vec::new(),
            Err(error) => {
                self.failures.push((format!("the SPF record of {name}"), error));
                return;
            }
        };
        match found.as_slice() {
            [] => self.problems.push(problem(format!("{name} has no SPF record"))),
            [text] => match Policy::parse(text) {
                Ok(policy) => {
                    let has_all = policy.directives.iter().any(|directive| directive.mechanism == Mechanism::All);
                    for directive in &policy.directives {
                        self.term(resolver, &name, &directive.mechanism, &directive.text).await;
                    }
                    if let Some(redirect) = policy.redirect.as_ref().filter(|_| !has_all)
                        && self.lookups <= LOOKUPS_END
                    {
                        let text = format!("redirect={}", redirect.text());
                        Box::pin(self.policy_of(resolver, &name, redirect, &text)).await;
                    }
                }
                Err(error) => self.problems.push(problem(format!("the record of {name} is not well-formed: {error}"))),
            },
            several => self.problems.push(problem(format!("{name} has {} SPF records", several.len()))),
        }
    }

    fn note(&mut self, text: &str, what: String, is_void: Result<bool, LookupError>) {
        match is_void {
            Ok(false) => {}
            Ok(true) | Err(LookupError::InvalidName(_)) => {
                self.void_lookups += 1;
                self.void_terms.push(text.to_owned());
            }
            Err(error) => self.failures.push((what, error)),
        }
    }
}

/// The name of a term, unless it depends on the mail.
fn known(target: Option<&DomainSpec>, domain: &str) -> Option<String> {
    let Some(target) = target else { return Some(domain.to_owned()) };
    let values =
        Values { address: [0, 0, 0, 0].into(), domain, local: "", sender_domain: domain, helo: "", validated: "" };
    (!target.depends_on_mail()).then(|| target.expanded(&values))
}
