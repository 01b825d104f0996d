//! Broadcasts: messages of people to an audience. The audience is counted first, a test goes to one recipient, then the
//! broadcast is stored once and runs in the background.

mod recipients; // results by recipient, as pages and as lines

use std::sync::Arc;

use serde_json::value::RawValue;
use tocsin_model::{
    broadcast::{BroadcastDraft, DRAFT_BYTES_MAX},
    id::{BroadcastId, Name, SubscriberId, SubscriptionId},
    problem::{Code, Problem},
    time::Timestamp,
};
use tocsin_pipeline::CompiledBroadcast;
use tocsin_store::journal::{
    Broadcast, BroadcastChange, BroadcastFilter, BroadcastState, BroadcastTotals, NewBroadcast, RequestedState,
};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    page::{Page, cursor, key_of},
    preview::{PreviewDraft, Previewed, TestSent},
    resends::{KEY_BYTES_MAX, random_key},
};

pub use recipients::{RecipientFilter, RecipientResult};

/// Maximum number of broadcasts that are not matched completely.
pub const UNMATCHED_MAX: usize = 1_000;
/// Maximum number of broadcasts that the attention list names.
pub(crate) const LISTED_MAX: usize = 10;
/// Maximum number of characters of a title.
pub const TITLE_CHARACTERS_MAX: usize = 200;
/// Maximum time from now to the start of a broadcast, in days.
pub const DELAY_DAYS_MAX: u64 = 3_660;
/// Maximum number of recipients in a sample.
pub const SAMPLE_MAX: usize = 100;
/// Maximum number of subscriptions examined per counting request; the next one continues.
pub const SCANNED_ROWS_MAX: u64 = 100_000;

/// Input of a count.
#[derive(Debug, Clone)]
pub struct CountDraft {
    /// The broadcast.
    pub draft: BroadcastDraft,
    /// Number of recipients to return; 0 to 100, default 10.
    pub sample: Option<usize>,
    /// Cursor of the previous count, to continue.
    pub after: Option<String>,
}

/// Number of recipients that a broadcast would have now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AudienceCount {
    /// Number of recipients among the subscriptions examined.
    pub recipients: u64,
    /// The same by channel; those without a device are under `unassigned`.
    pub channels: Vec<(Name, u64)>,
    /// Number of subscriptions of the class that were examined.
    pub examined: u64,
    /// Number of subscriptions whose filter does not fit the data of the broadcast; they are no recipients.
    pub unusable: u64,
    /// First recipients.
    pub sample: Vec<SampleRecipient>,
    /// Cursor to continue counting, as `after`; absent if all were examined.
    pub next: Option<String>,
}

/// A recipient of a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleRecipient {
    /// Subscriber.
    pub subscriber: Option<SubscriberId>,
    /// Subscription.
    pub subscription: SubscriptionId,
    /// Channel.
    pub channel: Name,
}

/// Recipient of a test or a preview.
#[derive(Debug, Clone, Default)]
pub struct TestRecipient {
    /// Subscriber, whose first matching device is used.
    pub subscriber: Option<SubscriberId>,
    /// Subscription that gives the values of `sub`.
    pub subscription: Option<SubscriptionId>,
    /// Device of the subscriber.
    pub device: Option<Name>,
    /// Channel.
    pub channel: Option<Name>,
    /// Address.
    pub address: Option<String>,
    /// Locale.
    pub locale: Option<String>,
}

/// A broadcast with its progress.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// The stored broadcast.
    pub broadcast: Broadcast,
    /// Its draft.
    pub draft: BroadcastDraft,
    /// Sums over its notifications.
    pub totals: BroadcastTotals,
    /// Description of the key that made it.
    pub by_name: Option<String>,
}

impl Document {
    /// State: `scheduled`, `running`, `paused`, `done`, `cancelled` or `failed`.
    pub fn state(&self) -> &'static str {
        match self.is_done() {
            true => "done",
            false => self.broadcast.state.word(),
        }
    }

    fn is_done(&self) -> bool {
        let is_running = self.broadcast.state == BroadcastState::Running;
        is_running && self.broadcast.matched_at.is_some() && self.totals.open == 0
    }
}

