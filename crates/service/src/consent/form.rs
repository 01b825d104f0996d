//! Requests of a sign-up form: by address, for people who need not be known yet.

use std::collections::BTreeSet;

use serde_json::value::RawValue;
use tocsin_model::{
    consent::{ADDRESS_SUBSCRIBER, Confirmation, ConsentMethod, ConsentRequest, ConsentState, InitialConsent, cut},
    id::{Name, SubscriberId},
    mailbox,
    problem::{Code, Problem},
    subscriber::{DEVICES_MAX, Device, DeviceState, Profile, Subscriber, check_profile},
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    records::{NewConsented, NewSubscriber, NewSubscription, Precondition, PutDevice},
};

use super::{count_request, not_confirmed};
use crate::{
    Service,
    consent_actor::{ConsentActor, text_problem},
    error::ServiceError,
    keys::{Caller, Scope},
    subscribers::check_address,
    subscriptions::{Basis, Draft, FilterDraft, ScheduleDraft, check_off_thread},
};

/// Key of a subscription whose form names none: a person has one of each class.
const KEY: &str = "self";

/// A request of a sign-up form.
#[derive(Debug, Default)]
pub struct ConsentForm<'a> {
    /// Application.
    pub application: String,
    /// Subscription class.
    pub class: String,
    /// Known subscriber. Without it, one is made from the address.
    pub subscriber: Option<String>,
    /// Channel of the address.
    pub channel: Option<String>,
    /// Address of the person.
    pub address: Option<String>,
    /// Key of the subscription; `self` if not given.
    pub key: Option<String>,
    /// Values of the subscription.
    pub values: Option<&'a RawValue>,
    /// Filter of the subscription.
    pub filter: Option<FilterDraft>,
    /// Schedule of the subscription.
    pub schedule: Option<ScheduleDraft>,
    /// Locale of a person who is not known yet.
    pub locale: Option<String>,
    /// Time zone of a person who is not known yet.
    pub time_zone: Option<String>,
    /// Text that the form showed; that of the class if not given.
    pub text: Option<String>,
    /// Version of the text.
    pub version: Option<String>,
    /// Network address of the person.
    pub remote: Option<String>,
    /// Code that the caller chose. No message is sent then.
    pub code: Option<String>,
    /// Address and code, encrypted by another installation, in place of `address` and `code`.
    pub encrypted: Option<String>,
}

/// Answer to a request, the same for everybody.
#[derive(Debug, Clone)]
pub struct ConsentReceipt {
    /// Handle for the code. It is not the link.
    pub request: String,
    /// Lifetime of a request, in seconds.
    pub expires_after_seconds: u64,
    /// Shortest time between two messages, in seconds.
    pub resend_after_seconds: u64,
}

