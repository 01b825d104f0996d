//! Records: collections, ids, schemas, changes, and the views of users.
//!
//! A record is a JSON object. Its dates are texts in one form (`2026-11-29T08:00:00.000Z`), so they compare as texts.

mod cast; // values of typed properties
mod change; // creation, PATCH and PUT
mod id; // ids of records
mod schema; // properties of the collections
mod view; // records as users see them

use serde_json::{Map, Value};

pub(crate) use cast::cast as cast_property;
pub use cast::{CastError, date_text, parse_date, truthy};
pub(crate) use change::stamp;
pub use change::{ChangeError, create, patch, replace, with_defaults};
pub use id::RecordId;
pub use schema::{Kind, ValidationError, kind_of, validate};
pub use tocsin_model::notifybc::Collection;
pub use view::{
    HIDDEN_OF_NOTIFICATIONS, HIDDEN_OF_SUBSCRIPTIONS, is_user_notification, notification_for_user,
    subscription_for_user,
};

/// A record or a request body: a JSON object.
pub type Document = Map<String, Value>;

/// The text value of a property, if it is a text that is not empty.
pub fn text<'d>(document: &'d Document, name: &str) -> Option<&'d str> {
    document.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests;