impl Service {
    /// Counts the recipients that a broadcast would have now. Changes nothing. A request examines at most
    /// [`SCANNED_ROWS_MAX`] subscriptions.
    ///
    /// # Errors
    /// The scope `broadcasts:read` is missing; `Invalid` with every problem of the draft.
    pub async fn count_broadcast(&self, caller: &Caller, asked: CountDraft) -> Result<AudienceCount, ServiceError> {
        caller.needs(Scope::BroadcastsRead)?;
        let sample = match asked.sample {
            None => 10,
            Some(sample @ 0..=SAMPLE_MAX) => sample,
            Some(_) => return Err(Problem::out_of_range("sample", 0, SAMPLE_MAX).into()),
        };
        let after: Option<SubscriptionId> = key_of(asked.after.as_deref())?;
        let broadcast = self.compiled_broadcast(caller, asked.draft).await?;
        let _permit = self.segment_scan_permit()?;
        let after = after.unwrap_or(SubscriptionId(0));
        let counted = self.pipeline.count_audience(&broadcast, after, SCANNED_ROWS_MAX, sample).await?;
        let counted = counted.map_err(|reason| ServiceError::invalid(Code::Conflict, "when", reason))?;
        let ids: Vec<SubscriptionId> = counted.sample.iter().map(|(id, _)| *id).collect();
        let recipients = self.recipient_store.recipients(&ids).await?;
        let sample = counted.sample.into_iter().zip(recipients).map(|((subscription, channel), recipient)| {
            let subscriber = recipient.map(|recipient| recipient.id.clone());
            SampleRecipient { subscriber, subscription, channel }
        });
        Ok(AudienceCount {
            recipients: counted.recipients.values().sum(),
            sample: sample.collect(),
            channels: counted.recipients.into_iter().collect(),
            examined: counted.examined,
            unusable: counted.unusable,
            next: counted.reached.map(|reached| cursor(&reached.to_string())),
        })
    }

    /// Renders the content of a broadcast for one recipient. Nothing is stored or sent.
    ///
    /// # Errors
    /// The scope `broadcasts:read` is missing, or `subscribers:read` for stored data of subscribers; `Invalid` with
    /// every problem of the draft.
    pub async fn render_broadcast(
        &self,
        caller: &Caller,
        draft: BroadcastDraft,
        to: TestRecipient,
    ) -> Result<Previewed, ServiceError> {
        caller.needs(Scope::BroadcastsRead)?;
        let broadcast = self.compiled_broadcast(caller, draft).await?;
        self.preview_of(caller, broadcast.compiled.clone(), preview_draft(&broadcast, to)?).await
    }

    /// Sends a broadcast to one recipient, and waits for the receiver's answer. It is not stored and not retried.
    ///
    /// # Errors
    /// The scope `broadcasts:write` is missing, or `subscribers:read` for stored data of subscribers; `Invalid` with
    /// every problem of the draft; `Unavailable` if the channel is unavailable.
    pub async fn test_broadcast(
        &self,
        caller: &Caller,
        draft: BroadcastDraft,
        to: TestRecipient,
    ) -> Result<TestSent, ServiceError> {
        caller.needs(Scope::BroadcastsWrite)?;
        let broadcast = self.compiled_broadcast(caller, draft).await?;
        self.send_test_of(caller, broadcast.compiled.clone(), preview_draft(&broadcast, to)?).await
    }

