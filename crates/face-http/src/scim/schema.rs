//! Schemas of users and groups (RFC 7643): one table for validation of bodies, filters and `/Schemas`.

use axum::http::StatusCode;
use serde_json::{Value as Json, json};

use super::error::ScimError;

/// Type of an attribute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Text,
    Boolean,
    DateTime,
    Binary,
    /// Addresses of these.
    Reference(&'static [&'static str]),
    /// Parts.
    Complex(&'static [Attribute]),
}

/// Mutability of an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mutability {
    ReadWrite,
    ReadOnly,
    WriteOnly,
    Immutable,
}

/// An attribute.
#[derive(Debug, PartialEq)]
pub(super) struct Attribute {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: Kind,
    pub(super) many: bool,
    pub(super) required: bool,
    /// Whether comparison is case-sensitive (`caseExact`).
    pub(super) exact: bool,
    pub(super) mutability: Mutability,
    /// Whether the value must be unique.
    pub(super) unique: bool,
    /// Suggested values (`canonicalValues`; RFC 7643, section 7).
    pub(super) canonical_values: &'static [&'static str],
}

const fn attribute(name: &'static str, kind: Kind, help: &'static str) -> Attribute {
    let mutability = Mutability::ReadWrite;
    Attribute {
        name,
        help,
        kind,
        many: false,
        required: false,
        exact: false,
        mutability,
        unique: false,
        canonical_values: &[],
    }
}

const fn text(name: &'static str, help: &'static str) -> Attribute {
    attribute(name, Kind::Text, help)
}

/// A multi-valued complex attribute; each value has sub-attributes such as `value` and `type`.
const fn several(name: &'static str, parts: &'static [Attribute], help: &'static str) -> Attribute {
    Attribute { many: true, ..attribute(name, Kind::Complex(parts), help) }
}

impl Attribute {
    const fn read_only(self) -> Attribute {
        Attribute { mutability: Mutability::ReadOnly, ..self }
    }

    const fn immutable(self) -> Attribute {
        Attribute { mutability: Mutability::Immutable, ..self }
    }

    const fn exact(self) -> Attribute {
        Attribute { exact: true, ..self }
    }

    const fn required(self) -> Attribute {
        Attribute { required: true, ..self }
    }

    const fn canonical_values(self, canonical_values: &'static [&'static str]) -> Attribute {
        Attribute { canonical_values, ..self }
    }

    /// Its parts, if it has some.
    pub(super) fn parts(&self) -> &'static [Attribute] {
        match self.kind {
            Kind::Complex(parts) => parts,
            _ => &[],
        }
    }

    pub(super) fn part(&self, name: &str) -> Option<&'static Attribute> {
        find(self.parts(), name)
    }

    fn to_json(&self) -> Json {
        let kind = match self.kind {
            Kind::Text => "string",
            Kind::Boolean => "boolean",
            Kind::DateTime => "dateTime",
            Kind::Binary => "binary",
            Kind::Reference(_) => "reference",
            Kind::Complex(_) => "complex",
        };
        let mutability = match self.mutability {
            Mutability::ReadWrite => "readWrite",
            Mutability::ReadOnly => "readOnly",
            Mutability::WriteOnly => "writeOnly",
            Mutability::Immutable => "immutable",
        };
        let returned = if self.mutability == Mutability::WriteOnly { "never" } else { "default" };
        let mut described = json!({
            "name": self.name, "type": kind, "multiValued": self.many, "description": self.help, "required": self.required,
            "caseExact": self.exact, "mutability": mutability, "returned": returned,
            "uniqueness": if self.unique { "server" } else { "none" },
        });
        if let Kind::Reference(of) = self.kind {
            described["referenceTypes"] = json!(of);
        }
        if !self.canonical_values.is_empty() {
            described["canonicalValues"] = json!(self.canonical_values);
        }
        if !self.parts().is_empty() {
            described["subAttributes"] = self.parts().iter().map(Attribute::to_json).collect();
        }
        described
    }
}

