//! Preview of templates: renders a notification from a stored or given event, and sends a test message.

use serde_json::value::RawValue;
use tocsin_model::{
    event::EventBatch,
    id::{EventId, Name, SubscriberId, SubscriptionId},
    problem::{Code, Problem, closest},
    receipt::Disposition,
    subscriber::{DeviceState, Profile, Subscriber, check_profile},
    time::Timestamp,
    value::Value,
};
use tocsin_pipeline::{
    Compiled, DirectError,
    sample::{FormatError, Part, Preview, PreviewedPart, Sample, SampleError, ShortMessage, TestError, measure_sms},
};
use tocsin_store::audit::Image;

use crate::{
    Service,
    applications::compile_sealed,
    error::{ServiceError, row_error},
    keys::{Caller, Scope},
};

/// Number of short messages for one text above which a warning is given.
const SEGMENTS_USUAL: usize = 3;
/// Subject length that mail clients display.
const SUBJECT_CHARACTERS_USUAL: usize = 120;
/// Size beyond which large mail providers truncate a message.
const HTML_BYTES_USUAL: usize = 102 << 10;

/// Input of a preview: rule, event, subscription and recipient.
#[derive(Debug, Default)]
pub struct PreviewDraft {
    /// Rule. Optional if the application has only one.
    pub rule: Option<Name>,
    /// Id of a stored event, such as `e-12-7`, or an object with the fields of its class.
    pub event: Option<Box<RawValue>>,
    /// Id of a subscription, such as `s-15`, or an object with the fields of its class; default: all fields null.
    pub subscription: Option<Box<RawValue>>,
    /// Id of a subscriber, or an object with `locale`, `time_zone` and `attributes`; default: the owner of the
    /// subscription, or an anonymous recipient.
    pub subscriber: Option<Box<RawValue>>,
    /// Device of the subscriber; default: the one that delivery would choose.
    pub device: Option<Name>,
    /// Channel; default: that of the device.
    pub channel: Option<Name>,
    /// Address; default: that of the device.
    pub address: Option<String>,
    /// Locale; default: that of the subscriber.
    pub locale: Option<String>,
    /// Definition to use instead of the running one; for previews only.
    pub definition: Option<String>,
}

/// A rendered notification.
#[derive(Debug, Clone)]
pub struct Previewed {
    /// Input used.
    pub about: About,
    /// Fields of the notification, including computed ones.
    pub fields: serde_json::Map<String, serde_json::Value>,
    /// Search path of templates, in order.
    pub looked_for: Vec<String>,
    /// Rendered parts.
    pub parts: Vec<PreviewedPart>,
    /// Size of the text as short messages.
    pub sms: Option<ShortMessage>,
    /// Reason why nothing was rendered.
    pub failure: Option<String>,
    /// Warnings.
    pub warnings: Vec<String>,
}

/// Input that a preview or test used.
#[derive(Debug, Clone)]
pub struct About {
    /// The rule.
    pub rule: Name,
    /// The notification class.
    pub class: Name,
    /// The event, if it is stored.
    pub event: Option<EventId>,
    /// The subscription, if it is stored.
    pub subscription: Option<SubscriptionId>,
    /// Recipient.
    pub subscriber: SubscriberId,
    /// Locale of the recipient.
    pub locale: Option<String>,
    /// The channel.
    pub channel: Name,
    /// The address there.
    pub address: String,
}

/// Result of a test message.
#[derive(Debug, Clone)]
pub struct TestSent {
    /// Input used.
    pub about: About,
    /// Disposition of the receiver.
    pub disposition: Disposition,
    /// Times of the hand-over and of the complete answer.
    pub sent_at: Timestamp,
    /// See `sent_at`.
    pub answered_at: Timestamp,
}

