//! Groups: entries that hold others by their names, or by a search that finds them; groups of groups; and roles, which hold
//! whoever fills them.

use std::{
    collections::{BTreeSet, HashSet},
    ops::Bound,
    sync::Arc,
};

use tocsin_store::entries::{Branches, EntryKey, EntryNumber, Node};

use crate::{
    access::{Asker, Grant, Level, Rights, is_below},
    directory::{Directory, Inner},
    entry::{self, Attribute, Entry},
    filter::{Ask, Budget, Test},
    plan,
    refusal::{Code, Refusal},
    schema::{AttributeType, Schema},
    search::Scope,
    url::Meant,
};

/// Most groups that one entry is in.
pub(crate) const GROUPS_MAX: usize = 10_000;
/// Most groups that find their members.
pub(crate) const FINDING_MAX: usize = 1_000;
/// With more members than this, a search for those of a group looks at every entry.
const LOOKED_UP_MAX: usize = 1_000;
/// The attributes by which groups hold their members, and roles whoever fills them.
pub(crate) const MEMBERS: &[&str] = &["member", "uniquemember", "roleoccupant"];
/// Those of them that count as groups of an entry.
const GROUPS: &[&str] = &["member", "uniquemember"];
/// The attribute by which groups find their members.
pub(crate) const FINDING: &str = "memberurl";
/// The attribute of an entry that names its groups.
pub(crate) const MEMBER_OF: &str = "memberof";

/// Who is in a group.
#[derive(Debug, Clone, Default)]
pub struct Members {
    /// The names of those that it holds, in normal form.
    named: HashSet<Vec<u8>>,
    /// Their numbers, if they were looked up.
    pub(crate) numbers: Option<Vec<EntryNumber>>,
    found: Vec<Found>,
}

/// Those that a search finds.
#[derive(Debug, Clone)]
struct Found {
    base: String,
    scope: Scope,
    test: Test,
}

impl Members {
    /// Whether an entry is in the group, as far as the attributes by which the group searches are open.
    ///
    /// # Errors
    /// A filter by which the group finds its members takes too much work on this entry.
    pub(crate) fn has(
        &self,
        entry: &Entry,
        schema: &Schema,
        rights: Rights<'_>,
        budget: &Budget,
    ) -> Result<bool, Refusal> {
        if self.named.contains(entry.key.as_bytes()) {
            return Ok(true);
        }
        let mut found = self.found.iter();
        found.try_fold(false, |is, found| Ok(is || found.has(entry, schema, rights.grant(), budget)?))
    }
}

impl Found {
    fn has(&self, entry: &Entry, schema: &Schema, grant: &Grant, budget: &Budget) -> Result<bool, Refusal> {
        let is_within = match self.scope {
            Scope::Base => entry.key == self.base,
            Scope::One => is_below(&entry.key, &self.base) && is_child(&entry.key, &self.base),
            Scope::Subtree => entry.key == self.base || is_below(&entry.key, &self.base),
        };
        Ok(is_within && self.test.is_met_within(entry, schema, grant, budget)?)
    }
}

/// Whether one name in normal form has exactly one part more than another that it is below.
fn is_child(key: &str, above: &str) -> bool {
    let own = key.strip_suffix(above).and_then(|own| own.strip_suffix(',')).unwrap_or(key);
    crate::dn::Dn::parse(own).is_ok_and(|dn| dn.0.len() == 1)
}

impl Directory {
    /// The names in normal form of the groups and roles that an entry is in, also of groups in groups; none if no rule asks
    /// for them.
    ///
    /// # Errors
    /// Who is in which group cannot be told yet, since an index is being built; there are too many.
    pub(crate) async fn groups_of(&self, entry: &Entry) -> Result<Vec<String>, Refusal> {
        if !self.inner.access.names_groups() {
            return Ok(Vec::new());
        }
        let (inner, entry) = (self.inner.clone(), entry.clone());
        self.look(move |branches| {
            inner.knows_groups()?;
            inner.groups_above(branches, &entry)
        })
        .await
    }

    /// The `memberOf` of an entry: the groups that hold it themselves, or find it, as far as the asker may read of each group how it
    /// does so; `None`: there are none.
    ///
    /// # Errors
    /// As for a search by `memberOf`.
    pub async fn member_of(&self, asker: &Asker, entry: &Entry) -> Result<Option<Attribute>, Refusal> {
        let (inner, asker, entry) = (self.inner.clone(), asker.clone(), entry.clone());
        self.look(move |branches| {
            inner.knows_groups()?;
            let shows = |group: &Entry, kind: &AttributeType| inner.opens(&asker, group, kind, Level::Read);
            let grant = inner.access.grant(&asker, &entry);
            let mut groups = inner.holding(branches, GROUPS, &entry.key, &shows)?;
            groups.extend(inner.finding(branches, &entry, &grant, &shows)?);
            let names: BTreeSet<String> = groups.into_iter().map(|group| group.dn).collect();
            let kind = inner.schema.load().attribute(MEMBER_OF)?.clone();
            let values: Vec<Box<[u8]>> = names.iter().map(|dn| dn.as_bytes().into()).collect();
            Ok((!values.is_empty()).then(|| Attribute { kind, values: values.into() }))
        })
        .await
    }

