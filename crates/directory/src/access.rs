//! Who may do what: rules over containers and attributes.
//!
//! A rule reads `to <what> by <who> <level> …`; the first rule that an attribute of an entry meets decides, and in it the
//! first `by` that the asker meets; who meets none may do nothing. What a rule says of an asker and a container is worked
//! out once and then looked up; looking up takes no lock.

use std::{collections::HashMap, sync::Arc};

use crate::{
    dn::Dn,
    entry::{Attribute, Entry},
    kept::Moment,
    schema::{AttributeType, Schema},
    standing::BoundIdentity,
};
use tocsin_store::entries::EntryNumber;

/// What one may do. Each includes those before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Nothing, not even know that it is there.
    None,
    /// Prove who one is with it.
    Auth,
    /// Compare a value.
    Compare,
    /// Ask for it in a filter.
    Search,
    /// See it.
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

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Asker {
    /// The entry, if it is one.
    pub number: Option<EntryNumber>,
    /// Its name, in normal form; empty for whoever did not say.
    pub key: String,
    /// The same as it was written.
    pub dn: String,
    /// Whether rules are not asked: an operator with a key of the API.
    pub manages: bool,
    /// Whether it has to change its password before it may do anything else.
    pub must_change: bool,
    /// The names of the groups and roles it is in, in normal form, if any rule names one.
    pub groups: Vec<String>,
    /// Containers, by their names in normal form, below which it may do everything, and nothing elsewhere: an operator with a key
    /// that is limited to them. Rules are not asked then.
    pub within: Vec<String>,
    /// The state of its bind, if it is an entry that bound.
    pub standing: Option<Arc<BoundIdentity>>,
}

