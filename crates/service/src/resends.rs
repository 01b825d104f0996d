//! Sends failed notifications again: a preview counts them, then a durable request is made once.

use ring::rand::{SecureRandom, SystemRandom};
use tocsin_model::{
    id::{Name, NotificationBatchId, NotificationId, SubscriberId},
    problem::{Code, Problem},
    receipt::Outcome,
    time::Timestamp,
};
use tocsin_pipeline::ResendRequest;
use tocsin_store::journal::Resend;

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    known::Part,
    page::{Page, cursor, key_of},
};

/// Batches examined per preview; the next one continues from there.
pub const SCANNED_ROWS_MAX: u64 = 10_000;
/// Longest idempotency key, in bytes.
pub const KEY_BYTES_MAX: usize = 255;
/// Longest text that a reason may contain, in bytes.
pub const REASON_BYTES_MAX: usize = 256;

/// Selection of failed notifications; all conditions must hold. Delivered notifications and those in flight are never
/// selected.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Draft {
    /// Outcomes: `refused`, `suspended`, `expired`, `ended`. Default: `refused` and `suspended`; with `as_new`:
    /// `refused` and `expired`.
    pub outcomes: Option<Vec<String>>,
    /// Only this notification, such as `n-3-41`.
    pub notification: Option<NotificationId>,
    /// Only what failed at this time or later.
    pub since: Option<Timestamp>,
    /// Only what failed before this time.
    pub until: Option<Timestamp>,
    /// Restricts to this application.
    pub application: Option<Name>,
    /// Restricts to this channel.
    pub channel: Option<Name>,
    /// Restricts to this notification class.
    pub class: Option<Name>,
    /// Only for this subscriber.
    pub subscriber: Option<SubscriberId>,
    /// Only for this device of the subscriber: its channel, unless the subscription names another device.
    pub device: Option<Name>,
    /// Only failures whose reason contains this text.
    pub reason: Option<String>,
    /// Whether to send new notifications, with new ids and time to live.
    pub as_new: bool,
    /// Confirms that a selection without conditions is intended.
    pub all: bool,
    /// For a preview: `next` of the previous one, to continue counting.
    pub after: Option<String>,
}

/// Number of selected notifications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// Number in the batches examined.
    pub notifications: u64,
    /// Number of notification batches examined; at most 10,000 per request.
    pub batches: u64,
    /// Cursor to continue counting, as `after`; absent if all were examined.
    pub next: Option<String>,
}

/// A request to send again, and its progress.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Its number.
    pub id: u64,
    /// Selection.
    pub request: serde_json::Value,
    /// Id of the key that made the request.
    pub by: String,
    /// Description of the key.
    pub by_name: Option<String>,
    /// Time of the request.
    pub asked_at: Timestamp,
    /// Number of notifications sent again so far.
    pub notifications: u64,
    /// Last notification batch processed.
    pub reached: String,
    /// Last notification batch of the request.
    pub last: String,
    /// Time of completion.
    pub done_at: Option<Timestamp>,
}

impl From<Resend> for Document {
    fn from(resend: Resend) -> Self {
        Document {
            id: resend.id,
            request: serde_json::from_str(&resend.request).unwrap_or_default(),
            by: resend.by,
            by_name: None,
            asked_at: resend.asked_at,
            notifications: resend.notifications,
            reached: resend.reached.to_string(),
            last: resend.last.to_string(),
            done_at: resend.done_at,
        }
    }
}

/// Whether an outcome can be sent again.
fn is_failure(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Refused | Outcome::Suspended | Outcome::Expired | Outcome::Ended)
}

