//! 3. A work item is formatted and leaves through its channel: dispositions.
//!
//! One worker per channel claims what is due, formats on the fly and hands over to the channel's sessions, never more
//! at a time than the bound. What becomes of each notification is reported to the channel's recorder.

mod in_order; // an item whose events are in ordered mode

use std::{
    collections::{BTreeMap, HashMap},
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use tocsin_delivery::{Answer, Facts, Message, Outgoing, Ticket};
use tocsin_formatting::{DeviceScope, EventScope, Scope};
use tocsin_matching::notify::NotifyFields;
use tocsin_model::{
    application::EventClass,
    content::Content,
    event::EventBatch,
    field::{Field, Fields, Row, pack_row},
    id::{EventBatchId, EventId, Name, NotificationBatchId, NotificationId, SubscriptionId},
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
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    Flow,
    compile::Compiled,
    lanes::Lane,
    options::PipelineOptions,
    record_receipts::Report,
    running::{Open, Running},
};

/// Work items of a channel that are open at the same time.
const ITEMS: usize = 64;
/// Notifications whose recipients are read, and which are formatted and handed over, at a time.
const RECIPIENTS: usize = 128;
/// How long a work item rests that could not even be read.
const REST_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// How long a work item rests whose batch is gone.
const REST_OF_LOST: Duration = Duration::from_secs(3600);
/// Work items that are read while they wait for their turn.
const ITEMS_AHEAD: usize = 4;
/// How often a channel that is down is looked at while it still has work on its way.
const DOWN_PAUSE: Duration = Duration::from_secs(1);

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
        let bounds = Arc::new(Bounds::new(&worker.flow.options));
        let mut tasks = JoinSet::new();
        let mut arrivals = worker.flow.journal.arrivals().work;
        while !stop.is_cancelled() {
            let Some(permit) = stop.run_until_cancelled(items.clone().acquire_owned()).await else { break };
            let permit = permit.expect("the semaphore is never closed");
            while tasks.try_join_next().is_some() {}
            let is_down = worker.is_down();
            let idle = items.available_permits() == ITEMS - 1 && bounds.is_idle();
            if is_down && !idle {
                drop(permit);
                stop.run_until_cancelled(tokio::time::sleep(DOWN_PAUSE)).await;
                continue;
            }
            arrivals.mark_unchanged();
            let limit = if is_down { 1 } else { 1 + items.available_permits() };
            match worker.claim(limit).await {
                Ok(claimed) if !claimed.is_empty() => {
                    let mut permits = vec![permit];
                    for item in claimed {
                        let permit = permits.pop().or_else(|| items.clone().try_acquire_owned().ok());
                        let (worker, bounds, stop) = (worker.clone(), bounds.clone(), stop.clone());
                        tasks.spawn(async move {
                            worker.deliver(item, &bounds, &stop).await;
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
                    stop.run_until_cancelled(tokio::time::sleep(REST_AFTER_FAILURE)).await;
                }
            }
        }
        while tasks.join_next().await.is_some() {}
    }

    /// Whether the channel as a whole is not working. Then one item at a time finds out when it does again, and the
    /// others wait without using up their attempts.
    fn is_down(&self) -> bool {
        self.running.channel(&self.channel).is_some_and(|open| open.down().is_some())
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

    /// Delivers an item. One that makes our own work panic is tried again when its lease is over.
    async fn deliver(&self, item: WorkItem, bounds: &Bounds, stop: &CancellationToken) {
        let (claim, key) = (item.claim, next_key());
        if self.reports.send(Report::Begun { key, item: item.clone() }).await.is_err() {
            return;
        }
        let given_back = match AssertUnwindSafe(self.deliver_begun(key, item, bounds, stop)).catch_unwind().await {
            Ok(Ok(())) => return,
            Ok(Err(given_back)) => Some(given_back),
            Err(_) => {
                tracing::error!(item = %claim.id, "delivering a work item panicked");
                metrics::counter!("deliver_panics_total").increment(1);
                None
            }
        };
        let _ = self.reports.send(Report::GivenBack { key }).await;
        if let Some(GivenBack { due_at }) = given_back {
            let _ = self.flow.journal.release(claim, due_at).await;
        }
    }

    async fn deliver_begun(
        &self,
        key: u64,
        item: WorkItem,
        bounds: &Bounds,
        stop: &CancellationToken,
    ) -> Result<(), GivenBack> {
        let Some(ahead) = stop.run_until_cancelled(bounds.ahead.acquire()).await else {
            return Err(GivenBack { due_at: None });
        };
        let loaded = match Loaded::read(&self.flow, &item).await {
            Ok(loaded) => loaded,
            Err(Unreadable::ForNow(error)) => {
                tracing::error!(%error, item = %item.claim.id, "a work item cannot be read yet");
                return Err(GivenBack { due_at: Some(self.flow.clock.now() + REST_AFTER_FAILURE) });
            }
            Err(Unreadable::ForGood(what)) => return self.suspend_unread(key, &item, &what, bounds).await,
        };
        if loaded.is_ordered()
            && let Err(error) = self.running.lanes.learn(&self.flow, &self.running.name, &loaded).await
        {
            tracing::error!(%error, item = %item.claim.id, "what goes before a work item cannot be read yet");
            return Err(GivenBack { due_at: Some(self.flow.clock.now() + REST_AFTER_FAILURE) });
        }
        let Some(permit) = stop.run_until_cancelled(bounds.permit(loaded.ordinals.len())).await else {
            return Err(GivenBack { due_at: None });
        };
        drop(ahead);
        let (accepted, subscriptions) = (loaded.accepted.clone(), loaded.notifications().subscriptions.clone());
        if self.reports.send(Report::Read { key, accepted, subscriptions, permit }).await.is_err() {
            return Ok(());
        }
        let Fed { fed, left, due_at } = match loaded.is_ordered() {
            true => self.feed_in_order(key, &loaded, item.due_at, stop).await,
            false => self.feed(key, &loaded, &loaded.ordinals, item.due_at, stop).await,
        };
        let _ = self.reports.send(Report::Fed { key, fed, left, due_at }).await;
        Ok(())
    }

    /// An item that nobody can read waits for an operator, who sees why.
    async fn suspend_unread(&self, key: u64, item: &WorkItem, what: &str, bounds: &Bounds) -> Result<(), GivenBack> {
        tracing::error!(item = %item.claim.id, batch = %item.batch, what, "a work item cannot be read and is suspended");
        let now = self.flow.clock.now();
        let ordinals = match &item.ordinals {
            Some(ordinals) => ordinals.clone(),
            None => {
                let next = NotificationBatchId(item.batch.0.saturating_add(1));
                let heads = self.flow.journal.notification_batches(Some(next), 1).await.unwrap_or_default();
                match heads.first() {
                    Some((id, _, count)) if *id == item.batch => (0..*count).collect(),
                    // Not even how many there are is known, so there is nothing to suspend.
                    _ => return Err(GivenBack { due_at: Some(now + REST_OF_LOST) }),
                }
            }
        };
        let permit = bounds.permit(ordinals.len()).await;
        let _ = self.reports.send(Report::Read { key, accepted: Vec::new(), subscriptions: Vec::new(), permit }).await;
        let fed = ordinals.len();
        for ordinal in ordinals {
            let reason = Reason::new(ReasonKind::Internal, what);
            let report = Report::Unsent { key, ordinal, at: now, outcome: Outcome::Suspended, reason };
            if self.reports.send(report).await.is_err() {
                return Ok(());
            }
        }
        let _ = self.reports.send(Report::Fed { key, fed, left: Vec::new(), due_at: now }).await;
        Ok(())
    }

    /// Formats and hands over one notification after the other, until all are, or `stop`, or the records fail.
    async fn feed(
        &self,
        key: u64,
        loaded: &Loaded,
        ordinals: &[u32],
        due_at: Timestamp,
        stop: &CancellationToken,
    ) -> Fed {
        let mut fed = 0;
        for chunk in ordinals.chunks(RECIPIENTS) {
            let recipients = match self.recipients(loaded, chunk).await {
                Ok(recipients) => recipients,
                Err(error) => {
                    tracing::error!(%error, channel = %self.channel, "recipients cannot be read yet");
                    let due_at = self.flow.clock.now() + REST_AFTER_FAILURE;
                    return Fed { fed, left: ordinals[fed..].to_vec(), due_at };
                }
            };
            let mut ready: Vec<(Arc<Open>, Vec<Outgoing>)> = Vec::new();
            for (ordinal, recipient) in chunk.iter().zip(recipients) {
                let now = self.flow.clock.now();
                let prepared = match recipient {
                    Ok(recipient) => self.prepare(key, loaded, *ordinal, recipient, now),
                    Err(unsent) => Err(NotNow::Unsent(unsent)),
                };
                match prepared {
                    Ok((channel, outgoing)) => match ready.iter_mut().find(|(open, _)| Arc::ptr_eq(open, &channel)) {
                        Some((_, waiting)) => waiting.push(outgoing),
                        None => ready.push((channel, vec![outgoing])),
                    },
                    Err(NotNow::Held(wait)) => {
                        let report = Report::Held { key, ordinal: *ordinal, due_at: now + wait };
                        if self.reports.send(report).await.is_err() {
                            return Fed { fed, left: Vec::new(), due_at };
                        }
                    }
                    Err(NotNow::Unsent(Unsent { outcome, reason })) => {
                        let report = Report::Unsent { key, ordinal: *ordinal, at: now, outcome, reason };
                        if self.reports.send(report).await.is_err() {
                            return Fed { fed, left: Vec::new(), due_at };
                        }
                    }
                }
                fed += 1;
            }
            for (channel, outgoing) in ready {
                channel.send_all(outgoing, &self.answers).await;
            }
            if stop.is_cancelled() {
                return Fed { fed, left: ordinals[fed..].to_vec(), due_at };
            }
            tokio::task::yield_now().await;
        }
        Fed { fed, left: Vec::new(), due_at }
    }

    /// The recipients of some notifications. If one of them is damaged, only it is suspended.
    async fn recipients(
        &self,
        loaded: &Loaded,
        chunk: &[u32],
    ) -> Result<Vec<Result<Option<Recipient>, Unsent>>, StoreError> {
        let of = |ordinal: &u32| loaded.notifications().subscriptions[*ordinal as usize];
        let subscriptions: Vec<SubscriptionId> = chunk.iter().map(of).collect();
        match self.flow.records.recipients(&subscriptions).await {
            Ok(recipients) => return Ok(recipients.into_iter().map(Ok).collect()),
            Err(StoreError::Damaged(_)) => {}
            Err(error) => return Err(error),
        }
        let mut apart = Vec::with_capacity(subscriptions.len());
        for subscription in subscriptions {
            apart.push(match self.flow.records.recipients(&[subscription]).await {
                Ok(found) => Ok(found.into_iter().next().flatten()),
                Err(StoreError::Damaged(what)) => {
                    let text = format!("the records of subscription {subscription} are damaged: {what}");
                    Err(Unsent::suspended(ReasonKind::Internal, text))
                }
                Err(error) => return Err(error),
            });
        }
        Ok(apart)
    }

    /// Makes what leaves: the channel of the recipient's device, and the message.
    fn prepare(
        &self,
        key: u64,
        loaded: &Loaded,
        ordinal: u32,
        recipient: Option<Recipient>,
        now: Timestamp,
    ) -> Result<(Arc<Open>, Outgoing), NotNow> {
        let head = &loaded.batch.head;
        if head.expires_at.is_some_and(|end| end <= now) {
            return Err(
                Unsent::closed(Outcome::Expired, ReasonKind::Expired, "its time was over before it was sent").into()
            );
        }
        let Some(recipient) = recipient else {
            return Err(Unsent::closed(Outcome::Refused, ReasonKind::Unreachable, "the subscription is gone").into());
        };
        if !recipient.profile.enabled || !recipient.subscription.enabled {
            return Err(
                Unsent::closed(Outcome::Refused, ReasonKind::Unreachable, "the subscription was switched off").into()
            );
        }
        let Some((device_name, device)) = &recipient.device else {
            return Err(Unsent::suspended(ReasonKind::Unreachable, "the subscriber has no active device").into());
        };
        let channel = self.running.channel(&device.channel).ok_or_else(|| {
            let text = format!("the application has no channel `{}`", device.channel);
            Unsent::suspended(ReasonKind::Unreachable, text)
        })?;
        if let Some(wait) = channel.hold(&device.address) {
            return Err(NotNow::Held(wait));
        }
        let event = loaded.events.get(&loaded.event_of[ordinal as usize]).ok_or_else(|| {
            Unsent::suspended(ReasonKind::Internal, "the event is gone, so its notification cannot be formatted")
        })?;
        let id = NotificationId { batch: loaded.batch.id, ordinal };
        let formatted = std::panic::catch_unwind(AssertUnwindSafe(|| {
            format(loaded, event, id, &recipient, device_name, device, now)
        }));
        let (content, fields) = match formatted {
            Ok(Ok(formatted)) => {
                metrics::counter!("format_requests_total", "result" => "ok").increment(1);
                formatted
            }
            Ok(Err(reason)) => {
                metrics::counter!("format_requests_total", "result" => "failed").increment(1);
                return Err(Unsent { outcome: Outcome::Suspended, reason }.into());
            }
            Err(_) => {
                metrics::counter!("format_panics_total").increment(1);
                return Err(Unsent::suspended(ReasonKind::Internal, "formatting it made the formatter panic").into());
            }
        };
        let message = Message {
            message_id: format!("{id}.{}", self.flow.records.installation()),
            content,
            facts: Facts {
                application: head.application.clone(),
                class: head.class.clone(),
                event: Some(loaded.event_of[ordinal as usize]),
                fields: Arc::new(fields),
            },
            formatted_at: now,
            expires_at: head.expires_at,
        };
        let ticket = Ticket { key, ordinal };
        let unsubscribe = self.flow.context.unsubscribe_link(recipient.subscription.id);
        let (address, message) = (device.address.clone(), Arc::new(message));
        let outgoing = Outgoing { id, address, ticket, unsubscribe, message };
        Ok((channel, outgoing))
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
    now: Timestamp,
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
        now,
        fields: &fields,
        event: &event.scope,
        subscriber: &subscription.subscriber,
        profile: &recipient.profile,
        subscription: (&class_fields, &parameters),
        device: DeviceScope { name: device_name.as_str(), channel: device.channel.as_str(), address: &device.address },
    };
    let locale = recipient.profile.locale.as_deref();
    let formatted = formatter.format(locale, device.channel.as_str(), &scope).map_err(|error| error.reason())?;
    let mut facts = facts(notify, fields);
    let computed = formatted.computed.into_iter().filter(|(_, value)| !value.is_null());
    facts.extend(computed.map(|(name, value)| (name.to_string(), value)));
    Ok((formatted.content, facts))
}

/// The fields as a JSON object, without those that are null.
fn facts(notify: &NotifyFields, row: Row) -> serde_json::Map<String, serde_json::Value> {
    let named = notify.fields().iter().zip(row).filter(|(_, value)| !value.is_null());
    named.map(|(field, value)| (field.name.to_string(), value.into())).collect()
}

/// Why a notification is not handed over.
enum NotNow {
    /// Its destination is better let be for so long.
    Held(Duration),
    Unsent(Unsent),
}

impl From<Unsent> for NotNow {
    fn from(unsent: Unsent) -> Self {
        NotNow::Unsent(unsent)
    }
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

/// Why an item goes back to the journal untouched: there is no time for it now, or it is due again at this time.
struct GivenBack {
    due_at: Option<Timestamp>,
}

/// How far feeding came: how many were reported or handed over, and what is left, which is due then.
struct Fed {
    fed: usize,
    left: Vec<u32>,
    due_at: Timestamp,
}

/// How much of a channel is worked on at the same time.
struct Bounds {
    /// Notifications formatted or on their way.
    notifications: Arc<Semaphore>,
    notifications_max: usize,
    /// Items read while they wait for those before them.
    ahead: Semaphore,
}

impl Bounds {
    fn new(options: &PipelineOptions) -> Self {
        let notifications_max = options.in_flight_per_channel.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Bounds {
            notifications: Arc::new(Semaphore::new(notifications_max)),
            notifications_max,
            ahead: Semaphore::new(ITEMS_AHEAD),
        }
    }

    /// Waits until so many may be on their way; more than may ever be count as all.
    async fn permit(&self, count: usize) -> OwnedSemaphorePermit {
        let count = count.clamp(1, self.notifications_max) as u32;
        self.notifications.clone().acquire_many_owned(count).await.expect("the semaphore is never closed")
    }

    fn is_idle(&self) -> bool {
        self.notifications.available_permits() == self.notifications_max
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
pub(crate) struct Loaded {
    pub batch: StoredNotificationBatch,
    compiled: Arc<Compiled>,
    pub ordinals: Vec<u32>,
    pub event_of: Vec<EventId>,
    accepted: Vec<Timestamp>,
    events: HashMap<EventId, LoadedEvent>,
}

/// Why an item cannot be delivered.
pub(crate) enum Unreadable {
    /// The store fails.
    ForNow(StoreError),
    /// What was stored is no use.
    ForGood(String),
}

impl From<StoreError> for Unreadable {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Damaged(_) | StoreError::Missing(_) => Unreadable::ForGood(error.to_string()),
            error => Unreadable::ForNow(error),
        }
    }
}

impl Loaded {
    pub async fn read(flow: &Flow, item: &WorkItem) -> Result<Loaded, Unreadable> {
        let batch = flow
            .journal
            .notification_batch(item.batch)
            .await?
            .ok_or_else(|| Unreadable::ForGood(format!("batch {} is gone", item.batch)))?;
        let head = &batch.head;
        let compiled = flow.versions.get(&head.application, head.version).await?.ok_or_else(|| {
            let (version, application) = (head.version, &head.application);
            Unreadable::ForGood(format!("version {version} of `{application}` cannot be compiled; see `tocsin check`"))
        })?;
        let event_of: Vec<EventId> = batch.notifications.event_of_each().collect();
        let ordinals: Vec<u32> = match &item.ordinals {
            Some(ordinals) => ordinals.clone(),
            None => (0..batch.notifications.count() as u32).collect(),
        };
        let mut wanted: BTreeMap<EventBatchId, Vec<u32>> = BTreeMap::new();
        for ordinal in &ordinals {
            let event =
                event_of.get(*ordinal as usize).ok_or_else(|| StoreError::Damaged(format!("{}", item.claim.id)))?;
            let ordinals = wanted.entry(event.batch).or_default();
            if ordinals.last() != Some(&event.ordinal) {
                ordinals.push(event.ordinal);
            }
        }
        let mut events = HashMap::new();
        for (id, ordinals) in wanted {
            // Of events that are gone or damaged, each notification is suspended by itself.
            match flow.journal.event_batch(id).await {
                Ok(Some((batch, _))) => {
                    read_events(flow, &compiled, &head.rule, &batch, ordinals, &mut events).await?;
                }
                Ok(None) => {}
                Err(StoreError::Damaged(what)) => tracing::error!(batch = %id, what, "an event batch cannot be read"),
                Err(error) => return Err(error.into()),
            }
        }
        let accepted = event_of
            .iter()
            .map(|event| events.get(event).map_or(head.accepted_at, |event| event.accepted_at))
            .collect();
        Ok(Loaded { compiled, ordinals, event_of, accepted, events, batch })
    }

    fn notifications(&self) -> &Notifications {
        &self.batch.notifications
    }

    /// The id of one of them.
    pub fn id(&self, ordinal: u32) -> NotificationId {
        NotificationId { batch: self.batch.id, ordinal }
    }

    fn event_class(&self) -> Option<&EventClass> {
        self.compiled.event_class(&self.batch.head.event_class)
    }

    /// Whether its events are in ordered mode.
    pub fn is_ordered(&self) -> bool {
        self.event_class().is_some_and(|class| class.ordered.is_some())
    }

    /// The lane of one of them. All whose event is gone are in one.
    pub fn lane(&self, ordinal: u32) -> Lane {
        let mut key = self.batch.head.event_class.as_str().as_bytes().to_vec();
        let event = self.events.get(&self.event_of[ordinal as usize]);
        let by = self.event_class().and_then(|class| Some((class, class.ordered.as_ref()?)));
        if let (Some(event), Some((class, ordered))) = (event, by) {
            let fields = ordered.by.iter().filter_map(|name| class.fields.position(name.as_str()));
            let (fields, row): (Vec<Field>, Row) =
                fields.map(|at| (class.fields[at].clone(), event.row[at].clone())).unzip();
            key.push(0);
            pack_row(&Fields::new(fields), &row, &mut key);
        }
        (self.notifications().subscriptions[ordinal as usize], key.into())
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
    let (Some(packed), Some(class), Some(notify)) =
        (packed, compiled.event_class(&batch.class), compiled.notify.get(rule))
    else {
        return Ok(());
    };
    ordinals.sort_unstable();
    ordinals.dedup();
    let mut wanted = ordinals.into_iter().peekable();
    let reader = notify.reader(batch, &packed.fields)?;
    for (ordinal, bytes) in batch.events.rows().enumerate() {
        if wanted.peek() != Some(&(ordinal as u32)) {
            continue;
        }
        wanted.next();
        let row = tocsin_model::field::unpack_row(&packed.fields, bytes?)?;
        let row = reader.row(ordinal as u32, row)?;
        let scope = EventScope::new(&class.fields, &row);
        let id = EventId { batch: batch.id, ordinal: ordinal as u32 };
        events.insert(id, LoadedEvent { row, scope, accepted_at: batch.accepted_at });
    }
    Ok(())
}