    /// Stores a broadcast. It is durable when this returns, and starts at its time. A request with a known `key` stores
    /// nothing. Returns the broadcast, and whether it is new.
    ///
    /// # Errors
    /// `Invalid` with every problem; `Taken` if the key came with another draft; the scope `broadcasts:write` is
    /// missing.
    pub async fn create_broadcast(
        &self,
        caller: &Caller,
        draft: BroadcastDraft,
        key: Option<&str>,
    ) -> Result<(Document, bool), ServiceError> {
        caller.needs(Scope::BroadcastsWrite)?;
        if key.is_some_and(|key| key.is_empty() || key.len() > KEY_BYTES_MAX) {
            let problem = Problem::new(Code::TooLong, "Idempotency-Key", format!("has 1 to {KEY_BYTES_MAX} bytes"));
            return Err(problem.param("limit", KEY_BYTES_MAX).param("unit", "bytes").into());
        }
        let now = self.clock.now();
        // A segment in use cannot be removed.
        let _one_at_a_time = self.applying.lock().await;
        let compiled = self.compiled_broadcast(caller, draft.clone()).await?;
        let problems = check_times(&draft, now);
        let text = serde_json::to_string(&draft).expect("a draft is JSON");
        let key = match key {
            Some(key) => format!("{}/{key}", caller.key()),
            None => random_key()?,
        };
        let same_key = BroadcastFilter { key: Some(key.clone()), ..BroadcastFilter::default() };
        if self.broadcasts.broadcasts(&same_key, None, 1).await?.is_empty() {
            if !problems.is_empty() {
                return Err(ServiceError::Invalid(problems));
            }
            if self.broadcasts.startable_broadcasts(UNMATCHED_MAX).await?.len() == UNMATCHED_MAX {
                let message = format!("{UNMATCHED_MAX} broadcasts wait for their start");
                let problem = Problem::new(Code::TooMany, "", message);
                return Err(problem.param("given", UNMATCHED_MAX + 1).param("limit", UNMATCHED_MAX).into());
            }
        }
        let new = NewBroadcast {
            key,
            application: compiled.draft.application.clone(),
            draft: text.clone(),
            by: caller.key().to_owned(),
            created_at: now,
            starts_at: draft.starts_at.unwrap_or(now),
        };
        let (stored, is_new) = self.pipeline.put_broadcast(new).await?;
        if !is_new && stored.draft != text {
            return Err(ServiceError::Taken("a broadcast with this Idempotency-Key and another content".to_owned()));
        }
        if is_new {
            let (id, application) = (stored.id, &stored.application);
            tracing::info!(broadcast = %id, %application, by = caller.key(), "a broadcast was stored");
            metrics::counter!("tocsin_broadcast_stored_total").increment(1);
        }
        Ok((self.broadcast_document(stored).await?, is_new))
    }