impl Service {
    /// Renders a notification: each part, its template and its search path. Nothing is stored or sent.
    ///
    /// # Errors
    /// The scopes `operations:read` and, for stored data of subscribers, `subscribers:read` are missing; the
    /// application is not running; `Invalid` with the problems of the draft. Template errors are part of the result.
    pub async fn preview(
        &self,
        caller: &Caller,
        application: &Name,
        draft: PreviewDraft,
    ) -> Result<Previewed, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let compiled = match &draft.definition {
            None => self.running(application)?,
            Some(text) => {
                let text = self.with_secrets(application, text.clone()).await?;
                let compiled = match caller.needs(Scope::ApplicationsWrite) {
                    Ok(()) => self.compile(text, 0).await,
                    Err(_) => compile_sealed(text).await,
                };
                let compiled = compiled.map_err(|problems| {
                    let below = |problem: Problem| Problem { path: format!("definition.{}", problem.path), ..problem };
                    ServiceError::Invalid(problems.into_iter().map(below).collect())
                })?;
                std::sync::Arc::new(compiled)
            }
        };
        self.preview_of(caller, compiled, draft).await
    }

    /// Renders a notification of this version.
    pub(crate) async fn preview_of(
        &self,
        caller: &Caller,
        compiled: std::sync::Arc<Compiled>,
        draft: PreviewDraft,
    ) -> Result<Previewed, ServiceError> {
        let (sample, about) = self.sample(caller, &compiled, draft).await?;
        let shown = {
            let (compiled, sample) = (compiled.clone(), sample.clone());
            tokio::task::spawn_blocking(move || compiled.preview(&sample)).await
        };
        let (preview, mut fields) =
            shown.map_err(|error| ServiceError::Unavailable(error.into()))?.map_err(sample_error)?;
        let protocol = compiled.application.channels.get(&sample.channel).map(|channel| channel.protocol.as_str());
        let warnings = warnings(&compiled, &about, &preview, protocol);
        let Preview { looked_for, parts, computed, failure } = preview;
        fields.extend(computed.into_iter().map(|(name, value)| (name.to_string(), value)));
        let text_of =
            |requested| parts.iter().find(|part| part.part == requested).and_then(|part| part.content.as_ref().ok());
        let sms = text_of(Part::Sms).map(|text| measure_sms(text));
        let failure = failure.map(|failure| failure.to_string());
        Ok(Previewed { about, fields, looked_for, parts, sms, failure, warnings })
    }

    /// Sends one test message through a channel of the running application, and waits for the receiver's answer. It
    /// is not stored and not retried.
    ///
    /// # Errors
    /// As [`Service::preview`], with the scope `operations:write`; `Invalid` if a template fails; `Unavailable` if
    /// the channel is unavailable.
    pub async fn send_test(
        &self,
        caller: &Caller,
        application: &Name,
        draft: PreviewDraft,
    ) -> Result<TestSent, ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        if draft.definition.is_some() {
            let problem = Problem::new(Code::NotApplicable, "definition", "is only for previews");
            return Err(ServiceError::Invalid(vec![
                problem.hint("apply it first: a test leaves through a running channel"),
            ]));
        }
        self.send_test_of(caller, self.running(application)?, draft).await
    }

    /// Sends one test message of this version, through a channel of the running application.
    pub(crate) async fn send_test_of(
        &self,
        caller: &Caller,
        compiled: std::sync::Arc<Compiled>,
        draft: PreviewDraft,
    ) -> Result<TestSent, ServiceError> {
        let (sample, about) = self.sample(caller, &compiled, draft).await?;
        if sample.address.is_empty() {
            let problem = Problem::new(Code::Required, "address", "is missing, and no device gives one");
            return Err(ServiceError::Invalid(vec![problem.hint("give the address to which the test goes")]));
        }
        let application = &compiled.application.name;
        self.record_in_audit(Image::of("application", application, None, None)).await?;
        let answer = self.pipeline.send_test(&compiled, &sample).await.map_err(|error| match error {
            TestError::Sample(error) => sample_error(error),
            TestError::Format(error) => ServiceError::Invalid(vec![format_problem(&about.class, &error)]),
            TestError::Direct(DirectError::Channel(channel)) => {
                ServiceError::Missing(format!("the channel `{channel}`"))
            }
            TestError::Direct(DirectError::Suppressed(_)) => {
                let text = error.to_string().trim_start_matches("the address ").to_owned();
                let problem = Problem::new(Code::Conflict, "address", text);
                ServiceError::Invalid(vec![problem.hint("`tocsin suppressions remove` lifts it")])
            }
            TestError::Direct(DirectError::Store(error)) => error.into(),
            TestError::Direct(error @ DirectError::Silent(_)) => ServiceError::Unavailable(error.into()),
        })?;
        let (sent_at, answered_at) = (answer.sent_at, answer.answered_at);
        Ok(TestSent { about, disposition: answer.disposition, sent_at, answered_at })
    }

    /// Resolves the input of a draft.
    async fn sample(
        &self,
        caller: &Caller,
        compiled: &Compiled,
        draft: PreviewDraft,
    ) -> Result<(Sample, About), ServiceError> {
        let application = &compiled.application;
        let rule_name = rule_of(compiled, draft.rule)?;
        let rule = &application.rules[&rule_name];
        let now = self.clock.now();
        let (event, event_id, accepted_at) = self.event_of(compiled, &rule_name, draft.event.as_deref(), now).await?;
        let class = &application.subscriptions[&rule.subscription];
        let (mut owner, mut subscription_id, mut usual_device) = (None, None, None);
        let subscription = match draft.subscription.as_deref().map(read_reference).transpose()? {
            None => vec![Value::Null; class.fields.len()],
            Some(Reference::Given(json)) => class
                .fields
                .row_from_json(json.as_bytes())
                .map_err(|problems| prefix_path("subscription", row_error(problems)))?,
            Some(Reference::Id(id)) => {
                caller.needs(Scope::SubscribersRead)?;
                let wrong = |_| {
                    ServiceError::from(
                        Problem::new(Code::InvalidFormat, "subscription", format!("`{id}` is no id, such as `s-15`"))
                            .param("format", "id")
                            .param("value", id.to_string()),
                    )
                };
                let id: SubscriptionId = id.parse().map_err(wrong)?;
                let stored = self.subscription_store.subscription(id).await?;
                let stored = stored.ok_or_else(|| ServiceError::Missing(format!("the subscription {id}")))?;
                if (&stored.application, &stored.class) != (&application.name, &rule.subscription) {
                    let message = format!(
                        "{id} is of the class `{}` of `{}`, and the rule `{rule_name}` looks through `{}`",
                        stored.class, stored.application, rule.subscription
                    );
                    return Err(ServiceError::invalid(Code::Mismatch, "subscription", message));
                }
                subscription_id = Some(id);
                owner = Some(stored.subscriber.clone());
                usual_device = stored.device.clone();
                let damaged =
                    |_| ServiceError::invalid(Code::Conflict, "subscription", "does not fit this version of its class");
                class.fields.row_from_stored(&stored.values).map_err(damaged)?
            }
        };
        let given = draft.subscriber.as_deref().map(read_reference).transpose()?;
        let (subscriber, mut profile, stored) = match given {
            Some(Reference::Given(json)) => {
                let profile: Profile = serde_json::from_str(&json).map_err(|error| {
                    let problem = Problem::new(Code::WrongType, "subscriber", error.to_string());
                    ServiceError::Invalid(vec![problem.hint("give an id, or `locale`, `time_zone` and `attributes`")])
                })?;
                (placeholder_subscriber(), profile, None)
            }
            Some(Reference::Id(id)) => {
                let wrong = |_| {
                    ServiceError::from(
                        Problem::new(Code::InvalidFormat, "subscriber", format!("`{id}` is no id of a subscriber"))
                            .param("format", "id")
                            .param("value", id.to_string()),
                    )
                };
                self.stored_subscriber(caller, id.parse().map_err(wrong)?).await?
            }
            None => match owner {
                Some(owner) => self.stored_subscriber(caller, owner).await?,
                None => (placeholder_subscriber(), Profile::default(), None),
            },
        };
        // What is stored was checked when it was stored.
        let is_written = stored.is_none() || draft.locale.is_some();
        if draft.locale.is_some() {
            profile.locale = draft.locale;
        }
        let problems = if is_written { check_profile(&profile) } else { Vec::new() };
        if !problems.is_empty() {
            return Err(ServiceError::Invalid(problems));
        }
        let (device, channel, address) =
            device_of(compiled, stored.as_ref(), draft.device.or(usual_device), draft.channel)?;
        let address = draft.address.unwrap_or(address);
        let about = About {
            rule: rule_name.clone(),
            class: rule.notify.clone(),
            event: event_id,
            subscription: subscription_id,
            subscriber: subscriber.clone(),
            locale: profile.locale.clone(),
            channel: channel.clone(),
            address: address.clone(),
        };
        let rule = rule_name;
        let sample = Sample {
            rule,
            event,
            event_id,
            accepted_at,
            subscription,
            subscriber,
            profile,
            device,
            channel,
            address,
            now,
        };
        Ok((sample, about))
    }

    async fn stored_subscriber(
        &self,
        caller: &Caller,
        id: SubscriberId,
    ) -> Result<(SubscriberId, Profile, Option<Subscriber>), ServiceError> {
        // A subscriber belongs to no application.
        caller.needs_everywhere(Scope::SubscribersRead)?;
        let stored = self.subscriber_store.subscriber(&id).await?;
        let stored = stored.ok_or_else(|| ServiceError::Missing(format!("the subscriber `{id}`")))?;
        Ok((id, stored.profile.clone(), Some(stored)))
    }

    /// The event of a draft as a row of the rule's class, with its id and acceptance time.
    async fn event_of(
        &self,
        compiled: &Compiled,
        rule: &Name,
        given: Option<&RawValue>,
        now: Timestamp,
    ) -> Result<(Vec<Value>, Option<EventId>, Timestamp), ServiceError> {
        let on = &compiled.application.rules[rule].on;
        let Some(given) = given else {
            let problem = Problem::new(Code::Required, "event", "is missing");
            let hint = format!("give the id of a stored event, such as `e-12-0`, or an object of the fields of `{on}`");
            return Err(ServiceError::Invalid(vec![problem.hint(hint)]));
        };
        match read_reference(given)? {
            Reference::Given(json) => {
                let class = &compiled.application.events[on];
                let row = class.fields.row_from_json(json.as_bytes());
                Ok((row.map_err(|problems| prefix_path("event", row_error(problems)))?, None, now))
            }
            Reference::Id(id) => {
                let wrong = |_| {
                    ServiceError::from(
                        Problem::new(
                            Code::InvalidFormat,
                            "event",
                            format!("`{id}` is no id of an event, such as `e-12-0`"),
                        )
                        .param("format", "id")
                        .param("value", id.to_string()),
                    )
                };
                let id: EventId = id.parse().map_err(wrong)?;
                let missing = || ServiceError::Missing(format!("the event {id}"));
                let (batch, _) = self.event_log.event_batch(id.batch).await?.ok_or_else(missing)?;
                if (&batch.application, &batch.class) != (&compiled.application.name, on) {
                    let message = format!(
                        "{id} is of the class `{}` of `{}`, and the rule `{rule}` looks at `{on}`",
                        batch.class, batch.application
                    );
                    return Err(ServiceError::invalid(Code::Mismatch, "event", message));
                }
                let row = self.row_of(compiled, rule, &batch, id).await?.ok_or_else(missing)?;
                Ok((row, Some(id), batch.accepted_at))
            }
        }
    }

    async fn row_of(
        &self,
        compiled: &Compiled,
        rule: &Name,
        batch: &EventBatch,
        id: EventId,
    ) -> Result<Option<Vec<Value>>, ServiceError> {
        let fields = self.fields_of(batch).await?;
        let damaged = |_| ServiceError::invalid(Code::DamagedData, "event", "is damaged and cannot be read");
        let Some(bytes) = batch.events.rows().nth(id.ordinal as usize) else { return Ok(None) };
        let row = tocsin_model::field::unpack_row(&fields, bytes.map_err(damaged)?).map_err(damaged)?;
        let Some(notify) = compiled.notify.get(rule) else { return Ok(None) };
        let reader = notify.reader(batch, &fields).map_err(damaged)?;
        reader.row(id.ordinal, row).map(Some).map_err(damaged)
    }
}

