//! The option `feedback` of a channel: how the provider behind it reports bounces, complaints, receipts and replies.

use std::{fmt, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tocsin_connect::options::Wait;
use tocsin_feedback::provider::{
    Credential, REFERENCE, brevo::Brevo, mailgun::Mailgun, messagebird::MessageBird, postmark::Postmark,
    sendgrid::SendGrid, ses::Ses, sinch::Sinch, sms::Keywords, standard_webhooks::StandardWebhooks, twilio::Twilio,
    vonage::Vonage,
};
use tocsin_model::{
    application::Channel,
    id::Name,
    problem::{Code, Problem},
};

/// Most bytes of a text that answers a keyword.
const ANSWER_BYTES_MAX: usize = 1_600;
/// Most words of a keyword, and most bytes of each.
const WORDS_MAX: usize = 50;
const WORD_BYTES_MAX: usize = 40;

/// Webhooks of the provider behind a channel.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["provider"]))]
pub struct FeedbackOptions {
    /// The provider. Its webhooks are accepted at `/v1/feedback/<application>/<channel>`.
    pub provider: Option<FeedbackProvider>,
    /// Secret or key that proves the webhooks: see the provider.
    pub key: Option<String>,
    /// ARN of the topic of Amazon SNS, for `ses`.
    pub topic: Option<String>,
    /// Replay window: a webhook whose time is further in the past is refused, and each is accepted once within it.
    /// Default: 2h for `ses`, 9h for `mailgun`, 12h for `postmark`, else 24h.
    pub window: Option<Wait>,
    /// Replies that stop messages of this channel to their sender. A reply is compared as a whole, without regard to
    /// case.
    pub stop: Vec<String>,
    /// Replies that lift what such a reply has stopped.
    pub start: Vec<String>,
    /// Replies that ask for information.
    pub help: Vec<String>,
    /// Answer to `stop`; for `twilio` and `webhook`. Empty: no answer.
    pub stop_answer: String,
    /// Answer to `start`; for `twilio` and `webhook`. Empty: no answer.
    pub start_answer: String,
    /// Answer to `help`; for `twilio` and `webhook`. Empty: no answer.
    pub help_answer: String,
}

impl Default for FeedbackOptions {
    fn default() -> Self {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        FeedbackOptions {
            provider: None,
            key: None,
            topic: None,
            window: None,
            // The words of CTIA and of carriers, in English, German, French and Spanish.
            stop: words(&[
                "STOP",
                "STOPALL",
                "STOP ALL",
                "UNSUBSCRIBE",
                "CANCEL",
                "END",
                "QUIT",
                "OPTOUT",
                "REVOKE",
                "STOPP",
                "ABMELDEN",
                "ARRET",
                "ARRÊT",
                "DÉSABONNER",
                "DESABONNER",
                "ALTO",
                "BAJA",
            ]),
            start: words(&["START", "UNSTOP", "ANMELDEN", "REPRENDRE", "ALTA"]),
            help: words(&["HELP", "INFO", "HILFE", "AIDE", "AYUDA"]),
            stop_answer: String::new(),
            start_answer: String::new(),
            help_answer: String::new(),
        }
    }
}

/// A provider that reports by webhooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FeedbackProvider {
    /// Amazon SES by Amazon SNS. No `key`, but `topic`.
    Ses,
    /// SendGrid; `key` is the verification key of the signed event webhook.
    Sendgrid,
    /// Mailgun; `key` is the HTTP webhook signing key.
    Mailgun,
    /// Postmark; `key` is `user:password` of HTTP basic authentication, or a bearer token.
    Postmark,
    /// Brevo; `key` as for `postmark`.
    Brevo,
    /// Twilio; `key` is the primary auth token. Requires `http.public_url`.
    Twilio,
    /// Vonage; `key` is the signature secret.
    Vonage,
    /// MessageBird (Bird); `key` is the signing key. Requires `http.public_url`.
    Messagebird,
    /// Sinch; `key` is the secret of the HMAC configuration.
    Sinch,
    /// Another SMS service, signed as in Standard Webhooks; `key` is `whsec_` and 24 to 64 bytes in base64.
    Webhook,
}

