//! Directory schema: attribute types and object classes (RFC 4512, section 4). A schema is immutable; an extension
//! creates a new one.

mod definition; // parser of definitions

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, LazyLock},
};

pub use definition::Description;

use crate::{
    dn::{Dn, Rdn, escape},
    ldap_error::{Code, LdapError},
    syntax::{Rule, Syntax},
};

/// Attributes that list the members of groups and the occupants of roles.
pub(crate) const MEMBERS: &[&str] = &["member", "uniquemember", "roleoccupant"];
/// Attribute with the search of a dynamic group.
pub(crate) const FINDING: &str = "memberurl";
/// Attribute with the groups of an entry.
pub(crate) const MEMBER_OF: &str = "memberof";
/// Attribute of the password.
pub(crate) const PASSWORD: &str = "userpassword";
/// Object class of dynamic entries (RFC 2589).
const DYNAMIC: &str = "dynamicobject";

/// Maximum definitions beside the built-in ones.
pub const DEFINITIONS_MAX: usize = 10_000;

/// An attribute type. Equality compares the pointers first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttributeType {
    /// Object identifier; for an undeclared attribute, its name.
    pub oid: String,
    /// Names; output uses the first.
    pub names: Vec<String>,
    /// First name in lower case, the internal key.
    pub key: Arc<str>,
    /// Keys of its supertypes.
    pub kinds: Vec<Arc<str>>,
    /// Syntax of the values.
    pub syntax: Syntax,
    /// Equality rule; `None`: values cannot be compared.
    pub equality: Option<Rule>,
    /// Ordering rule.
    pub ordering: Option<Rule>,
    /// Substring rule.
    pub substrings: Option<Rule>,
    /// Whether it is single-valued.
    pub single: bool,
    /// Whether users may modify it.
    pub changeable: bool,
    /// Whether it is operational: returned only on request.
    pub operational: bool,
    /// Whether it is declared. Undeclared attributes are named by the API client that stored them.
    pub declared: bool,
    /// Whether it has an equality index and a substring index.
    pub indexed: (bool, bool),
}

impl AttributeType {
    /// The name used in output.
    pub fn name(&self) -> &str {
        &self.names[0]
    }

    /// Whether it is this type or a subtype of it.
    pub fn is(&self, other: &AttributeType) -> bool {
        self.key == other.key || self.kinds.contains(&other.key)
    }

    /// Rejects a redefinition that would invalidate stored values, names or indexes.
    fn may_become(&self, new: &AttributeType) -> Result<(), LdapError> {
        let changed = match () {
            () if self.syntax != new.syntax => "syntax",
            () if self.equality != new.equality => "equality",
            () if self.kinds != new.kinds => "supertype",
            () if self.names != new.names => "name",
            () => return Ok(()),
        };
        let what = format!("the {changed} of `{}` cannot change: there may be values of it", self.name());
        Err(LdapError::new(Code::ConstraintViolation, what))
    }
}

/// Kind of an object class (RFC 4512, 2.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassKind {
    /// Base of other classes.
    Abstract,
    /// Defines what an entry is.
    Structural,
    /// Adds attributes to an entry.
    Auxiliary,
}

/// An object class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectClass {
    /// Object identifier.
    pub oid: String,
    /// Names; output uses the first.
    pub names: Vec<String>,
    /// Kind.
    pub kind: ClassKind,
    /// Keys of all superclasses.
    pub above: Vec<String>,
    /// Keys of required attributes, including those of superclasses.
    pub must: Vec<Arc<str>>,
    /// Keys of optional attributes.
    pub may: Vec<Arc<str>>,
}

impl ObjectClass {
    /// The name in lower case.
    pub fn key(&self) -> String {
        self.names[0].to_ascii_lowercase()
    }

    fn is_extensible(&self) -> bool {
        ["extensibleObject", "tocsinSubscriber"].iter().any(|known| known.eq_ignore_ascii_case(&self.names[0]))
    }
}

/// The schema.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    attributes: HashMap<String, Arc<AttributeType>, foldhash::fast::RandomState>,
    classes: HashMap<String, Arc<ObjectClass>, foldhash::fast::RandomState>,
    /// Texts of the definitions, by kind and object identifier.
    texts: BTreeMap<(Kind, String), String>,
    own: usize,
}

