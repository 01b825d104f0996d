//! Access control: rules over subtrees and attributes.
//!
//! A rule has the form `to <what> by <who> <level> …`. The first rule that matches the attribute of an entry decides;
//! in it, the first matching `by` gives the level, and no match means no access. The result per requester and container
//! is cached and read without a lock.

mod explain; // the rule that decides each level

use std::{collections::HashMap, sync::Arc};

use crate::{
    bound_identity::BoundIdentity,
    dn::Dn,
    entry::{Attribute, Entry},
    entry_cache::EntryCacheGeneration,
    schema::{AttributeType, Schema},
};
use tocsin_store::entries::EntryNumber;

pub use explain::{AccessDecision, AccessExplanation, DecidingRule};

/// Access level. Each level includes the lower ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// No access; the entry is invisible.
    None,
    /// Authenticate with it (bind).
    Auth,
    /// Compare a value.
    Compare,
    /// Use it in a filter.
    Search,
    /// Read it.
    Read,
    /// Change it.
    Write,
}

impl Level {
    fn read(word: &str) -> Option<Level> {
        Some(match word {
            "none" => Level::None,
            "auth" => Level::Auth,
            "compare" => Level::Compare,
            "search" => Level::Search,
            "read" => Level::Read,
            "write" => Level::Write,
            _ => return None,
        })
    }
}

/// Authorization identity of a request (RFC 4513, section 1.2).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuthzId {
    /// The entry, if the identity is one.
    pub number: Option<EntryNumber>,
    /// Normalized DN; empty for anonymous.
    pub key: String,
    /// The DN as text.
    pub dn: String,
    /// Whether access rules are bypassed: an operator with an API key.
    pub manages: bool,
    /// Whether the password must be changed before any other request.
    pub must_change: bool,
    /// Normalized DNs of its groups and roles, if any rule names one.
    pub groups: Vec<String>,
    /// Containers (normalized DNs) to which an operator's API key is limited: full access below them, none elsewhere.
    /// Access rules are bypassed.
    pub within: Vec<String>,
    /// State of the bind, if an entry bound.
    pub bound_identity: Option<Arc<BoundIdentity>>,
}