    /// Whether a group holds each of some names by an attribute, as its index says; `None`: the index does not say it of all.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn holds(
        &self,
        group: EntryNumber,
        attribute: &str,
        names: &[String],
    ) -> Result<Option<Vec<bool>>, Refusal> {
        let (inner, names) = (self.inner.clone(), names.to_vec());
        let kind = self.schema().attribute(attribute)?.clone();
        self.look(move |branches| {
            let schema = inner.schema.load();
            if !inner.ready.load().contains(&*kind.key) {
                return Ok(None);
            }
            let mut held = Vec::with_capacity(names.len());
            for name in names {
                let normal = kind.equality.and_then(|rule| rule.normal(name.as_bytes(), &schema));
                let Some(normal) = normal.filter(|normal| plan::is_whole(normal)) else { return Ok(None) };
                let key = EntryKey { index: kind.key.clone(), key: normal.into() };
                held.push(branches.is_found(&key, group)?);
            }
            Ok(Some(held))
        })
        .await
    }

    /// Finds the members of the groups that a filter asks for, so that it can be held against entries.
    ///
    /// # Errors
    /// Who is in which group cannot be told yet; a group has too many members to be looked at.
    pub(crate) async fn with_members(&self, asker: &Asker, test: Test) -> Result<Test, Refusal> {
        if !test.has(&Test::asks_for_groups) {
            return Ok(test);
        }
        let (inner, asker) = (self.inner.clone(), asker.clone());
        self.look(move |branches| {
            inner.knows_groups()?;
            test.with(&mut |part| match part {
                Test::Of(kind, Ask::Equal(_, group)) if &*kind.key == MEMBER_OF => {
                    Ok(Test::MemberOf(kind, Arc::new(inner.members(branches, &asker, &group)?)))
                }
                other => Ok(other),
            })
        })
        .await
    }
}

impl Inner {
    /// Without its groups an asker would be refused some things, and allowed others that a rule denies to a group.
    pub(crate) fn knows_groups(&self) -> Result<(), Refusal> {
        let ready = self.ready.load();
        match MEMBERS.iter().chain([&FINDING]).all(|index| ready.contains(*index)) {
            true => Ok(()),
            false => Err(Refusal::new(Code::Busy, "the index of groups is being built; try again in a moment")),
        }
    }

    /// Whether an asker may use an attribute of an entry that it sees.
    fn opens(&self, asker: &Asker, entry: &Entry, kind: &AttributeType, level: Level) -> bool {
        let grant = self.access.grant(asker, entry);
        grant.sees() && Rights::new(&grant, level).opens(kind)
    }

    /// The groups of an entry for the access rules, which see all of it.
    fn groups_above(&self, branches: &dyn Branches, entry: &Entry) -> Result<Vec<String>, Refusal> {
        let every = |_: &Entry, _: &AttributeType| true;
        let finding = self.finding(branches, entry, &Grant::open(), &every)?;
        let mut known: BTreeSet<String> = finding.into_iter().map(|group| group.key).collect();
        let mut open: Vec<String> = known.iter().cloned().chain([entry.key.clone()]).collect();
        while let Some(member) = open.pop() {
            for group in self.holding(branches, MEMBERS, &member, &every)? {
                // A group in itself, by whatever way, is looked at once.
                if known.insert(group.key.clone()) {
                    open.push(group.key);
                }
            }
            if known.len() > GROUPS_MAX {
                return Err(too_many());
            }
        }
        Ok(known.into_iter().collect())
    }

    /// The groups that hold exactly this name. `shows`: whether a group counts that holds it by an attribute.
    pub(crate) fn holding(
        &self,
        branches: &dyn Branches,
        by: &[&str],
        member: &str,
        shows: &dyn Fn(&Entry, &AttributeType) -> bool,
    ) -> Result<Vec<Entry>, Refusal> {
        let schema = self.schema.load();
        let mut groups = Vec::new();
        for index in by {
            let kind = schema.attribute(index)?;
            let key = Bound::Included(plan::cut(member.as_bytes()));
            for number in branches.found(index, key, key, GROUPS_MAX)?.ok_or_else(too_many)? {
                if plan::is_whole(member.as_bytes()) {
                    // The key says it all, so the other members need not be read.
                    groups.extend(self.seen_head(branches, number)?.filter(|group| shows(group, kind)));
                    continue;
                }
                let Some(group) = self.seen(branches, number)? else { continue };
                let normal = |value: &[u8]| kind.equality.and_then(|rule| rule.normal(value, &schema));
                // Long names share a key.
                let holds = group.values(kind).any(|value| normal(value).as_deref() == Some(member.as_bytes()));
                if holds && shows(&group, kind) {
                    groups.push(group);
                }
            }
        }
        Ok(groups)
    }

