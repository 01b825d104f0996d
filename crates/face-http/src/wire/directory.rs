//! Entries, schema and access rules of the directory.

use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use tocsin_directory::{
    ChildCount, Imported, Modification, ModifyType, RawAttribute,
    access::{AccessDecision, AccessExplanation, DEFAULT_RULES},
    dn::Dn,
    entry::{Attribute, Entry},
    schema::{AttributeType, ClassKind, Description, Kind, Schema},
    syntax::Syntax,
};
use tocsin_model::{
    problem::{Code, Problem},
    time::Timestamp,
};
use tocsin_service::ServiceError;
use utoipa::ToSchema;

/// A value of an attribute: text, or bytes in base64 where the syntax is binary or the value is not UTF-8.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = DirectoryValue)]
pub(crate) enum ValueBody {
    /// Text.
    Text(String),
    /// Bytes.
    Binary {
        /// Bytes in base64.
        base64: String,
    },
}

impl ValueBody {
    fn of(kind: &AttributeType, value: &[u8]) -> ValueBody {
        match std::str::from_utf8(value) {
            Ok(text) if kind.syntax != Syntax::Octets => ValueBody::Text(text.to_owned()),
            _ => ValueBody::Binary { base64: STANDARD.encode(value) },
        }
    }
}

/// Number of direct children.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DirectoryChildren)]
pub(crate) struct ChildrenBody {
    /// The number, at most 1,000.
    count: usize,
    /// Whether it is exact; `false`: there are more.
    exact: bool,
}

impl From<ChildCount> for ChildrenBody {
    fn from(ChildCount { count, exact }: ChildCount) -> Self {
        ChildrenBody { count, exact }
    }
}

/// An entry of the directory.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DirectoryEntry)]
pub(crate) struct EntryBody {
    /// Distinguished name.
    dn: String,
    /// Relative name.
    rdn: String,
    /// Distinguished name of the parent; absent for the suffix entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    /// The `entryUUID`, which survives a rename.
    id: String,
    /// Whether it is a subscriber.
    is_subscriber: bool,
    revision: u64,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    /// The requested attributes, by name.
    attributes: BTreeMap<String, Vec<ValueBody>>,
    /// Number of direct children, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<ChildrenBody>,
}

impl EntryBody {
    pub(crate) fn of(entry: &Entry, attributes: Vec<Attribute>, children: Option<ChildCount>) -> EntryBody {
        let names = Dn::parse(&entry.dn).unwrap_or_default().0;
        let mut names = names.into_iter().map(|rdn| rdn.text);
        let rdn = names.next().unwrap_or_default();
        let values = |found: &Attribute| found.values.iter().map(|value| ValueBody::of(&found.kind, value)).collect();
        EntryBody {
            rdn,
            parent: entry.parent.map(|_| names.collect::<Vec<_>>().join(",")),
            dn: entry.dn.clone(),
            id: entry.uuid(),
            is_subscriber: entry.number.subscriber().is_some(),
            revision: entry.revision,
            created_at: entry.created_at,
            updated_at: entry.updated_at,
            attributes: attributes.iter().map(|found| (found.kind.name().to_owned(), values(found))).collect(),
            children: children.map(ChildrenBody::from),
        }
    }
}

/// A page of entries.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DirectoryEntries)]
pub(crate) struct EntriesBody {
    /// In order of creation, subscribers last.
    pub(crate) items: Vec<EntryBody>,
    /// Give this as `after` for the next page; absent at the end. A page that is not full may have a `next`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
    /// Number of entries that were examined for this page.
    pub(crate) scanned: usize,
}

/// The result of a dry run.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DirectoryDryRun)]
pub(crate) struct DryRunBody {
    /// Always true.
    pub(crate) dry_run: bool,
    /// Whether the entry would be created.
    pub(crate) created: bool,
}

/// The attributes of an entry that is stored as a whole.
#[derive(ToSchema)]
#[allow(dead_code)]
#[schema(as = DirectoryEntryDraft)]
pub(crate) struct EntryDraftBody {
    /// Values by attribute name: a text, `{base64}`, or a list of them.
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    attributes: BTreeMap<String, Json>,
}

