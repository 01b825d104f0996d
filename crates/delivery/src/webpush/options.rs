use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_model::problem::{Code, Problem};

use super::vapid::Vapid;
use crate::{
    networks::Network,
    options::{Options, Wait},
};

/// Options of a channel with the protocol `webpush`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["public_key", "private_key", "subject"]))]
pub struct WebPushOptions {
    /// The public VAPID key in base64url, for the `applicationServerKey` of browsers; `tocsin vapid-key` generates
    /// both keys.
    pub public_key: String,
    /// The private VAPID key in base64url. Take it from the environment: `${VAPID_PRIVATE_KEY}`.
    pub private_key: String,
    /// Contact of the operator for push services: `mailto:ops@example.org`, or a web address.
    pub subject: String,
    /// Seconds that a push service keeps a message for an offline browser; 0: not at all. A notification that expires
    /// sooner shortens it.
    #[schemars(range(min = 0, max = 2_419_200))]
    pub ttl_seconds: u32,
    /// Timeout of the whole request: name resolution, connection, encryption and the complete response.
    pub timeout: Wait,
    /// An idle connection is closed after this time.
    pub idle_timeout: Wait,
    /// Longest `Retry-After` of a push service that is respected.
    pub retry_after_max: Wait,
    /// Non-public networks that may be connected to: `10.0.0.0/8`, `127.0.0.1`. With one, endpoints need no
    /// encryption.
    pub allow_networks: Vec<Network>,
    /// Hosts that may be connected to, whatever address they resolve to.
    pub allow_hosts: Vec<String>,
    /// A file of further certificates to trust, in PEM form.
    pub ca_file: Option<PathBuf>,
}

/// Longest time that push services keep messages: four weeks.
const TTL_SECONDS_MAX: u32 = 28 * 86_400;

impl Default for WebPushOptions {
    fn default() -> Self {
        WebPushOptions {
            public_key: String::new(),
            private_key: String::new(),
            subject: String::new(),
            ttl_seconds: TTL_SECONDS_MAX,
            timeout: Wait::seconds(15),
            idle_timeout: Wait::seconds(30),
            retry_after_max: Wait::seconds(24 * 3600),
            allow_networks: Vec::new(),
            allow_hosts: Vec::new(),
            ca_file: None,
        }
    }
}

impl Options for WebPushOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let hint = "`tocsin vapid-key` makes both; take the private one from the environment";
        let missing = [("public_key", &self.public_key), ("private_key", &self.private_key)];
        let missing: Vec<_> = missing.into_iter().filter(|(_, key)| key.is_empty()).map(|(option, _)| option).collect();
        problems.extend(
            missing.iter().map(|option| Problem::new(Code::Required, *option, "the key is missing").hint(hint)),
        );
        if missing.is_empty()
            && let Err((option, text)) = Vapid::new(&self.public_key, &self.private_key, &self.subject)
        {
            problems.push(Problem::new(Code::InvalidKey, option, text).hint(hint));
        }
        let is_mail = self.subject.strip_prefix("mailto:").is_some_and(|mailbox| {
            mailbox.split_once('@').is_some_and(|(local, domain)| !local.is_empty() && !domain.is_empty())
        });
        let is_web = self.subject.strip_prefix("https://").is_some_and(|rest| !rest.is_empty());
        if !(is_mail || is_web) || self.subject.contains(|letter: char| letter.is_control() || letter == ' ') {
            let code = if self.subject.is_empty() { Code::Required } else { Code::InvalidFormat };
            let problem = Problem::new(code, "subject", "push services want to know whom to ask");
            problems.push(problem.hint("give `mailto:ops@example.org`, or an address that starts with `https://`"));
        }
        if self.ttl_seconds > TTL_SECONDS_MAX {
            problems.push(
                Problem::new(
                    Code::OutOfRange,
                    "ttl_seconds",
                    format!("push services keep nothing for more than {TTL_SECONDS_MAX} s"),
                )
                .param("most", TTL_SECONDS_MAX),
            );
        }
        problems
    }
}
