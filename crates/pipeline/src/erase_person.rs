//! Erases a person from the journal: from events that name it, and from its notifications.

use std::sync::Arc;

use bytes::Bytes;
use tocsin_matching::chronicle_columns;
use tocsin_model::{
    event::{EventBatch, PackedEvents},
    field::{Damaged, Fields, pack_row, unpack_row},
    id::{EventBatchId, SubscriberNumber},
    pack::write_bytes,
    value::Value,
};
use tocsin_store::{
    error::StoreError,
    journal::{ErasedEvents, ErasedNotifications, ErasedPerson, Erasure, EventBatchState, PersonNames},
};

use tokio::sync::oneshot;

use crate::{Flow, Pipeline, match_events};

/// Event batches rewritten per commit.
const BATCHES_MAX: usize = 16;

/// State of an erasure after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalErasure {
    /// The journal holds nothing more of the person.
    Done,
    /// Events that were accepted before it are not matched, or messages are being delivered.
    Waiting,
}

impl Pipeline {
    /// Stores the request to erase a person. It survives a restart; [`Pipeline::erase_from_journal`] executes it.
    ///
    /// # Errors
    /// The journal is unavailable.
    pub async fn begin_erasure(&self, person: ErasedPerson) -> Result<(), StoreError> {
        self.flow.erasures.begin_erasure(person, self.flow.clock.now()).await
    }

    /// Erasures that are not finished.
    ///
    /// # Errors
    /// The journal is unavailable.
    pub async fn erasures(&self) -> Result<Vec<Erasure>, StoreError> {
        self.flow.erasures.erasures().await
    }

    /// Erases a person from the journal, in small commits: after its removal from the records, so that nothing more is
    /// made for it. Continues after a crash where it was.
    ///
    /// # Errors
    /// The journal is unavailable; a backup is running.
    pub async fn erase_from_journal(&self, person: SubscriberNumber) -> Result<JournalErasure, StoreError> {
        let flow = &*self.flow;
        let Some(erasure) = find(flow, person).await? else { return Ok(JournalErasure::Done) };
        if erasure.person.is_some() {
            flow.erasures.erase_texts(&erasure, flow.clock.now()).await?;
            if !erase_events(flow, person).await? || !erase_notifications(flow, person).await? {
                return Ok(JournalErasure::Waiting);
            }
            if let Some(of) = &erasure.person {
                self.erase_chronicles(&of.names).await?;
            }
            // Failures and suspensions of the batches that were waiting.
            flow.erasures.erase_texts(&erasure, flow.clock.now()).await?;
        }
        flow.erasures.finish_erasure(person).await?;
        Ok(JournalErasure::Done)
    }
}

impl Pipeline {
    /// Removes the entries of chronicles that name a person, in all applications that run.
    async fn erase_chronicles(&self, names: &PersonNames) -> Result<(), StoreError> {
        let names = Arc::new(names.clone());
        for (application, _) in self.status() {
            let (done, erased) = oneshot::channel();
            let command = match_events::Command::Erase(application, names.clone(), done);
            let stopped = || StoreError::unavailable("the server is shutting down");
            self.commands.send(command).await.map_err(|_| stopped())?;
            erased.await.unwrap_or_else(|_| Err(stopped()))?;
        }
        Ok(())
    }
}

async fn find(flow: &Flow, person: SubscriberNumber) -> Result<Option<Erasure>, StoreError> {
    Ok(flow.erasures.erasures().await?.into_iter().find(|erasure| erasure.number == person))
}

/// Erases the events that name the person, up to the first batch that is not matched. Returns whether there is none.
async fn erase_events(flow: &Flow, person: SubscriberNumber) -> Result<bool, StoreError> {
    loop {
        let Some(erasure) = find(flow, person).await? else { return Ok(true) };
        let Some(of) = erasure.person.as_ref().filter(|_| erasure.events < erasure.last_event) else {
            return Ok(true);
        };
        let (found, mut examined) = flow.erasures.event_batches_naming(&erasure, BATCHES_MAX).await?;
        let (mut erased, mut is_waiting) = (Vec::new(), false);
        for id in found {
            let Some((batch, state)) = flow.event_log.event_batch(id).await? else { continue };
            if state == EventBatchState::Accepted {
                (examined, is_waiting) = (EventBatchId(id.0 - 1), true);
                break;
            }
            let fields = flow.versions.event_fields(&batch).await?.ok();
            match erased_batch(&batch, fields.as_ref(), &of.names) {
                Ok(Some(events)) => erased.push(events),
                Ok(None) => {}
                Err(Damaged) => tracing::error!(batch = %id, "a damaged event batch was not examined for an erasure"),
            }
        }
        let count: usize = erased.len();
        flow.erasures.erase_events(person, erased, examined).await?;
        metrics::counter!("tocsin_erasure_batches_total", "kind" => "events").increment(count as u64);
        if is_waiting {
            return Ok(false);
        }
        tokio::task::yield_now().await;
    }
}