pub(super) fn find(attributes: &'static [Attribute], name: &str) -> Option<&'static Attribute> {
    attributes.iter().find(|attribute| attribute.name.eq_ignore_ascii_case(name))
}

/// A kind of resource.
#[derive(Debug, PartialEq)]
pub(super) struct ResourceType {
    pub(super) name: &'static str,
    /// The last part of its address.
    pub(super) endpoint: &'static str,
    pub(super) schema: &'static str,
    help: &'static str,
    pub(super) attributes: &'static [Attribute],
    pub(super) extension: Option<Extension>,
}

/// A schema extension.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Extension {
    pub(super) schema: &'static str,
    name: &'static str,
    pub(super) attributes: &'static [Attribute],
}

/// Path of a value in a resource.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Path {
    /// The extension that it is of.
    pub(super) extension: Option<&'static str>,
    pub(super) attribute: &'static Attribute,
    pub(super) part: Option<&'static Attribute>,
}

impl ResourceType {
    /// Finds an attribute by its name, which may begin with a schema and end with a part.
    pub(super) fn resolve(&self, text: &str) -> Option<Path> {
        let (mut extension, rest) = self.split(text)?;
        let (name, part) = match rest.split_once('.') {
            Some((name, part)) => (name, Some(part)),
            None => (rest, None),
        };
        let attribute = match extension {
            Some(_) => find(self.extension?.attributes, name)?,
            None => match find(COMMON, name).or_else(|| find(self.attributes, name)) {
                Some(attribute) => attribute,
                // Clients leave the schema of an extension out where the name alone says which attribute is meant.
                None => {
                    let known = self.extension?;
                    extension = Some(known.schema);
                    find(known.attributes, name)?
                }
            },
        };
        let part = match part {
            Some(part) => Some(attribute.part(part)?),
            None => None,
        };
        Some(Path { extension, attribute, part })
    }

    /// The same, also by the names of other kinds: a search through all kinds may use them, and what has no such attribute has no value
    /// of it (RFC 7644, 3.4.2.1).
    pub(super) fn resolve_in_all(&self, text: &str) -> Option<Path> {
        self.resolve(text).or_else(|| RESOURCES.iter().find_map(|other| other.resolve(text)))
    }

    /// All attributes of a schema of this kind.
    pub(super) fn attributes_of(&self, schema: &str) -> Option<Vec<Path>> {
        let paths = |extension, attributes: &'static [Attribute]| {
            attributes.iter().map(|attribute| Path { extension, attribute, part: None }).collect()
        };
        if schema.eq_ignore_ascii_case(self.schema) {
            return Some(paths(None, self.attributes));
        }
        let extension = self.extension.filter(|extension| schema.eq_ignore_ascii_case(extension.schema))?;
        Some(paths(Some(extension.schema), extension.attributes))
    }

    /// Takes the schema from the beginning of a name; gives the extension, if it is that of one.
    fn split<'a>(&self, text: &'a str) -> Option<(Option<&'static str>, &'a str)> {
        let behind = |schema: &str| {
            let start = text.get(..schema.len())?;
            text[schema.len()..].strip_prefix(':').filter(|_| start.eq_ignore_ascii_case(schema))
        };
        if let Some(rest) = behind(self.schema) {
            return Some((None, rest));
        }
        if let Some(rest) = self.extension.and_then(|extension| behind(extension.schema)) {
            return Some((self.extension.map(|extension| extension.schema), rest));
        }
        (!text.contains(':')).then_some((None, text))
    }

    /// Whether a name is that of an extension, or of an attribute of one, that is not known here. Changes of it are ignored, since the
    /// schemas say which there are (RFC 7643, 3.3).
    pub(super) fn is_foreign(&self, text: &str) -> bool {
        let is_of = |schema: &str| {
            text.get(..schema.len()).is_some_and(|start| start.eq_ignore_ascii_case(schema))
                && matches!(text.as_bytes().get(schema.len()), None | Some(b':' | b'.'))
        };
        text.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("urn:")) && !self.schemas().any(is_of)
    }

    pub(super) fn schemas(&self) -> impl Iterator<Item = &'static str> {
        [self.schema].into_iter().chain(self.extension.map(|extension| extension.schema))
    }

    /// The representation in `/ResourceTypes`.
    pub(super) fn to_json(&self, base: &str) -> Json {
        let extension = |found: Extension| json!([{"schema": found.schema, "required": false}]);
        json!({
            "schemas": ["urn:ietf:params:scim:schemas:core:2.0:ResourceType"],
            "id": self.name, "name": self.name, "endpoint": format!("/{}", self.endpoint), "description": self.help,
            "schema": self.schema, "schemaExtensions": self.extension.map_or(json!([]), extension),
            "meta": {"resourceType": "ResourceType", "location": format!("{base}/ResourceTypes/{}", self.name)},
        })
    }
}