impl FeedbackProvider {
    /// Its name in metrics, suppressions and logs.
    pub fn word(self) -> &'static str {
        match self {
            FeedbackProvider::Ses => "ses",
            FeedbackProvider::Sendgrid => "sendgrid",
            FeedbackProvider::Mailgun => "mailgun",
            FeedbackProvider::Postmark => "postmark",
            FeedbackProvider::Brevo => "brevo",
            FeedbackProvider::Twilio => "twilio",
            FeedbackProvider::Vonage => "vonage",
            FeedbackProvider::Messagebird => "messagebird",
            FeedbackProvider::Sinch => "sinch",
            FeedbackProvider::Webhook => "webhook",
        }
    }

    /// Whether it sends mail; the others send SMS.
    pub fn sends_mail(self) -> bool {
        use FeedbackProvider::{Brevo, Mailgun, Postmark, Sendgrid, Ses};
        matches!(self, Ses | Sendgrid | Mailgun | Postmark | Brevo)
    }

    /// Whether a webhook can be a GET.
    pub fn uses_get(self) -> bool {
        self == FeedbackProvider::Messagebird
    }

    /// Whether the response to a reply can hold an answer.
    pub fn takes_answers(self) -> bool {
        matches!(self, FeedbackProvider::Twilio | FeedbackProvider::Webhook)
    }

    fn window(self) -> Duration {
        let hours = match self {
            FeedbackProvider::Ses => 2,
            FeedbackProvider::Mailgun => 9,
            FeedbackProvider::Postmark => 12,
            _ => 24,
        };
        Duration::from_secs(hours * 3_600)
    }

    /// The header field by which a mail carries a reference that the provider returns with its events.
    pub(crate) fn reference_field(self, reference: &str) -> Option<(&'static str, String)> {
        match self {
            FeedbackProvider::Ses => Some(("X-SES-MESSAGE-TAGS", format!("{REFERENCE}={reference}"))),
            FeedbackProvider::Sendgrid => {
                Some(("X-SMTPAPI", format!("{{\"unique_args\": {{\"{REFERENCE}\": \"{reference}\"}}}}")))
            }
            FeedbackProvider::Mailgun => Some(("X-Mailgun-Variables", format!("{{\"{REFERENCE}\": \"{reference}\"}}"))),
            FeedbackProvider::Postmark => Some(("X-PM-Metadata-tocsin", reference.to_owned())),
            FeedbackProvider::Brevo => Some(("X-Mailin-custom", reference.to_owned())),
            _ => None,
        }
    }
}

/// Path of the receiver of a channel.
pub fn receiver_path(application: &Name, channel: &Name) -> String {
    format!("/v1/feedback/{application}/{channel}")
}

/// Verifies the webhooks of one provider.
#[derive(Debug)]
pub enum Verifier {
    /// See [`Ses`].
    Ses(Ses),
    /// See [`SendGrid`].
    SendGrid(SendGrid),
    /// See [`Mailgun`].
    Mailgun(Mailgun),
    /// See [`Postmark`].
    Postmark(Postmark),
    /// See [`Brevo`].
    Brevo(Brevo),
    /// See [`Twilio`].
    Twilio(Twilio),
    /// See [`Vonage`].
    Vonage(Vonage),
    /// See [`MessageBird`].
    MessageBird(MessageBird),
    /// See [`Sinch`].
    Sinch(Sinch),
    /// See [`StandardWebhooks`].
    StandardWebhooks(StandardWebhooks),
}

impl fmt::Debug for FeedbackOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FeedbackOptions").field("provider", &self.provider).finish_non_exhaustive()
    }
}