/// Erases notifications. Returns whether no more will be made or delivered.
async fn erase_notifications(flow: &Flow, person: SubscriberNumber) -> Result<bool, StoreError> {
    loop {
        let Some(erasure) = find(flow, person).await? else { return Ok(true) };
        match flow.erasures.erase_notifications(&erasure, flow.clock.now()).await? {
            ErasedNotifications::Some(_) => tokio::task::yield_now().await,
            ErasedNotifications::All(_) => return Ok(true),
            ErasedNotifications::Waiting(_) => return Ok(false),
        }
    }
}

/// The batch without the values of events that name the person; `None` if no event does. Without the fields, an event
/// in which the bytes of a name are found loses its whole row.
fn erased_batch(
    batch: &EventBatch,
    fields: Option<&Fields>,
    names: &PersonNames,
) -> Result<Option<ErasedEvents>, Damaged> {
    let mut bytes = Vec::with_capacity(batch.events.bytes().len());
    let mut erased = Vec::new();
    for (ordinal, row) in batch.events.rows().enumerate() {
        let row = row?;
        let is_named = match fields {
            Some(fields) => {
                names.may_be_in(row) && unpack_row(fields, row)?.iter().any(|value| names.is_in_value(value))
            }
            None => names.may_be_in(row),
        };
        match (is_named, fields) {
            (false, _) => write_bytes(&mut bytes, row),
            (true, Some(fields)) => {
                let mut empty = Vec::new();
                pack_row(fields, &vec![Value::Null; fields.len()], &mut empty);
                write_bytes(&mut bytes, &empty);
            }
            (true, None) => write_bytes(&mut bytes, &[]),
        }
        if is_named {
            erased.push(ordinal);
        }
    }
    let chronicled = chronicle_columns::erase(&batch.chronicled, |ordinal, value| {
        erased.binary_search(&ordinal).is_ok() || names.is_in_value(value)
    })?;
    if erased.is_empty() && chronicled.is_none() {
        return Ok(None);
    }
    let events = PackedEvents::from_parts(batch.events.count(), Bytes::from(bytes));
    Ok(Some(ErasedEvents {
        batch: batch.id,
        events: events.with_traces(batch.events.traces().clone()),
        chronicled: chronicled.unwrap_or_else(|| batch.chronicled.clone()),
    }))
}

#[cfg(test)]
mod tests {
    use tocsin_model::{
        event::EventPacker,
        field::{Field, FieldType},
        time::Timestamp,
    };

    use super::*;

    #[test]
    fn an_event_that_names_the_person_loses_its_values_and_others_stay_as_they_are() {
        let name = |text: &str| text.parse().expect("a name");
        let fields = Fields::new(vec![
            Field::new(name("customer"), FieldType::String),
            Field::new(name("note"), FieldType::String),
            Field::new(name("amount"), FieldType::Integer),
            Field::new(name("to"), FieldType::List),
        ]);
        let row = |customer: &str, to: &str| {
            let to = Value::from(serde_json::json!([to]));
            vec![Value::from(customer), Value::from("a secret"), Value::Integer(5), to]
        };
        let rows = [
            row("ann", "x"),
            row("joann", "x"),
            row("bob", "ann.lee@example.org"),
            row("bob", "ann.leeds@example.org"),
        ];
        let mut packer = EventPacker::new(fields.clone());
        rows.iter().for_each(|row| packer.push(row));
        let batch = EventBatch {
            id: EventBatchId(7),
            application: name("shop"),
            version: 1,
            class: name("order"),
            source: name("api"),
            received_at: Timestamp(0),
            accepted_at: Timestamp(0),
            snapshot_sequence: None,
            events: packer.finish(),
            chronicled: Bytes::new(),
        };
        let names = PersonNames::new(["ann".to_owned(), "ann.lee@example.org".to_owned()]);
        let erased = erased_batch(&batch, Some(&fields), &names).expect("readable").expect("erased");
        let read = |ordinal| erased.events.row(&fields, ordinal).expect("readable");
        let nothing = vec![Value::Null; 4];
        assert_eq!((read(0), read(2)), (nothing.clone(), nothing));
        assert_eq!((read(1), read(3)), (rows[1].clone(), rows[3].clone()));
        let others = PersonNames::new(["carol".to_owned()]);
        assert_eq!(erased_batch(&batch, Some(&fields), &others), Ok(None));
        // The version is gone: the bytes decide.
        let erased = erased_batch(&batch, None, &names).expect("readable").expect("erased");
        assert!(erased.events.rows().map(|row| row.expect("a row")).all(|row| !names.may_be_in(row)));
    }
}