/// Changes of an entry: `attributes` or `modifications`.
#[derive(ToSchema)]
#[allow(dead_code)]
#[schema(as = DirectoryEntryPatch)]
pub(crate) struct EntryPatchBody {
    /// New values by attribute name, which replace all present ones; null or an empty list removes the attribute.
    #[schema(value_type = Option<BTreeMap<String, serde_json::Value>>)]
    attributes: Option<BTreeMap<String, Json>>,
    /// Modifications, carried out in this order.
    modifications: Option<Vec<ModificationBody>>,
}

/// One modification (RFC 4511, 4.6).
#[derive(ToSchema)]
#[allow(dead_code)]
#[schema(as = DirectoryModification)]
pub(crate) struct ModificationBody {
    /// `add`, `delete`, `replace` or `increment` (RFC 4525).
    op: String,
    /// Attribute name.
    attribute: String,
    /// Values; without any, `delete` and `replace` remove the attribute.
    #[schema(value_type = Option<Vec<serde_json::Value>>)]
    values: Vec<Json>,
}

/// A new name or parent.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DirectoryRename)]
pub(crate) struct RenameBody {
    /// New relative name, such as `cn=staff`.
    pub(crate) rdn: String,
    /// Distinguished name of the new parent; default: the present one.
    #[serde(default)]
    pub(crate) parent: Option<String>,
    /// Whether the values of the former relative name are removed; default: yes.
    #[serde(default)]
    pub(crate) delete_old: Option<bool>,
}

/// A new password.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DirectoryPassword)]
pub(crate) struct PasswordBody {
    /// The password; default: the server generates one.
    #[serde(default)]
    pub(crate) password: Option<String>,
    /// Whether its owner must change it at the next bind; default: as the password policy says.
    #[serde(default)]
    pub(crate) must_change: Option<bool>,
}

/// The result of a password change.
#[derive(Serialize, ToSchema)]
#[schema(as = DirectoryPasswordSet)]
pub(crate) struct PasswordSetBody {
    /// The generated password, returned only here; absent if the request had one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) password: Option<String>,
}

/// Result of an import.
#[derive(Serialize, ToSchema)]
#[schema(as = DirectoryImported)]
pub(crate) struct DirectoryImportedBody {
    /// Number of records that were carried out, or would be.
    done: u64,
    /// Number of records whose entry exists already; it stays unchanged.
    present: u64,
    /// Failed records, the first 1,000.
    failed: Vec<FailedRecordBody>,
    /// Number of further failed records.
    failed_more: u64,
    dry_run: bool,
}

/// A failed record of an LDIF file.
#[derive(Serialize, ToSchema)]
#[schema(as = DirectoryFailedRecord)]
struct FailedRecordBody {
    /// Line at which it begins, from 1.
    line: usize,
    dn: String,
    message: String,
}

impl DirectoryImportedBody {
    pub(crate) fn of(imported: Imported, dry_run: bool) -> DirectoryImportedBody {
        let failed = imported.refused.into_iter().map(|(line, dn, message)| FailedRecordBody { line, dn, message });
        DirectoryImportedBody {
            done: imported.done,
            present: imported.present,
            failed: failed.collect(),
            failed_more: imported.unreported,
            dry_run,
        }
    }
}

/// The bytes of a JSON value of an attribute.
fn bytes(path: &str, value: &Json) -> Result<Vec<u8>, Problem> {
    let wrong = || {
        let what = "should be a text, a number, a truth value or `{\"base64\": \"...\"}`";
        Problem::new(Code::WrongType, path, what).param("expected", "string")
    };
    match value {
        Json::String(text) => Ok(text.clone().into_bytes()),
        Json::Bool(truth) => Ok(if *truth { "TRUE" } else { "FALSE" }.into()),
        Json::Number(number) => Ok(number.to_string().into_bytes()),
        Json::Object(members) if members.len() == 1 => {
            let text = members.get("base64").and_then(Json::as_str).ok_or_else(wrong)?;
            let wrong = |_| Problem::new(Code::InvalidFormat, format!("{path}.base64"), "is not base64");
            STANDARD.decode(text).map_err(wrong)
        }
        _ => Err(wrong()),
    }
}

/// The values of an attribute: one or a list of them, or none for null.
fn values(path: &str, value: &Json) -> Result<Vec<Vec<u8>>, Problem> {
    match value {
        Json::Null => Ok(Vec::new()),
        Json::Array(items) => {
            items.iter().enumerate().map(|(at, item)| bytes(&format!("{path}[{at}]"), item)).collect()
        }
        one => Ok(vec![bytes(path, one)?]),
    }
}

