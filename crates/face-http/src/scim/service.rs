//! SCIM operations: create, read, change and delete resources. Each change is one commit of the directory.

use std::sync::{Arc, LazyLock};

use axum::http::StatusCode;
use serde_json::{Value as Json, json};
use tocsin_directory::{
    CachedEntry, Directory, Modification, ModifyType, Preconditions, RawAttribute, ReadEntries, Revision,
    access::AuthzId,
    dn::escape,
    entry::Entry,
    ldap_error::{Code, LdapError},
};
use tocsin_service::turns::Turns;
use tocsin_store::entries::EntryNumber;

use super::{
    body::{self, Resource},
    error::ScimError,
    filter::Work,
    group, patch,
    schema::{ENTERPRISE, GROUP, ResourceType, USER},
    selection::Selection,
    user,
};

/// Most members that come and go by themselves in one request. With more, all members are looked at.
const COME_AND_GO_MAX: usize = 1_000;
/// Turns of changes by SCIM. Changes by LDAP and the API take none, and can force a retry.
static TURNS: LazyLock<Turns> = LazyLock::new(Turns::default);
/// Parent of new groups, below the first entry.
const GROUPS: &str = "ou=groups";

/// The operations, with the authorization of one request.
pub(super) struct ScimService {
    pub(super) directory: Directory,
    /// The base URL of the service as used by the client.
    pub(super) base: String,
    /// The authorization identity; API keys act as operators.
    pub(super) requester: AuthzId,
}

/// The revision that the client expects.
pub(super) enum Tag {
    Any,
    /// One of these; tags that are none of ours are left out.
    Revisions(Vec<u64>),
}

impl Tag {
    /// Reads `W/"7"`, `"7"`, several of them with commas between, or `*`.
    pub(super) fn read(text: &str) -> Tag {
        if text.trim() == "*" {
            return Tag::Any;
        }
        let revision = |tag: &str| {
            let tag = tag.trim();
            let digits = tag.strip_prefix("W/").unwrap_or(tag).strip_prefix('"')?.strip_suffix('"')?;
            let is_ours = digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|_| is_ours)
        };
        Tag::Revisions(text.split(',').filter_map(revision).collect())
    }

    pub(super) fn names(&self, entry: &Entry) -> bool {
        match self {
            Tag::Any => true,
            Tag::Revisions(revisions) => revisions.contains(&entry.revision),
        }
    }
}

/// A change of a resource.
pub(super) enum Change {
    /// It is this.
    Whole(Resource),
    /// Some attributes change (PATCH).
    Parts(Vec<patch::Operation>),
}

/// The tag of an entry.
pub(super) fn tag(entry: &Entry) -> String {
    format!("W/\"{}\"", entry.revision)
}

/// Whether an entry is a resource of a kind.
pub(super) fn is_of(kind: &ResourceType, entry: &Entry) -> bool {
    match kind.name {
        "User" => entry.number.subscriber().is_some(),
        _ => entry.number.subscriber().is_none() && group::KINDS.iter().any(|class| group::is_of_class(entry, class)),
    }
}

impl ScimService {
    /// The entry of a resource.
    pub(super) async fn find(&self, kind: &ResourceType, id: &str) -> Result<Arc<CachedEntry>, ScimError> {
        let missing = || ScimError::missing(format!("there is no {} of the id `{id}`", kind.name));
        let number = Entry::number_of(id).ok_or_else(missing)?;
        let found = self.directory.numbered(vec![number]).await?.pop();
        found.filter(|shown| is_of(kind, &shown.entry)).ok_or_else(missing)
    }

    /// A resource as returned, with the selected attributes.
    pub(super) async fn selected(
        &self,
        kind: &ResourceType,
        entry: &Entry,
        selection: &Selection,
    ) -> Result<Resource, ScimError> {
        let mut resource = self.resource(kind, entry, &|name| selection.wants(name)).await?;
        selection.apply(&mut resource);
        Ok(resource)
    }