impl AuthzId {
    /// Whether the identity is authenticated.
    pub fn is_known(&self) -> bool {
        self.manages || !self.key.is_empty()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum RuleSubject {
    Everybody,
    Anonymous,
    Users,
    Itself,
    Name(String),
    Group(String),
}

impl RuleSubject {
    /// Whether it means the requester, in a rule about the entry of this number; `None`: it is about to be added.
    fn is_met_by(&self, requester: &AuthzId, number: Option<EntryNumber>) -> bool {
        match self {
            RuleSubject::Everybody => true,
            RuleSubject::Anonymous => requester.key.is_empty(),
            RuleSubject::Users => !requester.key.is_empty(),
            RuleSubject::Itself => number.is_some() && requester.number == number,
            RuleSubject::Name(key) => requester.key == *key,
            RuleSubject::Group(key) => requester.groups.contains(key),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RuleTarget {
    Anywhere,
    Exactly(String),
    Below(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct AccessRule {
    /// As configured.
    text: String,
    within: RuleTarget,
    /// Keys of attributes; empty means all.
    attributes: Vec<Arc<str>>,
    by: Vec<(RuleSubject, Level)>,
}

/// Access rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// In order.
    rules: Vec<AccessRule>,
    /// Attributes whose values are also in [`DEVICES`].
    addresses: Vec<Arc<AttributeType>>,
}

/// Pseudo-attribute of an entry itself: controls visibility, rename and removal.
const ENTRY: &str = "entry";
/// Pseudo-attribute of the children of an entry: controls adding and moving entries below it.
const CHILDREN: &str = "children";

/// Attribute with all devices and their addresses.
const DEVICES: &str = "tocsindevice";
/// Attribute with the lists of a SCIM user as they were sent.
const SCIM_DETAILS: &str = "scimdetails";

/// Default rules: each bound user reads all entries, changes their own, and adds none.
pub const DEFAULT_RULES: &[&str] =
    &["to attrs=userPassword by self write by * auth", "to * by self write by users read by * none"];

impl Access {
    /// Parses rules; an empty list gives the [`DEFAULT_RULES`].
    ///
    /// # Errors
    /// A rule is malformed; the text names it and the reason.
    pub fn read(rules: &[String], schema: &Schema) -> Result<Access, String> {
        let read = |text: &str| clause(text, schema).map_err(|why| format!("`{text}` {why}"));
        let rules = match rules {
            [] => DEFAULT_RULES.iter().map(|text| read(text)).collect::<Result<_, _>>(),
            rules => rules.iter().map(|text| read(text)).collect::<Result<_, _>>(),
        };
        Ok(Access { rules: rules?, addresses: Vec::new() })
    }

    /// Limits the level of `tocsinDevice` to the lowest level of these attributes, whose values it repeats.
    #[must_use]
    pub fn with_addresses<'a>(self, keys: impl IntoIterator<Item = &'a str>, schema: &Schema) -> Access {
        let addresses = keys.into_iter().filter_map(|key| schema.attribute(key).ok().cloned()).collect();
        Access { addresses, ..self }
    }

    /// The level of a requester for an attribute of an entry; with `None`, for the entry itself.
    pub fn level(&self, requester: &AuthzId, entry: &Entry, kind: Option<&AttributeType>) -> Level {
        if requester.manages {
            return Level::Write;
        }
        self.grant(requester, entry).level(kind)
    }

    /// The rights of a requester for an entry. They are the same for all entries of a container that no rule names,
    /// except the requester's own.
    pub fn grant(&self, requester: &AuthzId, entry: &Entry) -> Grant {
        self.grant_at(requester, &entry.key, Some(entry.number))
    }

    /// The rights for a normalized DN. `number`: that of the entry; `None`: the entry is about to be added.
    pub(crate) fn grant_at(&self, requester: &AuthzId, key: &str, number: Option<EntryNumber>) -> Grant {
        if requester.manages {
            return Grant::of(Vec::new(), Level::Write, Level::Write);
        }
        if !requester.within.is_empty() {
            return Grant::within(&requester.within, key);
        }
        let mut special: Vec<(Arc<str>, Level)> = Vec::new();
        for clause in &self.rules {
            if !clause.within.has(key) {
                continue;
            }
            let applies_to = |who: &RuleSubject| who.is_met_by(requester, number);
            let level_by = |is_selected: &dyn Fn(&RuleSubject) -> bool| {
                clause.by.iter().find(|(who, _)| is_selected(who)).map_or(Level::None, |(_, level)| *level)
            };
            let level = level_by(&applies_to);
            if clause.attributes.is_empty() {
                // Write access to the own entry does not include its children, unless a rule names `children`.
                let children = level_by(&|who| *who != RuleSubject::Itself && applies_to(who));
                return Grant::of(self.with_repeated(special, level), level, children);
            }
            let new = clause.attributes.iter().filter(|key| !special.iter().any(|(known, _)| known == *key));
            special.extend(new.map(|key| (key.clone(), level)).collect::<Vec<_>>());
        }
        Grant::of(self.with_repeated(special, Level::None), Level::None, Level::None)
    }

    /// Adds the levels of attributes that repeat values of others, if the level of one of these is lower: `tocsinDevice`
    /// the addresses of devices, `scimDetails` any attribute. Without a rule of its own `scimDetails` is read-only.
    fn with_repeated(&self, mut special: Vec<(Arc<str>, Level)>, else_: Level) -> Vec<(Arc<str>, Level)> {
        let addresses = self.addresses.iter().map(|kind| level_of(&special, kind).unwrap_or(else_)).min();
        let named = special.iter().filter(|(key, _)| !is_pseudo(key)).map(|(_, level)| *level);
        let read_only = find(&special, SCIM_DETAILS).is_none().then_some(Level::Read);
        let named = named.chain(read_only).min();
        for (key, lowest) in [(DEVICES, addresses), (SCIM_DETAILS, named)] {
            let Some(lowest) = lowest else { continue };
            if lowest < find(&special, key).unwrap_or(else_) {
                special.retain(|(known, _)| &**known != key);
                special.push((key.into(), lowest));
            }
        }
        special
    }

    /// Whether the rules can hide entries from a requester.
    pub fn may_hide(&self, requester: &AuthzId) -> bool {
        let discloses_others = || self.grant_at(requester, "", None).may_disclose();
        let discloses_itself =
            || requester.number.is_none() || self.grant_at(requester, &requester.key, requester.number).may_disclose();
        !requester.manages
            && (!requester.within.is_empty() || self.names_entries() || !discloses_others() || !discloses_itself())
    }

    /// Whether a rule grants rights to this normalized DN or one below it, or to the members of a group there.
    pub(crate) fn gives_to(&self, key: &str) -> bool {
        let by = self.rules.iter().flat_map(|clause| &clause.by);
        by.filter_map(|(who, _)| match who {
            RuleSubject::Name(name) | RuleSubject::Group(name) => Some(name),
            RuleSubject::Everybody | RuleSubject::Anonymous | RuleSubject::Users | RuleSubject::Itself => None,
        })
        .any(|name| name == key || is_below(name, key))
    }

    /// Whether a rule applies to this normalized DN or one below it.
    pub(crate) fn names_place(&self, key: &str) -> bool {
        self.rules.iter().any(|clause| match &clause.within {
            RuleTarget::Exactly(name) | RuleTarget::Below(name) => name == key || is_below(name, key),
            RuleTarget::Anywhere => false,
        })
    }

    /// Whether a rule names a group or role.
    pub(crate) fn names_groups(&self) -> bool {
        self.rules.iter().flat_map(|clause| &clause.by).any(|(who, _)| matches!(who, RuleSubject::Group(_)))
    }

    /// Whether rules name single entries, so that siblings can have different rights.
    fn names_entries(&self) -> bool {
        self.rules.iter().any(|clause| clause.within != RuleTarget::Anywhere)
    }
}

/// Rights of a requester for an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    special: Vec<(Arc<str>, Level)>,
    else_: Level,
    /// Level for the children of the entry.
    children: Level,
    /// Whether any attribute other than the password is unreadable.
    hides: bool,
}

impl Grant {
    fn of(special: Vec<(Arc<str>, Level)>, else_: Level, children: Level) -> Grant {
        let hides = special.iter().any(|(key, level)| !is_pseudo(key) && *level < Level::Read);
        let children = find(&special, CHILDREN).unwrap_or(children);
        Grant { special, else_, children, hides }
    }

    /// Rights of an operator whose key is limited to containers: everything below one; for the container itself,
    /// visibility and adding children.
    fn within(containers: &[String], key: &str) -> Grant {
        if containers.iter().any(|container| is_below(key, container)) {
            return Grant::of(Vec::new(), Level::Write, Level::Write);
        }
        match containers.iter().any(|container| key == container) {
            true => Grant::of(Vec::new(), Level::Read, Level::Write),
            false => Grant::of(Vec::new(), Level::None, Level::None),
        }
    }

    /// Full read access, for entries that describe the server.
    pub fn open() -> Grant {
        Grant::of(Vec::new(), Level::Read, Level::None)
    }

    /// Whether the entry is visible.
    pub fn may_disclose(&self) -> bool {
        match find(&self.special, ENTRY) {
            Some(level) => level >= Level::Read,
            None => {
                let mut named = self.special.iter().filter(|(key, _)| &**key != CHILDREN);
                self.else_ >= Level::Read || named.any(|(_, level)| *level >= Level::Read)
            }
        }
    }

    /// The level for an attribute, or for the entry itself.
    pub fn level(&self, kind: Option<&AttributeType>) -> Level {
        let named = match kind {
            Some(kind) => level_of(&self.special, kind),
            None => find(&self.special, ENTRY),
        };
        named.unwrap_or(self.else_)
    }

    /// Whether entries may be added or moved below it.
    pub(crate) fn allows_new_children(&self) -> bool {
        self.children >= Level::Write
    }

    /// Whether all attributes except passwords may be read.
    pub fn reads_all(&self) -> bool {
        self.else_ >= Level::Read && !self.hides
    }

    /// Whether a type and all its subtypes are open at a level.
    fn opens_kinds(&self, kind: &AttributeType, level: Level, schema: &Schema) -> bool {
        let closed =
            |key: &str| schema.attribute(key).is_ok_and(|known| known.is(kind) && self.level(Some(known)) < level);
        self.level(Some(kind)) >= level && (!self.hides || !self.special.iter().any(|(key, _)| closed(key)))
    }
}

/// Whether a key names no readable attribute.
fn is_pseudo(key: &str) -> bool {
    matches!(key, "userpassword" | ENTRY | CHILDREN)
}

/// The level of an attribute, by its own rule or that of a supertype.
fn level_of(special: &[(Arc<str>, Level)], kind: &AttributeType) -> Option<Level> {
    let meant = |(key, _): &&(Arc<str>, Level)| *key == kind.key || kind.kinds.contains(key);
    special.iter().find(meant).map(|(_, level)| *level)
}

fn find(special: &[(Arc<str>, Level)], key: &str) -> Option<Level> {
    special.iter().find(|(known, _)| &**known == key).map(|(_, level)| *level)
}

/// Read rights of an operation on one entry: a grant, and the level that the operation needs. Filters, comparisons,
/// sort keys, dynamic groups and assertions read attributes only through this type.
#[derive(Debug, Clone, Copy)]
pub struct Rights<'a> {
    grant: &'a Grant,
    level: Level,
}

impl<'a> Rights<'a> {
    /// Rights of an operation that needs `level`.
    pub fn new(grant: &'a Grant, level: Level) -> Rights<'a> {
        Rights { grant, level }
    }

    /// The grant.
    pub(crate) fn grant(&self) -> &'a Grant {
        self.grant
    }

    /// Whether an attribute may be used.
    pub fn opens(&self, kind: &AttributeType) -> bool {
        self.grant.level(Some(kind)) >= self.level
    }

    /// Whether an attribute and all its subtypes may be used. Depends on the rules alone, never on the entry.
    pub(crate) fn opens_kinds(&self, kind: &AttributeType, schema: &Schema) -> bool {
        self.grant.opens_kinds(kind, self.level, schema)
    }

    /// Whether all attributes except the password may be used.
    pub(crate) fn opens_all(&self) -> bool {
        self.grant.else_ >= self.level && !self.grant.hides
    }

    /// Values of a type and those of its subtypes that may be used.
    pub fn values(self, entry: &'a Entry, kind: &'a AttributeType) -> impl Iterator<Item = &'a [u8]> {
        let opens_all = self.opens_all();
        let opens = move |found: &&Attribute| found.kind.is(kind) && (opens_all || self.opens(&found.kind));
        let meant = entry.attributes.iter().filter(opens);
        meant.flat_map(|found| found.values.iter().map(|value| &**value))
    }
}

/// Per-connection cache of rights, so it needs no lock.
#[derive(Debug, Default)]
pub struct Grants {
    /// Cache generation at which the rights were computed.
    as_of: EntryCacheGeneration,
    by_parent: HashMap<Option<EntryNumber>, Arc<Grant>>,
    own: Option<Arc<Grant>>,
}

/// Maximum containers in the cache of one requester.
const KEPT_MAX: usize = 4_096;

impl Grants {
    /// Clears the cache if entries were renamed since: other rules may apply to their new names.
    pub fn clear_if_renamed(&mut self, renamed: EntryCacheGeneration) {
        if self.as_of != renamed {
            *self = Grants { as_of: renamed, ..Grants::default() };
        }
    }

    /// The rights of a requester for an entry.
    pub fn of(&mut self, access: &Access, requester: &AuthzId, entry: &Entry) -> Arc<Grant> {
        if !requester.within.is_empty() {
            return Arc::new(access.grant(requester, entry));
        }
        if access.names_entries() {
            // Rules name subtrees and entries by DN, so siblings may differ.
            return self.cached_below(access, requester, entry);
        }
        if requester.number == Some(entry.number) {
            return self.own.get_or_insert_with(|| Arc::new(access.grant(requester, entry))).clone();
        }
        self.by_parent.entry(None).or_insert_with(|| Arc::new(access.grant(requester, entry))).clone()
    }

    fn cached_below(&mut self, access: &Access, requester: &AuthzId, entry: &Entry) -> Arc<Grant> {
        let is_named = access.rules.iter().any(|clause| match &clause.within {
            RuleTarget::Exactly(key) | RuleTarget::Below(key) => *key == entry.key,
            RuleTarget::Anywhere => false,
        });
        if is_named || requester.number == Some(entry.number) || entry.parent.is_none() {
            return Arc::new(access.grant(requester, entry));
        }
        if self.by_parent.len() >= KEPT_MAX {
            self.by_parent.clear();
        }
        self.by_parent.entry(entry.parent).or_insert_with(|| Arc::new(access.grant(requester, entry))).clone()
    }
}

impl RuleTarget {
    /// Parses the word after `to`, if it names a target.
    pub(crate) fn read(word: &str, schema: &Schema) -> Result<Option<RuleTarget>, String> {
        Ok(match word.split_once('=') {
            _ if word == "*" => Some(RuleTarget::Anywhere),
            Some(("dn" | "dn.subtree", text)) => Some(RuleTarget::Below(name(text, schema)?)),
            Some(("dn.base", text)) => Some(RuleTarget::Exactly(name(text, schema)?)),
            _ => None,
        })
    }

    /// Whether a normalized DN is in the target.
    pub(crate) fn has(&self, key: &str) -> bool {
        match self {
            RuleTarget::Anywhere => true,
            RuleTarget::Exactly(name) => key == name,
            RuleTarget::Below(name) => is_below(key, name) || key == name,
        }
    }
}

/// Whether a normalized DN is below another.
pub fn is_below(key: &str, above: &str) -> bool {
    if above.is_empty() {
        return !key.is_empty();
    }
    // A comma after an odd number of backslashes is part of a value.
    let start = key.strip_suffix(above).and_then(|start| start.strip_suffix(','));
    start.is_some_and(|start| start.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 0)
}

/// Whether a normalized DN is a direct child of another, which is not the root.
pub(crate) fn is_child(key: &str, above: &str) -> bool {
    let own = key.get(..key.len().saturating_sub(above.len() + 1)).unwrap_or_default();
    let mut is_escaped = false;
    let has_comma = own.bytes().any(|byte| {
        let parts = byte == b',' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        parts
    });
    !has_comma && is_below(key, above)
}

fn clause(text: &str, schema: &Schema) -> Result<AccessRule, String> {
    let words = words(text)?;
    let mut words = words.iter().map(String::as_str).peekable();
    if words.next() != Some("to") {
        return Err("does not begin with `to`".to_owned());
    }
    let mut clause =
        AccessRule { text: text.to_owned(), within: RuleTarget::Anywhere, attributes: Vec::new(), by: Vec::new() };
    while let Some(word) = words.next_if(|word| *word != "by") {
        if let Some(within) = RuleTarget::read(word, schema)? {
            clause.within = within;
            continue;
        }
        match word.split_once('=') {
            Some(("attrs", list)) => {
                for attribute in list.split(',') {
                    if let Some(pseudo) =
                        [ENTRY, CHILDREN].into_iter().find(|known| attribute.eq_ignore_ascii_case(known))
                    {
                        clause.attributes.push(pseudo.into());
                        continue;
                    }
                    let found =
                        schema.attribute(attribute).map_err(|refusal| format!("is invalid: {}", refusal.message))?;
                    clause.attributes.push(found.key.clone());
                }
            }
            _ => return Err(format!("has `{word}`; after `to`, expected `*`, `dn=…`, `dn.base=…` or `attrs=…`")),
        }
    }
    while words.next().is_some() {
        let who = match words.next() {
            Some("*") => RuleSubject::Everybody,
            Some("anonymous") => RuleSubject::Anonymous,
            Some("users") => RuleSubject::Users,
            Some("self") => RuleSubject::Itself,
            Some(word) => match word.split_once('=') {
                Some(("dn", text)) => RuleSubject::Name(name(text, schema)?),
                // The occupants of a role count like the members of a group.
                Some(("group" | "role", text)) => RuleSubject::Group(name(text, schema)?),
                _ => {
                    return Err(format!(
                        "has `{word}`; after `by`, expected `*`, `anonymous`, `users`, `self`, `dn=…`, `group=…` or `role=…`"
                    ));
                }
            },
            None => return Err("has nothing after `by`".to_owned()),
        };
        let word = words.next().unwrap_or_default();
        let level = Level::read(word);
        let levels = "none, auth, compare, search, read and write";
        clause.by.push((who, level.ok_or_else(|| format!("has the level `{word}`; the levels are {levels}"))?));
        if words.peek().is_some_and(|word| *word != "by") {
            return Err(format!(
                "has `{}` where `by` or the end of the rule is expected",
                words.next().unwrap_or_default()
            ));
        }
    }
    if clause.by.is_empty() { Err("has no `by`".to_owned()) } else { Ok(clause) }
}

/// Parses a DN into normal form.
fn name(text: &str, schema: &Schema) -> Result<String, String> {
    let dn = Dn::parse(text).map_err(|error| format!("names `{text}`, which is not a distinguished name: {error}"))?;
    Ok(schema.normal_dn(&dn))
}

/// Splits a rule into words at spaces; quoted spaces belong to a word.
pub(crate) fn words(text: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            c if c.is_whitespace() && !quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => word.push(c),
        }
    }
    if quoted {
        return Err("has an opening quotation mark without a closing one".to_owned());
    }
    words.extend((!word.is_empty()).then_some(word));
    Ok(words)
}

