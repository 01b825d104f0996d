//! 3. A work item is formatted and leaves through its channel: dispositions.
//!
//! One worker per channel claims what is due, formats on the fly and hands over to the channel's sessions, never more
//! at a time than the bound. What becomes of each notification is reported to the channel's recorder.

use std::{
    collections::{BTreeMap, HashMap},
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tocsin_delivery::{Answer, Facts, Outgoing, Ticket};
use tocsin_formatting::{DeviceScope, EventScope, Scope};
use tocsin_matching::notify::NotifyFields;
use tocsin_model::{
    content::Content,
    event::EventBatch,
    field::Row,
    id::{EventBatchId, EventId, Name, NotificationId, SubscriptionId},
    notification::Notifications,
    receipt::{Outcome, Reason, ReasonKind},
    subscriber::Device,
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    journal::{StoredNotificationBatch, WorkItem},
    records::Recipient,
};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{Flow, Running, compile::Compiled, record_receipts::Report};

/// Work items of a channel that are open at the same time.
const ITEMS: usize = 64;
/// Recipients read from the records at a time.
const RECIPIENTS: usize = 256;
/// How long a work item rests that could not even be read.
const REST_AFTER_FAILURE: Duration = Duration::from_secs(5);

/// Claims the due work of one channel until it is stopped.
pub(crate) struct Worker {
    pub flow: Arc<Flow>,
    pub running: Arc<Running>,
    pub channel: Name,
    pub lease: Duration,
    pub reports: mpsc::Sender<Report>,
    pub answers: mpsc::Sender<Answer>,
}

impl Worker {
    /// Works until `stop`; what is begun then is ended without handing over more, and the rest is left to others.
    pub async fn run(self, stop: CancellationToken) {
        let worker = Arc::new(self);
        let items = Arc::new(Semaphore::new(ITEMS));
        let notifications = Arc::new(Semaphore::new(worker.flow.options.in_flight_per_channel));
        let mut tasks = JoinSet::new();
        let mut arrivals = worker.flow.journal.arrivals().work;
        while !stop.is_cancelled() {
            let Some(permit) = stop.run_until_cancelled(items.clone().acquire_owned()).await else { break };
            let permit = permit.expect("the semaphore is never closed");
            while let Some(ended) = tasks.try_join_next() {
                report_panic(ended);
            }
            arrivals.mark_unchanged();
            let limit = 1 + items.available_permits();
            match worker.claim(limit).await {
                Ok(claimed) if !claimed.is_empty() => {
                    let mut permits = vec![permit];
                    for item in claimed {
                        let permit = permits.pop().or_else(|| items.clone().try_acquire_owned().ok());
                        let (worker, notifications, stop) = (worker.clone(), notifications.clone(), stop.clone());
                        tasks.spawn(async move {
                            worker.deliver(item, notifications, &stop).await;
                            drop(permit);
                        });
                    }
                }
                Ok(_) => {
                    drop(permit);
                    let due = worker.next_due().await;
                    tokio::select! {
                        () = stop.cancelled() => {}
                        Ok(()) = arrivals.changed() => {}
                        () = tokio::time::sleep(due) => {}
                    }
                }
                Err(error) => {
                    tracing::error!(%error, channel = %worker.channel, "work cannot be claimed");
                    tokio::time::sleep(REST_AFTER_FAILURE).await;
                }
            }
        }
        while let Some(ended) = tasks.join_next().await {
            report_panic(ended);
        }
    }

    async fn claim(&self, limit: usize) -> Result<Vec<WorkItem>, StoreError> {
        let now = self.flow.clock.now();
        self.flow.journal.claim_work(&self.running.name, &self.channel, limit, self.lease, now).await
    }

    /// How long until something becomes due by itself. A lease that runs out elsewhere becomes due as well, so the
    /// wait is never longer than one.
    async fn next_due(&self) -> Duration {
        let now = self.flow.clock.now();
        match self.flow.journal.next_due(&self.running.name, &self.channel, now).await {
            Ok(Some(due)) => due.since(now).clamp(Duration::from_millis(1), self.lease),
            Ok(None) => self.lease,
            Err(_) => REST_AFTER_FAILURE,
        }
    }

    async fn deliver(&self, item: WorkItem, notifications: Arc<Semaphore>, stop: &CancellationToken) {
        let claim = item.claim;
        let loaded = match Loaded::read(&self.flow, &item).await {
            Ok(loaded) => loaded,
            Err(error) => {
                tracing::error!(%error, item = %claim.id, "a work item cannot be read yet");
                let due = self.flow.clock.now() + REST_AFTER_FAILURE;
                let _ = self.flow.journal.release(claim, Some(due)).await;
                return;
            }
        };
        let wanted = loaded.ordinals.len().clamp(1, self.flow.options.in_flight_per_channel) as u32;
        let Some(permit) = stop.run_until_cancelled(notifications.acquire_many_owned(wanted)).await else {
            let _ = self.flow.journal.release(claim, None).await;
            return;
        };
        let permit = permit.expect("the semaphore is never closed");
        let key = next_key();
        let begun = Report::Begun { key, item, accepted: loaded.accepted.clone() };
        if self.reports.send(begun).await.is_err() {
            return;
        }
        let (fed, left) = self.feed(key, &loaded, stop).await;
        let _ = self.reports.send(Report::Fed { key, fed, left, permit: Some(permit) }).await;
    }

    /// Formats and hands over one notification after the other. Gives how many were reported or handed over, and those
    /// that were not tried because of `stop` or because the records failed.
    async fn feed(&self, key: u64, loaded: &Loaded, stop: &CancellationToken) -> (usize, Vec<u32>) {
        let mut fed = 0;
        for chunk in loaded.ordinals.chunks(RECIPIENTS) {
            let subscriptions: Vec<SubscriptionId> =
                chunk.iter().map(|ordinal| loaded.notifications().subscriptions[*ordinal as usize]).collect();
            let recipients = match self.flow.records.recipients(&subscriptions).await {
                Ok(recipients) => recipients,
                Err(error) => {
                    tracing::error!(%error, channel = %self.channel, "recipients cannot be read yet");
                    return (fed, loaded.ordinals[fed..].to_vec());
                }
            };
            for (ordinal, recipient) in chunk.iter().zip(recipients) {
                if stop.is_cancelled() {
                    return (fed, loaded.ordinals[fed..].to_vec());
                }
                let now = self.flow.clock.now();
                let handed = match self.prepare(key, loaded, *ordinal, recipient, now) {
                    Ok((channel, outgoing)) => match self.running.channel(&channel) {
                        Some(open) => {
                            open.send(outgoing, &self.answers).await;
                            Ok(())
                        }
                        None => Err(Unsent::suspended(
                            ReasonKind::Unreachable,
                            format!("the application has no channel `{channel}`"),
                        )),
                    },
                    Err(unsent) => Err(unsent),
                };
                if let Err(Unsent { outcome, reason }) = handed {
                    let report = Report::Unsent { key, ordinal: *ordinal, at: now, outcome, reason };
                    if self.reports.send(report).await.is_err() {
                        return (fed, Vec::new());
                    }
                }
                fed += 1;
            }
            tokio::task::yield_now().await;
        }
        (fed, Vec::new())
    }

    /// Makes what leaves: the channel of the recipient's device, and the message.
    fn prepare(
        &self,
        key: u64,
        loaded: &Loaded,
        ordinal: u32,
        recipient: Option<Recipient>,
        now: Timestamp,
    ) -> Result<(Name, Outgoing), Unsent> {
        let head = &loaded.batch.head;
        if head.expires_at.is_some_and(|end| end <= now) {
            return Err(Unsent::closed(Outcome::Expired, ReasonKind::Expired, "its time was over before it was sent"));
        }
        let Some(recipient) = recipient else {
            return Err(Unsent::closed(Outcome::Refused, ReasonKind::Unreachable, "the subscription is gone"));
        };
        if !recipient.profile.enabled || !recipient.subscription.enabled {
            return Err(Unsent::closed(Outcome::Refused, ReasonKind::Unreachable, "the subscription was switched off"));
        }
        let Some((device_name, device)) = &recipient.device else {
            return Err(Unsent::suspended(ReasonKind::Unreachable, "the subscriber has no active device"));
        };
        let event = loaded.events.get(&loaded.event_of[ordinal as usize]).ok_or_else(|| {
            Unsent::suspended(ReasonKind::Internal, "the event is gone, so its notification cannot be formatted")
        })?;
        let id = NotificationId { batch: loaded.batch.id, ordinal };
        let formatted = std::panic::catch_unwind(AssertUnwindSafe(|| {
            format(loaded, event, id, &recipient, device_name, device)
        }));
        let (content, fields) = match formatted {
            Ok(Ok(formatted)) => formatted,
            Ok(Err(reason)) => return Err(Unsent { outcome: Outcome::Suspended, reason }),
            Err(_) => {
                metrics::counter!("format_panics_total").increment(1);
                return Err(Unsent::suspended(ReasonKind::Internal, "formatting it made the formatter panic"));
            }
        };
        let outgoing = Outgoing {
            id,
            message_id: format!("{id}.{}", self.flow.records.installation()),
            address: device.address.clone(),
            content,
            facts: Facts {
                application: head.application.clone(),
                class: head.class.clone(),
                event: Some(loaded.event_of[ordinal as usize]),
                fields: Arc::new(fields),
            },
            formatted_at: now,
            expires_at: head.expires_at,
            ticket: Ticket { key, ordinal },
        };
        Ok((device.channel.clone(), outgoing))
    }
}

/// What a notification says, and its fields for machines.
type Formatted = (Content, serde_json::Map<String, serde_json::Value>);

/// Computes the fields of a notification and renders its templates.
fn format(
    loaded: &Loaded,
    event: &LoadedEvent,
    id: NotificationId,
    recipient: &Recipient,
    device_name: &Name,
    device: &Device,
) -> Result<Formatted, Reason> {
    let (compiled, head) = (&loaded.compiled, &loaded.batch.head);
    let gone = |what: &str, name: &Name| {
        Reason::new(ReasonKind::Internal, format!("version {} has no {what} `{name}`", head.version))
    };
    let notify = compiled.notify.get(&head.rule).ok_or_else(|| gone("rule", &head.rule))?;
    let formatter = compiled.formatters.get(&head.class).ok_or_else(|| gone("notification class", &head.class))?;
    let captured = &loaded.notifications().captured;
    let fields = notify
        .row(&event.row, |name| {
            let (_, column) = captured.iter().find(|(field, _)| field == name)?;
            column.value(id.ordinal as usize)
        })
        .map_err(|missing| Reason::new(ReasonKind::Format, missing.to_string()))?;
    let subscription = &recipient.subscription;
    let class = compiled.application.subscriptions.get(&subscription.class);
    let class_fields = class.map(|class| class.fields.clone()).unwrap_or_default();
    let parameters = class_fields
        .row_from_stored(&subscription.values)
        .map_err(|damaged| Reason::new(ReasonKind::Internal, format!("{}: {damaged}", subscription.id)))?;
    let scope = Scope {
        id,
        rule: &head.rule,
        matched_at: head.matched_at,
        accepted_at: event.accepted_at,
        fields: &fields,
        event: &event.scope,
        subscriber: &subscription.subscriber,
        profile: &recipient.profile,
        subscription: (&class_fields, &parameters),
        device: DeviceScope { name: device_name.as_str(), channel: device.channel.as_str(), address: &device.address },
    };
    let locale = recipient.profile.locale.as_deref();
    let content = formatter.format(locale, device.channel.as_str(), &scope).map_err(|error| error.reason())?;
    Ok((content, facts(notify, fields)))
}

/// The fields as a JSON object, without those that are null.
fn facts(notify: &NotifyFields, row: Row) -> serde_json::Map<String, serde_json::Value> {
    let named = notify.fields().iter().zip(row).filter(|(_, value)| !value.is_null());
    named.map(|(field, value)| (field.name.to_string(), value.into())).collect()
}

/// Why a notification was not even sent.
struct Unsent {
    outcome: Outcome,
    reason: Reason,
}

impl Unsent {
    fn closed(outcome: Outcome, kind: ReasonKind, text: &str) -> Self {
        Unsent { outcome, reason: Reason::new(kind, text) }
    }

    fn suspended(kind: ReasonKind, text: impl Into<String>) -> Self {
        Unsent { outcome: Outcome::Suspended, reason: Reason::new(kind, text) }
    }
}

fn report_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        // The item stays claimed until its lease ends, and is then tried by another.
        tracing::error!(%error, "delivering a work item panicked");
        metrics::counter!("deliver_panics_total").increment(1);
    }
}

