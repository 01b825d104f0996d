//! Consent: whether the owner of an address agreed to a subscription, with the evidence.
//!
//! A subscription of a class with a [`ConsentPolicy`] begins as pending and is confirmed by a link or a code that was
//! sent to its address (double opt-in). [`Consent`] is the state machine; it holds all rules about repeated requests,
//! attempts and expiry. The store executes it in the commit of a change.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    id::{Name, SubscriberId, SubscriptionId},
    mailbox,
    time::Timestamp,
};

/// Start of the id of a subscriber made from an address by a request. One without subscriptions is removed when its
/// last request expires.
pub const ADDRESS_SUBSCRIBER: &str = "address:";
/// Digits of a code.
pub const CODE_DIGITS: usize = 6;
/// Longest text shown to the person, in bytes.
pub const TEXT_BYTES_MAX: usize = 4_096;
/// Longest version, remote address or proof, in bytes.
pub const NOTE_BYTES_MAX: usize = 1_024;
/// Limit of attempts in a policy.
pub const ATTEMPTS_MAX: u32 = 20;
/// Limit of messages a day in a policy.
pub const MESSAGES_MAX: u32 = 50;

/// Lifetime of a request that is pending again after an undone withdrawal.
pub const RESTORED_LIFETIME: Duration = Duration::from_secs(7 * 86_400);

const DAY: Duration = Duration::from_secs(86_400);

/// State of a consent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConsentState {
    /// Requested; the owner of the address has not confirmed.
    Pending,
    /// Confirmed by the owner of the address, or imported with its proof.
    Confirmed,
    /// Withdrawn by its owner.
    Withdrawn,
}

impl ConsentState {
    /// All states.
    pub const ALL: [ConsentState; 3] = [ConsentState::Pending, ConsentState::Confirmed, ConsentState::Withdrawn];

    /// Its name in tables, metrics and answers.
    pub fn word(self) -> &'static str {
        match self {
            ConsentState::Pending => "pending",
            ConsentState::Confirmed => "confirmed",
            ConsentState::Withdrawn => "withdrawn",
        }
    }

    /// Whether a subscription in this state may be matched.
    pub fn permits(self) -> bool {
        self == ConsentState::Confirmed
    }
}

impl FromStr for ConsentState {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        ConsentState::ALL.into_iter().find(|state| state.word() == text).ok_or(())
    }
}

/// Double opt-in of a subscription class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConsentPolicy {
    /// Lifetime of a request; a subscription that is not confirmed by then is removed.
    pub expires_after: Duration,
    /// Shortest time between two confirmation messages of a request.
    pub resend_after: Duration,
    /// Wrong codes after which the request takes no more codes. From 1 to [`ATTEMPTS_MAX`].
    pub attempts: u32,
    /// Most confirmation messages of a subscription within 24 hours. From 1 to [`MESSAGES_MAX`].
    pub messages_per_day: u32,
    /// Text that the person sees and agrees to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Version of the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Ways by which a consent may be stored as confirmed without a message.
    pub skip: Vec<SkipWay>,
}

impl Default for ConsentPolicy {
    fn default() -> Self {
        ConsentPolicy {
            expires_after: 7 * DAY,
            resend_after: Duration::from_secs(300),
            attempts: 5,
            messages_per_day: 5,
            text: None,
            version: None,
            skip: vec![SkipWay::Import],
        }
    }
}

/// Way by which the double opt-in of a class may be skipped. Both need the scope `consent:write` and a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipWay {
    /// Lines of an import.
    Import,
    /// Requests of the API.
    Api,
}

impl SkipWay {
    /// Its name in definitions.
    pub fn word(self) -> &'static str {
        match self {
            SkipWay::Import => "import",
            SkipWay::Api => "api",
        }
    }
}

impl FromStr for SkipWay {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        [SkipWay::Import, SkipWay::Api].into_iter().find(|way| way.word() == text).ok_or(())
    }
}

/// Way by which a consent changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConsentMethod {
    /// Request for a consent, by a form or the API.
    Api,
    /// Link in a message.
    Link,
    /// Code in a message.
    Code,
    /// Confirmation encrypted by another installation.
    Encrypted,
    /// Import, with its proof.
    Import,
    /// Operator, by a command.
    Operator,
    /// Preference page or self-service of the subscriber.
    Page,
    /// Mail to the address of a `List-Unsubscribe` field.
    Mail,
    /// Keyword in a short message.
    Sms,
    /// Expiry of a request.
    Expiry,
}