impl Service {
    /// Requests the consent of a person. A repeated request is answered like the first, also if the consent is
    /// confirmed; then nothing is sent and nothing changes.
    ///
    /// # Errors
    /// `Invalid` with every problem.
    pub async fn request_by_form(
        &self,
        caller: &Caller,
        mut form: ConsentForm<'_>,
    ) -> Result<ConsentReceipt, ServiceError> {
        may_request(caller)?;
        caller.check_application(form.application.parse().ok().as_ref())?;
        let class = self.named_class(&form.application, &form.class)?;
        let Some(policy) = class.consent.clone() else {
            let message = format!("`{}` asks for no consent", form.class);
            let problem = Problem::new(Code::NotApplicable, "class", message);
            return Err(problem.hint("give it a `consent` in the definition, or use `/v1/subscriptions`").into());
        };
        if let Some(problem) = text_problem("text", form.text.as_deref()) {
            return Err(problem.into());
        }
        let may_write = caller.needs(Scope::SubscribersWrite).is_ok();
        if form.code.is_some() && !may_write {
            return Err(ServiceError::Forbidden(Scope::SubscribersWrite));
        }
        let way = if form.encrypted.is_some() { ConsentMethod::Encrypted } else { ConsentMethod::Api };
        self.decrypt(&mut form).await?;
        let now = self.clock.now();
        let draft = |subscriber: &SubscriberId, device: Option<&Name>| Draft {
            application: Some(form.application.clone().into()),
            class: Some(form.class.clone().into()),
            subscriber: Some(subscriber.as_str().to_owned().into()),
            key: Some(form.key.clone().unwrap_or_else(|| KEY.to_owned())),
            device: device.map(|device| device.as_str().to_owned().into()),
            values: form.values,
            filter: form.filter.clone(),
            schedule: form.schedule.clone(),
            ..Draft::default()
        };
        let subject = self.subject(&form)?;
        // Checked before anything is stored.
        let checked = check_off_thread(draft(subject.id(), None), &class, &Basis::New).await?;
        let new = checked.and_then(|checked| checked.within_limits(None).map_err(|problem| vec![problem]));
        let new = new.map_err(ServiceError::Invalid)?;
        let (subscriber, device) = self.person(subject, may_write, now).await?;
        let new = NewSubscription { subscriber: subscriber.id.clone(), device, ..new };
        let actor = ConsentActor::subscriber(way).at(form.remote);
        let mut evidence = actor.evidence(self.evidence_address(&subscriber, new.device.as_ref()), Some(&policy));
        if let Some(text) = form.text {
            (evidence.text, evidence.version) = (Some(text), form.version.map(cut));
        }
        let code = form.code.map(|code| self.token_signer.consent().code_hash(code.trim()));
        let policy = policy.as_ref().clone();
        let receipt = (policy.expires_after.as_secs(), policy.resend_after.as_secs());
        let consent = InitialConsent::Requested(ConsentRequest { policy, code, repeats: true, evidence });
        let new = NewConsented { subscription: new, consent, keeps_confirmed: true, quiet: false };
        let written = self.consent_store.put_consented(vec![new], now).await?;
        let (id, requested) = written.into_iter().next().expect("one line has one answer")?;
        count_request(requested);
        let request = self.token_signer.consent().handle(id);
        let request = request.ok_or_else(|| ServiceError::Unavailable("the system gives no random numbers".into()))?;
        let (expires_after_seconds, resend_after_seconds) = receipt;
        Ok(ConsentReceipt { request, expires_after_seconds, resend_after_seconds })
    }

    /// Replaces an encrypted confirmation by its address and code.
    async fn decrypt(&self, form: &mut ConsentForm<'_>) -> Result<(), ServiceError> {
        let Some(encrypted) = form.encrypted.take() else { return Ok(()) };
        let Some(key) = self.consent_key.get().cloned() else {
            let problem =
                Problem::new(Code::Unsupported, "encrypted", "this installation has no key for confirmations");
            return Err(problem.hint("set `consent.key_file` in its configuration").into());
        };
        if form.address.is_some() || form.code.is_some() {
            let message = "cannot be given together with `address` or `code`";
            return Err(Problem::new(Code::ConflictingMembers, "encrypted", message).hint("it has both").into());
        }
        let decrypted = tokio::task::spawn_blocking(move || key.decrypt(&encrypted)).await;
        let decrypted = decrypted.map_err(|error| ServiceError::Unavailable(error.into()))??;
        (form.address, form.code) = (Some(decrypted.address), Some(decrypted.code));
        Ok(())
    }

    /// Confirms by the handle of a request and the code of its message.
    ///
    /// # Errors
    /// One error for all reasons.
    pub async fn confirm_by_form(
        &self,
        caller: &Caller,
        handle: &str,
        code: &str,
        remote: Option<String>,
    ) -> Result<(), ServiceError> {
        may_request(caller)?;
        let id = self.token_signer.consent().open_handle(handle).ok_or_else(not_confirmed)?;
        let found = self.subscription_store.subscription(id).await?.ok_or_else(not_confirmed)?;
        caller.check_application(Some(&found.application)).map_err(|_| not_confirmed())?;
        match self.confirm_by_code(id, code, remote).await? {
            Confirmation::Confirmed | Confirmation::AlreadyConfirmed => Ok(()),
            Confirmation::WrongCode | Confirmation::Exhausted | Confirmation::Void => Err(not_confirmed()),
        }
    }

