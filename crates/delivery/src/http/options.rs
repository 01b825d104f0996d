use std::{collections::BTreeMap, path::PathBuf};

use http::{HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_model::problem::Problem;

use super::sign::Signer;
use crate::{
    networks::Network,
    options::{Options, Wait},
};

/// Options of a channel with the protocol `http`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HttpOptions {
    /// The secret that signs requests: `whsec_` and 24 to 64 bytes in base64. Several, separated by spaces, while one
    /// replaces another. Without one requests are not signed.
    pub secret: Option<String>,
    /// Further header fields for every request.
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
}

impl Default for HttpOptions {
    fn default() -> Self {
        HttpOptions {
            secret: None,
            headers: BTreeMap::new(),
            timeout: Wait::seconds(15),
            idle_timeout: Wait::seconds(30),
            retry_after_max: Wait::seconds(24 * 3600),
            allow_networks: Vec::new(),
            allow_hosts: Vec::new(),
            ca_file: None,
        }
    }
}

/// Header fields that the channel writes itself.
const RESERVED_HEADERS: [&str; 8] = [
    "host",
    "content-length",
    "content-type",
    "connection",
    "transfer-encoding",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
];

impl Options for HttpOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if let Some(secret) = &self.secret
            && let Err(text) = Signer::new(secret)
        {
            let hint = "make one with `echo whsec_$(openssl rand -base64 32)` and take it from the environment";
            problems.push(Problem::at("secret", text).hint(hint));
        }
        for (name, value) in &self.headers {
            let path = format!("headers.{name}");
            match (HeaderName::try_from(name.as_str()), HeaderValue::try_from(value.as_str())) {
                (Err(_), _) => problems.push(Problem::at(path, "this is not the name of a header field")),
                (Ok(name), _) if RESERVED_HEADERS.contains(&name.as_str()) => {
                    problems.push(
                        Problem::at(path, "this header field is written by the channel itself").hint("leave it out"),
                    );
                }
                (_, Err(_)) => {
                    problems.push(Problem::at(path, "the value holds characters that no header field may hold"))
                }
                _ => {}
            }
        }
        problems
    }
}