impl ConsentMethod {
    /// All ways.
    pub const ALL: [ConsentMethod; 10] = [
        ConsentMethod::Api,
        ConsentMethod::Link,
        ConsentMethod::Code,
        ConsentMethod::Encrypted,
        ConsentMethod::Import,
        ConsentMethod::Operator,
        ConsentMethod::Page,
        ConsentMethod::Mail,
        ConsentMethod::Sms,
        ConsentMethod::Expiry,
    ];

    /// Its name in tables, metrics and answers.
    pub fn word(self) -> &'static str {
        match self {
            ConsentMethod::Api => "api",
            ConsentMethod::Link => "link",
            ConsentMethod::Code => "code",
            ConsentMethod::Encrypted => "encrypted",
            ConsentMethod::Import => "import",
            ConsentMethod::Operator => "operator",
            ConsentMethod::Page => "page",
            ConsentMethod::Mail => "mail",
            ConsentMethod::Sms => "sms",
            ConsentMethod::Expiry => "expiry",
        }
    }
}

impl FromStr for ConsentMethod {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        ConsentMethod::ALL.into_iter().find(|way| way.word() == text).ok_or(())
    }
}

/// Kind of a change of a consent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConsentAct {
    /// Requested; a confirmation message follows.
    Requested,
    /// The confirmation message is sent again.
    Resent,
    /// Confirmed.
    Confirmed,
    /// Withdrawn.
    Withdrawn,
    /// A withdrawal was undone.
    Restored,
    /// Removed, since the request expired.
    Expired,
}

impl ConsentAct {
    /// All kinds.
    pub const ALL: [ConsentAct; 6] = [
        ConsentAct::Requested,
        ConsentAct::Resent,
        ConsentAct::Confirmed,
        ConsentAct::Withdrawn,
        ConsentAct::Restored,
        ConsentAct::Expired,
    ];

    /// Its name in tables, metrics and answers.
    pub fn word(self) -> &'static str {
        match self {
            ConsentAct::Requested => "requested",
            ConsentAct::Resent => "resent",
            ConsentAct::Confirmed => "confirmed",
            ConsentAct::Withdrawn => "withdrawn",
            ConsentAct::Restored => "restored",
            ConsentAct::Expired => "expired",
        }
    }
}

impl FromStr for ConsentAct {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        ConsentAct::ALL.into_iter().find(|act| act.word() == text).ok_or(())
    }
}

impl fmt::Display for ConsentAct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The part of an evidence that the origin of a change gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// Way of the change.
    pub way: ConsentMethod,
    /// Acting party: `subscriber`, or the id of the API key.
    pub by: String,
    /// Channel and address that the change is about, if known.
    pub address: Option<EvidenceAddress>,
    /// Text that the person saw.
    pub text: Option<String>,
    /// Version of the text.
    pub version: Option<String>,
    /// Network address of the acting party.
    pub remote: Option<String>,
    /// Proof of an imported consent, or note of an operator.
    pub proof: Option<String>,
    /// Time at which an imported consent was given; the time of the change otherwise.
    pub at: Option<Timestamp>,
}

impl Evidence {
    /// Evidence with way and acting party only.
    pub fn new(way: ConsentMethod, by: impl Into<String>) -> Evidence {
        let by = by.into();
        Evidence { way, by, address: None, text: None, version: None, remote: None, proof: None, at: None }
    }
}

/// Address of an evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvidenceAddress {
    /// Name of the channel.
    pub channel: Name,
    /// The address as it was given.
    pub address: String,
    /// Keyed hash of the address in canonical form. It stays when the address is erased.
    pub hash: String,
}

/// A stored evidence: one change of a consent.
#[derive(Debug, Clone, PartialEq)]
pub struct EvidenceRecord {
    /// Its number; numbers increase.
    pub number: u64,
    /// The subscriber; `None` once it is erased.
    pub subscriber: Option<SubscriberId>,
    /// The subscription.
    pub subscription: SubscriptionId,
    /// Application of the subscription.
    pub application: Name,
    /// Class of the subscription.
    pub class: Name,
    /// Kind of the change.
    pub act: ConsentAct,
    /// Time of the change, or of the imported consent.
    pub at: Timestamp,
    /// See [`Evidence::way`].
    pub way: ConsentMethod,
    /// See [`Evidence::by`].
    pub by: String,
    /// Name of the channel.
    pub channel: Option<Name>,
    /// The address; `None` if it is unknown or erased.
    pub address: Option<String>,
    /// See [`EvidenceAddress::hash`].
    pub address_hash: Option<String>,
    /// See [`Evidence::text`].
    pub text: Option<String>,
    /// See [`Evidence::version`].
    pub version: Option<String>,
    /// See [`Evidence::remote`].
    pub remote: Option<String>,
    /// See [`Evidence::proof`].
    pub proof: Option<String>,
    /// Time at which the person was erased.
    pub erased_at: Option<Timestamp>,
}

