//! Properties of the collections: types, defaults, required ones.

use std::fmt;

use serde_json::{Value, json};

use super::{CastError, Collection, Document, cast::cast};

/// The type of a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A text; numbers and booleans become texts.
    Text,
    /// A number, also as text.
    Number,
    /// A boolean, also as text.
    Boolean,
    /// An instant.
    Date,
    /// The id of a record.
    Id,
    /// The messages of a bounce record.
    BounceMessages,
    /// Any value.
    Mixed,
}

/// The default of a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Default {
    None,
    Text(&'static str),
    Zero,
    False,
    Null,
}

struct Property {
    name: &'static str,
    kind: Kind,
    is_required: bool,
    default: Default,
}

const fn property(name: &'static str, kind: Kind) -> Property {
    Property { name, kind, is_required: false, default: Default::None }
}

impl Property {
    const fn required(mut self) -> Property {
        self.is_required = true;
        self
    }

    const fn or(mut self, default: Default) -> Property {
        self.default = default;
        self
    }
}

/// Properties of all records.
static BASE: [Property; 5] = [
    property("id", Kind::Id),
    property("created", Kind::Date),
    property("updated", Kind::Date),
    property("createdBy", Kind::Mixed),
    property("updatedBy", Kind::Mixed),
];

static SUBSCRIPTION: [Property; 10] = [
    property("serviceName", Kind::Text).required(),
    property("channel", Kind::Text).required().or(Default::Text("email")),
    property("userChannelId", Kind::Text).required(),
    property("state", Kind::Text).or(Default::Text("unconfirmed")),
    property("confirmationRequest", Kind::Mixed),
    property("userId", Kind::Text),
    property("broadcastPushNotificationFilter", Kind::Text),
    property("data", Kind::Mixed),
    property("unsubscriptionCode", Kind::Text),
    property("unsubscribedAdditionalServices", Kind::Mixed),
];

static NOTIFICATION: [Property; 13] = [
    property("serviceName", Kind::Text).required(),
    property("state", Kind::Text).or(Default::Text("new")),
    property("userChannelId", Kind::Text),
    property("userId", Kind::Text),
    property("message", Kind::Mixed),
    property("channel", Kind::Text).required().or(Default::Text("inApp")),
    property("isBroadcast", Kind::Boolean).or(Default::False),
    property("skipSubscriptionConfirmationCheck", Kind::Boolean).or(Default::False),
    property("validTill", Kind::Date),
    property("invalidBefore", Kind::Date),
    property("data", Kind::Mixed),
    property("asyncBroadcastPushNotification", Kind::Mixed),
    property("broadcastPushNotificationSubscriptionFilter", Kind::Text),
];

static CONFIGURATION: [Property; 3] = [
    property("name", Kind::Text).required(),
    property("value", Kind::Mixed).required(),
    property("serviceName", Kind::Text),
];

static BOUNCE: [Property; 7] = [
    property("channel", Kind::Text).required(),
    property("userChannelId", Kind::Text).required(),
    property("hardBounceCount", Kind::Number).or(Default::Zero),
    property("state", Kind::Text).or(Default::Text("active")),
    property("bounceMessages", Kind::BounceMessages),
    property("latestNotificationStarted", Kind::Date).or(Default::Null),
    property("latestNotificationEnded", Kind::Date),
];

static ADMINISTRATOR: [Property; 2] = [property("username", Kind::Text), property("email", Kind::Text).required()];

static ACCESS_TOKEN: [Property; 3] =
    [property("ttl", Kind::Number), property("name", Kind::Text), property("userId", Kind::Id).required()];

static USER_CREDENTIAL: [Property; 2] =
    [property("password", Kind::Text).required(), property("userId", Kind::Id).required()];

static RSS: [Property; 3] =
    [property("serviceName", Kind::Text).required(), property("items", Kind::Mixed), property("lastPoll", Kind::Date)];

/// The own properties of a collection.
fn own(collection: Collection) -> &'static [Property] {
    match collection {
        Collection::Subscription => &SUBSCRIPTION,
        Collection::Notification => &NOTIFICATION,
        Collection::Configuration => &CONFIGURATION,
        Collection::Bounce => &BOUNCE,
        Collection::Administrator => &ADMINISTRATOR,
        Collection::AccessToken => &ACCESS_TOKEN,
        Collection::UserCredential => &USER_CREDENTIAL,
        Collection::Rss => &RSS,
    }
}

fn find(collection: Collection, name: &str) -> Option<&'static Property> {
    BASE.iter().chain(own(collection)).find(|property| property.name == name)
}