/// Input of a draft: the id of a stored object, or an inline object.
enum Reference {
    Id(String),
    Given(String),
}

fn read_reference(given: &RawValue) -> Result<Reference, ServiceError> {
    match serde_json::from_str::<String>(given.get()) {
        Ok(id) => Ok(Reference::Id(id)),
        Err(_) => Ok(Reference::Given(given.get().to_owned())),
    }
}

fn prefix_path(path: &str, error: ServiceError) -> ServiceError {
    let put = |problem: Problem| {
        let path = if problem.path.is_empty() { path.to_owned() } else { format!("{path}.{}", problem.path) };
        Problem { path, ..problem }
    };
    match error {
        ServiceError::Invalid(problems) => ServiceError::Invalid(problems.into_iter().map(put).collect()),
        ServiceError::Malformed(problem) => ServiceError::Malformed(put(problem)),
        error => error,
    }
}

fn placeholder_subscriber() -> SubscriberId {
    "somebody".parse().expect("`somebody` is an id")
}

fn rule_of(compiled: &Compiled, requested: Option<Name>) -> Result<Name, ServiceError> {
    let rules = &compiled.application.rules;
    let known: Vec<&str> = rules.keys().map(Name::as_str).collect();
    let problem = match &requested {
        Some(name) if rules.contains_key(name) => return Ok(name.clone()),
        Some(name) => Problem::new(
            Code::UnknownReference,
            "rule",
            format!("`{name}` is not a rule of `{}`", compiled.application.name),
        )
        .param("kind", "rule")
        .param("value", name.to_string()),
        None => match rules.keys().next() {
            Some(only) if rules.len() == 1 => return Ok(only.clone()),
            _ => Problem::new(Code::Required, "rule", "is missing, and the application has not exactly one"),
        },
    };
    let meant = requested.as_ref().and_then(|name| closest(name.as_str(), known.iter().copied()));
    let hint = match meant {
        Some(meant) => format!("did you mean `{meant}`?"),
        None if known.is_empty() => "it has no rules".to_owned(),
        None => format!("its rules are {}", known.join(", ")),
    };
    Err(ServiceError::Invalid(vec![problem.hint(hint)]))
}