/// A change of a subscription's consent, as lifecycle events see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsentChange {
    /// The subscription.
    pub subscription: SubscriptionId,
    /// State before the change.
    pub before: Option<ConsentState>,
    /// State after it; `None` if the subscription was removed.
    pub after: Option<ConsentState>,
    /// Kind of the change.
    pub act: ConsentAct,
    /// Whether the subscription was created in the same commit.
    pub is_new: bool,
    /// Its evidence.
    pub evidence: Evidence,
}

/// Consent of one subscription, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consent {
    /// State.
    pub state: ConsentState,
    /// Number of the last request; link and code derive from it. 0: there was none.
    pub request: u64,
    /// Time of the last request.
    pub requested_at: Timestamp,
    /// Time of the last confirmation message.
    pub sent_at: Timestamp,
    /// Start of the day in which messages are counted.
    pub counted_from: Timestamp,
    /// Messages since then.
    pub messages: u32,
    /// Wrong codes of the request.
    pub attempts: u32,
    /// Expiry of a pending request.
    pub expires_at: Option<Timestamp>,
    /// Hash of a code that another system chose; `None`: the code derives from the request.
    pub code: Option<Vec<u8>>,
    /// Address that the message goes to, if the subscription names a device.
    pub address: Option<(Name, String)>,
    /// Whether the last request was confirmed, or its result is known from elsewhere. Only then does an undone
    /// withdrawal confirm.
    pub was_confirmed: bool,
}

/// A request for consent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsentRequest {
    /// Policy of the class.
    pub policy: ConsentPolicy,
    /// See [`Consent::code`].
    pub code: Option<Vec<u8>>,
    /// Whether link and code of an open request stay valid. `false`: what the person confirms has changed.
    pub repeats: bool,
    /// Evidence of the request.
    pub evidence: Evidence,
}

/// Consent that a new or replaced subscription begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InitialConsent {
    /// A request; ignored if the subscription is confirmed.
    Requested(ConsentRequest),
    /// Known from elsewhere, with its proof: confirmed or withdrawn.
    Recorded(ConsentState, Evidence),
}

/// Result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requested {
    /// A new request; its message follows.
    Started,
    /// The message of the open request is sent again.
    Resent,
    /// The message was sent a short time ago, or too often today; nothing is sent before this time.
    TooSoon(Timestamp),
    /// The consent is confirmed; nothing is sent.
    AlreadyConfirmed,
}

/// Proof of a confirmation, as verified by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// A link with a valid signature, of this request.
    Link {
        /// The request.
        request: u64,
    },
    /// A code.
    Code {
        /// The request that the code was compared with.
        request: u64,
        /// Whether the code is right.
        right: bool,
    },
    /// The word of an operator.
    Operator,
}

/// Result of a confirmation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirmation {
    /// The consent is confirmed now.
    Confirmed,
    /// It was confirmed before, by this request.
    AlreadyConfirmed,
    /// The code is wrong.
    WrongCode,
    /// Too many wrong codes.
    Exhausted,
    /// The request has expired, was replaced by a newer one, or its address has changed.
    Void,
}

impl Consent {
    /// Consent without a request.
    pub fn new(state: ConsentState, now: Timestamp) -> Consent {
        Consent {
            state,
            request: 0,
            requested_at: now,
            sent_at: now,
            counted_from: now,
            messages: 0,
            attempts: 0,
            expires_at: None,
            code: None,
            address: None,
            was_confirmed: state == ConsentState::Confirmed,
        }
    }

    /// Consent of a new request.
    pub fn requested(request: &ConsentRequest, address: Option<(Name, String)>, now: Timestamp) -> Consent {
        let mut consent = Consent::new(ConsentState::Withdrawn, now);
        consent.request(request, address, now);
        consent
    }