fn next_key() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// An event as formatting wants it.
struct LoadedEvent {
    row: Row,
    scope: EventScope,
    accepted_at: Timestamp,
}

/// A work item with everything that its delivery reads.
struct Loaded {
    batch: StoredNotificationBatch,
    compiled: Arc<Compiled>,
    ordinals: Vec<u32>,
    event_of: Vec<EventId>,
    accepted: Vec<Timestamp>,
    events: HashMap<EventId, LoadedEvent>,
}

impl Loaded {
    async fn read(flow: &Flow, item: &WorkItem) -> Result<Loaded, StoreError> {
        let missing = |what: String| StoreError::Missing(what);
        let batch =
            flow.journal.notification_batch(item.batch).await?.ok_or_else(|| missing(format!("batch {}", item.batch)))?;
        let head = &batch.head;
        let compiled = flow
            .versions
            .get(&head.application, head.version)
            .await?
            .ok_or_else(|| missing(format!("version {} of `{}`", head.version, head.application)))?;
        let event_of: Vec<EventId> = batch.notifications.event_of_each().collect();
        let ordinals: Vec<u32> = match &item.ordinals {
            Some(ordinals) => ordinals.clone(),
            None => (0..batch.notifications.count() as u32).collect(),
        };
        let mut wanted: BTreeMap<EventBatchId, Vec<u32>> = BTreeMap::new();
        for ordinal in &ordinals {
            let event = event_of.get(*ordinal as usize).ok_or_else(|| StoreError::Damaged(format!("{}", item.claim.id)))?;
            let ordinals = wanted.entry(event.batch).or_default();
            if ordinals.last() != Some(&event.ordinal) {
                ordinals.push(event.ordinal);
            }
        }
        let mut events = HashMap::new();
        for (id, ordinals) in wanted {
            if let Some((events_batch, _)) = flow.journal.event_batch(id).await? {
                read_events(flow, &compiled, &head.rule, &events_batch, ordinals, &mut events).await?;
            }
        }
        let accepted =
            event_of.iter().map(|event| events.get(event).map_or(head.accepted_at, |event| event.accepted_at)).collect();
        Ok(Loaded { compiled, ordinals, event_of, accepted, events, batch })
    }