    /// The groups that find an entry under a grant.
    fn finding(
        &self,
        branches: &dyn Branches,
        entry: &Entry,
        grant: &Grant,
        shows: &dyn Fn(&Entry, &AttributeType) -> bool,
    ) -> Result<Vec<Entry>, Refusal> {
        let many = || {
            let what = format!("there are more than {FINDING_MAX} groups with memberURL");
            Refusal::new(Code::AdminLimitExceeded, what)
        };
        let schema = self.schema.load();
        let all = branches.found(FINDING, Bound::Unbounded, Bound::Unbounded, FINDING_MAX)?.ok_or_else(many)?;
        let (mut groups, budget, kind) = (Vec::new(), Budget::default(), schema.attribute(FINDING)?);
        for number in all {
            let Some(group) = self.seen(branches, number)? else { continue };
            let mut holds = false;
            for found in found_by(&group, &schema) {
                holds = holds || found.has(entry, &schema, grant, &budget)?;
            }
            if holds && shows(&group, kind) {
                groups.push(group);
            }
        }
        Ok(groups)
    }

    /// An entry without the values that are rows.
    fn seen_head(&self, branches: &dyn Branches, number: EntryNumber) -> Result<Option<Entry>, Refusal> {
        let Some(node) = branches.head(number)? else { return Ok(None) };
        self.shown(branches, &node).map(Some)
    }

    fn seen(&self, branches: &dyn Branches, number: EntryNumber) -> Result<Option<Entry>, Refusal> {
        let Some(node) = branches.node(number)? else { return Ok(None) };
        self.shown(branches, &node).map(Some)
    }

    fn shown(&self, branches: &dyn Branches, node: &Node) -> Result<Entry, Refusal> {
        let above = self.above(branches, node)?;
        Ok(entry::view(node, above.as_deref(), &self.schema.load(), &self.shape))
    }

    /// The members of a group, as far as the asker may search by them. A group that is hidden is as one that there is not.
    fn members(&self, branches: &dyn Branches, asker: &Asker, group: &[u8]) -> Result<Members, Refusal> {
        let schema = self.schema.load();
        let Ok(dn) = crate::directory::parse(&String::from_utf8_lossy(group)) else { return Ok(Members::default()) };
        let none = || Ok(Members { numbers: Some(Vec::new()), ..Members::default() });
        let node = match self.walk(branches, &dn) {
            Ok((node, _)) => node,
            // A group that does not exist has no members.
            Err(refusal) if refusal.code == Code::NoSuchObject => return none(),
            Err(refusal) => return Err(refusal),
        };
        let group = self.shown(branches, &node)?;
        let grant = self.access.grant(asker, &group);
        if !grant.sees() {
            return none();
        }
        let rights = Rights::new(&grant, Level::Search);
        let mut named = HashSet::new();
        for name in GROUPS {
            let kind = schema.attribute(name)?;
            if !rights.opens(kind) {
                continue;
            }
            named.extend(group.values(kind).filter_map(|value| kind.equality?.normal(value, &schema)));
        }
        let found = match rights.opens(schema.attribute(FINDING)?) {
            true => found_by(&group, &schema),
            false => Vec::new(),
        };
        let numbers = match found.is_empty() && named.len() <= LOOKED_UP_MAX {
            true => Some(self.numbers(branches, &named)?),
            false => None,
        };
        Ok(Members { named, numbers, found })
    }

    fn numbers(&self, branches: &dyn Branches, named: &HashSet<Vec<u8>>) -> Result<Vec<EntryNumber>, Refusal> {
        let mut numbers = BTreeSet::new();
        for name in named {
            let Ok(dn) = crate::directory::parse(&String::from_utf8_lossy(name)) else { continue };
            match self.walk(branches, &dn) {
                Ok((node, _)) => drop(numbers.insert(node.number())),
                // Members that went stay in their groups until somebody removes them.
                Err(refusal) if refusal.code == Code::NoSuchObject => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(numbers.into_iter().collect())
    }
}

/// Whom the URLs of a group mean; one that cannot be read means nobody.
fn found_by(group: &Entry, schema: &Schema) -> Vec<Found> {
    let urls = group.attribute(FINDING).into_iter().flat_map(|attribute| &*attribute.values);
    let meant = urls.filter_map(|url| Meant::read(std::str::from_utf8(url).ok()?).ok());
    let found = meant.map(|meant| Found {
        base: schema.normal_dn(&meant.base),
        scope: meant.scope,
        test: Test::compile(&meant.filter, schema),
    });
    found.collect()
}

pub(crate) fn too_many() -> Refusal {
    Refusal::new(Code::AdminLimitExceeded, format!("an entry is in at most {GROUPS_MAX} groups"))
}