/// The device to use, with channel and address: the named one, or the first usable one.
fn device_of(
    compiled: &Compiled,
    subscriber: Option<&Subscriber>,
    requested: Option<Name>,
    channel: Option<Name>,
) -> Result<(String, Name, String), ServiceError> {
    let devices = subscriber.map(|subscriber| &subscriber.devices);
    let found = match (&requested, devices) {
        (Some(name), Some(devices)) => match devices.get_key_value(name) {
            Some(found) => Some(found),
            None => {
                let known: Vec<&str> = devices.keys().map(Name::as_str).collect();
                let problem =
                    Problem::new(Code::UnknownReference, "device", format!("the subscriber has no device `{name}`"))
                        .param("value", name.to_string())
                        .param("kind", "device");
                return Err(ServiceError::Invalid(vec![problem.hint(format!("devices are {}", known.join(", ")))]));
            }
        },
        (None, Some(devices)) => {
            let serves =
                |device: &tocsin_model::subscriber::Device| channel.as_ref().is_none_or(|name| device.channel == *name);
            devices.iter().find(|(_, device)| device.state == DeviceState::Active && serves(device))
        }
        _ => None,
    };
    let channels = &compiled.application.channels;
    let name = requested.map_or_else(|| "device".to_owned(), |name| name.to_string());
    let (name, usual, address) = match found {
        Some((name, device)) => (name.to_string(), Some(device.channel.clone()), device.address.clone()),
        None => (name, None, String::new()),
    };
    let only = || channels.keys().next().filter(|_| channels.len() == 1).cloned();
    let known: Vec<&str> = channels.keys().map(Name::as_str).collect();
    let hint = match known.as_slice() {
        [] => "the application has no channels".to_owned(),
        known => format!("channels are {}", known.join(", ")),
    };
    let Some(channel) = channel.or(usual).or_else(only) else {
        let problem =
            Problem::new(Code::Required, "channel", "is missing, and no device says by which one it would leave");
        return Err(ServiceError::Invalid(vec![problem.hint(hint)]));
    };
    if !channels.contains_key(&channel) {
        let problem =
            Problem::new(Code::UnknownReference, "channel", format!("`{channel}` is not a channel of the application"))
                .param("kind", "channel")
                .param("value", channel.to_string());
        return Err(ServiceError::Invalid(vec![problem.hint(hint)]));
    }
    Ok((name, channel, address))
}