    /// A resource; attributes that need other entries are included only if `wants` selects them.
    pub(super) async fn resource(
        &self,
        kind: &ResourceType,
        entry: &Entry,
        wants: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Resource, ScimError> {
        let mut resource = match kind.name {
            "User" => user::shown(entry),
            _ => group::shown(entry),
        };
        if kind == &USER && wants("groups") {
            self.add_groups(&mut resource, entry).await?;
        }
        if kind == &USER && wants("manager") {
            self.add_manager(&mut resource, entry).await?;
        }
        if kind == &GROUP && wants("members") {
            self.add_members(&mut resource, entry).await?;
        }
        let schemas: Vec<&str> =
            kind.schemas().filter(|schema| *schema == kind.schema || resource.contains_key(*schema)).collect();
        resource.insert("schemas".to_owned(), json!(schemas));
        resource.insert("id".to_owned(), entry.uuid().into());
        let meta = json!({
            "resourceType": kind.name, "created": entry.created_at, "lastModified": entry.updated_at,
            "location": self.location(kind, entry), "version": tag(entry),
        });
        resource.insert("meta".to_owned(), meta);
        Ok(resource)
    }

    pub(super) fn location(&self, kind: &ResourceType, entry: &Entry) -> String {
        format!("{}/{}/{}", self.base, kind.endpoint, entry.uuid())
    }

    async fn add_groups(&self, resource: &mut Resource, entry: &Entry) -> Result<(), ScimError> {
        let Some(named) = self.directory.member_of(&self.requester, entry).await? else { return Ok(()) };
        let mut groups = Vec::new();
        for name in named.values.iter().filter_map(|name| std::str::from_utf8(name).ok()) {
            if let Some(found) = self.named(name).await? {
                let display = group::shown(&found.entry).remove("displayName");
                let reference = self.location(&GROUP, &found.entry);
                groups.push(
                    json!({"value": found.entry.uuid(), "$ref": reference, "display": display, "type": "direct"}),
                );
            }
        }
        resource.insert("groups".to_owned(), groups.into());
        Ok(())
    }

    async fn add_manager(&self, resource: &mut Resource, entry: &Entry) -> Result<(), ScimError> {
        let name = entry.attribute("manager").and_then(|found| std::str::from_utf8(&found.values[0]).ok());
        let Some(name) = name else { return Ok(()) };
        let Some(found) = self.named(name).await? else { return Ok(()) };
        let manager = user::shown(&found.entry);
        let display = manager.get("displayName").or_else(|| manager.get("userName"));
        let manager =
            json!({"value": found.entry.uuid(), "$ref": self.location(&USER, &found.entry), "displayName": display});
        let enterprise = resource.entry(ENTERPRISE).or_insert_with(|| json!({}));
        enterprise["manager"] = manager;
        Ok(())
    }

    async fn add_members(&self, resource: &mut Resource, entry: &Entry) -> Result<(), ScimError> {
        let mut members = Vec::new();
        // Names that no longer exist are ignored.
        for (at, name) in group::member_names(entry).into_iter().enumerate() {
            yield_periodically(at).await;
            if let Some(found) = self.named(&name).await? {
                members.extend(self.member(&found.entry));
            }
        }
        if !members.is_empty() {
            resource.insert("members".to_owned(), members.into());
        }
        Ok(())
    }

    fn member(&self, entry: &Entry) -> Option<Json> {
        let (kind, mut shown) = match () {
            () if is_of(&USER, entry) => (&USER, user::shown(entry)),
            () if is_of(&GROUP, entry) => (&GROUP, group::shown(entry)),
            () => return None,
        };
        let display = shown.remove("displayName").or_else(|| shown.remove("userName"));
        Some(json!({
            "value": entry.uuid(), "$ref": self.location(kind, entry), "display": display, "type": kind.name,
        }))
    }

    /// The entry of a name, if there is one.
    pub(super) async fn named(&self, dn: &str) -> Result<Option<Arc<CachedEntry>>, ScimError> {
        match self.directory.find(dn).await {
            Ok(found) => Ok(Some(found)),
            Err(refusal) if matches!(refusal.code, Code::NoSuchObject | Code::InvalidDnSyntax) => Ok(None),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// The names of users and groups by their ids.
    async fn names(&self, ids: &[String]) -> Result<Vec<String>, ScimError> {
        let unknown =
            |id: &str| ScimError::bad("invalidValue", format!("there is no user and no group of the id `{id}`"));
        let number = |id: &String| Entry::number_of(id).ok_or_else(|| unknown(id));
        let numbers: Vec<EntryNumber> = ids.iter().map(number).collect::<Result<_, _>>()?;
        let found = self.directory.numbered(numbers.clone()).await?;
        let of = |(number, id): (&EntryNumber, &String)| {
            let entry = found.iter().map(|shown| &shown.entry).find(|entry| entry.number == *number);
            let entry = entry.filter(|entry| is_of(&USER, entry) || is_of(&GROUP, entry));
            entry.map(|entry| entry.dn.clone()).ok_or_else(|| unknown(id))
        };
        numbers.iter().zip(ids).map(of).collect()
    }

    /// Makes a resource.
    pub(super) async fn create(&self, kind: &ResourceType, body: &Json) -> Result<Entry, ScimError> {
        let mut resource = body::resource(body, kind)?;
        let (dn, given, attribute) = match kind.name {
            "User" => (self.user_name(&resource), self.new_user(&mut resource).await?, "uid"),
            _ => (self.group_name(&resource), self.new_group(&mut resource).await?, "cn"),
        };
        // Groups of one name may stand in other places of the tree.
        let unique = if attribute == "uid" { vec![attribute.to_owned()] } else { Vec::new() };
        let terms = Preconditions { after: true, unique, ..Preconditions::default() };
        let made = match self.directory.add(&self.requester, &dn, given.clone(), terms.clone()).await {
            Err(refusal) if refusal.code == Code::NoSuchObject && kind == &GROUP => {
                self.make_place_for_groups().await?;
                self.directory.add(&self.requester, &dn, given, terms).await
            }
            made => made,
        };
        entry_of(made?)
    }

    async fn make_place_for_groups(&self) -> Result<(), ScimError> {
        let classes = ["top", "organizationalUnit"].map(|class| class.as_bytes().to_vec()).to_vec();
        let given = vec![("objectClass".to_owned(), classes), ("ou".to_owned(), vec![b"groups".to_vec()])];
        let dn = format!("{GROUPS},{}", self.directory.suffix());
        match self.directory.add(&self.requester, &dn, given, Preconditions::default()).await {
            Err(refusal) if refusal.code != Code::EntryAlreadyExists => Err(refusal.into()),
            _ => Ok(()),
        }
    }

    fn user_name(&self, resource: &Resource) -> String {
        format!("{},{},{}", rdn("uid", resource, "userName"), "ou=people", self.directory.suffix())
    }

    fn group_name(&self, resource: &Resource) -> String {
        format!("{},{GROUPS},{}", rdn("cn", resource, "displayName"), self.directory.suffix())
    }

    async fn new_user(&self, resource: &mut Resource) -> Result<Vec<RawAttribute>, ScimError> {
        let mut given = vec![classes(user::CLASSES)];
        if let Some(Json::String(password)) = resource.remove("password") {
            given.push(("userPassword".to_owned(), vec![password.into_bytes()]));
        }
        if let Some(manager) = self.manager(resource).await? {
            given.push(("manager".to_owned(), vec![manager.into_bytes()]));
        }
        let attributes = user::written(resource, true).into_iter();
        given.extend(attributes.map(|(key, values)| (key.to_owned(), bytes(values))));
        Ok(given)
    }

    async fn new_group(&self, resource: &mut Resource) -> Result<Vec<RawAttribute>, ScimError> {
        let mut given = vec![classes(group::CLASSES)];
        for (name, key) in [("displayName", "cn"), ("externalId", "scimExternalId")] {
            if let Some(text) = resource.get(name).and_then(Json::as_str) {
                given.push((key.to_owned(), vec![text.as_bytes().to_vec()]));
            }
        }
        let members = self.names(&group::ids(resource.get("members"))?).await?;
        if !members.is_empty() {
            let unique: std::collections::BTreeSet<String> = members.into_iter().collect();
            given.push(("member".to_owned(), bytes(unique.into_iter().collect())));
        }
        Ok(given)
    }

    /// The name of the manager that a user is to have.
    async fn manager(&self, resource: &Resource) -> Result<Option<String>, ScimError> {
        let manager = resource.get(ENTERPRISE).and_then(|enterprise| enterprise.get("manager"));
        match manager.and_then(|manager| manager.get("value")).and_then(Json::as_str) {
            Some(id) => Ok(self.names(&[id.to_owned()]).await?.pop()),
            None => Ok(None),
        }
    }

    /// Changes a resource, if it is what the client holds it to be.
    pub(super) async fn change(
        &self,
        kind: &ResourceType,
        id: &str,
        change: &Change,
        expected: Option<&Tag>,
    ) -> Result<Entry, ScimError> {
        let mut turn = TURNS.take(&Entry::number_of(id)).await;
        loop {
            let shown = self.find(kind, id).await?;
            if expected.is_some_and(|expected| !expected.names(&shown.entry)) {
                return Err(ScimError::new(
                    StatusCode::PRECONDITION_FAILED,
                    "the resource has changed in the meantime",
                ));
            }
            let revision = match kind.name {
                "User" => self.user_revision(&shown.entry, change).await?,
                _ => self.group_revision(&shown.entry, change).await?,
            };
            let Some((revision, unique)) = revision else { return Ok(shown.entry.clone()) };
            let terms =
                Preconditions { after: true, revision: Some(shown.entry.revision), unique, ..Preconditions::default() };
            match self.directory.revise(&self.requester, shown.entry.number, revision, terms).await {
                // Conflict with a concurrent change: read the entry again and retry.
                Err(refusal) if refusal.code == Code::AssertionFailed => turn.repeat("the resource")?,
                changed => return entry_of(changed?),
            }
        }
    }

    /// The modification of a user's entry; `None`: no change.
    async fn user_revision(
        &self,
        entry: &Entry,
        change: &Change,
    ) -> Result<Option<(Revision, Vec<String>)>, ScimError> {
        let mut old = user::shown(entry);
        self.add_manager(&mut old, entry).await?;
        let mut new = match change {
            Change::Whole(whole) => whole.clone(),
            Change::Parts(operations) => {
                let mut new = old.clone();
                patch::apply(&mut new, operations, &USER)?;
                new
            }
        };
        // A change that omits or removes `active` keeps the state: no user is enabled without a value.
        if let (None, Some(active)) = (new.get("active"), old.get("active")) {
            new.insert("active".to_owned(), active.clone());
        }
        let mut modifications = Vec::new();
        let mut replace = |key: &str, values: Vec<String>| {
            modifications.push(Modification {
                act: ModifyType::Replace,
                attribute: key.to_owned(),
                values: bytes(values),
            });
        };
        if let Some(Json::String(password)) = new.remove("password") {
            replace("userPassword", vec![password]);
        }
        let (was, is) = (self.manager(&old).await?, self.manager(&new).await?);
        if was != is {
            replace("manager", is.into_iter().collect());
        }
        let is_person = group::is_of_class(entry, "person") || group::is_of_class(entry, "inetOrgPerson");
        let (before, mut after) = (user::written(&old, is_person), user::written(&new, is_person));
        for key in before.keys().filter(|key| !after.contains_key(*key)).copied().collect::<Vec<_>>() {
            after.insert(key, Vec::new());
        }
        let renamed = after.get("uid") != before.get("uid");
        after.into_iter().filter(|(key, values)| before.get(key) != Some(values)).for_each(|(key, values)| {
            replace(key, values);
        });
        Ok(revision(entry, modifications, "tocsinSubscriber", ("uid", renamed), rdn("uid", &new, "userName")))
    }

    async fn group_revision(
        &self,
        entry: &Entry,
        change: &Change,
    ) -> Result<Option<(Revision, Vec<String>)>, ScimError> {
        let old = group::shown(entry);
        let (new, changes) = match change {
            // A PUT of a group without `members` keeps them; an empty list removes all.
            Change::Whole(whole) => {
                let members = whole.get("members");
                let becomes = members.map(|_| Ok::<_, ScimError>(group::Change::Become(group::ids(members)?)));
                (whole.clone(), becomes.transpose()?.into_iter().collect())
            }
            Change::Parts(operations) => {
                let (rest, changes) = group::changes(operations.clone())?;
                let mut new = old.clone();
                patch::apply(&mut new, &rest, &GROUP)?;
                (new, changes)
            }
        };
        let mut modifications = self.members_change(entry, changes).await?;
        let renamed = old.get("displayName") != new.get("displayName");
        let has_display = entry.attribute("displayname").is_some();
        let keys = [("displayName", "cn"), ("displayName", "displayName"), ("externalId", "scimExternalId")];
        for (name, key) in keys.into_iter().filter(|(_, key)| *key != "displayName" || has_display) {
            if old.get(name) != new.get(name) {
                let values = new.get(name).and_then(Json::as_str).map(|text| text.as_bytes().to_vec());
                let attribute = key.to_owned();
                modifications.push(Modification {
                    act: ModifyType::Replace,
                    attribute,
                    values: values.into_iter().collect(),
                });
            }
        }
        let name = rdn("cn", &new, "displayName");
        let made = revision(entry, modifications, "scimResource", ("cn", renamed), name);
        Ok(made.map(|(revision, _)| (revision, Vec::new())))
    }

    /// The modification of a group's members.
    async fn members_change(&self, entry: &Entry, changes: Vec<group::Change>) -> Result<Vec<Modification>, ScimError> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        if group::is_of_class(entry, "groupOfURLs") {
            return match changes.as_slice() {
                [group::Change::Become(ids)] if ids.is_empty() => Ok(Vec::new()),
                _ => Err(ScimError::bad("mutability", "this group finds its members by a search; it holds none")),
            };
        }
        if let Some(modifications) = self.members_come_and_go(entry, &changes).await? {
            return Ok(modifications);
        }
        let mut names = group::member_names(entry);
        for change in changes {
            match change {
                group::Change::Become(ids) => names = self.names(&ids).await?,
                group::Change::Add(ids) => names.extend(self.names(&ids).await?),
                group::Change::Remove(ids) => {
                    let gone: Vec<_> = ids.iter().filter_map(|id| Entry::number_of(id)).collect();
                    names = self.without(names, |entry| gone.contains(&entry.number)).await?;
                }
                group::Change::RemoveSome(filter) => {
                    let is_selected = |entry: &Entry| {
                        self.member(entry).is_some_and(|member| filter.is_met_by_value(&member, &Work::default()))
                    };
                    names = self.without(names, is_selected).await?;
                }
            }
        }
        Ok(group::modifications(entry, &names, &self.directory.schema()))
    }

    /// The modifications of members that come and go by their ids, without a look at the others; `None`: all have to be looked at.
    async fn members_come_and_go(
        &self,
        entry: &Entry,
        changes: &[group::Change],
    ) -> Result<Option<Vec<Modification>>, ScimError> {
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        for change in changes {
            match change {
                group::Change::Add(ids) => added.extend(self.names(ids).await?),
                group::Change::Remove(ids) => {
                    let numbers = ids.iter().filter_map(|id| Entry::number_of(id)).collect();
                    let found = self.directory.numbered(numbers).await?;
                    removed.extend(found.iter().map(|shown| shown.entry.dn.clone()));
                }
                group::Change::RemoveSome(_) | group::Change::Become(_) => return Ok(None),
            }
        }
        let mut seen = std::collections::HashSet::new();
        added.retain(|name| seen.insert(name.clone()));
        removed.retain(|name| !added.contains(name));
        if seen.len() + removed.len() > COME_AND_GO_MAX || changes.len() > 1 && !removed.is_empty() {
            return Ok(None);
        }
        removed.sort();
        removed.dedup();
        let attribute = group::member_attribute(entry);
        let mut modifications = Vec::new();
        for (act, names, requested) in [(ModifyType::Add, added, false), (ModifyType::Delete, removed, true)] {
            let Some(held) = self.directory.holds(entry.number, attribute, &names).await? else { return Ok(None) };
            let meant = names.into_iter().zip(held).filter(|(_, held)| *held == requested);
            let values: Vec<_> = meant.map(|(name, _)| name.into_bytes()).collect();
            if !values.is_empty() {
                modifications.push(Modification { act, attribute: attribute.to_owned(), values });
            }
        }
        Ok(Some(modifications))
    }

    /// Names without those of removed entries.
    async fn without(&self, names: Vec<String>, goes: impl Fn(&Entry) -> bool) -> Result<Vec<String>, ScimError> {
        let mut kept = Vec::with_capacity(names.len());
        for (at, name) in names.into_iter().enumerate() {
            yield_periodically(at).await;
            let found = self.named(&name).await?;
            if !found.is_some_and(|found| goes(&found.entry)) {
                kept.push(name);
            }
        }
        Ok(kept)
    }

    /// Removes a resource; groups let it go.
    pub(super) async fn remove(&self, kind: &ResourceType, id: &str, expected: Option<&Tag>) -> Result<(), ScimError> {
        let shown = self.find(kind, id).await?;
        if expected.is_some_and(|expected| !expected.names(&shown.entry)) {
            return Err(ScimError::new(StatusCode::PRECONDITION_FAILED, "the resource has changed in the meantime"));
        }
        // `*` names no revision, so a concurrent change is not a conflict.
        let revision = expected.filter(|tag| !matches!(tag, Tag::Any)).map(|_| shown.entry.revision);
        let terms = Preconditions { revision, ..Preconditions::default() };
        self.directory.remove(&self.requester, &shown.entry.dn, terms).await?;
        Ok(())
    }
}

/// Yields to other tasks periodically, in a loop over cached entries without another await point.
async fn yield_periodically(at: usize) {
    if at % 256 == 255 {
        tokio::task::yield_now().await;
    }
}

/// Computes the modifications and the new RDN of an entry for its class; `None`: nothing changes.
fn revision(
    entry: &Entry,
    mut modifications: Vec<Modification>,
    class: &str,
    (naming, renamed): (&str, bool),
    rdn: String,
) -> Option<(Revision, Vec<String>)> {
    if modifications.is_empty() {
        return None;
    }
    if !group::is_of_class(entry, class) {
        let values = vec![class.as_bytes().to_vec()];
        modifications.insert(0, Modification { act: ModifyType::Add, attribute: "objectClass".to_owned(), values });
    }
    // An entry whose RDN has another attribute keeps its name.
    let is_named_by = entry.dn.split_once('=').is_some_and(|(name, _)| name.trim().eq_ignore_ascii_case(naming));
    let unique = if renamed { vec![naming.to_owned()] } else { Vec::new() };
    Some((Revision { modifications, rdn: (renamed && is_named_by).then_some(rdn) }, unique))
}

fn rdn(attribute: &str, resource: &Resource, name: &str) -> String {
    let mut text = format!("{attribute}=");
    escape(resource.get(name).and_then(Json::as_str).unwrap_or_default(), &mut text);
    text
}

fn classes(names: &[&str]) -> RawAttribute {
    ("objectClass".to_owned(), names.iter().map(|name| name.as_bytes().to_vec()).collect())
}

fn bytes(texts: Vec<String>) -> Vec<Vec<u8>> {
    texts.into_iter().map(String::into_bytes).collect()
}

fn entry_of(images: ReadEntries) -> Result<Entry, ScimError> {
    let gone = || ScimError::from(LdapError::new(Code::NoSuchObject, "the resource is gone again"));
    images.after.map(|shown| shown.entry).ok_or_else(gone)
}