/// All schemas, as in `/Schemas`.
pub(super) fn schemas(base: &str) -> Vec<Json> {
    let schema_json = |schema: &str, name: &str, help: &str, attributes: &[Attribute]| {
        json!({
            "schemas": ["urn:ietf:params:scim:schemas:core:2.0:Schema"],
            "id": schema, "name": name, "description": help,
            "attributes": attributes.iter().map(Attribute::to_json).collect::<Vec<_>>(),
            "meta": {"resourceType": "Schema", "location": format!("{base}/Schemas/{schema}")},
        })
    };
    let own = RESOURCES.iter().map(|kind| schema_json(kind.schema, kind.name, kind.help, kind.attributes));
    let extensions = RESOURCES.iter().filter_map(|kind| kind.extension);
    own.chain(extensions.map(|found| schema_json(found.schema, found.name, found.name, found.attributes))).collect()
}

/// Common attributes.
const COMMON: &[Attribute] = &[
    Attribute { many: true, ..text("schemas", "The schemas of the resource").exact().read_only() },
    text("id", "The identifier that the server gave").exact().read_only(),
    text("externalId", "The identifier that the client gave").exact(),
    attribute("meta", Kind::Complex(META), "What the server knows of the resource").read_only(),
];

const META: &[Attribute] = &[
    text("resourceType", "The kind of the resource").exact().read_only(),
    attribute("created", Kind::DateTime, "When it was made").read_only(),
    attribute("lastModified", Kind::DateTime, "When it changed the last time").read_only(),
    attribute("location", Kind::Reference(&["uri"]), "Where it is").exact().read_only(),
    text("version", "Its tag").exact().read_only(),
];

const DISPLAY: Attribute = text("display", "How it is shown");
const PRIMARY: Attribute = attribute("primary", Kind::Boolean, "Whether it is the preferred one");

/// The parts of an attribute of several texts.
const fn labelled(canonical_values: &'static [&'static str]) -> [Attribute; 4] {
    [text("value", "The value"), DISPLAY, text("type", "What it is for").canonical_values(canonical_values), PRIMARY]
}

const EMAIL: &[Attribute] = &labelled(&["work", "home", "other"]);
const PHONE: &[Attribute] = &labelled(&["work", "home", "mobile", "fax", "pager", "other"]);
const MESSAGING: &[Attribute] = &labelled(&["aim", "gtalk", "icq", "xmpp", "msn", "skype", "qq", "yahoo"]);
const PLAIN: &[Attribute] = &labelled(&[]);
const PHOTO: &[Attribute] = &[
    attribute("value", Kind::Reference(&["external"]), "Where the picture is").exact(),
    DISPLAY,
    text("type", "What it is for").canonical_values(&["photo", "thumbnail"]),
    PRIMARY,
];
const CERTIFICATE: &[Attribute] =
    &[attribute("value", Kind::Binary, "The certificate").exact(), DISPLAY, text("type", "What it is for"), PRIMARY];