impl Asker {
    /// Whether it proved who it is.
    pub fn is_known(&self) -> bool {
        self.manages || !self.key.is_empty()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Who {
    Everybody,
    Anonymous,
    Users,
    Itself,
    Name(String),
    Group(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Where {
    Anywhere,
    Exactly(String),
    Below(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Clause {
    within: Where,
    /// Keys of attributes; empty: all.
    attributes: Vec<Arc<str>>,
    by: Vec<(Who, Level)>,
}

/// The rules, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access(Vec<Clause>);

/// The pseudo-attribute of an entry itself: whether it is seen, renamed and removed.
const ENTRY: &str = "entry";
/// The pseudo-attribute of the place below an entry: whether entries are made there or moved there.
const CHILDREN: &str = "children";

/// The rules where none are configured: every bound user reads all entries and changes their own, and makes none.
pub const DEFAULT_RULES: &[&str] =
    &["to attrs=userPassword by self write by * auth", "to * by self write by users read by * none"];

impl Access {
    /// Reads rules; of none, the [`DEFAULT_RULES`].
    ///
    /// # Errors
    /// Which rule cannot be read, and why.
    pub fn read(rules: &[String], schema: &Schema) -> Result<Access, String> {
        let read = |text: &str| clause(text, schema).map_err(|why| format!("`{text}` {why}"));
        match rules {
            [] => DEFAULT_RULES.iter().map(|text| read(text)).collect::<Result<_, _>>().map(Access),
            rules => rules.iter().map(|text| read(text)).collect::<Result<_, _>>().map(Access),
        }
    }

    /// What an asker may do with an attribute of an entry; with `None`, with the entry itself.
    pub fn level(&self, asker: &Asker, entry: &Entry, kind: Option<&AttributeType>) -> Level {
        if asker.manages {
            return Level::Write;
        }
        self.grant(asker, entry).level(kind)
    }

    /// What an asker may do with an entry, worked out: the same for all entries of a container that no rule names, but for
    /// the asker's own.
    pub fn grant(&self, asker: &Asker, entry: &Entry) -> Grant {
        self.grant_at(asker, &entry.key, Some(entry.number))
    }

    /// The same for a name in normal form. `number`: that of the entry; `None`: it is about to be made there.
    pub(crate) fn grant_at(&self, asker: &Asker, key: &str, number: Option<EntryNumber>) -> Grant {
        if asker.manages {
            return Grant::of(Vec::new(), Level::Write, Level::Write);
        }
        if !asker.within.is_empty() {
            return Grant::within(&asker.within, key);
        }
        let mut special: Vec<(Arc<str>, Level)> = Vec::new();
        for clause in &self.0 {
            if !clause.within.has(key) {
                continue;
            }
            let meets = |who: &Who| match who {
                Who::Everybody => true,
                Who::Anonymous => asker.key.is_empty(),
                Who::Users => !asker.key.is_empty(),
                Who::Itself => number.is_some() && asker.number == number,
                Who::Name(key) => asker.key == *key,
                Who::Group(key) => asker.groups.contains(key),
            };
            let level_by = |is_meant: &dyn Fn(&Who) -> bool| {
                clause.by.iter().find(|(who, _)| is_meant(who)).map_or(Level::None, |(_, level)| *level)
            };
            let level = level_by(&meets);
            if clause.attributes.is_empty() {
                // The right to change the own entry does not include entries below it, unless a rule says so of `children`.
                let children = level_by(&|who| *who != Who::Itself && meets(who));
                return Grant::of(special, level, children);
            }
            let new = clause.attributes.iter().filter(|key| !special.iter().any(|(known, _)| known == *key));
            special.extend(new.map(|key| (key.clone(), level)).collect::<Vec<_>>());
        }
        Grant::of(special, Level::None, Level::None)
    }

    /// Whether these rules could hide an entry from an asker.
    pub fn may_hide(&self, asker: &Asker) -> bool {
        let sees_others = || self.grant_at(asker, "", None).sees();
        let sees_itself = || asker.number.is_none() || self.grant_at(asker, &asker.key, asker.number).sees();
        !asker.manages && (!asker.within.is_empty() || self.names_entries() || !sees_others() || !sees_itself())
    }

    /// Whether a rule gives rights to the holder of a name in normal form or of one below it, or to the members of a group there.
    pub(crate) fn gives_to(&self, key: &str) -> bool {
        let by = self.0.iter().flat_map(|clause| &clause.by);
        by.filter_map(|(who, _)| match who {
            Who::Name(name) | Who::Group(name) => Some(name),
            Who::Everybody | Who::Anonymous | Who::Users | Who::Itself => None,
        })
        .any(|name| name == key || is_below(name, key))
    }

    /// Whether a rule is for the place of a name in normal form, or for one below it.
    pub(crate) fn names_place(&self, key: &str) -> bool {
        self.0.iter().any(|clause| match &clause.within {
            Where::Exactly(name) | Where::Below(name) => name == key || is_below(name, key),
            Where::Anywhere => false,
        })
    }

    /// Whether a rule names a group or a role.
    pub(crate) fn names_groups(&self) -> bool {
        self.0.iter().flat_map(|clause| &clause.by).any(|(who, _)| matches!(who, Who::Group(_)))
    }

    /// Whether a rule names single entries, so that what holds for one does not hold for its siblings.
    fn names_entries(&self) -> bool {
        self.0.iter().any(|clause| clause.within != Where::Anywhere)
    }
}

/// What an asker may do with some entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    special: Vec<(Arc<str>, Level)>,
    else_: Level,
    /// With the place below the entry.
    children: Level,
    /// Whether an attribute that is shown to others may not be read.
    hides: bool,
}

impl Grant {
    fn of(special: Vec<(Arc<str>, Level)>, else_: Level, children: Level) -> Grant {
        let is_pseudo = |key: &str| matches!(key, "userpassword" | ENTRY | CHILDREN);
        let hides = special.iter().any(|(key, level)| !is_pseudo(key) && *level < Level::Read);
        let children = find(&special, CHILDREN).unwrap_or(children);
        Grant { special, else_, children, hides }
    }

    /// What an operator may do with an entry whose key is limited to containers: all below one, and of a container itself make
    /// entries below it and see it.
    fn within(containers: &[String], key: &str) -> Grant {
        if containers.iter().any(|container| is_below(key, container)) {
            return Grant::of(Vec::new(), Level::Write, Level::Write);
        }
        match containers.iter().any(|container| key == container) {
            true => Grant::of(Vec::new(), Level::Read, Level::Write),
            false => Grant::of(Vec::new(), Level::None, Level::None),
        }
    }

    /// All may be seen: what the server says of itself.
    pub fn open() -> Grant {
        Grant::of(Vec::new(), Level::Read, Level::None)
    }

    /// Whether anything of it may be seen, and so that it is there.
    pub fn sees(&self) -> bool {
        match find(&self.special, ENTRY) {
            Some(level) => level >= Level::Read,
            None => {
                let mut named = self.special.iter().filter(|(key, _)| &**key != CHILDREN);
                self.else_ >= Level::Read || named.any(|(_, level)| *level >= Level::Read)
            }
        }
    }

    /// With an attribute, or with the entry itself.
    pub fn level(&self, kind: Option<&AttributeType>) -> Level {
        let named = match kind {
            Some(kind) => {
                let meant = |(key, _): &&(Arc<str>, Level)| *key == kind.key || kind.kinds.contains(key);
                self.special.iter().find(meant).map(|(_, level)| *level)
            }
            None => find(&self.special, ENTRY),
        };
        named.unwrap_or(self.else_)
    }

    /// Whether entries may be made below it, or moved there.
    pub(crate) fn takes_children(&self) -> bool {
        self.children >= Level::Write
    }

    /// Whether all attributes but those that nobody ever sees may be read.
    pub fn reads_all(&self) -> bool {
        self.else_ >= Level::Read && !self.hides
    }

    /// Whether values of each kind of a type, of the type itself too, are open at a level.
    fn opens_kinds(&self, kind: &AttributeType, level: Level, schema: &Schema) -> bool {
        let closed =
            |key: &str| schema.attribute(key).is_ok_and(|known| known.is(kind) && self.level(Some(known)) < level);
        self.level(Some(kind)) >= level && (!self.hides || !self.special.iter().any(|(key, _)| closed(key)))
    }
}

fn find(special: &[(Arc<str>, Level)], key: &str) -> Option<Level> {
    special.iter().find(|(known, _)| &**known == key).map(|(_, level)| *level)
}

/// The rights by which attributes of one entry are read for an authorization identity: a grant, and the level that the use
/// needs. Filters, comparisons, sort keys, groups that search for members and assertions read entries through this alone.
#[derive(Debug, Clone, Copy)]
pub struct Rights<'a> {
    grant: &'a Grant,
    level: Level,
}

impl<'a> Rights<'a> {
    /// The rights of a use that needs `level`.
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

    /// Whether an attribute and all kinds of it may be used. Depends on the rules alone, never on the entry.
    pub(crate) fn opens_kinds(&self, kind: &AttributeType, schema: &Schema) -> bool {
        self.grant.opens_kinds(kind, self.level, schema)
    }

    /// Whether all attributes may be used but the password.
    pub(crate) fn opens_all(&self) -> bool {
        self.grant.else_ >= self.level && !self.grant.hides
    }

    /// The values of a type and of the kinds of it that may be used.
    pub fn values(self, entry: &'a Entry, kind: &'a AttributeType) -> impl Iterator<Item = &'a [u8]> {
        let opens_all = self.opens_all();
        let opens = move |found: &&Attribute| found.kind.is(kind) && (opens_all || self.opens(&found.kind));
        let meant = entry.attributes.iter().filter(opens);
        meant.flat_map(|found| found.values.iter().map(|value| &**value))
    }
}

/// What was worked out for one asker. Belongs to its connection, so nobody else waits for it.
#[derive(Debug, Default)]
pub struct Grants {
    /// The renaming before which they were worked out.
    as_of: Moment,
    by_parent: HashMap<Option<EntryNumber>, Arc<Grant>>,
    own: Option<Arc<Grant>>,
}

/// Most containers that one asker's grants are kept for.
const KEPT_MAX: usize = 4_096;

impl Grants {
    /// Forgets all if entries were renamed since they were worked out: other rules may hold where these stand now.
    pub fn follow(&mut self, renamed: Moment) {
        if self.as_of != renamed {
            *self = Grants { as_of: renamed, ..Grants::default() };
        }
    }

    /// What an asker may do with an entry.
    pub fn of(&mut self, access: &Access, asker: &Asker, entry: &Entry) -> Arc<Grant> {
        if !asker.within.is_empty() {
            return Arc::new(access.grant(asker, entry));
        }
        if access.names_entries() {
            // Rules name subtrees and entries by their names; siblings may differ.
            return self.cached_below(access, asker, entry);
        }
        if asker.number == Some(entry.number) {
            return self.own.get_or_insert_with(|| Arc::new(access.grant(asker, entry))).clone();
        }
        self.by_parent.entry(None).or_insert_with(|| Arc::new(access.grant(asker, entry))).clone()
    }

    fn cached_below(&mut self, access: &Access, asker: &Asker, entry: &Entry) -> Arc<Grant> {
        let is_named = access.0.iter().any(|clause| match &clause.within {
            Where::Exactly(key) | Where::Below(key) => *key == entry.key,
            Where::Anywhere => false,
        });
        if is_named || asker.number == Some(entry.number) || entry.parent.is_none() {
            return Arc::new(access.grant(asker, entry));
        }
        if self.by_parent.len() >= KEPT_MAX {
            self.by_parent.clear();
        }
        self.by_parent.entry(entry.parent).or_insert_with(|| Arc::new(access.grant(asker, entry))).clone()
    }
}

impl Where {
    /// What stands behind `to`, if it says where.
    pub(crate) fn read(word: &str, schema: &Schema) -> Result<Option<Where>, String> {
        Ok(match word.split_once('=') {
            _ if word == "*" => Some(Where::Anywhere),
            Some(("dn" | "dn.subtree", text)) => Some(Where::Below(name(text, schema)?)),
            Some(("dn.base", text)) => Some(Where::Exactly(name(text, schema)?)),
            _ => None,
        })
    }

    /// Whether the entry of a name in normal form is meant.
    pub(crate) fn has(&self, key: &str) -> bool {
        match self {
            Where::Anywhere => true,
            Where::Exactly(name) => key == name,
            Where::Below(name) => is_below(key, name) || key == name,
        }
    }
}

/// Whether a name in normal form is that of an entry below another.
pub fn is_below(key: &str, above: &str) -> bool {
    if above.is_empty() {
        return !key.is_empty();
    }
    // A comma after an odd number of backslashes belongs to a value.
    let start = key.strip_suffix(above).and_then(|start| start.strip_suffix(','));
    start.is_some_and(|start| start.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 0)
}

/// Whether a name in normal form is that of an entry right below another, which is not the root.
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

fn clause(text: &str, schema: &Schema) -> Result<Clause, String> {
    let words = words(text)?;
    let mut words = words.iter().map(String::as_str).peekable();
    if words.next() != Some("to") {
        return Err("does not begin with `to`".to_owned());
    }
    let mut clause = Clause { within: Where::Anywhere, attributes: Vec::new(), by: Vec::new() };
    while let Some(word) = words.next_if(|word| *word != "by") {
        if let Some(within) = Where::read(word, schema)? {
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
                        schema.attribute(attribute).map_err(|refusal| format!("says that {}", refusal.message))?;
                    clause.attributes.push(found.key.clone());
                }
            }
            _ => return Err(format!("has `{word}`; behind `to` stand `*`, `dn=…`, `dn.base=…` and `attrs=…`")),
        }
    }
    while words.next().is_some() {
        let who = match words.next() {
            Some("*") => Who::Everybody,
            Some("anonymous") => Who::Anonymous,
            Some("users") => Who::Users,
            Some("self") => Who::Itself,
            Some(word) => match word.split_once('=') {
                Some(("dn", text)) => Who::Name(name(text, schema)?),
                // A role is filled by whom its entry names, as a group holds its members.
                Some(("group" | "role", text)) => Who::Group(name(text, schema)?),
                _ => {
                    return Err(format!(
                        "has `{word}`; behind `by` stand `*`, `anonymous`, `users`, `self`, `dn=…`, `group=…` and `role=…`"
                    ));
                }
            },
            None => return Err("has nothing behind `by`".to_owned()),
        };
        let word = words.next().unwrap_or_default();
        let level = Level::read(word);
        let levels = "none, auth, compare, search, read and write";
        clause.by.push((who, level.ok_or_else(|| format!("has the level `{word}`; the levels are {levels}"))?));
        if words.peek().is_some_and(|word| *word != "by") {
            return Err(format!("has `{}` where `by` or the end should stand", words.next().unwrap_or_default()));
        }
    }
    if clause.by.is_empty() { Err("has no `by`".to_owned()) } else { Ok(clause) }
}

/// A distinguished name in normal form.
fn name(text: &str, schema: &Schema) -> Result<String, String> {
    let dn = Dn::parse(text).map_err(|error| format!("names `{text}`, which is no distinguished name: {error}"))?;
    Ok(schema.normal_dn(&dn))
}

/// Words between spaces; within quotation marks spaces belong to a word.
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
        return Err("has a quotation mark without its partner".to_owned());
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
    fn the_first_rule_that_is_met_decides() {
        let schema = Schema::standard();
        let rules = [
            "to attrs=userPassword by self write by * auth",
            "to dn=\"ou=Admin,o=site\" by dn=\"cn=root,o=site\" write by group=\"cn=staff,o=site\" read",
            "to attrs=mail by self write by users read",
            "to * by users read by anonymous search",
        ];
        let access = Access::read(&rules.map(str::to_owned), &schema).expect("rules");
        let user = Asker { number: Some(EntryNumber(7)), key: "cn=ann,o=site".into(), ..Asker::default() };
        let staff = Asker { groups: vec!["cn=staff,o=site".into()], ..user.clone() };
        let check = |asker: &Asker, number, key: &str, attribute: &str, expected| {
            let kind = schema.attribute(attribute).expect("standard");
            assert_eq!(access.level(asker, &entry(number, key), Some(kind)), expected, "{key} {attribute}");
            let level = Grants::default().of(&access, asker, &entry(number, key)).level(Some(kind));
            assert_eq!(level, expected);
        };
        check(&user, 7, "cn=ann,o=site", "userPassword", Level::Write);
        check(&user, 8, "cn=bob,o=site", "userPassword", Level::Auth);
        check(&user, 7, "cn=ann,o=site", "mail", Level::Write);
        check(&user, 8, "cn=bob,o=site", "mail", Level::Read);
        check(&user, 8, "cn=bob,o=site", "cn", Level::Read);
        check(&Asker::default(), 8, "cn=bob,o=site", "cn", Level::Search);
        check(&Asker::default(), 8, "cn=bob,o=site", "mail", Level::None);
        check(&user, 9, "cn=x,ou=admin,o=site", "cn", Level::None);
        check(&staff, 9, "cn=x,ou=admin,o=site", "cn", Level::Read);
        check(&Asker { key: "cn=root,o=site".into(), ..user.clone() }, 9, "ou=admin,o=site", "cn", Level::Write);
        check(&Asker { manages: true, ..Asker::default() }, 9, "ou=admin,o=site", "cn", Level::Write);
        let within = vec!["ou=sales,o=site".to_owned()];
        let limited = Asker { key: "cn=admin,o=site".into(), within, ..Asker::default() };
        check(&limited, 9, "cn=bob,ou=sales,o=site", "userPassword", Level::Write);
        check(&limited, 9, "cn=x,ou=y,ou=sales,o=site", "cn", Level::Write);
        check(&limited, 9, "ou=sales,o=site", "cn", Level::Read);
        check(&limited, 9, "o=site", "cn", Level::None);
        check(&limited, 9, "cn=bob,ou=presales,o=site", "cn", Level::None);
        check(&limited, 9, "cn=a\\,ou=sales,o=site", "cn", Level::None);
        assert!(access.may_hide(&limited) && access.grant_at(&limited, "ou=sales,o=site", None).takes_children());
        assert!(!access.grant_at(&limited, "o=site", None).takes_children());
    }