#[cfg(test)]
mod tests {
    use tocsin_model::time::Timestamp;

    use super::*;

    fn entry(number: i64, key: &str) -> Entry {
        Entry {
            number: EntryNumber(number),
            parent: Some(EntryNumber(1)),
            dn: key.into(),
            key: key.into(),
            attributes: Vec::new(),
            shown: 0,
            created_at: Timestamp(0),
            updated_at: Timestamp(0),
            revision: 1,
        }
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let schema = Schema::standard();
        let rules = [
            "to attrs=userPassword by self write by * auth",
            "to dn=\"ou=Admin,o=site\" by dn=\"cn=root,o=site\" write by group=\"cn=staff,o=site\" read",
            "to attrs=mail by self write by users read",
            "to * by users read by anonymous search",
        ];
        let access = Access::read(&rules.map(str::to_owned), &schema).expect("rules");
        let user = AuthzId { number: Some(EntryNumber(7)), key: "cn=ann,o=site".into(), ..AuthzId::default() };
        let staff = AuthzId { groups: vec!["cn=staff,o=site".into()], ..user.clone() };
        let check = |requester: &AuthzId, number, key: &str, attribute: &str, expected| {
            let kind = schema.attribute(attribute).expect("standard");
            assert_eq!(access.level(requester, &entry(number, key), Some(kind)), expected, "{key} {attribute}");
            let level = Grants::default().of(&access, requester, &entry(number, key)).level(Some(kind));
            assert_eq!(level, expected);
        };
        check(&user, 7, "cn=ann,o=site", "userPassword", Level::Write);
        check(&user, 8, "cn=bob,o=site", "userPassword", Level::Auth);
        check(&user, 7, "cn=ann,o=site", "mail", Level::Write);
        check(&user, 8, "cn=bob,o=site", "mail", Level::Read);
        check(&user, 8, "cn=bob,o=site", "cn", Level::Read);
        check(&AuthzId::default(), 8, "cn=bob,o=site", "cn", Level::Search);
        check(&AuthzId::default(), 8, "cn=bob,o=site", "mail", Level::None);
        check(&user, 9, "cn=x,ou=admin,o=site", "cn", Level::None);
        check(&staff, 9, "cn=x,ou=admin,o=site", "cn", Level::Read);
        check(&AuthzId { key: "cn=root,o=site".into(), ..user.clone() }, 9, "ou=admin,o=site", "cn", Level::Write);
        check(&AuthzId { manages: true, ..AuthzId::default() }, 9, "ou=admin,o=site", "cn", Level::Write);
        let within = vec!["ou=sales,o=site".to_owned()];
        let limited = AuthzId { key: "cn=admin,o=site".into(), within, ..AuthzId::default() };
        check(&limited, 9, "cn=bob,ou=sales,o=site", "userPassword", Level::Write);
        check(&limited, 9, "cn=x,ou=y,ou=sales,o=site", "cn", Level::Write);
        check(&limited, 9, "ou=sales,o=site", "cn", Level::Read);
        check(&limited, 9, "o=site", "cn", Level::None);
        check(&limited, 9, "cn=bob,ou=presales,o=site", "cn", Level::None);
        check(&limited, 9, "cn=a\\,ou=sales,o=site", "cn", Level::None);
        assert!(access.may_hide(&limited) && access.grant_at(&limited, "ou=sales,o=site", None).allows_new_children());
        assert!(!access.grant_at(&limited, "o=site", None).allows_new_children());
    }

