//! Static tokens: fixed names in any letter case, and their texts.

use std::fmt::Write;

use serde_json::Value;

use super::{Context, service_names};
use crate::record::{Document, text};

/// Most bytes of a name.
const NAME_MAX: usize = 40;

/// A token with a fixed name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Static {
    /// `{subscription_confirmation_url}`
    ConfirmationUrl,
    /// `{subscription_confirmation_code}`, `{confirmation_code}`
    ConfirmationCode,
    /// `{service_name}`, `{serviceName}`
    ServiceName,
    /// `{http_host}`
    HttpHost,
    /// `{rest_api_root}`, `{restApiRoot}`
    RestApiRoot,
    /// `{subscription_id}`, `{subscriptionId}`
    SubscriptionId,
    /// `{unsubscription_url}`
    UnsubscriptionUrl,
    /// `{unsubscription_all_url}`
    UnsubscriptionAllUrl,
    /// `{unsubscription_code}`, `{unsubscriptionCode}`
    UnsubscriptionCode,
    /// `{unsubscription_reversion_url}`
    UnsubscriptionReversionUrl,
    /// `{unsubscription_service_names}`
    UnsubscriptionServiceNames,
}

impl Static {
    /// The token of a name.
    pub fn find(name: &str) -> Option<Static> {
        if name.len() > NAME_MAX {
            return None;
        }
        Some(match name.to_ascii_lowercase().as_str() {
            "subscription_confirmation_url" => Static::ConfirmationUrl,
            "subscription_confirmation_code" | "confirmation_code" => Static::ConfirmationCode,
            "service_name" | "servicename" => Static::ServiceName,
            "http_host" => Static::HttpHost,
            "rest_api_root" | "restapiroot" => Static::RestApiRoot,
            "subscription_id" | "subscriptionid" => Static::SubscriptionId,
            "unsubscription_url" => Static::UnsubscriptionUrl,
            "unsubscription_all_url" => Static::UnsubscriptionAllUrl,
            "unsubscription_code" | "unsubscriptioncode" => Static::UnsubscriptionCode,
            "unsubscription_reversion_url" => Static::UnsubscriptionReversionUrl,
            "unsubscription_service_names" => Static::UnsubscriptionServiceNames,
            _ => return None,
        })
    }

    /// The token whose name and closing brace begin a text, and their length in bytes.
    pub(super) fn at_start(text: &str) -> Option<(Static, usize)> {
        let end = text.bytes().take(NAME_MAX + 1).position(|byte| byte == b'}')?;
        Some((Static::find(&text[..end])?, end + 1))
    }

    /// Adds the text of the token. Without a subscription it is empty, but the service name is the notification's.
    pub(super) fn render(self, context: &Context<'_>, output: &mut String) {
        let of =
            |name: &str| context.subscription.and_then(|subscription| text(subscription, name)).unwrap_or_default();
        match self {
            Static::HttpHost => output.push_str(context.http_host),
            Static::RestApiRoot => output.push_str(context.rest_api_root),
            Static::SubscriptionId => output.push_str(of("id")),
            Static::UnsubscriptionCode => output.push_str(of("unsubscriptionCode")),
            Static::ConfirmationCode => output.push_str(confirmation_code(context.subscription)),
            Static::ServiceName => {
                let own = context.subscription.and_then(|subscription| text(subscription, "serviceName"));
                let name = own.or_else(|| context.notification.and_then(|record| text(record, "serviceName")));
                output.push_str(name.unwrap_or_default());
            }
            Static::UnsubscriptionServiceNames => {
                output.push_str(&context.subscription.map(service_names).unwrap_or_default());
            }
            Static::ConfirmationUrl => {
                link(context, output, "verify?confirmationCode=", confirmation_code(context.subscription), "");
            }
            Static::UnsubscriptionUrl => {
                link(context, output, "unsubscribe?unsubscriptionCode=", of("unsubscriptionCode"), "");
            }
            Static::UnsubscriptionAllUrl => {
                let all = "&additionalServices=_all";
                link(context, output, "unsubscribe?unsubscriptionCode=", of("unsubscriptionCode"), all);
            }
            Static::UnsubscriptionReversionUrl => {
                link(context, output, "unsubscribe/undo?unsubscriptionCode=", of("unsubscriptionCode"), "");
            }
        }
    }
}

/// Adds a link of the subscription, if there is one.
fn link(context: &Context<'_>, output: &mut String, action: &str, code: &str, end: &str) {
    let Some(id) = context.subscription.and_then(|subscription| text(subscription, "id")) else { return };
    let (host, root) = (context.http_host, context.rest_api_root);
    write!(output, "{host}{root}/subscriptions/{id}/{action}{code}{end}").expect("a text takes all");
}

fn confirmation_code(subscription: Option<&Document>) -> &str {
    let request = subscription.and_then(|subscription| subscription.get("confirmationRequest"));
    request.and_then(|request| request.get("confirmationCode")).and_then(Value::as_str).unwrap_or_default()
}