    #[test]
    fn a_comma_in_a_value_parts_no_names() {
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
    fn what_was_worked_out_before_a_renaming_is_forgotten() {
        let schema = Schema::standard();
        let rules = ["to dn=\"ou=secret,o=site\" by * none", "to * by * read"].map(str::to_owned);
        let access = Access::read(&rules, &schema).expect("rules");
        let (asker, mut grants) = (Asker::default(), Grants::default());
        let level = |grants: &mut Grants, key: &str| grants.of(&access, &asker, &entry(8, key)).level(None);
        assert_eq!(level(&mut grants, "cn=bob,ou=open,o=site"), Level::Read);
        grants.follow(Moment::default());
        assert_eq!(level(&mut grants, "cn=bob,ou=secret,o=site"), Level::Read, "its container has the same number");
        grants.follow(crate::kept::Kept::new(0).next_moment());
        assert_eq!(level(&mut grants, "cn=bob,ou=secret,o=site"), Level::None);
    }

    #[test]
    fn rules_that_cannot_be_read_are_told() {
        let check = |text: &str, expected: &str| {
            let told = Access::read(&[text.to_owned()], &Schema::standard()).expect_err("wrong");
            assert!(told.contains(expected), "{told}");
        };
        check("by * read", "does not begin with `to`");
        check("to * by", "nothing behind `by`");
        check("to *", "no `by`");
        check("to * by * rule", "the levels are none, auth");
        check("to attrs=nothing by * read", "there is no attribute `nothing`");
        check("to dn=x by * read", "no distinguished name");
        check("to \"dn=o=x by * read", "quotation mark");
        check("to * by * read read", "where `by` or the end");
    }
}
