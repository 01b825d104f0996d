//! The subscription workflow as decisions: a record and a request in, records, a message and an answer out.
//!
//! The caller reads records, applies the limit of code guesses, stores the results and sends the messages. Decisions
//! about a service take its merged [`SubscriptionConfiguration`].

mod answer; // texts and redirects
mod create; // POST and PATCH
mod message; // confirmation requests and acknowledgements
mod swift; // unsubscription by SMS keyword

use serde_json::{Value, json};
use tocsin_model::time::Timestamp;

pub use answer::{Answer, undo_answer, unsubscription_answer, verification_answer};
pub use create::{CreateError, Request, broadcast_filter, create, encrypted_code, patch};
pub use message::{confirmation, is_confirmation_sent, unsubscription_acknowledgement};
pub use swift::{SwiftTarget, swift_target};

use crate::{
    codes,
    identity::{Identity, Role},
    query::Params,
    record::{Document, stamp, text},
};

/// Most additional services of an unsubscription.
pub const ADDITIONAL_MAX: usize = 1_000;

/// Whether a caller sees a subscription. Otherwise the answer is 404. A logged-in user sees the own ones that are not
/// deleted.
pub fn is_visible(record: &Document, identity: &Identity) -> bool {
    let is_hidden = identity.user().is_some() && text(record, "state") == Some("deleted");
    is_owned(record, identity) && !is_hidden
}

/// Whether a subscription is one of a logged-in user, deleted or not. Other callers see all.
pub fn is_owned(record: &Document, identity: &Identity) -> bool {
    identity.user().is_none_or(|user| text(record, "userId") == Some(user))
}

/// Whether two addresses are equal, letter case aside.
pub fn is_same_address(a: &str, b: &str) -> bool {
    a.to_lowercase() == b.to_lowercase()
}

/// Whether `other` is a confirmed subscription of the same service, channel and address, letter case aside: a duplicate
/// for a new record, and replaced by a verification with `replace=true`.
pub fn is_duplicate(record: &Document, other: &Document) -> bool {
    let same = |name: &str| text(record, name).is_some() && text(record, name) == text(other, name);
    let addresses = text(record, "userChannelId").zip(text(other, "userChannelId"));
    text(other, "state") == Some("confirmed")
        && record.get("id") != other.get("id")
        && same("serviceName")
        && same("channel")
        && addresses.is_some_and(|(a, b)| is_same_address(a, b))
}

/// Whether a confirmation code confirms a subscription: it is not deleted, and the code equals the stored one.
pub fn may_verify(record: &Document, code: Option<&str>) -> bool {
    let is_open = matches!(text(record, "state"), Some("unconfirmed" | "confirmed"));
    let Some(request) = record.get("confirmationRequest") else { return is_open };
    let stored = match request.get("confirmationCode") {
        None | Some(Value::Null) => None,
        Some(Value::String(stored)) => Some(stored.clone()),
        // A code that is a number is no missing code.
        Some(other) => Some(other.to_string()),
    };
    is_open && is_code(stored.as_deref(), code)
}

/// Whether the given code is the stored one. Without a stored code none must be given.
fn is_code(stored: Option<&str>, given: Option<&str>) -> bool {
    match (stored, given) {
        (Some(stored), Some(given)) => codes::equals(stored, given),
        (None, None) => true,
        _ => false,
    }
}

/// Whether a caller may unsubscribe. The subscription must be confirmed. An anonymous caller needs the code, if the
/// record has one, and the address of the record, if an address is given.
pub fn may_unsubscribe(record: &Document, identity: &Identity, code: Option<&str>, address: Option<&str>) -> bool {
    let is_permitted = match identity.role {
        Role::SuperAdmin | Role::Admin => true,
        Role::AuthenticatedUser => text(record, "userId") == Some(&identity.security_id),
        Role::Anonymous => {
            let has_code = text(record, "unsubscriptionCode").is_none_or(|code_of| is_code(Some(code_of), code));
            let given = address.filter(|address| !address.is_empty());
            let is_theirs =
                given.is_none_or(|given| text(record, "userChannelId").is_some_and(|own| is_same_address(own, given)));
            has_code && is_theirs
        }
    };
    is_permitted && text(record, "state") == Some("confirmed")
}