/// The type of a property by its path. `None` for properties outside of the schema and within open values.
pub fn kind_of(collection: Collection, path: &str) -> Option<Kind> {
    match path {
        // Access tokens have ids of another form.
        "id" | "_id" if collection == Collection::AccessToken => Some(Kind::Text),
        "_id" => Some(Kind::Id),
        _ => match find(collection, path) {
            Some(property) => Some(property.kind),
            None if collection == Collection::Bounce => bounce_message(path),
            None => None,
        },
    }
}

/// Properties of the messages of a bounce record, with or without a position.
fn bounce_message(path: &str) -> Option<Kind> {
    let rest = path.strip_prefix("bounceMessages.")?;
    match rest.rsplit('.').next()? {
        "date" => Some(Kind::Date),
        "message" => Some(Kind::Text),
        _ => None,
    }
}

/// A record that does not satisfy its schema. The text is that of the answer, which has status 400.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidationError {
    /// The collection.
    pub collection: Collection,
    /// Properties and the messages about them.
    pub failures: Vec<(String, String)>,
}

impl fmt::Display for ValidationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} validation failed: ", self.collection.model())?;
        for (at, (path, message)) in self.failures.iter().enumerate() {
            write!(f, "{}{path}: {message}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl std::error::Error for ValidationError {}

/// The default of a property.
pub(super) fn default_of(collection: Collection, name: &str) -> Option<Value> {
    match find(collection, name)?.default {
        Default::None => None,
        Default::Text(text) => Some(Value::from(text)),
        Default::Zero => Some(json!(0)),
        Default::False => Some(json!(false)),
        Default::Null => Some(Value::Null),
    }
}

/// Inserts the defaults of missing properties.
pub(super) fn insert_defaults(collection: Collection, document: &mut Document) {
    for property in own(collection) {
        if property.default != Default::None && !document.contains_key(property.name) {
            let default = default_of(collection, property.name).unwrap_or_default();
            document.insert(property.name.to_owned(), default);
        }
    }
}

/// Removes empty objects, which count as absent, at the first level and below. Entries of lists stay.
pub(super) fn without_empty_objects(document: &mut Document) {
    document.retain(|_, value| match value {
        Value::Object(inner) => {
            without_empty_objects(inner);
            !inner.is_empty()
        }
        _ => true,
    });
}

/// Casts the typed properties of a body in place. A closed collection loses other properties.
pub(super) fn cast_all(collection: Collection, document: &mut Document) -> Result<(), Vec<CastError>> {
    if !collection.is_open() {
        document.retain(|name, _| find(collection, name).is_some());
    }
    let mut failures = Vec::new();
    for (name, value) in document.iter_mut() {
        // The id is the server's, never that of a body.
        if name == "id" {
            continue;
        }
        let Some(kind) = kind_of(collection, name) else { continue };
        match cast(kind, value.take(), name) {
            Ok(cast) => *value = cast,
            Err(error) => failures.push(error),
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures) }
}

/// Validates a whole record: typed properties are cast, defaults inserted, empty objects removed, and required
/// properties checked. All failures are reported at once.
pub fn validate(collection: Collection, mut document: Document) -> Result<Document, ValidationError> {
    insert_defaults(collection, &mut document);
    let mut failures = Vec::new();
    if let Err(errors) = cast_all(collection, &mut document) {
        failures.extend(errors.into_iter().map(|error| (error.path, error.message)));
    }
    without_empty_objects_but_value(collection, &mut document);
    // The order of messages is that of NotifyBC: the last property first.
    for property in own(collection).iter().rev().filter(|property| property.is_required) {
        let is_absent = match document.get(property.name) {
            None | Some(Value::Null) => true,
            Some(Value::String(text)) => text.is_empty() && property.kind == Kind::Text,
            Some(_) => false,
        };
        if is_absent && !failures.iter().any(|(path, _)| path == property.name) {
            failures.push((property.name.to_owned(), format!("Path `{}` is required.", property.name)));
        }
    }
    if failures.is_empty() { Ok(document) } else { Err(ValidationError { collection, failures }) }
}

/// Removes empty objects. The value of a configuration is required, so an empty one stays until it is checked.
fn without_empty_objects_but_value(collection: Collection, document: &mut Document) {
    let value = match collection {
        Collection::Configuration => document.get("value").cloned(),
        _ => None,
    };
    without_empty_objects(document);
    if let Some(value @ Value::Object(_)) = value {
        document.insert("value".to_owned(), value);
    }
}