    /// Whether the request is open.
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.state == ConsentState::Pending && self.expires_at.is_none_or(|end| now < end)
    }

    /// Takes a request. A confirmed consent stays. An open request is sent again within the limits; with other
    /// contents or after its expiry, and after a withdrawal, it starts anew. The limits count over all requests of
    /// the subscription.
    pub fn request(&mut self, request: &ConsentRequest, address: Option<(Name, String)>, now: Timestamp) -> Requested {
        if self.state == ConsentState::Confirmed {
            return Requested::AlreadyConfirmed;
        }
        let ConsentRequest { policy, code, repeats, evidence: _ } = request;
        if now.since(self.counted_from) >= DAY {
            (self.counted_from, self.messages) = (now, 0);
        }
        if self.request > 0 {
            let next = self.sent_at + policy.resend_after;
            if now < next {
                return Requested::TooSoon(next);
            }
            if self.messages >= policy.messages_per_day.max(1) {
                return Requested::TooSoon(self.counted_from + DAY);
            }
        }
        self.sent_at = now;
        self.messages += 1;
        let same = *repeats && self.is_open(now) && self.address == address && code.is_none() && self.code.is_none();
        if same && self.attempts < policy.attempts.max(1) {
            return Requested::Resent;
        }
        self.state = ConsentState::Pending;
        self.request += 1;
        self.requested_at = now;
        self.attempts = 0;
        self.expires_at = Some(now + policy.expires_after);
        self.code = code.clone();
        self.address = address;
        self.was_confirmed = false;
        Requested::Started
    }

    /// Takes a confirmation. `address`: the present address of the device that the subscription names. Wrong codes
    /// are counted here, so that the limit holds for concurrent attempts.
    pub fn confirm(
        &mut self,
        proof: Proof,
        attempts_max: u32,
        address: Option<&(Name, String)>,
        now: Timestamp,
    ) -> Confirmation {
        let of_request = match proof {
            Proof::Link { request } | Proof::Code { request, .. } => request == self.request && request > 0,
            Proof::Operator => true,
        };
        let is_confirmed = self.state == ConsentState::Confirmed;
        let is_open = is_confirmed || (self.is_open(now) && !self.has_moved(address));
        if !of_request || (!is_open && !matches!(proof, Proof::Operator)) {
            return Confirmation::Void;
        }
        // Wrong codes count after the confirmation too: otherwise guesses would disclose who is subscribed.
        if let Proof::Code { right, .. } = proof {
            if self.attempts >= attempts_max.max(1) {
                return Confirmation::Exhausted;
            }
            if !right {
                self.attempts += 1;
                return Confirmation::WrongCode;
            }
        }
        if is_confirmed {
            return Confirmation::AlreadyConfirmed;
        }
        self.record(ConsentState::Confirmed);
        Confirmation::Confirmed
    }

    fn has_moved(&self, address: Option<&(Name, String)>) -> bool {
        let is_other = |(channel, sent): &(Name, String)| {
            address.is_none_or(|(now_by, now_at)| now_by != channel || !mailbox::is_same(sent, now_at))
        };
        self.address.as_ref().is_some_and(is_other)
    }

    /// Takes another address of the device that the subscription names: a confirmed consent is for the former one, so
    /// it is requested anew, without expiry. Returns whether the state changed.
    pub fn moved(&mut self, address: (Name, String), now: Timestamp) -> bool {
        let moved = self.state == ConsentState::Confirmed;
        if moved {
            self.request_for(address, now);
        }
        moved
    }

    fn request_for(&mut self, address: (Name, String), now: Timestamp) {
        self.state = ConsentState::Pending;
        self.request += 1;
        (self.requested_at, self.sent_at) = (now, now);
        self.messages += 1;
        self.attempts = 0;
        (self.expires_at, self.code) = (None, None);
        self.address = Some(address);
        self.was_confirmed = false;
    }

    /// Withdraws. Returns whether the state changed.
    pub fn withdraw(&mut self) -> bool {
        self.end(ConsentState::Withdrawn)
    }

    /// Undoes a withdrawal. `address`: the present address of the device that the subscription names.
    ///
    /// A consent that was confirmed for this address is confirmed again, and one for another address is requested anew.
    /// One that was never confirmed is pending again, with its former link, for [`RESTORED_LIFETIME`]. Returns the kind
    /// of the change; `None`: it is not withdrawn, or the device was removed.
    pub fn restore(&mut self, address: Option<&(Name, String)>, now: Timestamp) -> Option<ConsentAct> {
        if self.state != ConsentState::Withdrawn {
            return None;
        }
        if self.has_moved(address) {
            self.request_for(address?.clone(), now);
            return Some(ConsentAct::Requested);
        }
        if self.was_confirmed {
            self.end(ConsentState::Confirmed);
        } else {
            self.state = ConsentState::Pending;
            self.expires_at = Some(now + RESTORED_LIFETIME);
        }
        Some(ConsentAct::Restored)
    }

    /// Takes a state known from elsewhere: confirmed or withdrawn.
    pub fn record(&mut self, state: ConsentState) {
        self.end(state);
        self.was_confirmed = true;
    }

    fn end(&mut self, state: ConsentState) -> bool {
        self.expires_at = None;
        std::mem::replace(&mut self.state, state) != state
    }
}