fn outcomes(draft: &Draft, problems: &mut Vec<Problem>) -> Vec<Outcome> {
    let Some(words) = &draft.outcomes else {
        return match draft.as_new {
            true => vec![Outcome::Refused, Outcome::Expired],
            false => vec![Outcome::Refused, Outcome::Suspended],
        };
    };
    if words.is_empty() {
        problems.push(Problem::new(Code::Empty, "outcomes", "is empty").hint("leave it out for the usual ones"));
    }
    let mut outcomes = Vec::new();
    for word in words {
        let found = Outcome::ALL.into_iter().find(|outcome| outcome.word() == word && is_failure(*outcome));
        match found {
            Some(Outcome::Expired) if !draft.as_new => {
                let problem =
                    Problem::new(Code::NotApplicable, "outcomes", "has `expired`: its time is over under its id");
                problems.push(problem.hint("add `\"as_new\": true`"));
            }
            Some(Outcome::Suspended) if draft.as_new => {
                let problem =
                    Problem::new(Code::NotApplicable, "outcomes", "has `suspended`, which goes out under its own id");
                problems.push(problem.hint("leave `as_new` out for it"));
            }
            Some(outcome) => outcomes.push(outcome),
            None => {
                let problem =
                    Problem::new(Code::UnknownValue, "outcomes", format!("`{word}` is nothing that can be sent again"))
                        .param("value", word.to_string());
                problems.push(problem.hint("give refused, suspended, expired or ended"));
            }
        }
    }
    outcomes.sort_unstable();
    outcomes.dedup();
    outcomes
}