    fn notifications(&self) -> &Notifications {
        &self.batch.notifications
    }
}

/// Unpacks some events of a batch, in one pass.
async fn read_events(
    flow: &Flow,
    compiled: &Compiled,
    rule: &Name,
    batch: &EventBatch,
    mut ordinals: Vec<u32>,
    events: &mut HashMap<EventId, LoadedEvent>,
) -> Result<(), StoreError> {
    let packed_by = flow.versions.get(&batch.application, batch.version).await?;
    let packed = packed_by.as_ref().and_then(|compiled| compiled.event_class(&batch.class));
    // The rule that fired may know a later version of the class than the one that packed the event.
    let (Some(packed), Some(class), Some(notify)) = (packed, compiled.event_class(&batch.class), compiled.notify.get(rule))
    else {
        return Ok(());
    };
    ordinals.sort_unstable();
    ordinals.dedup();
    let mut wanted = ordinals.into_iter().peekable();
    for (ordinal, bytes) in batch.events.rows().enumerate() {
        if wanted.peek() != Some(&(ordinal as u32)) {
            continue;
        }
        wanted.next();
        let row = tocsin_model::field::unpack_row(&packed.fields, bytes?)?;
        let row = notify.event_row(row, &packed.fields);
        let scope = EventScope::new(&class.fields, &row);
        let id = EventId { batch: batch.id, ordinal: ordinal as u32 };
        events.insert(id, LoadedEvent { row, scope, accepted_at: batch.accepted_at });
    }
    Ok(())
}
