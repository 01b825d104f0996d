//! Groups and roles: static groups (`member`), dynamic groups (`memberURL`), nested groups, and roles (`roleOccupant`).

use std::{
    collections::{BTreeSet, HashSet},
    ops::Bound,
    sync::Arc,
};

use tocsin_store::entries::{EntryKey, EntryNode, EntryNumber, EntryReader};

use crate::{
    access::{AuthzId, Grant, Level, Rights},
    directory::Directory,
    entry::{self, Attribute, Entry},
    filter::{AttributeAssertion, Budget, Test},
    ldap_error::{Code, LdapError},
    membership::{MemberSearch, Members},
    plan,
    schema::{AttributeType, FINDING, MEMBER_OF, MEMBERS, Schema},
    tree::{Inner, parse},
    url::LdapUrlSearch,
};

/// Maximum groups of one entry.
pub(crate) const GROUPS_MAX: usize = 10_000;
/// Maximum dynamic groups.
pub(crate) const FINDING_MAX: usize = 1_000;
/// Maximum members of a group that a search looks up by name; with more, it scans all entries.
const LOOKED_UP_MAX: usize = 1_000;
/// Member attributes that count for `memberOf`.
const GROUPS: &[&str] = &["member", "uniquemember"];

impl Directory {
    /// Normalized DNs of the groups and roles of an entry, nested ones included; empty if no access rule names a group.
    ///
    /// # Errors
    /// The index of groups is still being built, or there are too many groups.
    pub(crate) async fn groups_of(&self, entry: &Entry) -> Result<Vec<String>, LdapError> {
        if !self.inner.access.names_groups() {
            return Ok(Vec::new());
        }
        let (inner, entry) = (self.inner.clone(), entry.clone());
        self.read(move |branches| {
            inner.require_group_index()?;
            inner.groups_above(branches, &entry)
        })
        .await
    }

    /// The `memberOf` attribute: groups that list or find the entry, as far as the requester may read how; `None`:
    /// there are none.
    ///
    /// # Errors
    /// As for a search by `memberOf`.
    pub async fn member_of(&self, requester: &AuthzId, entry: &Entry) -> Result<Option<Attribute>, LdapError> {
        let (inner, requester, entry) = (self.inner.clone(), requester.clone(), entry.clone());
        self.read(move |branches| {
            inner.require_group_index()?;
            let discloses = |group: &Entry, kind: &AttributeType| inner.opens(&requester, group, kind, Level::Read);
            let grant = inner.access.grant(&requester, &entry);
            let mut groups = inner.groups_listing(branches, GROUPS, &entry.key, &discloses)?;
            groups.extend(inner.finding(branches, &entry, &grant, &discloses)?);
            let names: BTreeSet<String> = groups.into_iter().map(|group| group.dn).collect();
            let kind = inner.schema.load().attribute(MEMBER_OF)?.clone();
            let values: Vec<Box<[u8]>> = names.iter().map(|dn| dn.as_bytes().into()).collect();
            Ok((!values.is_empty()).then(|| Attribute { kind, values: values.into() }))
        })
        .await
    }