    /// Sends the message of a request again, within the limits of its class. Answers the same for everybody.
    ///
    /// # Errors
    /// The records are unavailable.
    pub async fn resend_by_form(
        &self,
        caller: &Caller,
        handle: &str,
        remote: Option<String>,
    ) -> Result<(), ServiceError> {
        may_request(caller)?;
        let Some(id) = self.token_signer.consent().open_handle(handle) else { return Ok(()) };
        let Some(found) = self.subscription_store.subscription(id).await? else { return Ok(()) };
        let Some(policy) = self.policy_of(&found.application, &found.class) else { return Ok(()) };
        if caller.check_application(Some(&found.application)).is_err() {
            return Ok(());
        }
        // A withdrawal ends the request: a new form is needed.
        if found.consent != Some(ConsentState::Pending) {
            return Ok(());
        }
        let actor = ConsentActor::subscriber(ConsentMethod::Api).at(remote);
        let evidence = actor.evidence(self.address_of(&found).await?, Some(&policy));
        let request = ConsentRequest { policy, code: None, repeats: true, evidence };
        match self.consent_store.request_consent(id, request, self.clock.now()).await {
            Ok(requested) => count_request(requested),
            Err(StoreError::Missing(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// The subscriber that a form names or describes.
    fn subject(&self, form: &ConsentForm<'_>) -> Result<Subject, ServiceError> {
        let mut problems = Vec::new();
        let known = form.subscriber.as_deref().map(str::parse::<SubscriberId>).transpose();
        let known = known.unwrap_or_else(|error| {
            problems.push(Problem::not(Code::InvalidFormat, "subscriber", error.expected).param("format", "id"));
            None
        });
        let channel = form.channel.as_deref().map(str::parse::<Name>).transpose();
        let channel = channel.unwrap_or_else(|error| {
            problems.push(Problem::not(Code::InvalidFormat, "channel", error.expected).param("format", "name"));
            None
        });
        let profile = Profile { locale: form.locale.clone(), time_zone: form.time_zone.clone(), ..Profile::default() };
        problems.extend(check_profile(&profile));
        let address = match (&channel, &form.address) {
            (Some(channel), Some(address)) => match check_address(&self.mail_channels(), channel, address) {
                Ok(address) => Some((channel.clone(), address)),
                Err(problem) => {
                    problems.push(Problem { path: "address".to_owned(), ..problem });
                    None
                }
            },
            (None, None) if form.subscriber.is_some() => None,
            (given, _) => {
                let path = if given.is_some() { "address" } else { "channel" };
                if problems.is_empty() {
                    problems.push(Problem::new(Code::Required, path, "is required: give a string"));
                }
                None
            }
        };
        if let (Some((channel, _)), Ok(name)) = (&address, form.application.parse::<Name>())
            && let Some(compiled) = self.pipeline.application(&name)
            && !compiled.application.channels.contains_key(channel)
        {
            let message = format!("`{name}` has no channel `{channel}`");
            let problem = Problem::new(Code::UnknownReference, "channel", message);
            problems.push(problem.param("kind", "channel").param("value", channel.as_str()));
        }
        match (known, address) {
            _ if !problems.is_empty() => Err(ServiceError::Invalid(problems)),
            (Some(id), address) => Ok(Subject::Known(id, address)),
            (None, Some((channel, address))) => {
                let hash = self.token_signer.consent().address_hash(&channel, &address);
                let id = format!("{ADDRESS_SUBSCRIBER}{hash}").parse()?;
                Ok(Subject::Address(id, profile, (channel, address)))
            }
            (None, None) => Err(ServiceError::invalid(Code::Required, "address", "is required: give a string")),
        }
    }

    /// The subscriber of a form, and the device that the message goes to. One made from an address is stored here.
    async fn person(
        &self,
        subject: Subject,
        may_write: bool,
        now: Timestamp,
    ) -> Result<(Subscriber, Option<Name>), ServiceError> {
        let (id, (channel, address), is_made) = match subject {
            Subject::Known(id, address) => {
                let found = self.subscriber_store.subscriber(&id).await?;
                let found = match (found, &address) {
                    (Some(found), Some(_)) => found,
                    // A form relays the error to strangers: it does not disclose which subscribers exist.
                    _ if !may_write => return Err(foreign_address(&id)),
                    (Some(found), None) => return Ok((found, None)),
                    (None, _) => {
                        let message = format!("`{id}` does not exist");
                        return Err(ServiceError::invalid(Code::UnknownReference, "subscriber", message));
                    }
                };
                let Some(address) = address else { return Ok((found, None)) };
                (id, address, false)
            }
            Subject::Address(id, profile, address) => {
                let device =
                    Device { channel: address.0.clone(), address: address.1.clone(), state: DeviceState::Pending };
                let new = NewSubscriber {
                    id: id.clone(),
                    profile,
                    devices: Some(vec![(address.0.clone(), device)]),
                    preferences: None,
                    kept: Default::default(),
                };
                match self.subscriber_store.put_subscriber(new, Precondition::Absent, now).await {
                    Ok(_) | Err(StoreError::Taken(_)) => {}
                    Err(error) => return Err(error.into()),
                }
                (id, address, true)
            }
        };
        let found = self.find_subscriber(&id).await?;
        let is_it = |device: &Device| device.channel == channel && mailbox::is_same(&device.address, &address);
        if let Some((name, _)) = found.devices.iter().find(|(_, device)| is_it(device)) {
            let name = name.clone();
            return Ok((found, Some(name)));
        }
        if !is_made && !may_write {
            return Err(foreign_address(&id));
        }
        if found.devices.len() >= DEVICES_MAX {
            let message = format!("`{id}` has {DEVICES_MAX} devices already; no more fit");
            return Err(Problem::new(Code::LimitReached, "address", message).param("limit", DEVICES_MAX).into());
        }
        let name = free_name(&channel, &found.devices.keys().collect());
        let device = Device { channel, address, state: DeviceState::Pending };
        let put = PutDevice { id: &id, name: &name, device, keeps_state: true, now };
        Ok((self.subscriber_store.put_device(put).await?, Some(name.clone())))
    }
}

/// Subject of a form.
enum Subject {
    /// A known subscriber, and an address.
    Known(SubscriberId, Option<(Name, String)>),
    /// A person who is known by an address only.
    Address(SubscriberId, Profile, (Name, String)),
}

impl Subject {
    fn id(&self) -> &SubscriberId {
        match self {
            Subject::Known(id, _) | Subject::Address(id, ..) => id,
        }
    }
}

/// One error for an unknown subscriber, for a request without an address, and for an address of others.
fn foreign_address(id: &SubscriberId) -> ServiceError {
    let message = format!("is no address of `{id}`, and another one needs the scope `subscribers:write`");
    let hint = "give an address of the subscriber, or leave out `subscriber`";
    Problem::new(Code::NotPermitted, "address", message).hint(hint).into()
}

/// Permission to request and confirm consents of others.
fn may_request(caller: &Caller) -> Result<(), ServiceError> {
    match caller.needs(Scope::SubscribersWrite) {
        Ok(()) => Ok(()),
        Err(_) => caller.needs(Scope::ConsentRequest),
    }
}

/// Name for another device of a channel: `email`, `email-2`, ...
fn free_name(channel: &Name, taken: &BTreeSet<&Name>) -> Name {
    let numbered = (2..).filter_map(|number: u32| format!("{channel}-{number}").parse::<Name>().ok());
    let mut names = std::iter::once(channel.clone()).chain(numbered);
    names.find(|name| !taken.contains(name)).expect("there are more names than devices")
}
