//! A work item with all data needed for its delivery: batch, version and events.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use tocsin_formatting::EventScope;
use tocsin_matching::notify::NotifyFields;
use tocsin_model::{
    application::EventClass,
    broadcast::broadcast_class,
    delivery_policy::DeliveryPolicy,
    edit::Edit,
    event::EventBatch,
    field::{Field, Fields, Row, pack_row},
    id::{EventBatchId, EventId, Name, NotificationId},
    lifecycle::LifecycleChange,
    notification::Notifications,
    reason_code::ReasonCode,
    receipt::{Reason, ReasonKind},
    time::Timestamp,
    trace_context::TraceContext,
    value::Value,
};
use tocsin_store::{
    error::StoreError,
    journal::{StoredNotificationBatch, WorkItem, WorkState},
};

use crate::{
    Flow,
    broadcasts::{BroadcastSignal, CompiledBroadcast, Hold, broadcast_of},
    class_counters::NotificationCounters,
    compile::Compiled,
    lanes::LaneKey,
    spans::TracedNotification,
};

/// An event, prepared for formatting.
#[derive(Clone)]
pub(crate) struct LoadedEvent {
    pub row: Row,
    pub scope: EventScope,
    pub accepted_at: Timestamp,
    /// Its trace context, with the ordinal of the first event of its batch that shares it.
    pub trace: Option<(u32, TraceContext)>,
}

impl LoadedEvent {
    /// The event of a broadcast.
    fn of_broadcast(broadcast: &CompiledBroadcast, accepted_at: Timestamp) -> LoadedEvent {
        let class = broadcast_class();
        let scope = EventScope::new(&broadcast.compiled.application.events[&class].fields, &broadcast.event);
        LoadedEvent {
            row: broadcast.rules().bare_row(&class, broadcast.event.clone()),
            scope,
            accepted_at,
            trace: None,
        }
    }
}

/// A work item that was read.
pub(crate) struct Loaded {
    pub batch: StoredNotificationBatch,
    pub compiled: Arc<Compiled>,
    /// Ordinals of its notifications.
    pub ordinals: Vec<u32>,
    /// Event id of each notification of the batch.
    pub event_of: Vec<EventId>,
    /// Acceptance time of the event of each notification of the batch.
    pub accepted: Vec<Timestamp>,
    /// Delivery policy of the class in the version that made the batch.
    pub delivery_policy: Arc<DeliveryPolicy>,
    /// Counters of the class.
    pub counters: Arc<NotificationCounters>,
    /// Number of earlier attempts.
    pub attempts: u32,
    /// State of the work: channel, fallback and time.
    pub work_state: WorkState,
    /// State of its broadcast, if it belongs to one.
    pub broadcast: Option<Arc<BroadcastSignal>>,
    /// Replacements that an operator made.
    pub edit: Option<Edit>,
    /// Edited fields, by index.
    edited: Vec<(usize, Value)>,
    events: HashMap<EventId, LoadedEvent>,
}

/// Reason why an item cannot be delivered.
pub(crate) enum Unreadable {
    /// The store failed; try again.
    Temporary(StoreError),
    /// The stored data is missing or damaged; permanent.
    Permanent(String),
}

impl From<StoreError> for Unreadable {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Damaged(_) | StoreError::Missing(_) => Unreadable::Permanent(error.to_string()),
            error => Unreadable::Temporary(error),
        }
    }
}