fn attributes_of(value: &Json) -> Result<Vec<RawAttribute>, Problem> {
    let wrong = || {
        let problem = Problem::new(Code::WrongType, "attributes", "should be an object of values by attribute name");
        problem.param("expected", "object")
    };
    let named = value.as_object().ok_or_else(wrong)?;
    named.iter().map(|(name, value)| Ok((name.clone(), values(&format!("attributes.{name}"), value)?))).collect()
}

fn unknown_members(body: &Json, known: &[&str]) -> Result<(), Problem> {
    let members = body.as_object().into_iter().flatten();
    let unknown = members.map(|(name, _)| name).find(|name| !known.contains(&name.as_str()));
    match unknown {
        None => Ok(()),
        Some(name) => Err(Problem::new(Code::UnknownMember, name.as_str(), "is unknown").param("value", name.clone())),
    }
}

fn required(path: &str, what: &str) -> Problem {
    Problem::new(Code::Required, path, what)
}

/// The attributes of an entry that is stored as a whole. Attributes without values are left out.
pub(crate) fn draft_of(body: &Json) -> Result<Vec<RawAttribute>, ServiceError> {
    unknown_members(body, &["attributes"])?;
    let given = body.get("attributes").ok_or_else(|| required("attributes", "is missing"))?;
    let mut attributes = attributes_of(given)?;
    attributes.retain(|(_, values)| !values.is_empty());
    Ok(attributes)
}

/// The modifications of a patch.
pub(crate) fn patch_of(body: &Json) -> Result<Vec<Modification>, ServiceError> {
    unknown_members(body, &["attributes", "modifications"])?;
    match (body.get("attributes"), body.get("modifications")) {
        (Some(attributes), None) => {
            let replace = |(attribute, values)| Modification { act: ModifyType::Replace, attribute, values };
            Ok(attributes_of(attributes)?.into_iter().map(replace).collect())
        }
        (None, Some(Json::Array(items))) => {
            let read = items.iter().enumerate().map(|(at, item)| modification(&format!("modifications[{at}]"), item));
            Ok(read.collect::<Result<_, _>>()?)
        }
        (None, Some(_)) => {
            Err(Problem::new(Code::WrongType, "modifications", "should be a list").param("expected", "array").into())
        }
        (Some(_), Some(_)) => {
            let problem = Problem::new(Code::ConflictingMembers, "modifications", "cannot stand beside `attributes`");
            Err(problem.param("with", "attributes").into())
        }
        (None, None) => Err(required("attributes", "is missing, and so is `modifications`").into()),
    }
}

fn modification(path: &str, item: &Json) -> Result<Modification, Problem> {
    let act = match item.get("op").and_then(Json::as_str) {
        Some("add") => ModifyType::Add,
        Some("delete") => ModifyType::Delete,
        Some("replace") => ModifyType::Replace,
        Some("increment") => ModifyType::Increment,
        _ => {
            let problem = Problem::new(Code::UnknownValue, format!("{path}.op"), "is not an operation");
            return Err(problem.hint("operations are `add`, `delete`, `replace` and `increment`"));
        }
    };
    let attribute = item.get("attribute").and_then(Json::as_str);
    let attribute = attribute.ok_or_else(|| required(&format!("{path}.attribute"), "is missing"))?.to_owned();
    let values = item.get("values").map(|given| values(&format!("{path}.values"), given)).transpose()?;
    Ok(Modification { act, attribute, values: values.unwrap_or_default() })
}

/// The schema of the directory (RFC 4512).
#[derive(Serialize, ToSchema)]
#[schema(as = DirectorySchema)]
pub(crate) struct SchemaBody {
    /// Distinguished name of the suffix entry.
    suffix: String,
    /// Attribute types, by name.
    attribute_types: Vec<AttributeTypeBody>,
    /// Object classes, by name.
    object_classes: Vec<ObjectClassBody>,
}