/// Whether a caller may undo an unsubscription: an admin always, a logged-in user never, an anonymous caller with the
/// code, and if the subscription is deleted.
pub fn may_undo(record: &Document, identity: &Identity, code: Option<&str>) -> bool {
    match identity.role {
        Role::SuperAdmin | Role::Admin => true,
        Role::AuthenticatedUser => false,
        Role::Anonymous => {
            let has_code = text(record, "unsubscriptionCode").is_none_or(|code_of| is_code(Some(code_of), code));
            has_code && text(record, "state") == Some("deleted")
        }
    }
}

/// The parameters of an unsubscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsubscribeQuery {
    /// `unsubscriptionCode`
    pub code: Option<String>,
    /// `userChannelId`
    pub address: Option<String>,
    /// `additionalServices`
    pub additional: Additional,
}

impl UnsubscribeQuery {
    /// The parameters of a query string.
    pub fn of(params: &Params) -> UnsubscribeQuery {
        UnsubscribeQuery {
            code: params.text("unsubscriptionCode").map(str::to_owned),
            address: params.text("userChannelId").map(str::to_owned),
            additional: Additional::of(params.texts("additionalServices")),
        }
    }
}

/// The services of an unsubscription beside that of the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Additional {
    /// None are named.
    None,
    /// The subscriptions of these services with the record's channel and address.
    Services(Vec<String>),
    /// All confirmed subscriptions of the record's channel and address.
    All,
}

impl Additional {
    /// The services of the parameter `additionalServices`.
    pub fn of(names: Option<Vec<String>>) -> Additional {
        match names {
            None => Additional::None,
            Some(names) if names == ["_all"] => Additional::All,
            Some(names) => Additional::Services(names.into_iter().take(ADDITIONAL_MAX).collect()),
        }
    }

    /// Whether a subscription is unsubscribed together with the record.
    pub fn includes(&self, record: &Document, other: &Document, identity: &Identity) -> bool {
        let same = |name: &str| text(record, name).is_some() && text(record, name) == text(other, name);
        let is_named = match self {
            Additional::None => false,
            Additional::Services(names) => {
                text(other, "serviceName").is_some_and(|name| names.iter().any(|n| n == name))
            }
            Additional::All => text(other, "state") == Some("confirmed"),
        };
        is_named && same("channel") && same("userChannelId") && is_visible(other, identity)
    }
}

/// The state of a record is changed.
fn with_state(mut record: Document, state: &str, now: Timestamp, author: Option<&Value>) -> Document {
    record.insert("state".to_owned(), Value::from(state));
    stamp(&mut record, now, author);
    record
}

/// The record after a verification.
pub fn confirmed(record: Document, now: Timestamp, author: Option<&Value>) -> Document {
    with_state(record, "confirmed", now, author)
}

/// A record that is replaced, or unsubscribed together with another.
pub fn deleted(record: Document, now: Timestamp, author: Option<&Value>) -> Document {
    with_state(record, "deleted", now, author)
}

/// The record after an unsubscription. `others` are the records that [`Additional::includes`], with `_all` also the
/// record itself; each of them becomes [`deleted`].
pub fn unsubscribed(
    record: Document,
    additional: &Additional,
    others: &[Document],
    now: Timestamp,
    author: Option<&Value>,
) -> Document {
    let mut record = deleted(record, now, author);
    if *additional != Additional::None {
        let of = |name: &str| others.iter().filter_map(|other| other.get(name).cloned()).collect::<Vec<Value>>();
        let services = json!({"names": of("serviceName"), "ids": of("id")});
        record.insert("unsubscribedAdditionalServices".to_owned(), services);
    }
    record
}

/// The ids of the records that an undone unsubscription confirms beside the record itself.
pub fn undone_ids(record: &Document) -> Vec<String> {
    let ids = record.get("unsubscribedAdditionalServices").and_then(|services| services.get("ids"));
    let ids = ids.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    ids.filter(|id| Some(*id) != text(record, "id")).map(str::to_owned).collect()
}

/// The record after an undone unsubscription. Those of [`undone_ids`] become [`confirmed`].
pub fn undone(mut record: Document, now: Timestamp, author: Option<&Value>) -> Document {
    record.shift_remove("unsubscribedAdditionalServices");
    confirmed(record, now, author)
}

#[cfg(test)]
mod tests;