    #[test]
    fn repeated_values_are_as_closed_as_their_attributes() {
        let schema = Schema::standard();
        let rules = [
            "to attrs=userPassword by self write by * auth",
            "to attrs=mobile by self read by users none",
            "to * by self write by users read",
        ];
        let access = Access::read(&rules.map(str::to_owned), &schema).expect("rules");
        let access = access.with_addresses(["mail", "mobile"], &schema);
        let ann = AuthzId { number: Some(EntryNumber(7)), key: "cn=ann,o=site".into(), ..AuthzId::default() };
        let check = |number, attribute: &str, expected| {
            let kind = schema.attribute(attribute).expect("standard");
            assert_eq!(access.level(&ann, &entry(number, "cn=x,o=site"), Some(kind)), expected, "{attribute}");
        };
        check(8, "mail", Level::Read);
        check(8, "mobile", Level::None);
        check(8, "tocsinDevice", Level::None);
        check(8, "scimDetails", Level::None);
        check(7, "tocsinDevice", Level::Read);
        check(7, "mail", Level::Write);
        assert!(!access.grant_at(&ann, "cn=x,o=site", None).reads_all());
        let own = entry(7, "cn=ann,o=site");
        let details = schema.attribute("scimDetails").expect("standard");
        let access = Access::read(&[], &schema).expect("the default rules");
        assert_eq!(access.level(&ann, &own, Some(details)), Level::Read, "roles are assigned by SCIM");
        assert!(access.grant(&ann, &own).reads_all());
    }

