//! Monitoring and operation of the flow: event batches, notification batches, notifications, and suspensions.

use tocsin_model::{
    broadcast::{broadcast_class, broadcast_fields, broadcast_source},
    event::EventBatch,
    id::{EventBatchId, Name, NotificationBatchId, NotificationId, SubscriptionId},
    notification::NotificationHead,
    receipt::{Attempt, Outcome},
    value::Value,
};
use tocsin_pipeline::CompiledBroadcast;
use tocsin_store::{
    journal::{
        EventBatchState, Resolution, StoredNotificationBatch, StoredSuspension, SuspensionFilter, notification_of,
    },
    records::Recipient,
};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    known::Part,
    page::Page,
    run_mode::RunMode,
};

/// Suspensions read at a time.
pub(crate) const SUSPENSIONS_PAGE: usize = 1_000;

/// A notification with all its data.
#[derive(Debug, Clone)]
pub struct Notification {
    /// Its id.
    pub id: NotificationId,
    /// Head of its batch.
    pub head: NotificationHead,
    /// Its subscription.
    pub subscription: SubscriptionId,
    /// Its event, as named values; `None` if the event was removed or is unreadable.
    pub event: Option<Vec<(String, Value)>>,
    /// The event's id.
    pub event_id: tocsin_model::id::EventId,
    /// Its fields, as rendered; without its event, only those that were computed at the match.
    pub fields: Vec<(String, Value)>,
    /// Its current recipient; `None` if the subscription was removed.
    pub recipient: Option<Recipient>,
    /// Attempts, oldest first.
    pub attempts: Vec<Attempt>,
    /// The last attempt's outcome; `None` before the first.
    pub outcome: Option<Outcome>,
}

/// A notification batch with counts by outcome.
#[derive(Debug, Clone)]
pub struct NotificationBatch {
    /// Its id.
    pub id: NotificationBatchId,
    /// Head of the batch.
    pub head: NotificationHead,
    /// Number of notifications.
    pub count: u32,
    /// Number of notifications by outcome of the last attempt, in the order of `Outcome::ALL`.
    pub outcomes: [u32; Outcome::ALL.len()],
    /// Number of notifications not tried yet.
    pub untried: u32,
}