fn sample_error(error: SampleError) -> ServiceError {
    match error {
        SampleError::Rule(_) => ServiceError::invalid(Code::InvalidExpression, "rule", error.to_string()),
        SampleError::Field(_) => ServiceError::invalid(Code::InvalidExpression, "event", error.to_string()),
    }
}

fn format_problem(class: &Name, error: &FormatError) -> Problem {
    let problem = Problem::new(Code::RenderFailed, format!("notifications.{class}"), error.to_string());
    problem.hint("`tocsin preview` shows the other parts")
}

/// Warnings for the author of a template.
fn warnings(compiled: &Compiled, about: &About, preview: &Preview, protocol: Option<&str>) -> Vec<String> {
    let path = format!("notifications.{}.", about.class);
    let mut warnings: Vec<String> = compiled
        .warnings()
        .into_iter()
        .filter(|warning| warning.path.starts_with(&path))
        .map(|warning| warning.to_string())
        .collect();
    let text = |requested| preview.parts.iter().find(|part| part.part == requested)?.content.as_ref().ok();
    if let Some(sms) = text(Part::Sms).map(|text| measure_sms(text)).filter(|sms| sms.segments > SEGMENTS_USUAL) {
        let alphabet = if sms.is_gsm { "" } else { ", since it has letters that GSM lacks; `|gsm` writes others" };
        warnings.push(format!("the short message takes {} segments{alphabet}", sms.segments));
    }
    if let Some(subject) = text(Part::Subject).filter(|text| text.chars().count() > SUBJECT_CHARACTERS_USUAL) {
        warnings.push(format!("the subject has {} characters; few programs show so many", subject.chars().count()));
    }
    if let Some(html) = text(Part::Html).filter(|html| html.len() > HTML_BYTES_USUAL) {
        warnings.push(format!(
            "the HTML has {} bytes; some programs cut off what is beyond {HTML_BYTES_USUAL}",
            html.len()
        ));
    }
    if protocol == Some("smtp") && text(Part::Subject).is_none_or(|subject| subject.is_empty()) {
        warnings.push("the mail has no subject".to_owned());
    }
    warnings
}