const ADDRESS: &[Attribute] = &[
    text("formatted", "The whole address"),
    text("streetAddress", "Street and number"),
    text("locality", "City"),
    text("region", "State or region"),
    text("postalCode", "Postal code"),
    text("country", "Country"),
    text("type", "What it is for").canonical_values(&["work", "home", "other"]),
    PRIMARY,
];
const NAME: &[Attribute] = &[
    text("formatted", "The whole name"),
    text("familyName", "Family name"),
    text("givenName", "Given name"),
    text("middleName", "Middle names"),
    text("honorificPrefix", "Title before the name"),
    text("honorificSuffix", "Title behind the name"),
];
const IN_GROUP: &[Attribute] = &[
    text("value", "The id of the group").exact().read_only(),
    attribute("$ref", Kind::Reference(&["Group"]), "Where the group is").exact().read_only(),
    text("display", "The name of the group").read_only(),
    text("type", "Whether it is in the group itself").read_only().canonical_values(&["direct"]),
];
const MEMBER: &[Attribute] = &[
    text("value", "The id of the member").exact().immutable(),
    attribute("$ref", Kind::Reference(&["User", "Group"]), "Where the member is").exact().immutable(),
    text("display", "The name of the member").read_only(),
    text("type", "The kind of the member").immutable().canonical_values(&["User", "Group"]),
];
const MANAGER: &[Attribute] = &[
    text("value", "The id of the manager").exact(),
    attribute("$ref", Kind::Reference(&["User"]), "Where the manager is").exact(),
    text("displayName", "The name of the manager").read_only(),
];

pub(super) const ENTERPRISE: &str = "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User";

pub(super) static USER: ResourceType = ResourceType {
    name: "User",
    endpoint: "Users",
    schema: "urn:ietf:params:scim:schemas:core:2.0:User",
    help: "A subscriber",
    attributes: &[
        Attribute { unique: true, ..text("userName", "By which it is known").required() },
        attribute("name", Kind::Complex(NAME), "The parts of its name"),
        text("displayName", "How it is shown"),
        text("nickName", "How it is called"),
        attribute("profileUrl", Kind::Reference(&["external"]), "A page about it").exact(),
        text("title", "Its position"),
        text("userType", "Its relation to the organisation"),
        text("preferredLanguage", "The language of its notifications"),
        text("locale", "How numbers and times are written for it"),
        text("timezone", "The time zone, such as Europe/Vienna"),
        attribute("active", Kind::Boolean, "Whether the subscriber receives notifications"),
        Attribute { mutability: Mutability::WriteOnly, ..text("password", "What it proves itself with").exact() },
        several("emails", EMAIL, "Mail addresses"),
        several("phoneNumbers", PHONE, "Telephone numbers"),
        several("ims", MESSAGING, "Addresses of messengers"),
        several("photos", PHOTO, "Pictures"),
        several("addresses", ADDRESS, "Postal addresses"),
        several("groups", IN_GROUP, "The groups that it is in").read_only(),
        several("entitlements", PLAIN, "What it is entitled to"),
        several("roles", PLAIN, "Its roles"),
        several("x509Certificates", CERTIFICATE, "Its certificates"),
    ],
    extension: Some(Extension {
        schema: ENTERPRISE,
        name: "EnterpriseUser",
        attributes: &[
            text("employeeNumber", "The number within the organisation"),
            text("costCenter", "Who pays"),
            text("organization", "The organisation"),
            text("division", "The division"),
            text("department", "The department"),
            attribute("manager", Kind::Complex(MANAGER), "Whom it reports to"),
        ],
    }),
};

pub(super) static GROUP: ResourceType = ResourceType {
    name: "Group",
    endpoint: "Groups",
    schema: "urn:ietf:params:scim:schemas:core:2.0:Group",
    help: "A group of users and groups",
    attributes: &[
        Attribute { unique: true, ..text("displayName", "How it is called").required() },
        several("members", MEMBER, "Who is in it"),
    ],
    extension: None,
};

/// All kinds.
pub(super) static RESOURCES: [&ResourceType; 2] = [&USER, &GROUP];

/// The kind of resources at an address.
pub(super) fn resource_type(endpoint: &str) -> Result<&'static ResourceType, ScimError> {
    if endpoint == "Me" {
        return Err(ScimError::new(
            StatusCode::NOT_IMPLEMENTED,
            "API keys belong to no user, so `Me` is not supported",
        ));
    }
    let found = RESOURCES.iter().find(|kind| kind.endpoint == endpoint);
    found
        .copied()
        .ok_or_else(|| ScimError::missing(format!("nothing is at `/{endpoint}`; there are /Users and /Groups")))
}