impl FeedbackOptions {
    /// The option of a channel, if it has one.
    pub fn of(channel: &Channel) -> Option<FeedbackOptions> {
        serde_json::from_value(channel.options.get("feedback").cloned().filter(Value::is_object)?).ok()
    }

    /// The replay window.
    pub fn window(&self) -> Duration {
        let usual = self.provider.map(FeedbackProvider::window).unwrap_or_default();
        self.window.map_or(usual, |window| window.0)
    }

    /// The words of the keywords.
    pub fn keywords(&self) -> Keywords {
        Keywords { stop: self.stop.clone(), start: self.start.clone(), help: self.help.clone() }
    }

    /// The verifier of the provider.
    ///
    /// # Errors
    /// The provider, or what it needs, is missing or has another form.
    pub fn verifier(&self) -> Result<Verifier, Problem> {
        let missing = |path, message: &str| Problem::new(Code::Required, format!("feedback.{path}"), message);
        let provider = self.provider.ok_or_else(|| missing("provider", "the provider is missing"))?;
        let window = self.window();
        if provider == FeedbackProvider::Ses {
            let topic = self.topic.as_deref().filter(|topic| topic.starts_with("arn:"));
            let topic = topic.ok_or_else(|| {
                missing("topic", "the topic of Amazon SNS is missing")
                    .hint("give its ARN, such as `arn:aws:sns:eu-central-1:123456789012:feedback`")
            })?;
            return Ok(Verifier::Ses(Ses::new(topic, window)));
        }
        let key = self.key.as_deref().filter(|key| !key.trim().is_empty()).ok_or_else(|| {
            missing("key", "the key that proves the webhooks is missing")
                .hint("take it from the environment: `${FEEDBACK_KEY}`")
        })?;
        let credential = || match key.split_once(':') {
            Some((user, password)) => Credential::basic(user, password),
            None => Credential::bearer(key),
        };
        let wrong = |error: tocsin_feedback::provider::ProviderError| {
            Problem::new(Code::InvalidKey, "feedback.key", error.to_string())
        };
        Ok(match provider {
            FeedbackProvider::Ses => unreachable!("handled above"),
            FeedbackProvider::Sendgrid => Verifier::SendGrid(SendGrid::new(key, window).map_err(wrong)?),
            FeedbackProvider::Mailgun => Verifier::Mailgun(Mailgun::new(key, window)),
            FeedbackProvider::Postmark => Verifier::Postmark(Postmark::new(credential(), window)),
            FeedbackProvider::Brevo => Verifier::Brevo(Brevo::new(credential(), window)),
            FeedbackProvider::Twilio => Verifier::Twilio(Twilio::new(key)),
            FeedbackProvider::Vonage => Verifier::Vonage(Vonage::new(key, window)),
            FeedbackProvider::Messagebird => Verifier::MessageBird(MessageBird::new(key, window)),
            FeedbackProvider::Sinch => Verifier::Sinch(Sinch::new(key, window)),
            FeedbackProvider::Webhook => Verifier::StandardWebhooks(StandardWebhooks::new(key, window).map_err(wrong)?),
        })
    }