impl Service {
    /// Lists event batches before `before`, newest first, without their events, with counts.
    ///
    /// # Errors
    /// The scope `operations:read` is missing, or the journal is unavailable.
    pub async fn event_batches(
        &self,
        caller: &Caller,
        before: Option<EventBatchId>,
        limit: usize,
    ) -> Result<Page<(EventBatch, EventBatchState)>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let found = self.event_log.event_batches(before, limit).await?;
        let next = if found.len() == limit { found.last().map(|(batch, _)| batch.id.to_string()) } else { None };
        Ok(Page { items: found, next })
    }

    /// Returns an event batch with its state.
    ///
    /// # Errors
    /// The batch does not exist (any more).
    pub async fn event_batch(
        &self,
        caller: &Caller,
        id: EventBatchId,
    ) -> Result<(EventBatch, EventBatchState), ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        self.find_event_batch(id).await
    }

    /// Returns the events of a batch after the ordinal `after`, as named values.
    ///
    /// # Errors
    /// The batch does not exist, or the version that packed it is unreadable.
    pub async fn events_of(
        &self,
        caller: &Caller,
        id: EventBatchId,
        from: u32,
        limit: usize,
    ) -> Result<(Vec<Vec<(String, Value)>>, Option<u32>), ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let (batch, _) = self.find_event_batch(id).await?;
        self.named_events(&batch, from, limit).await
    }

    /// A page of events of a batch.
    pub(crate) async fn named_events(
        &self,
        batch: &EventBatch,
        from: u32,
        limit: usize,
    ) -> Result<(Vec<Vec<(String, Value)>>, Option<u32>), ServiceError> {
        let fields = self.fields_of(batch).await?;
        let mut events = Vec::new();
        for row in batch.events.rows().skip(from as usize).take(limit) {
            let row = row.and_then(|row| tocsin_model::field::unpack_row(&fields, row));
            events.push(named(&fields, row.map_err(|error| ServiceError::Unavailable(error.into()))?));
        }
        let end = from.saturating_add(events.len() as u32);
        Ok((events, (end < batch.events.count()).then_some(end)))
    }

    /// Lists notification batches before `before`, newest first: heads and counts.
    ///
    /// # Errors
    /// The scope `operations:read` is missing, or the journal is unavailable.
    pub async fn notification_batches(
        &self,
        caller: &Caller,
        before: Option<NotificationBatchId>,
        limit: usize,
    ) -> Result<Page<(NotificationBatchId, NotificationHead, u32)>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let found = self.notification_log.notification_batches(before, limit).await?;
        let next = if found.len() == limit { found.last().map(|(id, _, _)| id.to_string()) } else { None };
        Ok(Page { items: found, next })
    }

    /// Returns a notification batch with its counts.
    ///
    /// # Errors
    /// It does not exist (any more).
    pub async fn notification_batch(
        &self,
        caller: &Caller,
        id: NotificationBatchId,
    ) -> Result<NotificationBatch, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let stored = self.find_notification_batch(id).await?;
        let attempts = self.notification_log.attempts(id).await?;
        Ok(counted(&stored, &attempts))
    }

    /// Returns a notification.
    ///
    /// # Errors
    /// It does not exist (any more).
    pub async fn notification(&self, caller: &Caller, id: NotificationId) -> Result<Notification, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        self.find_notification(id).await
    }

    pub(crate) async fn find_notification(&self, id: NotificationId) -> Result<Notification, ServiceError> {
        let stored = self.find_notification_batch(id.batch).await?;
        notification_of(&stored, id.ordinal).ok_or_else(|| ServiceError::Missing(format!("the notification {id}")))?;
        let at = id.ordinal as usize;
        let notifications = &stored.notifications;
        let subscription = notifications.subscriptions[at];
        let event_id = notifications.event_of_each().nth(at).ok_or_else(|| damaged(id.batch))?;
        let captured = |name: &Name| {
            let column = notifications.captured.iter().find(|(captured, _)| captured == name);
            column.and_then(|(_, column)| column.value(at))
        };
        let (compiled, broadcast) = self.pipeline.version_of(&stored.head).await?.unzip();
        let broadcast = broadcast.flatten();
        let event = match self.event_log.event_batch(event_id.batch).await? {
            // The event of a broadcast follows from its draft.
            _ if broadcast.is_some() => None,
            Some((batch, _)) => match self.fields_of(&batch).await {
                Ok(fields) => batch.events.row(&fields, event_id.ordinal).ok().map(|row| (batch, fields, row)),
                Err(_) => None,
            },
            None => None,
        };
        let notify = compiled.as_ref().and_then(|compiled| compiled.notify.get(&stored.head.rule));
        let whole = match (&event, notify) {
            (Some((batch, fields, row)), Some(notify)) => {
                let reader = notify.reader(batch, fields);
                let event = reader.and_then(|reader| reader.row(event_id.ordinal, row.clone()));
                event.ok().and_then(|event| notify.row(&event, captured).ok()).map(|row| named(notify.fields(), row))
            }
            _ => None,
        };
        let fields = whole.unwrap_or_else(|| {
            let names = notifications.captured.iter().map(|(name, _)| name);
            names.map(|name| (name.to_string(), captured(name).unwrap_or_default())).collect()
        });
        let (event, fields) = match broadcast {
            Some(broadcast) => broadcast_values(&broadcast, &stored.head.rule, captured).unwrap_or((None, fields)),
            None => (event.map(|(_, fields, row)| named(&fields, row)), fields),
        };
        let recipient = self.recipient_store.recipients(&[subscription]).await?.pop().flatten();
        let mut attempts = self.notification_log.attempts(id.batch).await?;
        attempts.retain(|attempt| attempt.ordinal == id.ordinal);
        let outcome = attempts.last().map(|attempt| attempt.outcome);
        Ok(Notification { id, head: stored.head, subscription, event, event_id, fields, recipient, attempts, outcome })
    }

    /// Lists suspensions after the number `after`, oldest first.
    ///
    /// # Errors
    /// The scope `operations:read` is missing, or the journal is unavailable.
    pub async fn suspensions(
        &self,
        caller: &Caller,
        filter: &SuspensionFilter,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Page<StoredSuspension>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let found = self.operator_actions.scan_suspensions(filter, after.unwrap_or(0), limit).await?;
        if found.items.is_empty() && after.is_none() {
            self.check_known_suspensions(filter).await?;
        }
        Ok(Page { items: found.items, next: found.next.map(|next| next.to_string()) })
    }

    async fn check_known_suspensions(&self, filter: &SuspensionFilter) -> Result<(), ServiceError> {
        let SuspensionFilter { application, channel, class, .. } = filter;
        let parts = [(Part::Channel, channel.as_ref()), (Part::NotificationClass, class.as_ref())];
        self.check_known(application.as_ref(), &parts).await
    }

    /// Resumes or ends all suspensions that match the filter; an empty one needs `all`. Returns the number of
    /// notifications. A dry run counts them.
    ///
    /// # Errors
    /// The scope `operations:write` is missing; the filter is empty without `all`.
    pub async fn resolve_suspensions(
        &self,
        caller: &Caller,
        filter: &SuspensionFilter,
        all: bool,
        resolution: Resolution,
        mode: RunMode,
    ) -> Result<u64, ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        self.check_suspensions(caller, filter).await?;
        // Every reason contains the empty text, so it would select all suspensions; that requires `all`.
        if filter.reason.as_deref() == Some("") {
            let problem = tocsin_model::problem::Problem::new(tocsin_model::problem::Code::Empty, "reason", "is empty");
            return Err(ServiceError::Invalid(vec![problem.hint(r#"give a part of the reason, or {"all": true}"#)]));
        }
        if !all && *filter == SuspensionFilter::default() {
            let problem =
                tocsin_model::problem::Problem::new(tocsin_model::problem::Code::Required, "", "names no suspension");
            return Err(ServiceError::Invalid(vec![
                problem.hint(r#"give a filter, or {"all": true} to mean every one"#),
            ]));
        }
        let notifications = match mode {
            RunMode::DryRun => self.count_suspended(filter).await?,
            RunMode::Apply => self.operator_actions.resolve(filter, resolution, self.clock.now()).await?,
        };
        if notifications == 0 {
            self.check_known_suspensions(filter).await?;
        }
        if mode.is_dry() {
            return Ok(notifications);
        }
        tracing::info!(notifications, ?resolution, by = caller.key(), "resolved suspensions");
        Ok(notifications)
    }

    async fn count_suspended(&self, filter: &SuspensionFilter) -> Result<u64, ServiceError> {
        let (mut count, mut after) = (0, 0);
        loop {
            let found = self.operator_actions.scan_suspensions(filter, after, SUSPENSIONS_PAGE).await?;
            count += found.items.iter().map(|stored| stored.suspension.ordinals.len() as u64).sum::<u64>();
            let Some(next) = found.next else { return Ok(count) };
            after = next;
        }
    }

    pub(crate) async fn find_event_batch(
        &self,
        id: EventBatchId,
    ) -> Result<(EventBatch, EventBatchState), ServiceError> {
        self.event_log.event_batch(id).await?.ok_or_else(|| ServiceError::Missing(format!("the event batch {id}")))
    }

    pub(crate) async fn find_notification_batch(
        &self,
        id: NotificationBatchId,
    ) -> Result<StoredNotificationBatch, ServiceError> {
        let found = self.notification_log.notification_batch(id).await?;
        found.ok_or_else(|| ServiceError::Missing(format!("the notification batch {id}")))
    }

    /// The fields that a batch was packed with.
    pub(crate) async fn fields_of(&self, batch: &EventBatch) -> Result<tocsin_model::field::Fields, ServiceError> {
        if batch.source == broadcast_source() && batch.class == broadcast_class() {
            return Ok(broadcast_fields());
        }
        let compiled = self.pipeline.version(&batch.application, batch.version).await?;
        let class = compiled.as_ref().and_then(|compiled| compiled.application.events.get(&batch.class));
        class.map(|class| class.fields.clone()).ok_or_else(|| {
            ServiceError::Missing(format!(
                "the version {} of `{}` that packed {}",
                batch.version, batch.application, batch.id
            ))
        })
    }
}

pub(crate) fn counted(stored: &StoredNotificationBatch, attempts: &[Attempt]) -> NotificationBatch {
    let count = stored.notifications.count();
    let mut last: Vec<Option<Outcome>> = vec![None; count];
    for attempt in attempts {
        if let Some(outcome) = last.get_mut(attempt.ordinal as usize) {
            *outcome = Some(attempt.outcome);
        }
    }
    let mut outcomes = [0; Outcome::ALL.len()];
    for outcome in last.iter().flatten() {
        outcomes[*outcome as usize] += 1;
    }
    let untried = last.iter().filter(|outcome| outcome.is_none()).count() as u32;
    NotificationBatch { id: stored.id, head: stored.head.clone(), count: count as u32, outcomes, untried }
}

pub(crate) fn named(fields: &tocsin_model::field::Fields, row: Vec<Value>) -> Vec<(String, Value)> {
    fields.iter().map(|field| field.name.to_string()).zip(row).filter(|(_, value)| !value.is_null()).collect()
}

/// The event of a broadcast and the fields of one of its notifications, as named values.
fn broadcast_values(
    broadcast: &CompiledBroadcast,
    rule: &Name,
    captured: impl Fn(&Name) -> Option<Value>,
) -> Option<(Option<NamedValues>, NamedValues)> {
    let class = broadcast.compiled.application.events.get(&broadcast_class())?;
    let notify = broadcast.compiled.notify.get(rule)?;
    let event = broadcast.rules().bare_row(&broadcast_class(), broadcast.event.clone());
    let fields = named(notify.fields(), notify.row(&event, captured).ok()?);
    Some((Some(named(&class.fields, broadcast.event.clone())), fields))
}

type NamedValues = Vec<(String, Value)>;

fn damaged(id: NotificationBatchId) -> ServiceError {
    ServiceError::Unavailable(format!("the notification batch {id} is damaged").into())
}
