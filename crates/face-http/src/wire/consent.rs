//! Consent: requests of forms, confirmations, state and evidence.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tocsin_model::{
    consent::{Consent, ConsentState, EvidenceRecord},
    time::Timestamp,
};
use tocsin_service::{
    ConsentDraft,
    consent::{ConfirmDraft, ConsentForm, ConsentReceipt, ConsentStatus, WithdrawDraft},
    subscriptions::{FilterDraft, ScheduleDraft},
};
use utoipa::ToSchema;

use super::subscriptions::{FilterDraftBody, ScheduleDraftBody};

/// A request of a sign-up form. The person is known by an address, or by `subscriber`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ConsentRequest)]
pub(crate) struct ConsentRequestBody<'a> {
    /// Application.
    #[serde(borrow)]
    #[schema(value_type = String)]
    application: Cow<'a, str>,
    /// Subscription class, which asks for consent.
    #[serde(borrow)]
    #[schema(value_type = String)]
    class: Cow<'a, str>,
    /// Known subscriber. A new address for it needs the scope `subscribers:write`.
    #[serde(default)]
    subscriber: Option<String>,
    /// Channel of the address.
    #[serde(default)]
    channel: Option<String>,
    /// Address that the message is sent to.
    #[serde(default)]
    address: Option<String>,
    /// Key of the subscription; `self` if not given.
    #[serde(default)]
    key: Option<String>,
    /// The fields of the class.
    #[serde(default, borrow)]
    #[schema(value_type = Option<std::collections::BTreeMap<String, serde_json::Value>>)]
    values: Option<&'a RawValue>,
    /// Predicate over the event, if the class allows filters.
    #[serde(default)]
    filter: Option<FilterDraftBody>,
    /// When its scheduled rules are evaluated, if the class allows schedules.
    #[serde(default)]
    schedule: Option<ScheduleDraftBody>,
    /// BCP 47 language tag of a person who is not known yet.
    #[serde(default)]
    locale: Option<String>,
    /// IANA time zone of a person who is not known yet.
    #[serde(default)]
    time_zone: Option<String>,
    /// Text that the form showed; that of the class if not given.
    #[serde(default)]
    text: Option<String>,
    /// Version of `text`.
    #[serde(default)]
    version: Option<String>,
    /// Network address of the person, for the evidence.
    #[serde(default)]
    remote: Option<String>,
    /// Code that the caller chose and shows or sends itself: no message is sent. Needs the scope `subscribers:write`.
    #[serde(default)]
    code: Option<String>,
    /// Address and code, encrypted by another installation: base64 of RSA-OAEP with SHA-1 of `<address> <code>`. No
    /// message is sent.
    #[serde(default)]
    encrypted: Option<String>,
}

impl<'a> From<ConsentRequestBody<'a>> for ConsentForm<'a> {
    fn from(body: ConsentRequestBody<'a>) -> Self {
        ConsentForm {
            application: body.application.into_owned(),
            class: body.class.into_owned(),
            subscriber: body.subscriber,
            channel: body.channel,
            address: body.address,
            key: body.key,
            values: body.values,
            filter: body.filter.map(FilterDraft::from),
            schedule: body.schedule.map(ScheduleDraft::from),
            locale: body.locale,
            time_zone: body.time_zone,
            text: body.text,
            version: body.version,
            remote: body.remote,
            code: body.code,
            encrypted: body.encrypted,
        }
    }
}

/// Answer to a request, the same for everybody.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ConsentReceipt)]
pub(crate) struct ConsentReceiptBody {
    /// Handle for the code of the message. It does not confirm by itself.
    request: String,
    /// Lifetime of a request, in seconds.
    expires_after_seconds: u64,
    /// Shortest time between two messages, in seconds.
    resend_after_seconds: u64,
}

impl From<ConsentReceipt> for ConsentReceiptBody {
    fn from(receipt: ConsentReceipt) -> Self {
        let ConsentReceipt { request, expires_after_seconds, resend_after_seconds } = receipt;
        ConsentReceiptBody { request, expires_after_seconds, resend_after_seconds }
    }
}

/// A code of a message, with the handle of its request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ConsentConfirmation)]
pub(crate) struct ConfirmationBody {
    /// Handle of the request.
    pub(crate) request: String,
    /// Code of the message.
    pub(crate) code: String,
    /// Network address of the person, for the evidence.
    #[serde(default)]
    pub(crate) remote: Option<String>,
}

/// The handle of a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ConsentResend)]
pub(crate) struct ResendBody {
    /// Handle of the request.
    pub(crate) request: String,
    /// Network address of the person, for the evidence.
    #[serde(default)]
    pub(crate) remote: Option<String>,
}

/// Confirmation of a subscription: by the code of its message, or with a proof.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ConsentConfirm)]
pub(crate) struct ConfirmBody {
    /// Code of the message.
    #[serde(default)]
    code: Option<String>,
    /// Proof of the consent, without a code, such as `paper form 2026-117`. Needs the scope `consent:write`.
    #[serde(default)]
    proof: Option<String>,
    /// Network address of the person, for the evidence.
    #[serde(default)]
    remote: Option<String>,
}

impl From<ConfirmBody> for ConfirmDraft {
    fn from(body: ConfirmBody) -> Self {
        ConfirmDraft { code: body.code, proof: body.proof, remote: body.remote }
    }
}