    /// Every problem; `mail`: the channel sends mail.
    pub(crate) fn problems(&self, mail: bool) -> Vec<Problem> {
        let mut problems: Vec<Problem> = self.verifier().err().into_iter().collect();
        let mut report = |code: Code, path: &str, message: String, hint: &str| {
            problems.push(Problem::new(code, format!("feedback.{path}"), message).hint(hint));
        };
        if let Some(provider) = self.provider.filter(|provider| provider.sends_mail() != mail) {
            let (sends, hint) = match mail {
                true => ("SMS", "a channel with the protocol `smtp` has a provider of mail"),
                false => ("mail", "a channel with the protocol `http` has a provider of SMS"),
            };
            report(Code::NotApplicable, "provider", format!("`{}` sends {sends}", provider.word()), hint);
        }
        if self.topic.is_some() && self.provider.is_some_and(|provider| provider != FeedbackProvider::Ses) {
            report(Code::NotApplicable, "topic", "a topic is for `ses`".to_owned(), "leave it out");
        }
        for (path, words) in [("stop", &self.stop), ("start", &self.start), ("help", &self.help)] {
            if words.len() > WORDS_MAX || words.iter().any(|word| word.trim().is_empty() || word.len() > WORD_BYTES_MAX)
            {
                let message = format!("these are up to {WORDS_MAX} words of 1 to {WORD_BYTES_MAX} bytes");
                report(Code::OutOfRange, path, message, "such as `STOP`");
            }
        }
        if self.stop.is_empty() {
            report(Code::Required, "stop", "a recipient must be able to stop messages".to_owned(), "such as `STOP`");
        }
        let answers = [
            ("stop_answer", &self.stop_answer),
            ("start_answer", &self.start_answer),
            ("help_answer", &self.help_answer),
        ];
        for (path, answer) in answers.into_iter().filter(|(_, answer)| !answer.is_empty()) {
            if self.provider.is_some_and(|provider| !provider.takes_answers()) {
                let hint = "leave it out, and send the answer at the provider";
                report(Code::NotApplicable, path, "this provider takes no answers".to_owned(), hint);
            }
            if answer.len() > ANSWER_BYTES_MAX {
                let message = format!("an answer has at most {ANSWER_BYTES_MAX} bytes");
                report(Code::TooLong, path, message, "shorten it");
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protocol::check;

    fn problems(protocol: &str, feedback: Value) -> Vec<String> {
        let options = match protocol {
            "smtp" => json!({ "host": "m.example", "from": "a@b.example", "feedback": feedback }),
            _ => json!({ "url": "https://sms.example/send", "feedback": feedback }),
        };
        let found = check(&protocol.parse().expect("a name"), options.as_object().expect("an object"), "o");
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_provider_needs_its_proof_and_its_protocol() {
        let none: [&str; 0] = [];
        let topic = "arn:aws:sns:eu-central-1:123456789012:feedback";
        assert_eq!(problems("smtp", json!({ "provider": "ses", "topic": topic, "window": "1h" })), none);
        assert_eq!(problems("smtp", json!({ "provider": "postmark", "key": "user:password" })), none);
        assert_eq!(problems("http", json!({ "provider": "twilio", "key": "t", "help_answer": "Call 112" })), none);
        assert_eq!(problems("smtp", json!({})), ["o.feedback.provider: the provider is missing"]);
        assert_eq!(
            problems("smtp", json!({ "provider": "ses", "key": "x" })),
            ["o.feedback.topic: the topic of Amazon SNS is missing; give its ARN, such as \
                 `arn:aws:sns:eu-central-1:123456789012:feedback`"]
        );
        assert_eq!(
            problems("http", json!({ "provider": "mailgun", "topic": topic, "stop": [], "help_answer": "x" })),
            [
                "o.feedback.key: the key that proves the webhooks is missing; take it from the environment: \
                 `${FEEDBACK_KEY}`",
                "o.feedback.provider: `mailgun` sends mail; a channel with the protocol `http` has a provider of SMS",
                "o.feedback.topic: a topic is for `ses`; leave it out",
                "o.feedback.stop: a recipient must be able to stop messages; such as `STOP`",
                "o.feedback.help_answer: this provider takes no answers; leave it out, and send the answer at the \
                 provider",
            ]
        );
        let wrong = problems("smtp", json!({ "provider": "sendgrid", "key": "x" }));
        assert!(wrong[0].starts_with("o.feedback.key: "), "{wrong:?}");
        let wrong = problems("http", json!({ "provider": "webhook", "key": "hunter2" }));
        assert!(wrong[0].starts_with("o.feedback.key: ") && !wrong[0].contains("hunter2"), "{wrong:?}");
        assert!(problems("http", json!({ "provider": "pigeon" }))[0].contains("unknown variant `pigeon`"));
    }
}