    #[test]
    fn an_escaped_comma_does_not_separate_names() {
        let check = |key: &str, expected| assert_eq!(is_below(key, "ou=x,o=site"), expected, "{key}");
        check("cn=a,ou=x,o=site", true);
        check("cn=a\\\\,ou=x,o=site", true);
        check("cn=a\\,ou=x,o=site", false);
        check("cn=a\\\\\\,ou=x,o=site", false);
        check("ou=x,o=site", false);
        check("you=x,o=site", false);
        assert!(is_below("o=site", "") && !is_below("", ""));
        let check = |key: &str, expected| assert_eq!(is_child(key, "ou=x,o=site"), expected, "{key}");
        check("cn=a,ou=x,o=site", true);
        check("cn=a\\\\,ou=x,o=site", true);
        check("cn=a\\,b,ou=x,o=site", true);
        check("cn=a\\\\,ou=b,ou=x,o=site", false);
        check("cn=a,cn=b,ou=x,o=site", false);
        check("ou=x,o=site", false);
        check("o=site", false);
    }

    #[test]
    fn cached_rights_are_dropped_after_a_rename() {
        let schema = Schema::standard();
        let rules = ["to dn=\"ou=secret,o=site\" by * none", "to * by * read"].map(str::to_owned);
        let access = Access::read(&rules, &schema).expect("rules");
        let (requester, mut grants) = (AuthzId::default(), Grants::default());
        let level = |grants: &mut Grants, key: &str| grants.of(&access, &requester, &entry(8, key)).level(None);
        assert_eq!(level(&mut grants, "cn=bob,ou=open,o=site"), Level::Read);
        grants.clear_if_renamed(EntryCacheGeneration::default());
        assert_eq!(level(&mut grants, "cn=bob,ou=secret,o=site"), Level::Read, "its container has the same number");
        grants.clear_if_renamed(crate::entry_cache::EntryCache::new(0).next_generation());
        assert_eq!(level(&mut grants, "cn=bob,ou=secret,o=site"), Level::None);
    }

    #[test]
    fn malformed_rules_are_rejected_with_a_reason() {
        let check = |text: &str, expected: &str| {
            let error = Access::read(&[text.to_owned()], &Schema::standard()).expect_err("wrong");
            assert!(error.contains(expected), "{error}");
        };
        check("by * read", "does not begin with `to`");
        check("to * by", "nothing after `by`");
        check("to *", "no `by`");
        check("to * by * rule", "the levels are none, auth");
        check("to attrs=nothing by * read", "there is no attribute `nothing`");
        check("to dn=x by * read", "not a distinguished name");
        check("to \"dn=o=x by * read", "quotation mark");
        check("to * by * read read", "where `by` or the end of the rule");
    }
}
