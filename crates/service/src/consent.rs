//! Consent of subscriptions: requests, confirmations by link and code, withdrawals, evidence.
//!
//! Responses to requests and to wrong codes do not depend on whether a person is subscribed: forms relay them to
//! strangers.

mod encrypted; // confirmations encrypted by another installation
mod evidence; // evidence of a subscription and of a person
mod form; // requests of a sign-up form, by address

use std::sync::Arc;

use tocsin_delivery::ConfirmLink;
use tocsin_model::{
    consent::{
        Confirmation, ConsentMethod, ConsentPolicy, ConsentRequest, ConsentState, Evidence, EvidenceAddress, Proof,
        Requested, cut,
    },
    id::{Name, SubscriptionId},
    pages::{ClassTexts, title_of},
    problem::{Code, Problem},
    subscriber::Subscriber,
    subscription::Subscription,
    time::Timestamp,
};
use tocsin_store::records::{ConfirmConsent, NewConsented, NewSubscription};

pub use self::{
    encrypted::{ConsentKey, ConsentKeyError},
    evidence::ConsentStatus,
    form::{ConsentForm, ConsentReceipt},
};
use crate::{
    Service,
    consent_actor::{ConsentActor, ConsentDraft, evidence_address},
    error::ServiceError,
    keys::{Caller, Scope},
};

/// Permission to confirm one request, which only its link gives.
#[derive(Debug, Clone)]
pub struct Confirming {
    link: ConfirmLink,
    /// Application.
    pub application: Name,
    /// Title and description of the subscription class, by language.
    pub texts: ClassTexts,
    /// Title of the class if it has no text.
    pub title: String,
    /// Title of the application.
    pub application_title: String,
    /// Text that the person agrees to.
    pub text: Option<String>,
    /// Whether the link still confirms something.
    pub is_open: bool,
    /// Whether it has confirmed already.
    pub is_confirmed: bool,
}

impl Service {
    /// Sets the key for encrypted confirmations. Only the first call has an effect.
    pub fn set_consent_key(&self, key: ConsentKey) {
        let _ = self.consent_key.set(Arc::new(key));
    }

    /// The public key for encrypted confirmations, in PEM.
    ///
    /// # Errors
    /// The installation has no key.
    pub fn consent_public_key(&self, caller: &Caller) -> Result<&str, ServiceError> {
        caller.needs_everywhere(Scope::ConsentWrite)?;
        let key = self.consent_key.get().ok_or_else(|| ServiceError::Missing("a key for confirmations".to_owned()))?;
        Ok(key.public_pem())
    }

    pub(crate) fn policy_of(&self, application: &Name, class: &Name) -> Option<ConsentPolicy> {
        self.pipeline.application(application)?.application.subscriptions.get(class)?.consent.clone()
    }

    pub(crate) fn evidence_address(&self, subscriber: &Subscriber, device: Option<&Name>) -> Option<EvidenceAddress> {
        evidence_address(self.token_signer.consent(), subscriber, device)
    }

    /// Address that the messages of a subscription go to.
    pub(crate) async fn address_of(
        &self,
        subscription: &Subscription,
    ) -> Result<Option<EvidenceAddress>, ServiceError> {
        let subscriber = self.subscriber_store.subscriber(&subscription.subscriber).await?;
        Ok(subscriber.and_then(|found| self.evidence_address(&found, subscription.device.as_ref())))
    }

    /// Stores a subscription of a class that asks for consent.
    pub(crate) async fn put_consented(
        &self,
        new: NewSubscription,
        policy: &ConsentPolicy,
        given: Option<ConsentDraft>,
        actor: &ConsentActor,
        now: Timestamp,
    ) -> Result<Subscription, ServiceError> {
        let subscriber = self.subscriber_store.subscriber(&new.subscriber).await?;
        let address = subscriber.and_then(|found| self.evidence_address(&found, new.device.as_ref()));
        let consent = actor.initial(policy, given, address)?;
        let new = NewConsented { subscription: new, consent, keeps_confirmed: false, quiet: false };
        let written = self.consent_store.put_consented(vec![new], now).await?;
        let (id, requested) = written.into_iter().next().expect("one line has one answer")?;
        count_request(requested);
        self.find_subscription(id).await
    }

