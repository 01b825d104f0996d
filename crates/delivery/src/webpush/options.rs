use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_connect::options::Options;
use tocsin_model::problem::{Code, Problem};

use super::vapid::Vapid;
use crate::http::client::ClientOptions;

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
    /// The client.
    #[serde(flatten)]
    pub client: ClientOptions,
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
            client: ClientOptions::default(),
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
        problems.extend(self.client.certificates.problems());
        problems
    }
}
