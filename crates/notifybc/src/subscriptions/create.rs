//! POST and PATCH of subscriptions: codes, confirmation requests, and fields that users cannot set.

use serde_json::{Value, json};
use tocsin_model::time::Timestamp;

use crate::{
    codes::{self, CodeError},
    configuration::SubscriptionConfiguration,
    identity::{Identity, Role},
    record::{self, ChangeError, Collection, Document, ValidationError, stamp, text, truthy, with_defaults},
};

/// Properties that users cannot set.
const NOT_OF_USERS: [&str; 6] =
    ["state", "created", "updated", "createdBy", "updatedBy", "unsubscribedAdditionalServices"];

/// The circumstances of a POST or PATCH.
pub struct Request<'r> {
    /// The caller.
    pub identity: &'r Identity,
    /// The configuration of the record's service.
    pub configuration: &'r SubscriptionConfiguration,
    /// Now.
    pub now: Timestamp,
    /// The address and the code of [`encrypted_code`]. `None`: the body has none.
    pub decrypted: Option<(&'r str, &'r str)>,
    /// The next random number.
    pub random: &'r (dyn Fn() -> u64 + Sync),
}

/// A subscription that is refused or cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// The record does not satisfy its schema: 400.
    #[error(transparent)]
    Validation(#[from] ValidationError),
    /// A changed value has a wrong type: 400.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// A filter is not a text: 400.
    #[error("invalid broadcastPushNotificationFilter")]
    Filter,
    /// The configured regular expression of codes yields none: 500.
    #[error(transparent)]
    Code(#[from] CodeError),
}

/// The filter of a body, whose syntax the caller checks. A filter that is empty or `null` is absent.
pub fn broadcast_filter<'d>(body: &'d Document, name: &str) -> Result<Option<&'d str>, CreateError> {
    match body.get(name) {
        Some(Value::String(filter)) => Ok(Some(filter.as_str()).filter(|filter| !filter.is_empty())),
        Some(value) if truthy(value) => Err(CreateError::Filter),
        _ => Ok(None),
    }
}

/// The encrypted code of a body, in base64. The caller decrypts it by RSA-OAEP with SHA-1.
pub fn encrypted_code(body: &Document) -> Option<&str> {
    let request = body.get("confirmationRequest")?.get("confirmationCodeEncrypted")?;
    request.as_str().filter(|code| !code.is_empty())
}

/// The record of a POST. After it is stored, [`confirmation`](super::confirmation) is its message.
pub fn create(body: Document, id: &str, request: &Request<'_>) -> Result<Document, CreateError> {
    let mut body = with_defaults(Collection::Subscription, body);
    match request.identity.role {
        Role::SuperAdmin | Role::Admin => {}
        Role::AuthenticatedUser => body.retain(|name, _| !NOT_OF_USERS.contains(&name.as_str())),
        Role::Anonymous => body.retain(|name, _| name != "userId" && !NOT_OF_USERS.contains(&name.as_str())),
    }
    complete(&mut body, request)?;
    let author = request.identity.to_value();
    Ok(record::create(Collection::Subscription, id, body, request.now, Some(&author))?)
}

/// The record of a PATCH: address and data are taken over, all else is ignored. A changed address must be confirmed.
pub fn patch(record: &Document, body: &Document, request: &Request<'_>) -> Result<Document, CreateError> {
    let mut changes = Document::new();
    if let Some(address) = body.get("userChannelId").filter(|address| truthy(address)) {
        changes.insert("userChannelId".to_owned(), address.clone());
    }
    if let Some(data) = body.get("data").filter(|data| truthy(data)) {
        changes.insert("data".to_owned(), data.clone());
    }
    let author = request.identity.to_value();
    let mut changed = record::patch(Collection::Subscription, record, changes, request.now, Some(&author))?;
    let is_moved = changed.get("userChannelId") != record.get("userChannelId");
    if is_moved {
        changed.insert("state".to_owned(), Value::from("unconfirmed"));
        // The encrypted code belongs to the former address.
        if let Some(Value::Object(confirmation)) = changed.get_mut("confirmationRequest") {
            confirmation.shift_remove("confirmationCodeEncrypted");
        }
    }
    complete(&mut changed, request)?;
    stamp(&mut changed, request.now, Some(&author));
    Ok(changed)
}

/// Sets the user, the unsubscription code and the confirmation request.
fn complete(body: &mut Document, request: &Request<'_>) -> Result<(), CreateError> {
    let is_admin = request.identity.role.is_admin();
    if let Some(user) = request.identity.user() {
        body.insert("userId".to_owned(), Value::from(user));
    } else if request.configuration.code_required
        && !(is_admin && body.get("unsubscriptionCode").is_some_and(truthy))
        && let Some(regex) = &request.configuration.code_regex
    {
        let code = codes::generate(regex, request.random)?;
        body.insert("unsubscriptionCode".to_owned(), Value::from(code));
    }
    if let Some((address, code)) = request.decrypted {
        body.insert("userChannelId".to_owned(), Value::from(address));
        if let Some(Value::Object(confirmation)) = body.get_mut("confirmationRequest") {
            confirmation.insert("confirmationCode".to_owned(), json!(code));
        }
        return Ok(());
    }
    if encrypted_code(body).is_some() {
        // A stored record whose address and code were decrypted before.
        return Ok(());
    }
    if !is_admin || !body.get("confirmationRequest").is_some_and(truthy) {
        let channel = text(body, "channel").unwrap_or_default();
        match request.configuration.confirmation_request(channel) {
            Some(confirmation) => body.insert("confirmationRequest".to_owned(), Value::Object(confirmation)),
            None => body.shift_remove("confirmationRequest"),
        };
    }
    let Some(Value::Object(confirmation)) = body.get_mut("confirmationRequest") else { return Ok(()) };
    let has_code = confirmation.get("confirmationCode").is_some_and(truthy);
    if !has_code && let Some(regex) = text(confirmation, "confirmationCodeRegex") {
        let code = codes::generate(regex, request.random)?;
        confirmation.insert("confirmationCode".to_owned(), json!(code));
    }
    Ok(())
}
