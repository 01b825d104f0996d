//! Callbacks of SMS providers: delivery receipts, and replies of recipients with their keywords.
//!
//! | provider | proof | age of |
//! |---|---|---|
//! | [Twilio](super::twilio) | HMAC-SHA-1 over URL and parameters | nothing; an id is accepted once |
//! | [Vonage](super::vonage) | JWT with a hash of the body, or HMAC over the parameters | the time of the signature |
//! | [MessageBird](super::messagebird) | JWT with hashes of URL and body | the times of the JWT |
//! | [Sinch](super::sinch) | HMAC-SHA-256 over body, nonce and timestamp | the timestamp |
//! | [Standard Webhooks](super::standard_webhooks) | HMAC-SHA-256 over id, timestamp and body | the timestamp |

use std::borrow::Cow;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::{digest, hmac};
use serde::{Deserialize, de::DeserializeOwned};
use tocsin_model::time::Timestamp;

use super::{ProviderError, Request};
use crate::{excerpt::excerpt, feedback::Class, limits::Limits};

/// A callback: a request with its URL.
#[derive(Debug, Clone, Copy)]
pub struct Callback<'a> {
    /// The public URL that the provider called, with the query.
    pub url: &'a str,
    /// Header fields and body.
    pub request: Request<'a>,
}

/// A verified callback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedCallback {
    /// The event.
    pub event: SmsEvent,
    /// The key by which a repeated callback is recognized.
    pub replay_key: String,
}

/// An event of a verified callback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SmsEvent {
    /// The final state of a message.
    Receipt(SmsReceipt),
    /// A message of a recipient.
    Reply(SmsReply),
    /// A state without an effect, such as queued or sent.
    Progress,
}

/// The final state of a message. Only the verification of a callback makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmsReceipt {
    pub(super) class: Class,
    pub(super) recipient: String,
    pub(super) reference: Option<String>,
    pub(super) key: String,
    pub(super) code: Option<String>,
    pub(super) diagnostic: String,
}

impl SmsReceipt {
    /// The class.
    pub fn class(&self) -> Class {
        self.class
    }

    /// The number of the recipient, as the provider writes it.
    pub fn recipient(&self) -> &str {
        &self.recipient
    }

    /// The id of our message, which the provider returns.
    pub fn reference(&self) -> Option<&str> {
        self.reference.as_deref()
    }

    /// The id of the message at the provider. It counts once for a class.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The error code of the provider.
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// The text of the provider.
    pub fn diagnostic(&self) -> &str {
        &self.diagnostic
    }
}

/// A message of a recipient. Only the verification of a callback makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmsReply {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) text: String,
    pub(super) id: String,
    pub(super) keyword: Option<Keyword>,
}

impl SmsReply {
    /// The number of the recipient, as the provider writes it.
    pub fn from(&self) -> &str {
        &self.from
    }

    /// Our number.
    pub fn to(&self) -> &str {
        &self.to
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The id of the message at the provider.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The keyword that the provider recognized itself. It has answered the recipient then.
    pub fn keyword(&self) -> Option<Keyword> {
        self.keyword
    }
}

/// Meaning of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keyword {
    /// Send no further messages.
    Stop,
    /// Send messages again.
    Start,
    /// Send information.
    Help,
}

impl Keyword {
    /// Its name in metrics and answers.
    pub fn word(self) -> &'static str {
        match self {
            Keyword::Stop => "stop",
            Keyword::Start => "start",
            Keyword::Help => "help",
        }
    }
}

/// The words of the keywords, which are whole replies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keywords {
    /// Words of [`Keyword::Stop`].
    pub stop: Vec<String>,
    /// Words of [`Keyword::Start`].
    pub start: Vec<String>,
    /// Words of [`Keyword::Help`].
    pub help: Vec<String>,
}

impl Keywords {
    /// The keyword of a reply: the whole text, without regard to case and to punctuation around it. A word of several
    /// keywords is a stop.
    pub fn find(&self, text: &str) -> Option<Keyword> {
        let text = plain(text);
        let has = |words: &[String]| words.iter().any(|word| plain(word) == text);
        let known = [(Keyword::Stop, &self.stop), (Keyword::Start, &self.start), (Keyword::Help, &self.help)];
        known.into_iter().find(|(_, words)| !text.is_empty() && has(words)).map(|(keyword, _)| keyword)
    }
}

