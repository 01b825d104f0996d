//! Quanta: turns of the matcher over the event batches that wait, as they are told in reports.

use tocsin_model::{
    id::{EventBatchId, Name, NotificationBatchId},
    pack::{Damaged, Reader, write_signed, write_varint},
    time::Timestamp,
};

use super::{FiringStatus, Step};

/// An event batch that a quantum took up.
#[derive(Debug, Clone)]
pub struct TakenUp {
    /// Its number.
    pub id: EventBatchId,
    /// Its application.
    pub application: Name,
    /// Its class.
    pub class: Name,
    /// Who submitted it.
    pub source: Name,
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// Its events.
    pub events: u32,
}

/// What a step tells of the quantum that it ends.
#[derive(Debug, Clone)]
pub struct NewQuantum {
    /// When its event batches were claimed.
    pub started_at: Timestamp,
    /// When they were matched.
    pub ended_at: Timestamp,
    /// What it took up, in order.
    pub batches: Vec<TakenUp>,
    /// How many of the notifications of the step come from schedules.
    pub scheduled_notifications: u64,
}

/// One turn of the matcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantum {
    /// Its number.
    pub id: u64,
    /// When its event batches were claimed.
    pub started_at: Timestamp,
    /// When they were matched.
    pub ended_at: Timestamp,
    /// When the first of its event batches was accepted.
    pub first_accepted_at: Timestamp,
    /// When the last was.
    pub last_accepted_at: Timestamp,
    /// The first of its event batches.
    pub first_events: EventBatchId,
    /// The last. Those between them that were matched or set aside then are of it as well.
    pub last_events: EventBatchId,
    /// How many event batches.
    pub event_batches: u64,
    /// Events in them.
    pub events: u64,
    /// Those of the batches that were set aside.
    pub failed_batches: u64,
    /// Notifications that tell of events.
    pub event_notifications: u64,
    /// Notifications of schedules.
    pub scheduled_notifications: u64,
    /// The notification batches that it made have consecutive numbers, and this is the first.
    pub first_batch: Option<NotificationBatchId>,
    /// How many notification batches.
    pub notification_batches: u64,
    /// Firings that failed.
    pub firings_failed: u64,
    /// Firings that were skipped.
    pub firings_skipped: u64,
}

impl Quantum {
    /// What a step ends; `None`: it took up nothing.
    pub(crate) fn of(id: u64, step: &Step, first_batch: Option<NotificationBatchId>) -> Option<Quantum> {
        let new = step.quantum.as_ref()?;
        let made: u64 = step.batches.iter().map(|batch| u64::from(batch.count)).sum();
        let missed = |status| step.firings.iter().filter(|firing| firing.status == status).count() as u64;
        Some(Quantum {
            id,
            started_at: new.started_at,
            ended_at: new.ended_at,
            first_accepted_at: new.batches.iter().map(|batch| batch.accepted_at).min()?,
            last_accepted_at: new.batches.iter().map(|batch| batch.accepted_at).max()?,
            first_events: new.batches.iter().map(|batch| batch.id).min()?,
            last_events: new.batches.iter().map(|batch| batch.id).max()?,
            event_batches: new.batches.len() as u64,
            events: new.batches.iter().map(|batch| u64::from(batch.events)).sum(),
            failed_batches: step.failed.len() as u64,
            event_notifications: made.saturating_sub(new.scheduled_notifications),
            scheduled_notifications: new.scheduled_notifications,
            first_batch: first_batch.filter(|_| !step.batches.is_empty()),
            notification_batches: step.batches.len() as u64,
            firings_failed: missed(FiringStatus::Failed),
            firings_skipped: missed(FiringStatus::Skipped),
        })
    }

    /// The packed form of all but the number and the two times.
    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(40);
        write_signed(&mut out, self.started_at.0.wrapping_sub(self.first_accepted_at.0));
        write_signed(&mut out, self.started_at.0.wrapping_sub(self.last_accepted_at.0));
        for number in [
            self.first_events.0,
            self.last_events.0 - self.first_events.0,
            self.event_batches,
            self.events,
            self.failed_batches,
            self.event_notifications,
            self.scheduled_notifications,
            self.first_batch.map_or(0, |first| first.0),
            self.notification_batches,
            self.firings_failed,
            self.firings_skipped,
        ] {
            write_varint(&mut out, number);
        }
        out
    }

    /// Reads the packed form.
    ///
    /// # Errors
    /// The bytes are damaged.
    pub(crate) fn unpack(
        id: u64,
        started_at: Timestamp,
        ended_at: Timestamp,
        packed: &[u8],
    ) -> Result<Quantum, Damaged> {
        let mut reader = Reader::new(packed);
        let mut before = || Ok::<_, Damaged>(Timestamp(started_at.0.wrapping_sub(reader.signed()?)));
        let (first_accepted_at, last_accepted_at) = (before()?, before()?);
        let mut next = || reader.varint();
        let first_events = EventBatchId(next()?);
        let quantum = Quantum {
            id,
            started_at,
            ended_at,
            first_accepted_at,
            last_accepted_at,
            first_events,
            last_events: EventBatchId(first_events.0.wrapping_add(next()?)),
            event_batches: next()?,
            events: next()?,
            failed_batches: next()?,
            event_notifications: next()?,
            scheduled_notifications: next()?,
            first_batch: Some(NotificationBatchId(next()?)).filter(|first| first.0 > 0),
            notification_batches: next()?,
            firings_failed: next()?,
            firings_skipped: next()?,
        };
        if reader.is_empty() { Ok(quantum) } else { Err(Damaged) }
    }
}