impl Loaded {
    /// Reads a work item.
    pub async fn read(flow: &Flow, item: &WorkItem) -> Result<Loaded, Unreadable> {
        let batch = flow
            .notification_log
            .notification_batch(item.batch)
            .await?
            .ok_or_else(|| Unreadable::Permanent(format!("batch {} is gone", item.batch)))?;
        let head = &batch.head;
        let (compiled, broadcast) = flow.version_of(head).await?.ok_or_else(|| {
            let (version, application) = (head.version, &head.application);
            Unreadable::Permanent(format!(
                "version {version} of `{application}` cannot be compiled; see `tocsin check`"
            ))
        })?;
        let event_of: Vec<EventId> = batch.notifications.event_of_each().collect();
        let ordinals: Vec<u32> = match &item.ordinals {
            Some(ordinals) => ordinals.clone(),
            None => (0..batch.notifications.count() as u32).collect(),
        };
        let mut requested: BTreeMap<EventBatchId, Vec<u32>> = BTreeMap::new();
        for ordinal in &ordinals {
            let event =
                event_of.get(*ordinal as usize).ok_or_else(|| StoreError::Damaged(format!("{}", item.claim.id)))?;
            let ordinals = requested.entry(event.batch).or_default();
            if ordinals.last() != Some(&event.ordinal) {
                ordinals.push(event.ordinal);
            }
        }
        let mut events = HashMap::new();
        if let Some(broadcast) = &broadcast {
            // The event of a broadcast follows from its draft.
            let event = LoadedEvent::of_broadcast(broadcast, head.accepted_at);
            events.extend(batch.notifications.events.iter().map(|run| (run.event, event.clone())));
            requested.clear();
        }
        for (id, ordinals) in requested {
            // If an event is missing or damaged, only its notifications are suspended.
            match flow.event_log.event_batch(id).await {
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
        let class = compiled.application.notifications.get(&head.class);
        let delivery_policy = Arc::new(class.map(|class| class.delivery_policy.clone()).unwrap_or_default());
        let counters = flow.classes.notifications(&head.application, &head.class);
        let work_state = item.work_state.clone();
        let (edit, edited) = match (&work_state.edit, class) {
            (Some(text), Some(class)) => {
                let unreadable = |what: String| Unreadable::Permanent(format!("the edit of {}: {what}", item.claim.id));
                let edit: Edit = serde_json::from_str(text).map_err(|error| unreadable(error.to_string()))?;
                let edited = edit.check(&class.fields).map_err(|problems| unreadable(problems[0].to_string()))?;
                (Some(edit), edited)
            }
            _ => (None, Vec::new()),
        };
        let attempts = item.attempts;
        Ok(Loaded {
            compiled,
            ordinals,
            event_of,
            accepted,
            delivery_policy,
            counters,
            attempts,
            work_state,
            edit,
            edited,
            events,
            broadcast: broadcast_of(head).map(|id| flow.broadcasts.of(id)),
            batch,
        })
    }

    /// A notification that is not stored: what the decisions before an attempt need, for an event without its scope.
    pub fn unstored(flow: &Flow, compiled: Arc<Compiled>, batch: StoredNotificationBatch) -> Loaded {
        let head = &batch.head;
        let class = compiled.application.notifications.get(&head.class);
        let delivery_policy = Arc::new(class.map(|class| class.delivery_policy.clone()).unwrap_or_default());
        let counters = flow.classes.notifications(&head.application, &head.class);
        Loaded {
            compiled,
            ordinals: (0..batch.notifications.count() as u32).collect(),
            event_of: batch.notifications.event_of_each().collect(),
            accepted: vec![head.accepted_at; batch.notifications.count()],
            delivery_policy,
            counters,
            attempts: 0,
            work_state: WorkState::default(),
            broadcast: None,
            edit: None,
            edited: Vec::new(),
            events: HashMap::new(),
            batch,
        }
    }

    /// Hold of its broadcast, if it belongs to one.
    pub fn hold(&self) -> Hold {
        self.broadcast.as_ref().map_or(Hold::None, |signal| signal.hold())
    }

    /// The change to which the class of its events is bound.
    pub fn lifecycle_change(&self) -> Option<LifecycleChange> {
        let class = self.compiled.application.events.get(&self.batch.head.event_class)?;
        Some(class.lifecycle.as_ref()?.change)
    }

    /// Notifications of the batch.
    pub fn notifications(&self) -> &Notifications {
        &self.batch.notifications
    }

    /// Id of a notification.
    pub fn id(&self, ordinal: u32) -> NotificationId {
        NotificationId { batch: self.batch.id, ordinal }
    }

    /// Field expressions of the class.
    pub fn notify(&self) -> Result<&NotifyFields, Reason> {
        let head = &self.batch.head;
        self.compiled.notify.get(&head.rule).ok_or_else(|| self.missing_reason("rule", &head.rule))
    }

    /// Reason for something that the version of the batch lacks.
    pub fn missing_reason(&self, what: &str, name: &Name) -> Reason {
        let text = format!("version {} has no {what} `{name}`", self.batch.head.version);
        Reason::new(ReasonKind::Internal, text)
    }

    /// The event of a notification.
    pub fn event(&self, ordinal: u32) -> Result<&LoadedEvent, Reason> {
        self.events
            .get(&self.event_of[ordinal as usize])
            .ok_or_else(|| Reason::new(ReasonKind::Internal, ReasonCode::EventRemoved.text()))
    }

    /// Trace of a notification's event, if it has one.
    pub fn trace(&self, ordinal: u32) -> Option<TracedNotification<'_>> {
        let (first, context) = self.event(ordinal).ok()?.trace.as_ref()?;
        let (id, event, attempt) = (self.id(ordinal), self.event_of[ordinal as usize].batch, self.attempts + 1);
        Some(TracedNotification { id, event, first: *first, context, attempt })
    }

    fn event_class(&self) -> Option<&EventClass> {
        self.compiled.event_class(&self.batch.head.event_class)
    }

    /// Whether its event class is in ordered mode. Digests are not ordered.
    pub fn is_ordered(&self) -> bool {
        self.delivery_policy.digest.is_none() && self.event_class().is_some_and(|class| class.ordered.is_some())
    }

    /// Lane of a notification. Notifications with missing events share one lane.
    pub fn lane(&self, ordinal: u32) -> LaneKey {
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

    /// Fields of a notification.
    pub fn fields(&self, ordinal: u32) -> Result<Row, Reason> {
        let captured = &self.notifications().captured;
        let row = self.notify()?.row(&self.event(ordinal)?.row, |name| {
            let (_, column) = captured.iter().find(|(field, _)| field == name)?;
            column.value(ordinal as usize)
        });
        let mut row = row.map_err(|missing| Reason::new(ReasonKind::Format, missing.to_string()))?;
        for (at, value) in &self.edited {
            row[*at] = value.clone();
        }
        Ok(row)
    }
}

/// Unpacks some events of a batch in one pass.
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
    // The rule may know a later version of the class than the one that packed the event.
    let (Some(packed), Some(class), Some(notify)) =
        (packed, compiled.event_class(&batch.class), compiled.notify.get(rule))
    else {
        return Ok(());
    };
    ordinals.sort_unstable();
    ordinals.dedup();
    let mut requested = ordinals.into_iter().peekable();
    let reader = notify.reader(batch, &packed.fields)?;
    for (ordinal, bytes) in batch.events.rows().enumerate() {
        if requested.peek() != Some(&(ordinal as u32)) {
            continue;
        }
        requested.next();
        let row = tocsin_model::field::unpack_row(&packed.fields, bytes?)?;
        let row = reader.row(ordinal as u32, row)?;
        let scope = EventScope::new(&class.fields, &row);
        let id = EventId { batch: batch.id, ordinal: ordinal as u32 };
        let trace = batch.events.traces().find(ordinal as u32).map(|(first, context)| (first, context.clone()));
        events.insert(id, LoadedEvent { row, scope, accepted_at: batch.accepted_at, trace });
    }
    Ok(())
}