    /// Lists broadcasts, newest first, of one application or all.
    ///
    /// # Errors
    /// The scope `broadcasts:read` is missing, or the journal is unavailable.
    pub async fn broadcasts(
        &self,
        caller: &Caller,
        filter: &BroadcastFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Document>, ServiceError> {
        caller.needs(Scope::BroadcastsRead)?;
        caller.check_application(filter.application.as_ref())?;
        let before: Option<BroadcastId> = key_of(after)?;
        let found = self.broadcasts.broadcasts(filter, before, limit + 1).await?;
        if found.is_empty() && before.is_none() {
            self.check_known(filter.application.as_ref(), &[]).await?;
        }
        let page = Page::cut(found, limit, |last| last.id.to_string());
        let mut items = Vec::with_capacity(page.items.len());
        for stored in page.items {
            items.push(self.broadcast_document(stored).await?);
        }
        Ok(Page { items, next: page.next })
    }

    /// Returns a broadcast with its progress.
    ///
    /// # Errors
    /// The broadcast does not exist (any more).
    pub async fn find_broadcast(&self, caller: &Caller, id: BroadcastId) -> Result<Document, ServiceError> {
        caller.needs(Scope::BroadcastsRead)?;
        let stored = self.stored_broadcast(caller, id).await?;
        self.broadcast_document(stored).await
    }

    /// Pauses, resumes or cancels a broadcast. When this returns, no further message of a paused or cancelled broadcast
    /// is begun. A repetition changes nothing.
    ///
    /// # Errors
    /// The scope `broadcasts:write` is missing; the broadcast does not exist; `Invalid` if it is done, cancelled or
    /// failed.
    pub async fn change_broadcast(
        &self,
        caller: &Caller,
        id: BroadcastId,
        to: RequestedState,
        reason: Option<String>,
    ) -> Result<Document, ServiceError> {
        caller.needs(Scope::BroadcastsWrite)?;
        let stored = self.stored_broadcast(caller, id).await?;
        let present = self.broadcast_document(stored).await?;
        let is_repeated = match to {
            RequestedState::Cancelled => present.broadcast.state == BroadcastState::Cancelled,
            RequestedState::Paused => present.broadcast.state == BroadcastState::Paused,
            RequestedState::Resumed | RequestedState::Failed => {
                matches!(present.broadcast.state, BroadcastState::Running | BroadcastState::Scheduled)
            }
        };
        // A repeated cancellation ends notifications that were suspended meanwhile.
        let has_effect = to == RequestedState::Cancelled && present.totals.suspended > 0;
        if is_repeated && !present.is_done() && !has_effect {
            return Ok(present);
        }
        let is_ended = matches!(present.broadcast.state, BroadcastState::Cancelled | BroadcastState::Failed);
        if present.is_done() || is_ended && !has_effect {
            let message = format!("the broadcast {id} is {}", present.state());
            return Err(ServiceError::invalid(Code::Conflict, "", message));
        }
        let change = BroadcastChange { to, by: caller.key().to_owned(), reason, now: self.clock.now() };
        let changed = self.pipeline.change_broadcast(id, change).await?;
        tracing::info!(broadcast = %id, state = changed.state.word(), by = caller.key(), "a broadcast was changed");
        self.broadcast_document(changed).await
    }

    /// A stored broadcast within the reach of the caller.
    async fn stored_broadcast(&self, caller: &Caller, id: BroadcastId) -> Result<Broadcast, ServiceError> {
        let missing = || ServiceError::Missing(format!("the broadcast {id}"));
        let stored = self.broadcasts.broadcast(id).await?.ok_or_else(missing)?;
        caller.check_application(Some(&stored.application)).map_err(|_| missing())?;
        Ok(stored)
    }

    async fn broadcast_document(&self, broadcast: Broadcast) -> Result<Document, ServiceError> {
        let unreadable = |error: serde_json::Error| ServiceError::Unavailable(error.into());
        let draft: BroadcastDraft = serde_json::from_str(&broadcast.draft).map_err(unreadable)?;
        let totals = self.broadcasts.broadcast_totals(broadcast.id).await?;
        Ok(Document { draft, totals, by_name: self.key_name(&broadcast.by), broadcast })
    }

    /// Checks and compiles a draft under the running version of its application.
    async fn compiled_broadcast(
        &self,
        caller: &Caller,
        draft: BroadcastDraft,
    ) -> Result<Arc<CompiledBroadcast>, ServiceError> {
        caller.check_application(Some(&draft.application))?;
        let mut problems = check_size(&draft);
        let running = self.running(&draft.application)?;
        if let Some(segment) = &draft.segment
            && self.segment_store.segment(segment).await?.is_none()
        {
            let problem = Problem::new(Code::UnknownReference, "segment", format!("there is no segment `{segment}`"));
            let problem = problem.param("value", segment.to_string()).param("kind", "segment");
            problems.push(problem.hint("store it first, with `tocsin segments put`"));
        }
        let pipeline = self.pipeline.clone();
        let compiled = tokio::task::spawn_blocking(move || pipeline.compile_broadcast(draft, &running)).await;
        match compiled.map_err(|error| ServiceError::Unavailable(error.into()))? {
            Ok(compiled) if problems.is_empty() => Ok(compiled),
            Ok(_) => Err(ServiceError::Invalid(problems)),
            Err(found) => {
                problems.extend(found);
                Err(ServiceError::Invalid(problems))
            }
        }
    }

    /// Broadcasts that failed since a time, each with its reason; at most [`LISTED_MAX`].
    pub(crate) async fn failed_broadcasts(&self, since: Timestamp) -> Result<Vec<String>, ServiceError> {
        let filter = BroadcastFilter { state: Some(BroadcastState::Failed), ..BroadcastFilter::default() };
        let found = self.broadcasts.broadcasts(&filter, None, LISTED_MAX).await?;
        let lately = found.into_iter().filter(|found| found.changed_at >= since);
        Ok(lately.map(|found| format!("{} ({})", found.id, found.reason.unwrap_or_default())).collect())
    }

    /// Paused broadcasts; at most [`LISTED_MAX`].
    pub(crate) async fn paused_broadcasts(&self) -> Result<Vec<String>, ServiceError> {
        let filter = BroadcastFilter { state: Some(BroadcastState::Paused), ..BroadcastFilter::default() };
        let found = self.broadcasts.broadcasts(&filter, None, LISTED_MAX).await?;
        Ok(found.into_iter().map(|found| found.id.to_string()).collect())
    }

    /// The broadcast that uses a segment and is not finished, if there is one.
    pub(crate) async fn broadcast_with_segment(&self, segment: &Name) -> Result<Option<BroadcastId>, ServiceError> {
        for state in [BroadcastState::Scheduled, BroadcastState::Running, BroadcastState::Paused] {
            let filter = BroadcastFilter { state: Some(state), ..BroadcastFilter::default() };
            let mut before = None;
            loop {
                let page = self.broadcasts.broadcasts(&filter, before, 1_000).await?;
                let uses = |found: &&Broadcast| {
                    let draft = serde_json::from_str::<BroadcastDraft>(&found.draft);
                    found.matched_at.is_none() && draft.is_ok_and(|draft| draft.segment.as_ref() == Some(segment))
                };
                if let Some(found) = page.iter().find(uses) {
                    return Ok(Some(found.id));
                }
                before = page.last().map(|last| last.id);
                if page.len() < 1_000 {
                    break;
                }
            }
        }
        Ok(None)
    }
}

/// Problems of the size of a draft.
fn check_size(draft: &BroadcastDraft) -> Vec<Problem> {
    let mut problems = Vec::new();
    let bytes = serde_json::to_vec(draft).map_or(0, |json| json.len());
    if bytes > DRAFT_BYTES_MAX {
        problems.push(
            Problem::new(Code::TooLong, "", format!("has {bytes} bytes; at most {DRAFT_BYTES_MAX} are possible"))
                .param("given", bytes)
                .param("limit", DRAFT_BYTES_MAX)
                .param("unit", "bytes"),
        );
    }
    if draft.title.as_ref().is_some_and(|title| title.chars().count() > TITLE_CHARACTERS_MAX) {
        problems.push(
            Problem::new(Code::TooLong, "title", format!("has more than {TITLE_CHARACTERS_MAX} characters"))
                .param("limit", TITLE_CHARACTERS_MAX)
                .param("unit", "characters"),
        );
    }
    problems
}

/// Problems of the times of a draft.
fn check_times(draft: &BroadcastDraft, now: Timestamp) -> Vec<Problem> {
    let mut problems = Vec::new();
    let starts_at = draft.starts_at.unwrap_or(now);
    if starts_at > now + std::time::Duration::from_secs(DELAY_DAYS_MAX * 86_400) {
        let message = format!("lies more than {DELAY_DAYS_MAX} days ahead");
        problems.push(Problem::new(Code::OutOfRange, "starts_at", message));
    }
    match draft.expires_at {
        Some(end) if end <= now => problems.push(Problem::new(Code::InThePast, "expires_at", "lies in the past")),
        Some(end) if end <= starts_at => {
            problems.push(Problem::new(Code::OutOfRange, "expires_at", "is not after `starts_at`"));
        }
        _ => {}
    }
    problems
}

/// The input of a preview of the broadcast's rule.
fn preview_draft(broadcast: &CompiledBroadcast, to: TestRecipient) -> Result<PreviewDraft, ServiceError> {
    let raw = |text: String| RawValue::from_string(text).map_err(|error| ServiceError::Unavailable(error.into()));
    let id = |text: Option<String>| text.map(|text| raw(serde_json::Value::from(text).to_string())).transpose();
    let data = serde_json::to_string(&broadcast.draft.data).expect("a map is JSON");
    Ok(PreviewDraft {
        event: Some(raw(data)?),
        subscription: id(to.subscription.map(|id| id.to_string()))?,
        subscriber: id(to.subscriber.map(|id| id.to_string()))?,
        device: to.device,
        channel: to.channel,
        address: to.address,
        locale: to.locale,
        ..PreviewDraft::default()
    })
}