/// An attribute type.
#[derive(Serialize, ToSchema)]
#[schema(as = DirectoryAttributeType)]
struct AttributeTypeBody {
    name: String,
    /// All names.
    names: Vec<String>,
    oid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// Name of the syntax.
    #[serde(skip_serializing_if = "Option::is_none")]
    syntax: Option<&'static str>,
    /// Object identifier of the syntax.
    #[serde(skip_serializing_if = "Option::is_none")]
    syntax_oid: Option<String>,
    /// Equality matching rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    equality: Option<String>,
    /// Ordering matching rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    ordering: Option<String>,
    /// Substrings matching rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    substrings: Option<String>,
    single_value: bool,
    /// Whether clients may change it.
    modifiable: bool,
    /// Whether it is operational: returned only on request.
    operational: bool,
    /// Whether its values are bytes.
    binary: bool,
    /// Its supertypes, nearest first.
    superiors: Vec<String>,
    /// Its indexes: `eq` and `sub`.
    indexes: Vec<&'static str>,
    /// The definition as of RFC 4512.
    definition: String,
}

/// An object class.
#[derive(Serialize, ToSchema)]
#[schema(as = DirectoryObjectClass)]
struct ObjectClassBody {
    name: String,
    /// All names.
    names: Vec<String>,
    oid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// `abstract`, `structural` or `auxiliary`.
    kind: &'static str,
    /// All its superclasses.
    superiors: Vec<String>,
    /// Required attributes, with those of its superclasses.
    must: Vec<String>,
    /// Optional attributes, with those of its superclasses.
    may: Vec<String>,
    /// The definition as of RFC 4512.
    definition: String,
}

impl SchemaBody {
    pub(crate) fn of(suffix: &str, schema: &Schema) -> SchemaBody {
        let name = |key: &str| schema.attribute(key).map_or_else(|_| key.to_owned(), |kind| kind.name().to_owned());
        let described: BTreeMap<String, (Description, &str)> = [Kind::Attribute, Kind::Class]
            .into_iter()
            .flat_map(|kind| schema.texts(kind))
            .filter_map(|text| Some((text, Description::parse(text).ok()?)))
            .map(|(text, description)| (description.oid.clone(), (description, text)))
            .collect();
        let mut attribute_types: Vec<_> =
            schema.attributes().map(|kind| AttributeTypeBody::of(kind, schema, &described)).collect();
        attribute_types.sort_by_cached_key(|kind| kind.name.to_lowercase());
        let texts: Vec<&str> = schema.texts(Kind::Class).collect();
        let classes = texts.iter().filter_map(|text| Some((Description::parse(text).ok()?, *text)));
        let mut object_classes: Vec<_> = classes
            .filter_map(|(description, text)| {
                let class = schema.class(&description.oid).ok()?;
                let names = |keys: &[Arc<str>]| {
                    let unique: std::collections::BTreeSet<String> = keys.iter().map(|key| name(key)).collect();
                    unique.into_iter().collect()
                };
                let above = |key: &String| schema.class(key).map_or_else(|_| key.clone(), |one| one.names[0].clone());
                Some(ObjectClassBody {
                    name: class.names[0].clone(),
                    names: class.names.clone(),
                    oid: class.oid.clone(),
                    description: description.value("DESC").map(str::to_owned),
                    kind: match class.kind {
                        ClassKind::Abstract => "abstract",
                        ClassKind::Structural => "structural",
                        ClassKind::Auxiliary => "auxiliary",
                    },
                    superiors: class.above.iter().map(above).collect(),
                    must: names(&class.must),
                    may: names(&class.may),
                    definition: text.to_owned(),
                })
            })
            .collect();
        object_classes.sort_by_cached_key(|class| class.name.to_lowercase());
        SchemaBody { suffix: suffix.to_owned(), attribute_types, object_classes }
    }
}

impl AttributeTypeBody {
    fn of(
        kind: &AttributeType,
        schema: &Schema,
        described: &BTreeMap<String, (Description, &str)>,
    ) -> AttributeTypeBody {
        let own = described.get(&kind.oid);
        // The nearest supertype is the last.
        let superiors = kind.kinds.iter().rev().filter_map(|key| schema.attribute(key).ok());
        let chain: Vec<&Description> = own
            .into_iter()
            .chain(superiors.clone().filter_map(|above| described.get(&above.oid)))
            .map(|(description, _)| description)
            .collect();
        let inherited = |word: &str| chain.iter().find_map(|found| found.value(word)).map(str::to_owned);
        let syntax_oid = inherited("SYNTAX").map(|text| text.split('{').next().unwrap_or_default().to_owned());
        let is_syntax = |oid: &&str| syntax_oid.as_deref() == Some(*oid);
        let (eq, sub) = kind.indexed;
        AttributeTypeBody {
            name: kind.name().to_owned(),
            names: kind.names.clone(),
            oid: kind.oid.clone(),
            description: own.and_then(|(found, _)| found.value("DESC")).map(str::to_owned),
            syntax: tocsin_directory::syntax::syntaxes().find(|(oid, _)| is_syntax(oid)).map(|(_, name)| name),
            equality: inherited("EQUALITY"),
            ordering: inherited("ORDERING"),
            substrings: inherited("SUBSTR"),
            syntax_oid,
            single_value: kind.single,
            modifiable: kind.changeable,
            operational: kind.operational,
            binary: kind.syntax == Syntax::Octets,
            superiors: superiors.map(|above| above.name().to_owned()).collect(),
            indexes: [("eq", eq), ("sub", sub)].into_iter().filter(|(_, is)| *is).map(|(name, _)| name).collect(),
            definition: own.map(|(_, text)| (*text).to_owned()).unwrap_or_default(),
        }
    }
}