    /// Whether an attribute of a group lists each of these names, by its index; `None`: the index cannot decide for
    /// all.
    ///
    /// # Errors
    /// The store fails.
    pub async fn holds(
        &self,
        group: EntryNumber,
        attribute: &str,
        names: &[String],
    ) -> Result<Option<Vec<bool>>, LdapError> {
        let (inner, names) = (self.inner.clone(), names.to_vec());
        let kind = self.schema().attribute(attribute)?.clone();
        self.read(move |branches| {
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

    /// Resolves the members of the groups in a filter, so that the filter can be evaluated on entries.
    ///
    /// # Errors
    /// The index of groups is still being built, or a group has too many members.
    pub(crate) async fn with_members(&self, requester: &AuthzId, test: Test) -> Result<Test, LdapError> {
        if !test.has(&Test::tests_group_membership) {
            return Ok(test);
        }
        let (inner, requester) = (self.inner.clone(), requester.clone());
        self.read(move |branches| {
            inner.require_group_index()?;
            test.with(&mut |part| match part {
                Test::Of(kind, AttributeAssertion::Equal(_, group)) if &*kind.key == MEMBER_OF => {
                    Ok(Test::MemberOf(kind, Arc::new(inner.members(branches, &requester, &group)?)))
                }
                other => Ok(other),
            })
        })
        .await
    }
}

impl Inner {
    /// Rejects the request while the index of groups is incomplete: without groups, access decisions would be wrong.
    pub(crate) fn require_group_index(&self) -> Result<(), LdapError> {
        let ready = self.ready.load();
        match MEMBERS.iter().chain([&FINDING]).all(|index| ready.contains(*index)) {
            true => Ok(()),
            false => Err(LdapError::new(Code::Busy, "the index of groups is being built; try again in a moment")),
        }
    }

    /// Whether the requester may use an attribute of a visible entry.
    fn opens(&self, requester: &AuthzId, entry: &Entry, kind: &AttributeType, level: Level) -> bool {
        let grant = self.access.grant(requester, entry);
        grant.may_disclose() && Rights::new(&grant, level).opens(kind)
    }

    /// Groups of an entry for access rules, which ignore visibility.
    fn groups_above(&self, branches: &dyn EntryReader, entry: &Entry) -> Result<Vec<String>, LdapError> {
        let every = |_: &Entry, _: &AttributeType| true;
        let finding = self.finding(branches, entry, &Grant::open(), &every)?;
        let mut known: BTreeSet<String> = finding.into_iter().map(|group| group.key).collect();
        let mut open: Vec<String> = known.iter().cloned().chain([entry.key.clone()]).collect();
        while let Some(member) = open.pop() {
            for group in self.groups_listing(branches, MEMBERS, &member, &every)? {
                // A cycle of groups is visited once.
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

    /// Groups that list exactly this name. `discloses`: whether a group that lists it by an attribute counts.
    pub(crate) fn groups_listing(
        &self,
        branches: &dyn EntryReader,
        by: &[&str],
        member: &str,
        discloses: &dyn Fn(&Entry, &AttributeType) -> bool,
    ) -> Result<Vec<Entry>, LdapError> {
        let schema = self.schema.load();
        let mut groups = Vec::new();
        for index in by {
            let kind = schema.attribute(index)?;
            let key = Bound::Included(plan::cut(member.as_bytes()));
            for number in branches.found(index, key, key, GROUPS_MAX)?.ok_or_else(too_many)? {
                if plan::is_whole(member.as_bytes()) {
                    // The index key identifies the member, so the other members are not read.
                    let group = self.seen_head(branches, number)?;
                    groups.extend(group.filter(|group| is_group(group, kind, &schema) && discloses(group, kind)));
                    continue;
                }
                let Some(group) = self.seen(branches, number)? else { continue };
                let normal = |value: &[u8]| kind.equality.and_then(|rule| rule.normal(value, &schema));
                // Long names can share an index key.
                let holds = group.values(kind).any(|value| normal(value).as_deref() == Some(member.as_bytes()));
                if holds && is_group(&group, kind, &schema) && discloses(&group, kind) {
                    groups.push(group);
                }
            }
        }
        Ok(groups)
    }

    /// Dynamic groups that find an entry, under a grant.
    fn finding(
        &self,
        branches: &dyn EntryReader,
        entry: &Entry,
        grant: &Grant,
        discloses: &dyn Fn(&Entry, &AttributeType) -> bool,
    ) -> Result<Vec<Entry>, LdapError> {
        let many = || {
            let what = format!("there are more than {FINDING_MAX} groups with memberURL");
            LdapError::new(Code::AdminLimitExceeded, what)
        };
        let schema = self.schema.load();
        let all = branches.found(FINDING, Bound::Unbounded, Bound::Unbounded, FINDING_MAX)?.ok_or_else(many)?;
        let (mut groups, budget, kind) = (Vec::new(), Budget::default(), schema.attribute(FINDING)?);
        for number in all {
            let Some(group) = self.seen(branches, number)?.filter(|group| is_group(group, kind, &schema)) else {
                continue;
            };
            let mut holds = false;
            for found in found_by(&group, &schema) {
                holds = holds || found.has(entry, &schema, grant, &budget)?;
            }
            if holds && discloses(&group, kind) {
                groups.push(group);
            }
        }
        Ok(groups)
    }

    /// The entry without its row-stored values.
    fn seen_head(&self, branches: &dyn EntryReader, number: EntryNumber) -> Result<Option<Entry>, LdapError> {
        let Some(node) = branches.head(number)? else { return Ok(None) };
        self.shown(branches, &node).map(Some)
    }

    fn seen(&self, branches: &dyn EntryReader, number: EntryNumber) -> Result<Option<Entry>, LdapError> {
        let Some(node) = branches.node(number)? else { return Ok(None) };
        self.shown(branches, &node).map(Some)
    }

    fn shown(&self, branches: &dyn EntryReader, node: &EntryNode) -> Result<Entry, LdapError> {
        let above = self.above(branches, node)?;
        Ok(entry::view(node, above.as_deref(), &self.schema.load(), &self.shape))
    }

    /// Members of a group, as far as the requester may search them. A hidden group counts as missing.
    fn members(&self, branches: &dyn EntryReader, requester: &AuthzId, group: &[u8]) -> Result<Members, LdapError> {
        let schema = self.schema.load();
        let Ok(dn) = parse(&String::from_utf8_lossy(group)) else { return Ok(Members::default()) };
        let none = || Ok(Members { numbers: Some(Vec::new()), ..Members::default() });
        let node = match self.walk(branches, &dn) {
            Ok((node, _)) => node,
            // A missing group has no members.
            Err(refusal) if refusal.code == Code::NoSuchObject => return none(),
            Err(refusal) => return Err(refusal),
        };
        let group = self.shown(branches, &node)?;
        let grant = self.access.grant(requester, &group);
        if !grant.may_disclose() {
            return none();
        }
        let rights = Rights::new(&grant, Level::Search);
        let mut named = HashSet::new();
        for name in GROUPS {
            let kind = schema.attribute(name)?;
            if !rights.opens(kind) || !is_group(&group, kind, &schema) {
                continue;
            }
            named.extend(group.values(kind).filter_map(|value| kind.equality?.normal(value, &schema)));
        }
        let finding = schema.attribute(FINDING)?;
        let found = match rights.opens(finding) && is_group(&group, finding, &schema) {
            true => found_by(&group, &schema),
            false => Vec::new(),
        };
        let numbers = match found.is_empty() && named.len() <= LOOKED_UP_MAX {
            true => Some(self.numbers(branches, &named)?),
            false => None,
        };
        Ok(Members { named, numbers, found })
    }

    fn numbers(&self, branches: &dyn EntryReader, named: &HashSet<Vec<u8>>) -> Result<Vec<EntryNumber>, LdapError> {
        let mut numbers = BTreeSet::new();
        for name in named {
            let Ok(dn) = parse(&String::from_utf8_lossy(name)) else { continue };
            match self.walk(branches, &dn) {
                Ok((node, _)) => drop(numbers.insert(node.number())),
                // A group keeps deleted members until they are removed from it.
                Err(refusal) if refusal.code == Code::NoSuchObject => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(numbers.into_iter().collect())
    }
}

/// Whether an entry that lists members by this attribute is a group. The API stores attributes of any name.
fn is_group(entry: &Entry, kind: &AttributeType, schema: &Schema) -> bool {
    schema.may_list(&entry.classes(), kind)
}

/// Searches of a dynamic group; a malformed URL finds no entry.
fn found_by(group: &Entry, schema: &Schema) -> Vec<MemberSearch> {
    let urls = group.attribute(FINDING).into_iter().flat_map(|attribute| &*attribute.values);
    let meant = urls.filter_map(|url| LdapUrlSearch::read(std::str::from_utf8(url).ok()?).ok());
    let found = meant.map(|meant| MemberSearch {
        base: schema.normal_dn(&meant.base),
        scope: meant.scope,
        test: Test::compile(&meant.filter, schema),
    });
    found.collect()
}

pub(crate) fn too_many() -> LdapError {
    LdapError::new(Code::AdminLimitExceeded, format!("an entry is in at most {GROUPS_MAX} groups"))
}