/// The words of a reply in lower case, with one space between them, without punctuation around them.
fn plain(text: &str) -> String {
    let text = text.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Most parameters of a callback.
const PARAMETERS_MAX: usize = 200;

/// The parameters of a callback, in the order of the request.
#[derive(Debug)]
pub(super) struct Parameters<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Parameters<'a> {
    /// The parameters of a form or a query.
    pub fn of_form(bytes: &'a [u8]) -> Result<Parameters<'a>, ProviderError> {
        let mut pairs: Vec<_> = url::form_urlencoded::parse(bytes).take(PARAMETERS_MAX + 1).collect();
        match pairs.len() > PARAMETERS_MAX {
            true => Err(ProviderError::TooLarge("the number of parameters")),
            false => {
                pairs.shrink_to_fit();
                Ok(Parameters(pairs))
            }
        }
    }

    /// The parameters of a callback: of the query, or of a body that is a form or a JSON object with texts and numbers.
    pub fn of(callback: &Callback<'a>, limits: &Limits) -> Result<Parameters<'a>, ProviderError> {
        let body = super::bounded(&callback.request, limits)?;
        let is_json = body.first() == Some(&b'{');
        match (body.is_empty(), is_json) {
            (true, _) => {
                let query = callback.url.split_once('?').map(|(_, query)| query).unwrap_or_default();
                Parameters::of_form(query.as_bytes())
            }
            (false, false) => Parameters::of_form(body),
            (false, true) => {
                let object: serde_json::Map<String, serde_json::Value> = super::json(body)?;
                let text = |value: serde_json::Value| match value {
                    serde_json::Value::String(text) => Some(text),
                    serde_json::Value::Number(number) => Some(number.to_string()),
                    serde_json::Value::Bool(flag) => Some(flag.to_string()),
                    _ => None,
                };
                let pairs = object.into_iter().filter_map(|(name, value)| Some((name.into(), text(value)?.into())));
                Ok(Parameters(pairs.take(PARAMETERS_MAX).collect()))
            }
        }
    }

    /// The first non-empty value under one of these names.
    pub fn first(&self, names: &[&str]) -> Option<&str> {
        let mut values = names.iter().filter_map(|name| self.0.iter().find(|(given, _)| given == name));
        values.find_map(|(_, value)| Some(&**value).filter(|value| !value.is_empty()))
    }

    /// Names and values, sorted by them.
    pub fn sorted(&self) -> Vec<(&str, &str)> {
        let mut pairs: Vec<(&str, &str)> = self.0.iter().map(|(name, value)| (&**name, &**value)).collect();
        pairs.sort_unstable();
        pairs
    }
}

/// A bounded text in one line, if it is not empty.
pub(super) fn short(text: Option<&str>, limits: &Limits) -> Option<String> {
    text.map(|text| excerpt(text, limits.diagnostic_bytes_max)).filter(|text| !text.is_empty())
}

/// A bounded text with its line breaks, for a reply.
pub(super) fn reply_text(text: Option<&str>, limits: &Limits) -> String {
    let text = text.unwrap_or_default();
    crate::excerpt::start(text, limits.diagnostic_bytes_max).to_owned()
}

/// Claims of a JSON Web Token that is signed with HMAC (RFC 7519, RFC 7518).
///
/// # Errors
/// It has another form or algorithm, or the signature is not valid.
pub(super) fn claims<T: DeserializeOwned>(token: &str, secret: &[u8]) -> Result<T, ProviderError> {
    #[derive(Deserialize)]
    struct Header {
        alg: String,
    }
    let wrong = || ProviderError::Signature;
    let decoded = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part).map_err(|_| wrong());
    let (signed, signature) = token.rsplit_once('.').ok_or_else(wrong)?;
    let (header, content) = signed.split_once('.').ok_or_else(wrong)?;
    let header: Header = serde_json::from_slice(&decoded(header)?).map_err(|_| wrong())?;
    // Only HMAC: a secret is never taken for a public key, and `none` is no algorithm.
    let algorithm = match header.alg.as_str() {
        "HS256" => hmac::HMAC_SHA256,
        "HS384" => hmac::HMAC_SHA384,
        "HS512" => hmac::HMAC_SHA512,
        _ => return Err(wrong()),
    };
    hmac::verify(&hmac::Key::new(algorithm, secret), signed.as_bytes(), &decoded(signature)?).map_err(|_| wrong())?;
    serde_json::from_slice(&decoded(content)?).map_err(|_| wrong())
}

/// Checks a hash in claims: SHA-256 in hexadecimal digits.
pub(super) fn check_hash(given: &str, content: &[u8]) -> Result<(), ProviderError> {
    let hash = hex::encode(digest::digest(&digest::SHA256, content));
    match hash.eq_ignore_ascii_case(given) {
        true => Ok(()),
        false => Err(ProviderError::Signature),
    }
}

/// The instant of Unix seconds in a text.
pub(super) fn seconds_of(text: &str) -> Option<Timestamp> {
    text.parse().ok().map(super::seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_are_whole_replies() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let keywords = Keywords {
            stop: words(&["STOP", "ABMELDEN", "arrêt", "stop all"]),
            start: words(&["START"]),
            help: words(&["HELP"]),
        };
        for text in ["STOP", " stop.\n", "\"Stop!\"", "Abmelden", "ARRÊT", "Stop   ALL"] {
            assert_eq!(keywords.find(text), Some(Keyword::Stop), "{text}");
        }
        assert_eq!(keywords.find("start"), Some(Keyword::Start));
        assert_eq!(keywords.find("Help?"), Some(Keyword::Help));
        for text in ["", "...", "do not stop", "stopped", "please start", "st op"] {
            assert_eq!(keywords.find(text), None, "{text}");
        }
    }
}