/// The access to explain.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DirectoryAccessQuestion)]
pub(crate) struct AccessQuestionBody {
    /// Distinguished name of the identity; default: the anonymous one.
    #[serde(default)]
    pub(crate) requester: Option<String>,
    /// Distinguished name of the entry.
    pub(crate) entry: String,
    /// Attributes; default: those of the entry, and `userPassword`.
    #[serde(default)]
    pub(crate) attributes: Vec<String>,
}

/// Access of an identity to an entry, with the rules that decide.
#[derive(Serialize, ToSchema)]
#[schema(as = DirectoryAccess)]
pub(crate) struct AccessBody {
    requester: IdentityBody,
    /// Distinguished name of the entry.
    entry: String,
    /// Whether the entry is visible to the identity.
    visible: bool,
    /// The entry itself; `write` allows to rename and delete it.
    itself: DecisionBody,
    /// Its children; `write` allows to add entries below it.
    children: DecisionBody,
    /// Attributes.
    attributes: Vec<AttributeAccessBody>,
    /// All rules, in order.
    rules: Vec<String>,
    /// Whether these are the default rules.
    default_rules: bool,
}

/// An identity.
#[derive(Serialize, ToSchema)]
#[schema(as = DirectoryIdentity)]
struct IdentityBody {
    /// Distinguished name; empty for the anonymous identity.
    dn: String,
    /// Its groups and roles in normal form, if a rule names any.
    groups: Vec<String>,
}

/// A level of access, and its cause.
#[derive(Serialize, ToSchema)]
#[schema(as = DirectoryAccessDecision)]
struct DecisionBody {
    /// `none`, `auth`, `compare`, `search`, `read` or `write`; each includes those before it.
    level: &'static str,
    /// The rule that decides; absent: no rule applies, so there is no access.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<DecidingRuleBody>,
    /// The attribute whose lower level limits this one, as this one repeats its values.
    #[serde(skip_serializing_if = "Option::is_none")]
    limited_by: Option<String>,
}

/// The access to an attribute.
#[derive(Serialize, ToSchema)]
#[schema(as = DirectoryAttributeAccess)]
struct AttributeAccessBody {
    name: String,
    #[serde(flatten)]
    decision: DecisionBody,
}

/// The rule that decides.
#[derive(Serialize, ToSchema)]
#[schema(as = DirectoryDecidingRule)]
struct DecidingRuleBody {
    /// Its position among the rules, from 1.
    number: usize,
    text: String,
    /// The subject of the `by` that applies, such as `self`; absent: none does, so the rule gives no access.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
}

impl From<AccessDecision> for DecisionBody {
    fn from(decision: AccessDecision) -> Self {
        let rule = decision.rule.map(|rule| DecidingRuleBody { number: rule.number, text: rule.text, by: rule.by });
        DecisionBody { level: decision.level.word(), rule, limited_by: decision.limited_by }
    }
}

impl AccessBody {
    pub(crate) fn of(found: AccessExplanation, rules: Vec<String>) -> AccessBody {
        let attribute =
            |(name, decision): (String, AccessDecision)| AttributeAccessBody { name, decision: decision.into() };
        AccessBody {
            requester: IdentityBody { dn: found.requester.dn, groups: found.requester.groups },
            entry: found.entry.entry.dn.clone(),
            visible: found.visible,
            itself: found.itself.into(),
            children: found.children.into(),
            attributes: found.attributes.into_iter().map(attribute).collect(),
            default_rules: rules.iter().map(String::as_str).eq(DEFAULT_RULES.iter().copied()),
            rules,
        }
    }
}
