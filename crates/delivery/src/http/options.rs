use std::{collections::BTreeMap, path::PathBuf};

use http::Method;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tocsin_model::problem::Problem;

use super::{
    classify::Answers,
    recipes::{self, Recipe},
    request::Form,
    sign::Signer,
};
use crate::{
    networks::Network,
    options::{Options, Wait},
};

/// Options of a channel with the protocol `http`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HttpOptions {
    /// A service whose requests and answers are known: `twilio`, `vonage`, `slack`, `slack_bot`, `teams`, `discord`,
    /// `telegram`, `apprise`. What is given beside it goes before the recipe's own.
    pub recipe: Option<String>,
    /// What the recipe wants to know, such as `account` and `token`; as `{with.account}` it fills in other options too.
    pub with: BTreeMap<String, String>,
    /// The URL that all requests go to; without one it is the device's address. Places such as `{address}` may stand after
    /// the host.
    pub url: Option<String>,
    /// The method.
    pub method: RequestMethod,
    /// What a request says: `json`, any JSON whose texts may hold places; `form`, fields of a form; or `text`. Without it
    /// the content's JSON, or the payload of Standard Webhooks.
    pub body: Option<Body>,
    /// For services that take one message for many people: what of `body.json` says who they are. Recipients who are told
    /// the same, by a notification class with `multicast`, then share a request.
    pub recipients: Option<Recipients>,
    /// What answers mean, where the status does not say it. The first that fits counts.
    pub answers: Vec<AnswerRule>,
    /// With `password`, sent as HTTP's basic authentication.
    pub username: Option<String>,
    /// See `username`.
    pub password: Option<String>,
    /// The secret that signs requests: `whsec_` and 24 to 64 bytes in base64 for `v1`, or `whsk_` and an ed25519 key of 32
    /// bytes for `v1a`. Several, separated by spaces, while one replaces another. Without one requests are not signed.
    pub secret: Option<String>,
    /// Further header fields for every request; places fill in.
    pub headers: BTreeMap<String, String>,
    /// Time for the whole request: name, connection, encryption and the complete response.
    pub timeout: Wait,
    /// After this time without a request a connection ends.
    pub idle_timeout: Wait,
    /// A far side's wish to be tried later is followed up to this time.
    pub retry_after_max: Wait,
    /// Networks that are not public and may be talked to nevertheless: `10.0.0.0/8`, `127.0.0.1`.
    pub allow_networks: Vec<Network>,
    /// Hosts that may be talked to wherever their names lead.
    pub allow_hosts: Vec<String>,
    /// A file of further certificates to trust, in PEM form.
    pub ca_file: Option<PathBuf>,
    /// A file with our certificate and those between it and its root, in PEM form, for far sides that ask for one.
    pub certificate_file: Option<PathBuf>,
    /// A file with the certificate's private key, in PEM form.
    pub key_file: Option<PathBuf>,
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
            timeout: Wait::seconds(15),
            idle_timeout: Wait::seconds(30),
            retry_after_max: Wait::seconds(24 * 3600),
            allow_networks: Vec::new(),
            allow_hosts: Vec::new(),
            ca_file: None,
            certificate_file: None,
            key_file: None,
        }
    }
}

/// A method of HTTP.
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
    /// Whether a request of it has a body.
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

/// What a request says.
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

/// How one request is for many recipients. None of them is shown to another as long as the service sees to that.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipients {
    /// How many a request is for, at most: 1 to 10,000.
    pub most: usize,
    /// What stands for one of them in the list that replaces `"{recipients}"` in `body.json`: any JSON whose texts may hold
    /// places. Here, and only here, `{address}` is the recipient's own.
    #[serde(default = "only_address")]
    pub each: Value,
    /// Where in a body of JSON (RFC 6901) a list is that tells of each recipient, in the order of the request, such as
    /// `/results`. `answers` then say what each of its items means, by places in the item. Without it, or if it is not
    /// there or has another length, the answer is that of all.
    pub results: Option<String>,
}

fn only_address() -> Value {
    "{address}".into()
}

/// What an answer means. All that is given must fit.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AnswerRule {
    /// `200`, `2xx`, or `400-499`.
    pub status: Option<String>,
    /// A place in a body of JSON (RFC 6901), such as `/messages/0/status`, at which there must be something.
    pub json: Option<String>,
    /// One of these must be at that place; numbers and truth values as text.
    pub is: Vec<String>,
    /// The body holds this text.
    pub contains: Option<String>,
    /// What it means.
    pub means: Meaning,
    /// A place in a body of JSON at which the seconds to wait are.
    pub retry_after: Option<String>,
    /// A place in a body of JSON at which the words for the receipt are.
    pub reply: Option<String>,
}

/// What an answer means.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Meaning {
    /// The far side took it.
    #[default]
    Delivered,
    /// Never.
    Refused,
    /// Never, and nothing else for this device: the address is gone for good.
    Gone,
    /// Another attempt may succeed.
    Retry,
    /// The same, and the destination wants less.
    Slower,
    /// It is not the message: the channel's own credentials or settings are wrong. Tried again, so that nothing is lost.
    Misconfigured,
}

impl HttpOptions {
    /// The options with those of their recipe filled in.
    ///
    /// # Errors
    /// There is no such recipe, or it misses something.
    pub(super) fn complete(&self) -> Result<HttpOptions, Vec<Problem>> {
        let mut options = self.clone();
        if let Some(name) = &self.recipe {
            recipes::find(name).and_then(|recipe: &Recipe| recipe.apply(&mut options))?;
        }
        Ok(options)
    }
}

impl Options for HttpOptions {
    fn problems(&self) -> Vec<Problem> {
        let options = match self.complete() {
            Ok(options) => options,
            Err(problems) => return problems,
        };
        let mut problems = Vec::new();
        if let Some(secret) = &options.secret
            && let Err(text) = Signer::new(secret)
        {
            let hint = "make one with `echo whsec_$(openssl rand -base64 32)` and take it from the environment";
            problems.push(Problem::at("secret", text).hint(hint));
        }
        problems.extend(Form::read(&options, &options.with).err().unwrap_or_default());
        problems.extend(Answers::read(&options.answers).err().unwrap_or_default());
        match (&options.certificate_file, &options.key_file) {
            (Some(_), None) => problems.push(Problem::at("key_file", "a certificate needs its private key")),
            (None, Some(_)) => problems.push(Problem::at("certificate_file", "a private key needs its certificate")),
            _ => {}
        }
        problems
    }
}
