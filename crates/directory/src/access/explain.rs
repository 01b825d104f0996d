//! Explains access: which rule gives an identity its level on an entry, its children and its attributes.

use std::sync::Arc;

use super::{Access, AuthzId, CHILDREN, DEVICES, ENTRY, Grant, Level, RuleSubject, SCIM_DETAILS};
use crate::{
    directory::Directory,
    entry::Entry,
    entry_cache::CachedEntry,
    ldap_error::{Code, LdapError},
    schema::AttributeType,
};

/// The rule that gives a level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecidingRule {
    /// Its position among the rules, from 1.
    pub number: usize,
    /// Its text.
    pub text: String,
    /// The subject of its first `by` that matches, such as `self`; `None`: none matches, so the rule gives no access.
    pub by: Option<String>,
}

/// A level of access, and its cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessDecision {
    /// The level.
    pub level: Level,
    /// The rule that decides; `None`: no rule applies, so there is no access.
    pub rule: Option<DecidingRule>,
    /// The attribute whose lower level limits this one, which repeats its values.
    pub limited_by: Option<String>,
}

/// Access of an identity to an entry.
#[derive(Debug, Clone)]
pub struct AccessExplanation {
    /// The identity; an empty DN is the anonymous one.
    pub requester: AuthzId,
    /// The entry.
    pub entry: Arc<CachedEntry>,
    /// Whether the entry is visible to the identity.
    pub visible: bool,
    /// The entry itself: rename and delete need `write`.
    pub itself: AccessDecision,
    /// Its children: to add one needs `write`.
    pub children: AccessDecision,
    /// Attributes, by name.
    pub attributes: Vec<(String, AccessDecision)>,
}

/// Subject of a level.
#[derive(Clone, Copy)]
enum Target<'a> {
    Entry,
    Children,
    Attribute(&'a AttributeType),
}

impl Level {
    /// The word of the level in a rule.
    pub fn word(self) -> &'static str {
        match self {
            Level::None => "none",
            Level::Auth => "auth",
            Level::Compare => "compare",
            Level::Search => "search",
            Level::Read => "read",
            Level::Write => "write",
        }
    }
}

impl RuleSubject {
    fn text(&self) -> String {
        match self {
            RuleSubject::Everybody => "*".to_owned(),
            RuleSubject::Anonymous => "anonymous".to_owned(),
            RuleSubject::Users => "users".to_owned(),
            RuleSubject::Itself => "self".to_owned(),
            RuleSubject::Name(key) => format!("dn=\"{key}\""),
            RuleSubject::Group(key) => format!("group=\"{key}\""),
        }
    }
}

impl Access {
    /// The texts of the rules, in order.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(|rule| rule.text.as_str())
    }

    /// The first rule that applies, as [`Access::grant`] finds it.
    fn deciding_rule(&self, requester: &AuthzId, entry: &Entry, target: Target<'_>) -> Option<(DecidingRule, Level)> {
        let names = |key: &Arc<str>| match target {
            Target::Entry => &**key == ENTRY,
            Target::Children => &**key == CHILDREN,
            Target::Attribute(kind) => *key == kind.key || kind.kinds.contains(key),
        };
        let applies = |clause: &&super::AccessRule| {
            clause.within.has(&entry.key) && (clause.attributes.is_empty() || clause.attributes.iter().any(names))
        };
        let number = self.rules.iter().position(|clause| applies(&clause))?;
        let clause = &self.rules[number];
        // Write access to the own entry does not include its children, unless a rule names `children`.
        let is_general = matches!(target, Target::Children) && clause.attributes.is_empty();
        let is_met = |(who, _): &&(RuleSubject, Level)| {
            !(is_general && *who == RuleSubject::Itself) && who.is_met_by(requester, Some(entry.number))
        };
        let by = clause.by.iter().find(is_met);
        let rule = DecidingRule { number: number + 1, text: clause.text.clone(), by: by.map(|(who, _)| who.text()) };
        Some((rule, by.map_or(Level::None, |(_, level)| *level)))
    }

    /// The level of an identity for an entry, its children or an attribute, with its cause.
    fn decide(&self, requester: &AuthzId, entry: &Entry, grant: &Grant, target: Target<'_>) -> AccessDecision {
        let level = match target {
            Target::Entry => grant.level(None),
            Target::Children => grant.children,
            Target::Attribute(kind) => grant.level(Some(kind)),
        };
        let found = self.deciding_rule(requester, entry, target);
        let limited_by = match (target, &found) {
            (Target::Attribute(kind), Some((_, given))) if level < *given => self.limiting(grant, kind, level),
            _ => None,
        };
        AccessDecision { level, rule: found.map(|(rule, _)| rule), limited_by }
    }

    /// The attribute that limits `tocsinDevice` or `scimDetails`, which repeat values of others.
    fn limiting(&self, grant: &Grant, kind: &AttributeType, level: Level) -> Option<String> {
        match &*kind.key {
            DEVICES => {
                let lowest = self.addresses.iter().find(|address| grant.level(Some(address)) == level);
                lowest.map(|address| address.name().to_owned())
            }
            SCIM_DETAILS => {
                let named = grant.special.iter().find(|(key, own)| {
                    *own == level && !super::is_pseudo(key) && &**key != SCIM_DETAILS && &**key != DEVICES
                });
                // Without a rule of its own it is read-only.
                Some(named.map_or_else(|| kind.name().to_owned(), |(key, _)| key.to_string()))
            }
            _ => None,
        }
    }
}

impl Directory {
    /// Explains the access of an identity to an entry: the level of the entry, of its children and of its attributes,
    /// and the rule that decides each. `requester`: the DN of an entry; `None`: the anonymous identity. `names`:
    /// attributes; empty: those of the entry, and `userPassword`. Whether the identity may bind has no influence.
    ///
    /// # Errors
    /// A name is malformed, or there is no such entry or attribute.
    pub async fn explain_access(
        &self,
        requester: Option<&str>,
        dn: &str,
        names: &[String],
    ) -> Result<AccessExplanation, LdapError> {
        let requester = match requester {
            Some(requester) => self.identity_of(&self.find(requester).await?.entry).await?,
            None => AuthzId::default(),
        };
        let (shown, schema) = (self.find(dn).await?, self.schema());
        let entry = &shown.entry;
        let mut kinds: Vec<Arc<AttributeType>> = Vec::new();
        for name in names {
            let unknown = || LdapError::new(Code::UndefinedAttributeType, format!("there is no attribute `{name}`"));
            kinds.push(schema.known_or_named(name).ok_or_else(unknown)?);
        }
        if names.is_empty() {
            kinds.extend(entry.attributes.iter().map(|found| found.kind.clone()));
            kinds.push(schema.attribute("userPassword")?.clone());
        }
        let (access, grant) = (self.access(), self.access().grant(&requester, entry));
        let decide = |target| access.decide(&requester, entry, &grant, target);
        let attributes = kinds.iter().map(|kind| (kind.name().to_owned(), decide(Target::Attribute(kind)))).collect();
        let (itself, children, visible) = (decide(Target::Entry), decide(Target::Children), grant.may_disclose());
        Ok(AccessExplanation { requester, visible, itself, children, attributes, entry: shown.clone() })
    }
}
