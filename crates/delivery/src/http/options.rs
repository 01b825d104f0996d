use std::collections::BTreeMap;

use http::Method;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::client::ClientOptions;
use crate::feedback_options::FeedbackOptions;

/// Options of a channel with the protocol `http`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HttpOptions {
    /// A preset for a known service: `twilio`, `vonage`, `slack`, `slack_bot`, `teams`, `discord`, `telegram`,
    /// `apprise`. Other options override those of the preset.
    pub recipe: Option<String>,
    /// Parameters of the recipe, such as `account` and `token`; other options may use them as `{with.account}`.
    pub with: BTreeMap<String, String>,
    /// URL of all requests; default: the device's address. Placeholders such as `{address}` may follow the host.
    pub url: Option<String>,
    /// The method.
    pub method: RequestMethod,
    /// Body of a request: `json`, any JSON with placeholders in its texts; `form`, fields of a form; or `text`.
    /// Default: the content's JSON, or the payload of Standard Webhooks.
    pub body: Option<Body>,
    /// For services that accept one message for many recipients: how `body.json` lists them. Recipients of the same
    /// content, of a notification class with `multicast`, then share a request.
    pub recipients: Option<Recipients>,
    /// Classification of answers, where the status is not enough. The first rule that matches applies.
    pub answers: Vec<AnswerRule>,
    /// User name for HTTP basic authentication, with `password`.
    pub username: Option<String>,
    /// See `username`.
    pub password: Option<String>,
    /// Secret that signs requests: `whsec_` and 24 to 64 bytes in base64 for `v1`, or `whsk_` and an Ed25519 key of
    /// 32 bytes for `v1a`. Several, separated by spaces, during a change of keys. Without one, requests are not
    /// signed.
    pub secret: Option<String>,
    /// Further header fields for every request, with placeholders.
    pub headers: BTreeMap<String, String>,
    /// Webhooks by which an SMS service reports receipts and replies. With the recipes `twilio` and `vonage`, each
    /// message then asks for its receipt.
    pub feedback: Option<FeedbackOptions>,
    /// The client.
    #[serde(flatten)]
    pub client: ClientOptions,
}

impl Default for HttpOptions {
    fn default() -> Self {
        HttpOptions {
            recipe: None,
            with: BTreeMap::new(),
            url: None,
            method: RequestMethod::Post,
            body: None,
            recipients: None,
            answers: Vec::new(),
            username: None,
            password: None,
            secret: None,
            headers: BTreeMap::new(),
            feedback: None,
            client: ClientOptions::default(),
        }
    }
}

/// An HTTP method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum RequestMethod {
    /// POST.
    Post,
    /// PUT.
    Put,
    /// PATCH.
    Patch,
    /// GET, without a body.
    Get,
}

impl RequestMethod {
    /// Whether a request with this method has a body.
    pub fn has_body(self) -> bool {
        self != RequestMethod::Get
    }
}

impl From<RequestMethod> for Method {
    fn from(method: RequestMethod) -> Method {
        match method {
            RequestMethod::Post => Method::POST,
            RequestMethod::Put => Method::PUT,
            RequestMethod::Patch => Method::PATCH,
            RequestMethod::Get => Method::GET,
        }
    }
}

/// Body of a request.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// JSON, as `application/json`.
    Json(Value),
    /// A form, as `application/x-www-form-urlencoded`.
    Form(BTreeMap<String, String>),
    /// Plain text.
    Text(String),
}

/// A shared request: the list of its recipients. The service must not show them to each other.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipients {
    /// Most recipients of a request: 1 to 10,000.
    pub most: usize,
    /// Item of one recipient in the list that replaces `"{recipients}"` in `body.json`: any JSON with placeholders in
    /// its texts. Only here `{address}` is the recipient's address.
    #[serde(default = "only_address")]
    pub each: Value,
    /// JSON pointer (RFC 6901) to a list with one result per recipient, in the order of the request, such as
    /// `/results`. `answers` then classify each item, with pointers relative to the item. If the option or the list
    /// is missing, or its length differs, the answer applies to all.
    pub results: Option<String>,
}

fn only_address() -> Value {
    "{address}".into()
}

/// A classification rule for answers. All given conditions must match.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AnswerRule {
    /// `200`, `2xx`, or `400-499`.
    pub status: Option<String>,
    /// JSON pointer (RFC 6901) into the body, such as `/messages/0/status`, at which a value must exist.
    pub json: Option<String>,
    /// Permitted values at that pointer; numbers and truth values as text.
    pub is: Vec<String>,
    /// A text that the body must contain.
    pub contains: Option<String>,
    /// The classification.
    pub means: Meaning,
    /// JSON pointer to the seconds to wait.
    pub retry_after: Option<String>,
    /// JSON pointer to the text for the receipt.
    pub reply: Option<String>,
}

/// Classification of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Meaning {
    /// The receiver accepted the message.
    #[default]
    Delivered,
    /// Permanently refused.
    Refused,
    /// Permanently refused, and the device's address no longer exists.
    Gone,
    /// Another attempt may succeed.
    Retry,
    /// As `retry`, and the destination asks for a lower rate.
    Slower,
    /// The channel's credentials or settings are wrong, not the message. Retried, so that nothing is lost.
    Misconfigured,
}