    /// Requests the consent of a subscription, or sends its message again.
    ///
    /// # Errors
    /// There is none, its class asks for no consent, or its message was sent a short time ago.
    pub async fn request_consent(
        &self,
        caller: &Caller,
        id: SubscriptionId,
        remote: Option<String>,
    ) -> Result<ConsentStatus, ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let found = self.find_subscription(id).await?;
        let policy = self.policy_of(&found.application, &found.class).ok_or_else(|| {
            let message = format!("the class `{}` asks for no consent", found.class);
            ServiceError::invalid(Code::NotApplicable, "", message)
        })?;
        let actor = ConsentActor::of(caller, ConsentMethod::Api).at(remote);
        let evidence = actor.evidence(self.address_of(&found).await?, Some(&policy));
        let request = ConsentRequest { policy, code: None, repeats: true, evidence };
        let now = self.clock.now();
        let requested = self.consent_store.request_consent(id, request, now).await?;
        count_request(requested);
        match requested {
            Requested::TooSoon(at) => {
                let reason = "a confirmation message was sent a short time ago, or too many today".to_owned();
                Err(ServiceError::RateLimited { reason, retry_after: at.since(now) })
            }
            Requested::Started | Requested::Resent | Requested::AlreadyConfirmed => self.consent_of(caller, id).await,
        }
    }

    /// Subject of a confirmation link. Changes nothing.
    ///
    /// # Errors
    /// `Missing` for a link that we did not make, or whose subscription was removed.
    pub async fn confirming(&self, token: &str) -> Result<Confirming, ServiceError> {
        let missing = || ServiceError::Missing("this link".into());
        let link = self.token_signer.consent().verify_link(token).ok_or_else(missing)?;
        let found = self.subscription_store.subscription(link.subscription).await?.ok_or_else(missing)?;
        let consent = self.consent_store.consent(link.subscription).await?.ok_or_else(missing)?;
        tocsin_store::audit::set_actor(|| format!("subscriber:{}", found.subscriber));
        let compiled = self.pipeline.application(&found.application);
        let pages = compiled.as_ref().map(|compiled| &compiled.application.pages);
        let is_current = consent.request == link.request;
        Ok(Confirming {
            link,
            texts: pages.and_then(|pages| pages.subscriptions.get(&found.class)).cloned().unwrap_or_default(),
            title: title_of(&found.class),
            application_title: pages
                .and_then(|pages| pages.branding.name.clone())
                .unwrap_or_else(|| title_of(&found.application)),
            text: self.policy_of(&found.application, &found.class).and_then(|policy| policy.text),
            is_open: is_current && consent.is_open(self.clock.now()),
            is_confirmed: is_current && consent.state == ConsentState::Confirmed,
            application: found.application,
        })
    }

    /// Confirms by a link. Idempotent. Returns whether the subscription is confirmed.
    ///
    /// # Errors
    /// The records are unavailable.
    pub async fn confirm_by_link(&self, confirming: &Confirming, remote: Option<String>) -> Result<bool, ServiceError> {
        let ConfirmLink { subscription, request } = confirming.link;
        let actor = ConsentActor::subscriber(ConsentMethod::Link).at(remote);
        let confirmation = self.confirm(subscription, Proof::Link { request }, &actor, None).await?;
        Ok(matches!(confirmation, Confirmation::Confirmed | Confirmation::AlreadyConfirmed))
    }

    /// Confirms a subscription by the code of its message; without a code, on the word of the caller.
    ///
    /// # Errors
    /// There is none; the code does not confirm it; the caller gives no code and lacks the scope `consent:write`.
    pub async fn confirm_consent(
        &self,
        caller: &Caller,
        id: SubscriptionId,
        confirm: ConfirmDraft,
    ) -> Result<ConsentStatus, ServiceError> {
        let ConfirmDraft { code, proof, remote } = confirm;
        caller.needs(if code.is_some() { Scope::SubscribersWrite } else { Scope::ConsentWrite })?;
        let found = self.find_subscription(id).await?;
        let confirmation = match code {
            Some(code) => self.confirm_by_code(id, &code, remote).await?,
            None => {
                if found.consent.is_none() {
                    let message = format!("the subscription `{id}` needs no consent");
                    return Err(ServiceError::invalid(Code::NotApplicable, "", message));
                }
                let Some(proof) = proof.filter(|proof| !proof.trim().is_empty()) else {
                    let hint = "say where and how the consent was given, or give the `code` of the message";
                    let problem = Problem::new(Code::ConsentRequired, "proof", "is required without a code");
                    return Err(problem.hint(hint).into());
                };
                let actor = ConsentActor::of(caller, ConsentMethod::Operator).at(remote);
                self.confirm(id, Proof::Operator, &actor, Some(cut(proof))).await?
            }
        };
        match confirmation {
            Confirmation::Confirmed | Confirmation::AlreadyConfirmed => self.consent_of(caller, id).await,
            Confirmation::WrongCode | Confirmation::Exhausted | Confirmation::Void => Err(not_confirmed()),
        }
    }

    /// Compares a code with that of the open request, and confirms.
    async fn confirm_by_code(
        &self,
        id: SubscriptionId,
        code: &str,
        remote: Option<String>,
    ) -> Result<Confirmation, ServiceError> {
        let tokens = self.token_signer.consent();
        let Some(consent) = self.consent_store.consent(id).await? else { return Ok(Confirmation::Void) };
        let (code, request) = (code.trim(), consent.request);
        let is_ours = tokens.is_code(ConfirmLink { subscription: id, request }, code);
        let is_given = consent.code.as_ref().is_some_and(|hash| tokens.has_code_hash(code, hash));
        let actor = ConsentActor::subscriber(ConsentMethod::Code).at(remote);
        self.confirm(id, Proof::Code { request, right: is_ours || is_given }, &actor, None).await
    }

    async fn confirm(
        &self,
        id: SubscriptionId,
        proof: Proof,
        actor: &ConsentActor,
        note: Option<String>,
    ) -> Result<Confirmation, ServiceError> {
        let Some(found) = self.subscription_store.subscription(id).await? else { return Ok(Confirmation::Void) };
        let policy = self.policy_of(&found.application, &found.class);
        let evidence = Evidence { proof: note, ..actor.evidence(self.address_of(&found).await?, policy.as_ref()) };
        let attempts_max = policy.unwrap_or_default().attempts;
        let confirm = ConfirmConsent { id, proof, attempts_max, evidence, now: self.clock.now() };
        let confirmation = self.consent_store.confirm_consent(confirm).await?;
        let result = match confirmation {
            Confirmation::Confirmed => "confirmed",
            Confirmation::AlreadyConfirmed => "repeated",
            Confirmation::WrongCode => "wrong_code",
            Confirmation::Exhausted => "exhausted",
            Confirmation::Void => "void",
        };
        let labels = [("way", actor.way.word()), ("result", result)];
        metrics::counter!("tocsin_consent_confirmations_total", &labels).increment(1);
        if confirmation == Confirmation::Confirmed {
            tracing::info!(subscription = %id, way = actor.way.word(), by = actor.by, "consent confirmed");
        }
        Ok(confirmation)
    }

    /// Withdraws the consent of a subscription and disables it. Idempotent.
    ///
    /// # Errors
    /// There is none.
    pub async fn withdraw_consent(
        &self,
        caller: &Caller,
        id: SubscriptionId,
        withdraw: WithdrawDraft,
    ) -> Result<ConsentStatus, ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let found = self.find_subscription(id).await?;
        let actor = ConsentActor::of(caller, ConsentMethod::Operator).at(withdraw.remote);
        let policy = self.policy_of(&found.application, &found.class);
        let evidence = Evidence {
            proof: withdraw.proof.map(cut),
            ..actor.evidence(self.address_of(&found).await?, policy.as_ref())
        };
        if self.consent_store.withdraw_consent(id, evidence, self.clock.now()).await? {
            metrics::counter!("tocsin_consent_withdrawals_total", "way" => actor.way.word()).increment(1);
            tracing::info!(subscription = %id, by = actor.by, "consent withdrawn");
        }
        self.consent_of(caller, id).await
    }
}

/// A confirmation by the API.
#[derive(Debug, Clone, Default)]
pub struct ConfirmDraft {
    /// Code of the message.
    pub code: Option<String>,
    /// Proof, without a code.
    pub proof: Option<String>,
    /// Network address of the person.
    pub remote: Option<String>,
}

/// A withdrawal by the API.
#[derive(Debug, Clone, Default)]
pub struct WithdrawDraft {
    /// Note for the evidence.
    pub proof: Option<String>,
    /// Network address of the person.
    pub remote: Option<String>,
}

/// One error for all reasons, so that it does not disclose who is subscribed.
fn not_confirmed() -> ServiceError {
    let message = "is wrong, was used too often, or its request has expired";
    Problem::new(Code::NotConfirmed, "code", message).hint("request another message").into()
}

fn count_request(requested: Requested) {
    let result = match requested {
        Requested::Started => "started",
        Requested::Resent => "resent",
        Requested::TooSoon(_) => "too_soon",
        Requested::AlreadyConfirmed => "confirmed",
    };
    metrics::counter!("tocsin_consent_requests_total", "result" => result).increment(1);
}
