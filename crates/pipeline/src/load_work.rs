//! A work item with everything that its delivery reads: its batch, the version that made it, and the events it tells of.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use tocsin_formatting::EventScope;
use tocsin_matching::notify::NotifyFields;
use tocsin_model::{
    application::EventClass,
    conduct::Conduct,
    edit::Edit,
    event::EventBatch,
    field::{Field, Fields, Row, pack_row},
    id::{EventBatchId, EventId, Name, NotificationId},
    notification::Notifications,
    receipt::{Reason, ReasonKind},
    time::Timestamp,
    trace_context::TraceContext,
    value::Value,
};
use tocsin_store::{
    error::StoreError,
    journal::{Course, StoredNotificationBatch, WorkItem},
};

use crate::{Flow, class_counters::NotificationCounters, compile::Compiled, lanes::Lane};

/// An event as formatting wants it.
pub(crate) struct LoadedEvent {
    pub row: Row,
    pub scope: EventScope,
    pub accepted_at: Timestamp,
    /// Where it stands in a trace, with the first event of its batch that shares the place.
    pub trace: Option<(u32, TraceContext)>,
}

/// A work item that was read.
pub(crate) struct Loaded {
    pub batch: StoredNotificationBatch,
    pub compiled: Arc<Compiled>,
    /// Which of the batch it is about.
    pub ordinals: Vec<u32>,
    /// Of each notification of the batch.
    pub event_of: Vec<EventId>,
    /// Of each notification of the batch: when its event was accepted.
    pub accepted: Vec<Timestamp>,
    /// How the class is told, as the version that made the batch defines it.
    pub conduct: Arc<Conduct>,
    /// What is counted of the class.
    pub counters: Arc<NotificationCounters>,
    /// How often it was tried before.
    pub attempts: u32,
    /// Where the work stands.
    pub course: Course,
    /// What an operator put in place of some of it.
    pub edit: Option<Edit>,
    /// The fields that the edit changes, by their places.
    edited: Vec<(usize, Value)>,
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
    /// Reads it.
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
        let class = compiled.application.notifications.get(&head.class);
        let conduct = Arc::new(class.map(|class| class.conduct.clone()).unwrap_or_default());
        let counters = flow.classes.notifications(&head.application, &head.class);
        let course = item.course.clone();
        let (edit, edited) = match (&course.edit, class) {
            (Some(text), Some(class)) => {
                let unreadable = |what: String| Unreadable::ForGood(format!("the edit of {}: {what}", item.claim.id));
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
            conduct,
            counters,
            attempts,
            course,
            edit,
            edited,
            events,
            batch,
        })
    }

    /// The notifications of the batch.
    pub fn notifications(&self) -> &Notifications {
        &self.batch.notifications
    }

    /// The id of one of them.
    pub fn id(&self, ordinal: u32) -> NotificationId {
        NotificationId { batch: self.batch.id, ordinal }
    }

    /// How the fields of the class are filled.
    pub fn notify(&self) -> Result<&NotifyFields, Reason> {
        let head = &self.batch.head;
        self.compiled.notify.get(&head.rule).ok_or_else(|| self.gone("rule", &head.rule))
    }

    /// What the version that made the batch does not have.
    pub fn gone(&self, what: &str, name: &Name) -> Reason {
        let text = format!("version {} has no {what} `{name}`", self.batch.head.version);
        Reason::new(ReasonKind::Internal, text)
    }

    /// The event that a notification tells of.
    pub fn event(&self, ordinal: u32) -> Result<&LoadedEvent, Reason> {
        self.events.get(&self.event_of[ordinal as usize]).ok_or_else(|| {
            Reason::new(ReasonKind::Internal, "the event is gone, so its notification cannot be formatted")
        })
    }

    fn event_class(&self) -> Option<&EventClass> {
        self.compiled.event_class(&self.batch.head.event_class)
    }

    /// Whether its events are in ordered mode. What is told together has no order among the others.
    pub fn is_ordered(&self) -> bool {
        self.conduct.digest.is_none() && self.event_class().is_some_and(|class| class.ordered.is_some())
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

    /// The fields of a notification.
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
        let trace = batch.events.traces().find(ordinal as u32).map(|(first, context)| (first, context.clone()));
        events.insert(id, LoadedEvent { row, scope, accepted_at: batch.accepted_at, trace });
    }
    Ok(())
}