impl Service {
    /// Counts the notifications that a draft selects. Changes nothing.
    ///
    /// # Errors
    /// `Invalid` with every problem; the scope `operations:read` is missing.
    pub async fn preview_resend(&self, caller: &Caller, draft: Draft) -> Result<Preview, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let after: Option<NotificationBatchId> = key_of(draft.after.as_deref())?;
        caller.check_application(draft.application.as_ref())?;
        let named = (draft.application.clone(), draft.class.clone(), draft.channel.clone());
        let request = self.resend_request(draft).await?;
        let after = after.unwrap_or(NotificationBatchId(0));
        let count = self.pipeline.count_resend(&request, after, SCANNED_ROWS_MAX).await?;
        if count.notifications == 0 && after == NotificationBatchId(0) {
            self.check_known(
                named.0.as_ref(),
                &[(Part::NotificationClass, named.1.as_ref()), (Part::Channel, named.2.as_ref())],
            )
            .await?;
        }
        let next = count.reached.map(|reached| cursor(&reached.to_string()));
        Ok(Preview { notifications: count.notifications, batches: count.batches, next })
    }

    /// Stores a request to send again, carried out in the background. A request with a known `key` is not carried out
    /// again. Returns it, and whether it is new.
    ///
    /// # Errors
    /// `Invalid` with every problem; `Taken` if the key came with another draft; the scope `operations:write` is missing.
    pub async fn resend(
        &self,
        caller: &Caller,
        draft: Draft,
        key: Option<&str>,
    ) -> Result<(Document, bool), ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        caller.check_application(draft.application.as_ref())?;
        if draft.after.is_some() {
            return Err(ServiceError::invalid(Code::NotApplicable, "after", "is for previews"));
        }
        if key.is_some_and(|key| key.is_empty() || key.len() > KEY_BYTES_MAX) {
            return Err(ServiceError::from(
                Problem::new(Code::TooLong, "Idempotency-Key", format!("has 1 to {KEY_BYTES_MAX} bytes"))
                    .param("limit", KEY_BYTES_MAX)
                    .param("unit", "bytes"),
            ));
        }
        let class = (Part::NotificationClass, draft.class.as_ref());
        self.check_known(draft.application.as_ref(), &[class]).await?;
        let (application, channel) = (draft.application.clone(), draft.channel.clone());
        let request = self.resend_request(draft).await?;
        self.check_known(application.as_ref(), &[(Part::Channel, channel.as_ref())]).await?;
        let key = match key {
            Some(key) => format!("{}/{key}", caller.key()),
            None => random_key()?,
        };
        let (stored, is_new) = self.pipeline.resend(&request, key, caller.key().to_owned()).await?;
        let text = serde_json::to_string(&request).expect("a request is JSON");
        if !is_new && stored.request != text {
            return Err(ServiceError::Taken("a request with this Idempotency-Key and another content".to_owned()));
        }
        if is_new {
            tracing::info!(resend = stored.id, by = caller.key(), "a resend of failed notifications was requested");
        }
        Ok((self.named_resend(stored), is_new))
    }

    /// Lists requests to send again after the number `after`, oldest first.
    ///
    /// # Errors
    /// The scope `operations:read` is missing, or the journal is unavailable.
    pub async fn resends(
        &self,
        caller: &Caller,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Page<Document>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let found = self.operator_actions.resends(false, after.unwrap_or(0), limit).await?;
        let next = if found.len() == limit { found.last().map(|last| last.id.to_string()) } else { None };
        Ok(Page { items: found, next }.map(|stored| self.named_resend(stored)))
    }

    /// Returns a request to send again.
    ///
    /// # Errors
    /// The request does not exist (any more).
    pub async fn find_resend(&self, caller: &Caller, id: u64) -> Result<Document, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let found =
            self.operator_actions.resends(false, id.saturating_sub(1), 1).await?.pop().filter(|found| found.id == id);
        let found = found.map(|stored| self.named_resend(stored));
        found.ok_or_else(|| ServiceError::Missing(format!("the request {id} to send again")))
    }

    fn named_resend(&self, stored: Resend) -> Document {
        Document { by_name: self.key_name(&stored.by), ..stored.into() }
    }

    /// Checks a draft.
    async fn resend_request(&self, draft: Draft) -> Result<ResendRequest, ServiceError> {
        let mut problems = Vec::new();
        let outcomes = outcomes(&draft, &mut problems);
        let Draft { notification, since, until, application, mut channel, class, subscriber, device, reason, .. } =
            draft;
        if reason.as_ref().is_some_and(|reason| reason.is_empty() || reason.len() > REASON_BYTES_MAX) {
            problems.push(
                Problem::new(Code::TooLong, "reason", format!("should have 1 to {REASON_BYTES_MAX} bytes"))
                    .param("limit", REASON_BYTES_MAX)
                    .param("unit", "bytes"),
            );
        }
        if let (Some(since), Some(until)) = (since, until)
            && since >= until
        {
            problems.push(Problem::new(Code::OutOfRange, "until", "is not after `since`"));
        }
        match (&subscriber, &device) {
            (None, Some(_)) => {
                let problem =
                    Problem::new(Code::Required, "subscriber", "is required: give the id of the device's subscriber");
                problems.push(problem);
            }
            (Some(subscriber), device) => {
                let found = self.subscriber_store.subscriber(subscriber).await?;
                let known = found.as_ref().map(|found| device.as_ref().map(|device| found.devices.get(device)));
                match known {
                    None => problems.push(
                        Problem::new(Code::UnknownReference, "subscriber", format!("`{subscriber}` does not exist"))
                            .param("kind", "subscriber")
                            .param("value", subscriber.to_string()),
                    ),
                    Some(Some(None)) => {
                        let names = found.iter().flat_map(|found| found.devices.keys()).map(|name| format!("`{name}`"));
                        let problem = Problem::new(Code::UnknownReference, "device", "is no device of the subscriber")
                            .param("kind", "device");
                        problems.push(problem.hint(format!("it has {}", names.collect::<Vec<_>>().join(", "))));
                    }
                    Some(Some(Some(device))) if channel.as_ref().is_some_and(|channel| *channel != device.channel) => {
                        problems.push(Problem::new(
                            Code::Mismatch,
                            "channel",
                            format!("is not that of the device: `{}`", device.channel),
                        ));
                    }
                    Some(Some(Some(device))) => channel = Some(device.channel.clone()),
                    Some(None) => {}
                }
            }
            (None, None) => {}
        }
        let names_something = notification.is_some()
            || since.is_some()
            || application.is_some()
            || channel.is_some()
            || class.is_some()
            || subscriber.is_some()
            || reason.is_some();
        if !names_something && !draft.all {
            let problem = Problem::new(Code::Required, "", "names nothing that is to be sent again");
            problems.push(problem.hint(r#"give a condition, or {"all": true} to mean everything that failed"#));
        }
        if !problems.is_empty() {
            return Err(ServiceError::Invalid(problems));
        }
        let as_new = draft.as_new;
        Ok(ResendRequest {
            outcomes,
            notification,
            since,
            until,
            application,
            channel,
            class,
            subscriber,
            device,
            reason,
            as_new,
        })
    }
}

/// A unique key.
pub(crate) fn random_key() -> Result<String, ServiceError> {
    let mut random = [0u8; 16];
    let filled = SystemRandom::new().fill(&mut random);
    filled.map_err(|_| ServiceError::Unavailable("the system gives no random numbers".into()))?;
    Ok(hex::encode(random))
}