/// A request for the consent of a subscription, or its withdrawal.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ConsentChange)]
pub(crate) struct ConsentChangeBody {
    /// Note for the evidence.
    #[serde(default)]
    pub(crate) proof: Option<String>,
    /// Network address of the person, for the evidence.
    #[serde(default)]
    pub(crate) remote: Option<String>,
}

impl From<ConsentChangeBody> for WithdrawDraft {
    fn from(body: ConsentChangeBody) -> Self {
        WithdrawDraft { proof: body.proof, remote: body.remote }
    }
}

/// Consent of a new subscription. A confirmed one needs a proof, and a class and a key that allow it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ConsentDraft)]
pub(crate) struct ConsentDraftBody {
    /// `pending` requests the consent, as an absent `consent` does; `confirmed` and `withdrawn` store a known state.
    #[schema(value_type = String)]
    state: ConsentState,
    /// Proof of the consent, such as `paper form 2026-117`.
    #[serde(default)]
    proof: Option<String>,
    /// Time at which it was given; now if not given.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    at: Option<Timestamp>,
    /// Text that the person saw; that of the class if not given.
    #[serde(default)]
    text: Option<String>,
    /// Version of the text.
    #[serde(default)]
    version: Option<String>,
    /// Network address of the person.
    #[serde(default)]
    remote: Option<String>,
}

impl From<ConsentDraftBody> for ConsentDraft {
    fn from(body: ConsentDraftBody) -> Self {
        let ConsentDraftBody { state, proof, at, text, version, remote } = body;
        ConsentDraft { state, proof, at, text, version, remote }
    }
}

/// Consent of a subscription, as shown with it.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = ConsentSummary)]
pub(crate) struct ConsentSummaryBody {
    /// `pending`, `confirmed` or `withdrawn`.
    #[schema(value_type = String)]
    pub(crate) state: ConsentState,
}

/// Consent of a subscription, with its evidence.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ConsentStatus)]
pub(crate) struct ConsentStatusBody {
    /// The subscription.
    subscription: String,
    /// `pending`, `confirmed` or `withdrawn`; absent if it needs no consent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    state: Option<ConsentState>,
    /// The open request of a pending one.
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<OpenRequestBody>,
    /// Evidence, oldest first; up to 100.
    evidence: Vec<EvidenceBody>,
}

/// The open request of a pending subscription.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OpenConsentRequest)]
pub(crate) struct OpenRequestBody {
    /// Number of the request.
    number: u64,
    /// Its time.
    #[schema(value_type = String, format = DateTime)]
    requested_at: Timestamp,
    /// Time of the last message.
    #[schema(value_type = String, format = DateTime)]
    sent_at: Timestamp,
    /// Its expiry: the subscription is then removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// Messages within the last day.
    messages: u32,
    /// Wrong codes.
    attempts: u32,
}

/// Evidence of one change of a consent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ConsentEvidence)]
pub(crate) struct EvidenceBody {
    /// Its number.
    number: u64,
    /// The subscriber; absent once the person is erased.
    #[serde(skip_serializing_if = "Option::is_none")]
    subscriber: Option<String>,
    /// The subscription.
    subscription: String,
    /// Its application.
    application: String,
    /// Its class.
    class: String,
    /// `requested`, `resent`, `confirmed`, `withdrawn`, `restored` or `expired`.
    act: &'static str,
    /// Time of the change, or of an imported consent.
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// `api`, `link`, `code`, `encrypted`, `import`, `operator`, `page`, `mail`, `sms` or `expiry`.
    way: &'static str,
    /// `subscriber`, `tocsin`, or the id of the API key.
    by: String,
    /// Channel of the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    channel: Option<String>,
    /// Address; absent if it is unknown, or the person is erased.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    /// Keyed hash of the address, equal for all its spellings.
    #[serde(skip_serializing_if = "Option::is_none")]
    address_hash: Option<String>,
    /// Text that the person saw.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// Version of the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// Network address of the person.
    #[serde(skip_serializing_if = "Option::is_none")]
    remote: Option<String>,
    /// Proof of an imported consent, or note of an operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    proof: Option<String>,
}

impl From<ConsentStatus> for ConsentStatusBody {
    fn from(status: ConsentStatus) -> Self {
        let open = |consent: &Consent| OpenRequestBody {
            number: consent.request,
            requested_at: consent.requested_at,
            sent_at: consent.sent_at,
            expires_at: consent.expires_at,
            messages: consent.messages,
            attempts: consent.attempts,
        };
        ConsentStatusBody {
            subscription: status.subscription.to_string(),
            state: status.consent.as_ref().map(|consent| consent.state),
            request: status.consent.as_ref().filter(|consent| consent.state == ConsentState::Pending).map(open),
            evidence: status.evidence.into_iter().map(EvidenceBody::from).collect(),
        }
    }
}

impl From<EvidenceRecord> for EvidenceBody {
    fn from(record: EvidenceRecord) -> Self {
        EvidenceBody {
            number: record.number,
            subscriber: record.subscriber.map(|id| id.to_string()),
            subscription: record.subscription.to_string(),
            application: record.application.to_string(),
            class: record.class.to_string(),
            act: record.act.word(),
            at: record.at,
            way: record.way.word(),
            by: record.by,
            channel: record.channel.map(|channel| channel.to_string()),
            address: record.address,
            address_hash: record.address_hash,
            text: record.text,
            version: record.version,
            remote: record.remote,
            proof: record.proof,
        }
    }
}