/// Kind of a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Attribute type.
    Attribute,
    /// Object class.
    Class,
}

impl Kind {
    /// The attribute of the subschema entry that holds definitions of this kind.
    pub fn attribute(self) -> &'static str {
        match self {
            Kind::Attribute => "attributeTypes",
            Kind::Class => "objectClasses",
        }
    }
}

static STANDARD: LazyLock<Schema> = LazyLock::new(|| {
    let mut schema = Schema::default();
    for line in include_str!("schema/standard.schema").lines().filter(|line| !line.starts_with('#')) {
        let (kind, text) = line.split_once(": ").expect("each line has a colon");
        let kind = if kind == "objectClasses" { Kind::Class } else { Kind::Attribute };
        schema.define(kind, text).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    schema.own = 0;
    schema
});

impl Schema {
    /// The built-in schema.
    pub fn standard() -> Schema {
        STANDARD.clone()
    }

    /// Adds a definition and returns its object identifier. An identical definition is accepted without a change.
    ///
    /// # Errors
    /// The definition is malformed, names an unknown definition, or conflicts with an existing one.
    pub fn define(&mut self, kind: Kind, text: &str) -> Result<String, LdapError> {
        let wrong = |what: String| LdapError::new(Code::InvalidAttributeSyntax, format!("the definition {what}"));
        let description = Description::parse(text).map_err(wrong)?;
        let oid = description.oid.clone();
        if self.texts.get(&(kind, oid.clone())).is_some_and(|known| known == text) {
            return Ok(oid);
        }
        if self.own >= DEFINITIONS_MAX {
            return Err(LdapError::new(
                Code::AdminLimitExceeded,
                format!("the schema has {DEFINITIONS_MAX} definitions already"),
            ));
        }
        let names = description.names().map_err(wrong)?;
        let taken = |known: Option<&String>, name: &str| match known {
            Some(other) if *other != oid => {
                Err(LdapError::new(Code::ConstraintViolation, format!("`{name}` is already the name of {other}")))
            }
            _ => Ok(()),
        };
        for name in names.iter().chain([&oid]) {
            let key = name.to_ascii_lowercase();
            match kind {
                Kind::Attribute => taken(self.attributes.get(&key).map(|known| &known.oid), name)?,
                Kind::Class => taken(self.classes.get(&key).map(|known| &known.oid), name)?,
            }
        }
        let keys = names.iter().chain([&oid]).map(|name| name.to_ascii_lowercase());
        match kind {
            Kind::Attribute => {
                let made = Arc::new(self.attribute_of(&description, names.clone())?);
                if let Some(known) = self.attributes.get(&oid) {
                    known.may_become(&made)?;
                }
                self.attributes.extend(keys.map(|key| (key, made.clone())));
            }
            Kind::Class => {
                let made = Arc::new(self.class_of(&description, names.clone())?);
                self.classes.extend(keys.map(|key| (key, made.clone())));
            }
        }
        self.own += 1;
        self.texts.insert((kind, oid.clone()), text.to_owned());
        Ok(oid)
    }

    fn attribute_of(&self, description: &Description, names: Vec<String>) -> Result<AttributeType, LdapError> {
        let wrong = |what: String| {
            LdapError::new(Code::InvalidAttributeSyntax, format!("the definition of `{}` {what}", names[0]))
        };
        let above = match description.value("SUP") {
            Some(name) => Some(self.attribute(name)?),
            None => None,
        };
        let inherited = above.as_ref().map(|above| above.syntax);
        let Some(syntax) = description.syntax().map_err(wrong)?.or(inherited) else {
            return Err(wrong("has neither SYNTAX nor SUP".to_owned()));
        };
        let rule = |word: &str, of_above: fn(&AttributeType) -> Option<Rule>| {
            let own = description.rule(word).map_err(wrong)?;
            Ok::<_, LdapError>(own.or_else(|| above.as_ref().and_then(|above| of_above(above))))
        };
        let index = description.value("X-INDEX").unwrap_or_default();
        if let Some(word) = index.split_whitespace().find(|word| !matches!(*word, "eq" | "sub")) {
            return Err(wrong(format!("has X-INDEX '{word}'; the indexes are `eq` and `sub`")));
        }
        let operational = !matches!(description.value("USAGE"), None | Some("userApplications"));
        let mut kinds = above.as_ref().map(|above| above.kinds.clone()).unwrap_or_default();
        kinds.extend(above.as_ref().map(|above| above.key.clone()));
        Ok(AttributeType {
            oid: description.oid.clone(),
            key: names[0].to_ascii_lowercase().into(),
            kinds,
            syntax,
            equality: rule("EQUALITY", |above| above.equality)?,
            ordering: rule("ORDERING", |above| above.ordering)?,
            substrings: rule("SUBSTR", |above| above.substrings)?,
            single: description.has("SINGLE-VALUE"),
            changeable: !description.has("NO-USER-MODIFICATION"),
            operational,
            declared: true,
            indexed: (index.contains("eq"), index.contains("sub")),
            names,
        })
    }

    fn class_of(&self, description: &Description, names: Vec<String>) -> Result<ObjectClass, LdapError> {
        let kind = match (description.has("ABSTRACT"), description.has("AUXILIARY")) {
            (true, _) => ClassKind::Abstract,
            (_, true) => ClassKind::Auxiliary,
            _ => ClassKind::Structural,
        };
        let keys = |word: &str| {
            let attributes =
                description.values(word).iter().map(|name| self.attribute(name).map(|found| found.key.clone()));
            attributes.collect::<Result<Vec<_>, _>>()
        };
        let mut class = ObjectClass {
            oid: description.oid.clone(),
            names,
            kind,
            above: Vec::new(),
            must: keys("MUST")?,
            may: keys("MAY")?,
        };
        for name in description.values("SUP") {
            let above = self.class(name)?;
            class.above.push(above.key());
            class.above.extend(above.above.iter().cloned());
            class.must.extend(above.must.iter().cloned());
            class.may.extend(above.may.iter().cloned());
        }
        Ok(class)
    }

    /// A declared attribute by name or object identifier. Options such as `;lang-de` are not supported.
    ///
    /// # Errors
    /// There is no such attribute.
    pub fn attribute(&self, name: &str) -> Result<&Arc<AttributeType>, LdapError> {
        // Clients request certificates with this option, which changes nothing.
        let plain = name.strip_suffix(";binary").unwrap_or(name);
        let found = in_lower_case(plain, |key| self.attributes.get(key));
        found.ok_or_else(|| {
            let what = format!("there is no attribute `{name}`; add it to `attributeTypes` of `cn=subschema`");
            LdapError::new(Code::UndefinedAttributeType, what)
        })
    }

    /// The attribute `objectClass`, which every entry has.
    pub fn object_class(&self) -> &Arc<AttributeType> {
        self.attribute("objectClass").expect("it is built in")
    }

    /// An attribute as an entry has it: declared, or by the name that an API client gave it. `None`: not a valid LDAP
    /// name.
    pub fn known_or_named(&self, name: &str) -> Option<Arc<AttributeType>> {
        if let Ok(found) = self.attribute(name) {
            return Some(found.clone());
        }
        let fits = name.len() <= 64
            && name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        fits.then(|| {
            Arc::new(AttributeType {
                oid: name.to_owned(),
                names: vec![name.to_owned()],
                key: name.to_ascii_lowercase().into(),
                kinds: Vec::new(),
                syntax: Syntax::Text,
                equality: Some(Rule::CaseIgnore),
                ordering: Some(Rule::CaseIgnore),
                substrings: Some(Rule::CaseIgnore),
                single: false,
                changeable: false,
                operational: false,
                declared: false,
                indexed: (false, false),
            })
        })
    }

    /// An object class by name or object identifier.
    ///
    /// # Errors
    /// There is no such class.
    pub fn class(&self, name: &str) -> Result<&Arc<ObjectClass>, LdapError> {
        in_lower_case(name, |key| self.classes.get(key)).ok_or_else(|| {
            LdapError::new(
                Code::ObjectClassViolation,
                format!("there is no object class `{name}`; add it to `objectClasses` of `cn=subschema`"),
            )
        })
    }

    /// All attribute types, each once.
    pub fn attributes(&self) -> impl Iterator<Item = &Arc<AttributeType>> {
        self.attributes.iter().filter(|(key, found)| ***key == *found.key).map(|(_, found)| found)
    }

    /// Texts of all definitions of a kind, each after the definitions named in its `SUP`.
    pub fn texts(&self, kind: Kind) -> impl Iterator<Item = &str> {
        let mut found: Vec<_> = self.texts.iter().filter(|((of, _), _)| *of == kind).collect();
        found.sort_by_key(|((_, oid), _)| self.height(kind, oid));
        found.into_iter().map(|(_, text)| text.as_str())
    }

    /// Depth of a definition in the hierarchy of its supertypes.
    fn height(&self, kind: Kind, oid: &str) -> usize {
        match kind {
            Kind::Attribute => self.attributes.get(oid).map_or(0, |found| found.kinds.len()),
            Kind::Class => self.classes.get(oid).map_or(0, |found| found.above.len()),
        }
    }

    /// Checks the classes and attributes of an entry. `touched`: only these attributes are checked, since the schema
    /// may have changed after others were stored; `None`: all.
    ///
    /// # Errors
    /// The classes conflict, or an attribute is missing or not allowed.
    pub fn check(
        &self,
        classes: &[&str],
        has: &[&Arc<AttributeType>],
        touched: Option<&[Arc<AttributeType>]>,
    ) -> Result<(), LdapError> {
        let violation = |what: String| Err(LdapError::new(Code::ObjectClassViolation, what));
        let found = classes.iter().map(|name| self.class(name)).collect::<Result<Vec<_>, _>>()?;
        self.structural(classes)?;
        for class in &found {
            let is_kind = |kind: &AttributeType, must: &Arc<str>| kind.key == *must || kind.kinds.contains(must);
            let is_asked =
                |must: &Arc<str>| touched.is_none_or(|touched| touched.iter().any(|kind| is_kind(kind, must)));
            let lacking = |must: &&Arc<str>| is_asked(must) && !has.iter().any(|kind| is_kind(kind, must));
            if let Some(missing) = class.must.iter().find(lacking) {
                let name = self.attribute(missing).map_or(&**missing, |kind| kind.name());
                return violation(format!("object class '{}' requires attribute '{name}'", class.names[0]));
            }
        }
        let is_extensible = found.iter().any(|class| class.is_extensible());
        for kind in has {
            let asked = touched.is_none_or(|touched| touched.iter().any(|other| other.key == kind.key));
            let is_free = kind.operational || &*kind.key == "objectclass";
            let is_allowed = || match is_extensible {
                true => self.may_list(classes, kind),
                false => allows(&found, kind),
            };
            if asked && !is_free && !is_allowed() {
                return violation(format!("attribute '{}' not allowed by the entry's object classes", kind.name()));
            }
        }
        Ok(())
    }

    /// Whether an entry of these classes may list members by this attribute, if the attribute lists members. A
    /// subscriber may only by a class that names the attribute: in the own entry of a user, members would get the
    /// rights of the user's groups.
    pub(crate) fn may_list(&self, classes: &[&str], kind: &AttributeType) -> bool {
        let lists_members = MEMBERS.iter().chain([&FINDING]).any(|known| **known == *kind.key);
        if !lists_members || !self.is_subscriber(classes) {
            return true;
        }
        let found: Vec<_> = classes.iter().filter_map(|name| self.class(name).ok()).collect();
        allows(&found, kind)
    }

    /// The structural class of an entry: the most derived of its structural classes.
    ///
    /// # Errors
    /// There is none, or more than one.
    pub fn structural(&self, classes: &[&str]) -> Result<&Arc<ObjectClass>, LdapError> {
        let violation = |what: String| Err(LdapError::new(Code::ObjectClassViolation, what));
        let mut structural: Vec<&Arc<ObjectClass>> = Vec::new();
        for name in classes {
            let class = self.class(name)?;
            if class.kind == ClassKind::Structural {
                structural.push(class);
            }
        }
        let is_lowest = |class: &&Arc<ObjectClass>| {
            structural.iter().all(|other| other.oid == class.oid || class.above.contains(&other.key()))
        };
        match structural.iter().find(|class| is_lowest(class)) {
            Some(class) => Ok(class),
            None if structural.is_empty() => violation("no structural object class is provided".to_owned()),
            None => violation(format!(
                "the classes '{}' and '{}' are not in one superclass chain",
                structural[0].names[0], structural[1].names[0]
            )),
        }
    }

    /// Whether an entry of these classes is a recipient: a person, an account, or an entry of class `tocsinSubscriber`.
    pub fn is_subscriber(&self, classes: &[&str]) -> bool {
        let is_recipient =
            |name: &str| ["person", "account", "tocsinSubscriber"].iter().any(|known| known.eq_ignore_ascii_case(name));
        classes
            .iter()
            .filter_map(|name| self.class(name).ok())
            .any(|class| is_recipient(&class.names[0]) || class.above.iter().any(|above| is_recipient(above)))
    }

    /// Whether an entry of these classes is dynamic: it expires unless it is refreshed.
    pub(crate) fn is_dynamic(&self, classes: &[&str]) -> bool {
        classes.iter().filter_map(|name| self.class(name).ok()).any(|class| class.key() == DYNAMIC)
    }

    /// A DN in normal form: attributes by key, values by their equality rule.
    pub fn normal_dn(&self, dn: &Dn) -> String {
        dn.0.iter().map(|rdn| self.normal_rdn(rdn)).collect::<Vec<_>>().join(",")
    }

    /// A relative name in normal form.
    pub fn normal_rdn(&self, rdn: &Rdn) -> String {
        let mut parts: Vec<String> =
            rdn.assertions.iter().map(|(name, value)| self.normal_assertion(name, value)).collect();
        parts.sort();
        parts.join("+")
    }

    fn normal_assertion(&self, name: &str, value: &[u8]) -> String {
        let kind = self.attribute(name).ok();
        let mut out = kind.map_or_else(|| name.to_ascii_lowercase(), |kind| kind.key.to_string());
        out.push('=');
        let rule = kind.map_or(Rule::CaseIgnore, |kind| kind.equality.unwrap_or(Rule::Octets));
        // Normal forms of numbers are binary and their values short, so the values are used.
        let normal = match rule.form() {
            Some(_) => rule.normal(value, self).unwrap_or_else(|| value.to_vec()),
            None => value.to_ascii_lowercase(),
        };
        escape(&String::from_utf8_lossy(&normal), &mut out);
        out
    }

    /// The first name of the definition with this name or object identifier.
    pub fn canonical_oid(&self, text: &str) -> String {
        let key = text.trim().to_ascii_lowercase();
        if let Some(found) = self.classes.get(&key) {
            return found.key();
        }
        self.attributes.get(&key).map_or(key, |found| found.key.to_string())
    }
}

/// Whether one of the classes names an attribute.
fn allows(classes: &[&Arc<ObjectClass>], kind: &AttributeType) -> bool {
    classes.iter().any(|class| class.must.contains(&kind.key) || class.may.contains(&kind.key))
}

/// Looks up a name in lower case. Short names, the common case, need no allocation.
fn in_lower_case<T>(name: &str, find: impl FnOnce(&str) -> T) -> T {
    if !name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return find(name);
    }
    let mut short = [0; 64];
    match short.get_mut(..name.len()) {
        Some(short) => {
            short.copy_from_slice(name.as_bytes());
            short.make_ascii_lowercase();
            find(std::str::from_utf8(short).expect("other letters stay as they are"))
        }
        None => find(&name.to_ascii_lowercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code<T>(result: Result<T, LdapError>) -> Option<Code> {
        result.err().map(|refusal| refusal.code)
    }

    #[test]
    fn attributes_inherit_from_those_above() {
        let schema = Schema::standard();
        let cn = schema.attribute("CommonName").expect("standard");
        assert_eq!((cn.name(), cn.equality, cn.substrings), ("cn", Some(Rule::CaseIgnore), Some(Rule::CaseIgnore)));
        assert!(cn.is(schema.attribute("name").expect("standard")));
        assert!(schema.attribute("2.5.4.3").is_ok() && schema.attribute("userCertificate;binary").is_ok());
        assert_eq!(code(schema.attribute("cn;lang-de")), Some(Code::UndefinedAttributeType));
        assert_eq!(code(schema.attribute(&"X".repeat(65))), Some(Code::UndefinedAttributeType));
    }

    #[test]
    fn a_schema_can_be_extended() {
        let mut schema = Schema::standard();
        let limit = "( 2.25.1.1 NAME 'limit' EQUALITY integerMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.27 SINGLE-VALUE X-INDEX 'eq' )";
        schema.define(Kind::Attribute, limit).expect("fine");
        schema.define(Kind::Class, "( 2.25.1.2 NAME 'limited' SUP top AUXILIARY MUST limit )").expect("fine");
        assert_eq!(schema.attribute("LIMIT").expect("there").indexed, (true, false));
        let check =
            |text: &str, expected| assert_eq!(code(schema.clone().define(Kind::Attribute, text)), expected, "{text}");
        check(limit, None);
        check("( 2.25.1.3 NAME 'limit' SUP name )", Some(Code::ConstraintViolation));
        check("( 2.25.1.1 NAME 'limit' SUP name )", Some(Code::ConstraintViolation));
        check("( 2.25.1.3 NAME 'x' SUP nothing )", Some(Code::UndefinedAttributeType));
        // Existing values were indexed under the old equality rule, and may be part of names.
        let integer = "SYNTAX 1.3.6.1.4.1.1466.115.121.1.27";
        check(
            &format!("( 2.25.1.1 NAME 'limit' EQUALITY integerBitAndMatch {integer} )"),
            Some(Code::ConstraintViolation),
        );
        check(&format!("( 2.25.1.1 NAME 'bound' EQUALITY integerMatch {integer} )"), Some(Code::ConstraintViolation));
        check(&format!("( 2.25.1.1 NAME 'limit' EQUALITY integerMatch {integer} )"), None);
        check("( 2.5.4.3 NAME ( 'cn' 'commonName' ) SUP name X-INDEX 'eq sub' )", None);
        check(
            "( 2.5.4.3 NAME 'cn' EQUALITY caseIgnoreMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 )",
            Some(Code::ConstraintViolation),
        );
        for wrong in [
            "",
            "( )",
            "( x NAME 'x' SUP name )",
            "( 2.25.1.3 SUP name )",
            "( 2.25.1.3 NAME 'x' )",
            "( 2.25.1.3 NAME 'x' SYNTAX 1.2 )",
            "( 2.25.1.3 NAME 'x SUP name )",
        ] {
            check(wrong, Some(Code::InvalidAttributeSyntax));
        }
    }

    #[test]
    fn entries_are_checked_against_their_classes() {
        let schema = Schema::standard();
        let check = |classes: &[&str], attributes: &[&str], expected: Option<Code>| {
            let all = attributes.iter().chain(&["objectClass"]);
            let has: Vec<_> = all.map(|name| schema.attribute(name).expect("standard")).collect();
            assert_eq!(code(schema.check(classes, &has, None)), expected, "{classes:?} {attributes:?}");
        };
        let violation = Some(Code::ObjectClassViolation);
        check(&["inetOrgPerson"], &["cn", "sn", "mail"], None);
        check(&["inetOrgPerson", "person", "top"], &["cn", "sn"], None);
        check(&["inetOrgPerson"], &["cn"], violation);
        check(&["person"], &["cn", "sn", "mail"], violation);
        check(&["person", "extensibleObject"], &["cn", "sn", "mail"], None);
        check(&["person", "organization"], &["cn", "sn", "o"], violation);
        check(&["inetOrgPerson"], &["cn", "sn", "member"], violation);
        check(&["inetOrgPerson", "extensibleObject"], &["cn", "sn", "title", "member"], violation);
        check(&["account", "tocsinSubscriber"], &["uid", "uniqueMember"], violation);
        check(&["account", "tocsinSubscriber"], &["uid", "memberURL"], violation);
        check(&["account", "tocsinSubscriber"], &["uid", "roleOccupant"], violation);
        check(&["organizationalUnit"], &["ou", "member"], violation);
        // Extensible objects that are no subscribers allow every attribute (RFC 4512, 4.3).
        check(&["organizationalUnit", "extensibleObject"], &["ou", "member"], None);
        check(&["groupOfNames"], &["cn", "uniqueMember", "member"], violation);
        check(&["groupOfNames"], &["cn", "member"], None);
        check(&["top"], &[], violation);
        check(&["nobody"], &[], violation);
        assert!(schema.is_subscriber(&["inetOrgPerson"]) && !schema.is_subscriber(&["organizationalUnit"]));
    }
}
