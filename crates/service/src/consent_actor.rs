//! Acting parties of consents, and the consent that a subscription begins with.

use serde::Deserialize;
use tocsin_delivery::ConsentTokens;
use tocsin_model::{
    consent::{
        ConsentMethod, ConsentPolicy, ConsentRequest, ConsentState, Evidence, EvidenceAddress, InitialConsent, SkipWay,
        TEXT_BYTES_MAX, cut,
    },
    id::Name,
    lifecycle::{ChangeOrigin, ChangeWay},
    problem::{Code, Problem},
    subscriber::{Device, DeviceState, Subscriber},
    time::Timestamp,
};

use crate::keys::{Caller, Scope};

/// Consent of a subscription as its creator writes it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsentDraft {
    /// Its state.
    pub state: ConsentState,
    /// Proof: where and how the consent was given.
    #[serde(default)]
    pub proof: Option<String>,
    /// Time at which it was given.
    #[serde(default)]
    pub at: Option<Timestamp>,
    /// Text that the person saw.
    #[serde(default)]
    pub text: Option<String>,
    /// Version of the text.
    #[serde(default)]
    pub version: Option<String>,
    /// Network address of the person.
    #[serde(default)]
    pub remote: Option<String>,
}

/// Acting party of a change of consent.
#[derive(Debug, Clone)]
pub(crate) struct ConsentActor {
    pub(crate) by: String,
    pub(crate) way: ConsentMethod,
    may_record: bool,
    remote: Option<String>,
}

impl ConsentActor {
    /// The holder of a key.
    pub(crate) fn of(caller: &Caller, way: ConsentMethod) -> ConsentActor {
        let may_record = caller.needs(Scope::ConsentWrite).is_ok();
        ConsentActor { by: caller.key().to_owned(), way, may_record, remote: None }
    }

    /// The origin of its changes.
    pub(crate) fn origin(&self) -> ChangeOrigin {
        let way = ChangeWay::ALL.into_iter().find(|way| way.word() == self.way.word());
        ChangeOrigin::by(way.unwrap_or_default(), Some(&self.by))
    }

    /// The subscriber.
    pub(crate) fn subscriber(way: ConsentMethod) -> ConsentActor {
        ConsentActor { by: "subscriber".to_owned(), way, may_record: false, remote: None }
    }

    /// The same, at a network address.
    pub(crate) fn at(self, remote: Option<String>) -> ConsentActor {
        ConsentActor { remote: remote.map(cut), ..self }
    }

    pub(crate) fn evidence(&self, address: Option<EvidenceAddress>, policy: Option<&ConsentPolicy>) -> Evidence {
        Evidence {
            address,
            text: policy.and_then(|policy| policy.text.clone()),
            version: policy.and_then(|policy| policy.version.clone()),
            remote: self.remote.clone(),
            ..Evidence::new(self.way, self.by.clone())
        }
    }

    /// Consent that a subscription begins with, as its draft has it.
    pub(crate) fn initial(
        &self,
        policy: &ConsentPolicy,
        given: Option<ConsentDraft>,
        address: Option<EvidenceAddress>,
    ) -> Result<InitialConsent, Problem> {
        let own = self.evidence(address, Some(policy));
        let Some(given) = given.filter(|given| given.state != ConsentState::Pending) else {
            let (policy, repeats) = (policy.clone(), true);
            return Ok(InitialConsent::Requested(ConsentRequest { policy, code: None, repeats, evidence: own }));
        };
        let way = if self.way == ConsentMethod::Import { SkipWay::Import } else { SkipWay::Api };
        let needs = |path: &str, message: String| Problem::new(Code::ConsentRequired, path, message);
        if given.state.permits() {
            if !policy.skip.contains(&way) {
                let message = format!("the class takes no confirmed consent by `{}`", way.word());
                let hint = "leave it out to send a confirmation message, or add the way to `consent.skip` of the class";
                return Err(needs("consent.state", message).hint(hint));
            }
            if !self.may_record {
                let hint = "use a key with the scope `consent:write`";
                return Err(needs("consent.state", "the key may not give the consent of others".to_owned()).hint(hint));
            }
            if given.proof.as_ref().is_none_or(|proof| proof.trim().is_empty()) {
                let hint = "say where and how the consent was given, such as `paper form 2026-117`";
                return Err(needs("consent.proof", "a confirmed consent needs a proof".to_owned()).hint(hint));
            }
        }
        if let Some(problem) = text_problem("consent.text", given.text.as_deref()) {
            return Err(problem);
        }
        let evidence = Evidence {
            proof: given.proof.map(cut),
            at: given.at,
            text: given.text.or(own.text),
            version: given.version.map(cut).or(own.version),
            remote: given.remote.map(cut).or(own.remote),
            ..own
        };
        Ok(InitialConsent::Recorded(given.state, evidence))
    }
}

/// The problem of a text that is too long for an evidence. Texts are stored as shown, so they are not cut.
pub(crate) fn text_problem(path: &str, text: Option<&str>) -> Option<Problem> {
    let bytes = text.map_or(0, str::len);
    (bytes > TEXT_BYTES_MAX).then(|| Problem::too_long(path, bytes, TEXT_BYTES_MAX))
}

/// Address that messages of a subscription go to: that of the named device, or else of the first active one by name.
pub(crate) fn evidence_address(
    tokens: &ConsentTokens,
    subscriber: &Subscriber,
    device: Option<&Name>,
) -> Option<EvidenceAddress> {
    let found = match device {
        Some(name) => subscriber.devices.get(name),
        None => subscriber.devices.values().find(|device| device.state == DeviceState::Active),
    };
    let Device { channel, address, .. } = found?.clone();
    let hash = tokens.address_hash(&channel, &address);
    Some(EvidenceAddress { channel, address, hash })
}
