//! Signs what hosted pages carry (HMAC): links to the preference page, form tokens, and undo tokens.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::hmac;
use tocsin_model::{id::SubscriberNumber, time::Timestamp};

use crate::signed_text::{base36, is_same};

/// Bytes of a signature: 128 bits.
const TAG_BYTES: usize = 16;
/// Lifetime of a link to the preference page, in days.
pub const PREFERENCES_LINK_DAYS: i64 = 90;
const DAY_SECONDS: i64 = 86_400;

/// Signs and verifies the tokens of hosted pages.
pub struct PageTokens {
    preferences: hmac::Key,
    forms: hmac::Key,
    undo: hmac::Key,
}

/// Permission to read and change the preferences of one subscriber. The number of a removed subscriber is not reused,
/// so the link of a removed subscriber is invalid, also if one with the same id is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreferencesLink {
    /// The subscriber.
    pub subscriber: SubscriberNumber,
    /// End of validity. Whole seconds.
    pub expires_at: Timestamp,
}

impl PreferencesLink {
    /// A link that is valid for at least 90 days. It is the same for a whole day, so that a message that is formatted
    /// again keeps its content.
    pub fn new(subscriber: SubscriberNumber, now: Timestamp) -> PreferencesLink {
        let seconds = now.as_millis().div_euclid(1_000);
        let end = (seconds.div_euclid(DAY_SECONDS) + PREFERENCES_LINK_DAYS + 1) * DAY_SECONDS;
        PreferencesLink { subscriber, expires_at: Timestamp::from_millis(end * 1_000) }
    }
}

/// The use of a sealed text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sealed {
    /// A form of a page: its submission is not a cross-site request.
    Form,
    /// The undo of a change.
    Undo,
}

impl PageTokens {
    /// Derives one key for each use.
    pub(crate) fn new(derived: impl Fn(&str) -> hmac::Key) -> PageTokens {
        PageTokens { preferences: derived("preference page"), forms: derived("form"), undo: derived("undo") }
    }

    /// The token of a link to the preference page; letters, digits, `.`, `-` and `_`.
    pub fn preferences(&self, link: &PreferencesLink) -> String {
        let seconds = u64::try_from(link.expires_at.as_millis().div_euclid(1_000)).unwrap_or(0);
        let what = format!("{}.{}", base36(link.subscriber.0), base36(seconds));
        let tag = tag(&self.preferences, &what);
        format!("{what}.{tag}")
    }

    /// The link of a token with a valid signature; the caller checks its expiry.
    pub fn verify_preferences(&self, text: &str) -> Option<PreferencesLink> {
        let [subscriber, seconds, _] = text.split('.').collect::<Vec<_>>()[..] else { return None };
        let seconds = i64::from_str_radix(seconds, 36).ok()?;
        let link = PreferencesLink {
            subscriber: SubscriberNumber(u64::from_str_radix(subscriber, 36).ok()?),
            expires_at: Timestamp::from_millis(seconds.checked_mul(1_000)?),
        };
        is_same(&self.preferences(&link), text).then_some(link)
    }

    /// A signed text that is valid for one page only, with the time until which it is. `payload` consists of letters,
    /// digits, `-`, `_` and `~`, which need no escaping in a query.
    pub fn seal(&self, sealed: Sealed, page: &str, payload: &str, expires_at: Timestamp) -> String {
        let seconds = u64::try_from(expires_at.as_millis().div_euclid(1_000)).unwrap_or(0);
        let what = format!("{}.{payload}", base36(seconds));
        let tag = tag(self.key(sealed), &format!("{page} {what}"));
        format!("{what}.{tag}")
    }

    /// The payload of a sealed text for this page, if its signature is valid and it has not expired.
    pub fn open<'t>(&self, sealed: Sealed, page: &str, text: &'t str, now: Timestamp) -> Option<&'t str> {
        let [seconds, payload, _] = text.split('.').collect::<Vec<_>>()[..] else { return None };
        let expires_at = Timestamp::from_millis(i64::from_str_radix(seconds, 36).ok()?.checked_mul(1_000)?);
        let is_ours = is_same(&self.seal(sealed, page, payload, expires_at), text);
        (is_ours && now < expires_at).then_some(payload)
    }

    fn key(&self, sealed: Sealed) -> &hmac::Key {
        match sealed {
            Sealed::Form => &self.forms,
            Sealed::Undo => &self.undo,
        }
    }
}

fn tag(key: &hmac::Key, what: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(&hmac::sign(key, what.as_bytes()).as_ref()[..TAG_BYTES])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The tokens of an installation with this secret.
    fn tokens_of(secret: u8) -> PageTokens {
        PageTokens::new(|purpose| hmac::Key::new(hmac::HMAC_SHA256, &[&[secret], purpose.as_bytes()].concat()))
    }

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn preference_links_are_known_and_cannot_be_made() {
        let (ours, theirs) = (tokens_of(7), tokens_of(8));
        let now: Timestamp = "2026-11-29T03:04:05Z".parse().expect("a time");
        let link = PreferencesLink::new(SubscriberNumber(71), now);
        assert!(link.expires_at >= now + 90 * DAY && link.expires_at <= now + 91 * DAY);
        assert_eq!(link, PreferencesLink::new(SubscriberNumber(71), now + Duration::from_secs(3_600)));
        let text = ours.preferences(&link);
        assert_eq!(ours.verify_preferences(&text), Some(link));
        let longer = PreferencesLink { expires_at: link.expires_at + DAY, ..link };
        let other = ours.preferences(&longer);
        for wrong in [
            "",
            "..",
            &text[1..],
            &text[..text.len() - 1],
            &text.to_uppercase(),
            &theirs.preferences(&link),
            &format!("0{text}"),
            &format!("{}.{}", &other[..other.rfind('.').expect("a tag")], &text[text.len() - 22..]),
            "1z.zzzzzzzzzzzzzzzzzzzz.x",
        ] {
            assert_eq!(ours.verify_preferences(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn sealed_texts_are_for_one_use_one_page_and_a_time() {
        let (tokens, now) = (tokens_of(7), Timestamp::from_millis(1_800_000_000_000));
        let text = tokens.seal(Sealed::Undo, "1-abc", "a~12~quakes", now + DAY);
        assert_eq!(tokens.open(Sealed::Undo, "1-abc", &text, now), Some("a~12~quakes"));
        assert_eq!(tokens.open(Sealed::Undo, "1-abc", &text, now + DAY), None, "it has expired");
        assert_eq!(tokens.open(Sealed::Undo, "2-abc", &text, now), None, "another page");
        assert_eq!(tokens.open(Sealed::Form, "1-abc", &text, now), None, "another use");
        assert_eq!(tokens.open(Sealed::Undo, "1-abc", &text.replace("quakes", "floods"), now), None);
        for wrong in ["", ".", "..", "a.b", "a.b.c.d", "zzzzzzzzzzzzzzzzzz.x.y"] {
            assert_eq!(tokens.open(Sealed::Undo, "1-abc", wrong, now), None, "{wrong}");
        }
    }
}