/// Cuts a note to [`NOTE_BYTES_MAX`], between characters.
pub fn cut(mut note: String) -> String {
    let end = (0..=NOTE_BYTES_MAX.min(note.len())).rev().find(|at| note.is_char_boundary(*at)).unwrap_or(0);
    note.truncate(end);
    note
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> ConsentPolicy {
        ConsentPolicy { attempts: 2, messages_per_day: 3, ..ConsentPolicy::default() }
    }

    fn request(repeats: bool) -> ConsentRequest {
        ConsentRequest { policy: policy(), code: None, repeats, evidence: Evidence::new(ConsentMethod::Api, "test") }
    }

    fn minutes(count: i64) -> Timestamp {
        Timestamp::from_millis(count * 60_000)
    }

    fn address() -> Option<(Name, String)> {
        Some(("email".parse().expect("a name"), "ann@example.org".to_owned()))
    }

    #[test]
    fn a_request_is_repeated_within_its_limits() {
        let mut consent = Consent::requested(&request(true), address(), minutes(0));
        assert_eq!((consent.state, consent.request, consent.messages), (ConsentState::Pending, 1, 1));
        assert_eq!(consent.request(&request(true), address(), minutes(4)), Requested::TooSoon(minutes(5)));
        assert_eq!(consent.request(&request(true), address(), minutes(5)), Requested::Resent);
        assert_eq!(consent.request, 1, "its link stays valid");
        assert_eq!(consent.request(&request(false), address(), minutes(10)), Requested::Started);
        assert_eq!(consent.request, 2, "other contents need another link");
        assert_eq!(consent.request(&request(true), address(), minutes(15)), Requested::TooSoon(minutes(1_440)));
        assert_eq!(consent.request(&request(true), address(), minutes(1_440)), Requested::Resent);
        assert_eq!(consent.request(&request(true), None, minutes(1_500)), Requested::Started, "another address");
    }

    #[test]
    fn a_link_confirms_once_and_only_its_request() {
        let mut consent = Consent::requested(&request(true), address(), minutes(0));
        let link = |request| Proof::Link { request };
        assert_eq!(consent.confirm(link(2), 2, address().as_ref(), minutes(1)), Confirmation::Void);
        assert_eq!(consent.confirm(link(0), 2, address().as_ref(), minutes(1)), Confirmation::Void);
        assert_eq!(consent.confirm(link(1), 2, None, minutes(1)), Confirmation::Void, "its device is gone");
        assert_eq!(consent.confirm(link(1), 2, address().as_ref(), minutes(1)), Confirmation::Confirmed);
        assert_eq!(consent.confirm(link(1), 2, address().as_ref(), minutes(2)), Confirmation::AlreadyConfirmed);
        assert_eq!(consent.request(&request(true), address(), minutes(60)), Requested::AlreadyConfirmed);
        assert!(consent.withdraw() && !consent.withdraw());
        assert_eq!(consent.confirm(link(1), 2, address().as_ref(), minutes(3)), Confirmation::Void, "single use");
        assert_eq!(consent.request(&request(true), address(), minutes(60)), Requested::Started);
        assert_eq!(consent.request, 2);
    }

    #[test]
    fn wrong_codes_exhaust_a_request_until_the_next_message() {
        let mut consent = Consent::requested(&request(true), address(), minutes(0));
        let code = |consent: &mut Consent, request, right, at| {
            consent.confirm(Proof::Code { request, right }, 2, address().as_ref(), minutes(at))
        };
        assert_eq!(code(&mut consent, 1, false, 1), Confirmation::WrongCode);
        assert_eq!(code(&mut consent, 1, false, 1), Confirmation::WrongCode);
        assert_eq!(code(&mut consent, 1, true, 1), Confirmation::Exhausted);
        assert_eq!(consent.request(&request(true), address(), minutes(5)), Requested::Started);
        assert_eq!(code(&mut consent, 1, true, 6), Confirmation::Void, "the former code");
        assert_eq!(code(&mut consent, 2, false, 6), Confirmation::WrongCode);
        assert_eq!(code(&mut consent, 2, true, 6), Confirmation::Confirmed);
        assert_eq!(code(&mut consent, 2, true, 7), Confirmation::AlreadyConfirmed);
        assert_eq!(code(&mut consent, 2, false, 7), Confirmation::WrongCode);
        assert_eq!(code(&mut consent, 2, true, 7), Confirmation::Exhausted, "no guesses at who is subscribed");
    }

    #[test]
    fn another_address_needs_another_confirmation() {
        let mut consent = Consent::requested(&request(true), address(), minutes(0));
        let other = ("email".parse().expect("a name"), "ann@example.net".to_owned());
        assert!(!consent.moved(other.clone(), minutes(1)), "it is pending");
        assert_eq!(consent.confirm(Proof::Link { request: 1 }, 2, address().as_ref(), minutes(1)), {
            Confirmation::Confirmed
        });
        assert!(consent.moved(other.clone(), minutes(2)));
        assert_eq!((consent.state, consent.expires_at), (ConsentState::Pending, None));
        assert_eq!(consent.confirm(Proof::Link { request: 1 }, 2, Some(&other), minutes(3)), Confirmation::Void);
        assert_eq!(consent.confirm(Proof::Link { request: 2 }, 2, Some(&other), minutes(3)), Confirmation::Confirmed);
    }

    #[test]
    fn an_undone_withdrawal_confirms_only_what_was_confirmed() {
        let other = Some(("email".parse().expect("a name"), "ann@example.net".to_owned()));
        let link = |request| Proof::Link { request };
        let withdrawn = |was_confirmed: bool| {
            let mut consent = Consent::requested(&request(true), address(), minutes(0));
            if was_confirmed {
                consent.confirm(link(1), 2, address().as_ref(), minutes(1));
            }
            assert_eq!(consent.restore(address().as_ref(), minutes(1)), None, "it is not withdrawn");
            consent.withdraw();
            consent
        };
        let mut confirmed = withdrawn(true);
        assert_eq!(confirmed.restore(address().as_ref(), minutes(2)), Some(ConsentAct::Restored));
        assert_eq!(confirmed.state, ConsentState::Confirmed);

        let mut pending = withdrawn(false);
        assert_eq!(pending.restore(address().as_ref(), minutes(2)), Some(ConsentAct::Restored));
        assert_eq!((pending.state, pending.expires_at), (ConsentState::Pending, Some(minutes(2) + RESTORED_LIFETIME)));
        assert_eq!(pending.confirm(link(1), 2, address().as_ref(), minutes(3)), Confirmation::Confirmed);

        let mut moved = withdrawn(true);
        assert_eq!(moved.restore(None, minutes(2)), None, "its device was removed");
        assert_eq!(moved.restore(other.as_ref(), minutes(2)), Some(ConsentAct::Requested));
        assert_eq!((moved.state, moved.request), (ConsentState::Pending, 2));
        assert!(moved.withdraw());
        assert_eq!(moved.restore(other.as_ref(), minutes(3)), Some(ConsentAct::Restored));
        assert_eq!(moved.state, ConsentState::Pending, "the new address was never confirmed");

        let mut imported = Consent::new(ConsentState::Withdrawn, minutes(0));
        imported.record(ConsentState::Withdrawn);
        imported.restore(None, minutes(1));
        assert_eq!(imported.state, ConsentState::Confirmed, "its proof is known from elsewhere");
    }

    #[test]
    fn an_expired_request_is_void() {
        let mut consent = Consent::requested(&request(true), None, minutes(0));
        let week = minutes(7 * 1_440);
        assert!(consent.is_open(minutes(1)) && !consent.is_open(week));
        assert_eq!(consent.confirm(Proof::Link { request: 1 }, 2, None, week), Confirmation::Void);
        assert_eq!(consent.confirm(Proof::Operator, 2, None, week), Confirmation::Confirmed);
    }

    #[test]
    fn words_are_parsed() {
        for state in ConsentState::ALL {
            assert_eq!(state.word().parse(), Ok(state));
        }
        for way in ConsentMethod::ALL {
            assert_eq!(way.word().parse(), Ok(way));
        }
        for act in ConsentAct::ALL {
            assert_eq!(act.word().parse(), Ok(act));
        }
        assert_eq!(cut("ä".repeat(NOTE_BYTES_MAX)).len(), NOTE_BYTES_MAX);
    }
}
