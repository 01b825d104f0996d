//! Quanta, for reports. A quantum is one run of the matcher over waiting event batches.

use tocsin_model::{
    id::{EventBatchId, Name, NotificationBatchId},
    pack::{Damaged, Reader, write_signed, write_varint},
    time::Timestamp,
};

/// Event batch processed by a quantum.
#[derive(Debug, Clone)]
pub struct QuantumInput {
    /// Batch number.
    pub id: EventBatchId,
    /// Application.
    pub application: Name,
    /// Event class.
    pub class: Name,
    /// Source that submitted it.
    pub source: Name,
    /// Acceptance time.
    pub accepted_at: Timestamp,
    /// Number of events.
    pub events: u32,
}

/// Statistics of a quantum, as recorded by the step that ends it.
#[derive(Debug, Clone)]
pub struct NewQuantum {
    /// Time at which its event batches were claimed.
    pub started_at: Timestamp,
    /// Time at which they were matched.
    pub ended_at: Timestamp,
    /// Its event batches, in order.
    pub batches: Vec<QuantumInput>,
    /// Number of the step's notifications that come from schedules.
    pub scheduled_notifications: u64,
}

/// One run of the matcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantum {
    /// Quantum number.
    pub id: u64,
    /// Time at which its event batches were claimed.
    pub started_at: Timestamp,
    /// Time at which they were matched.
    pub ended_at: Timestamp,
    /// Acceptance time of its first event batch.
    pub first_accepted_at: Timestamp,
    /// Acceptance time of its last event batch.
    pub last_accepted_at: Timestamp,
    /// Number of its first event batch.
    pub first_events: EventBatchId,
    /// Number of its last event batch. Batches in between belong to it if they were matched or set aside at the same
    /// time.
    pub last_events: EventBatchId,
    /// Number of event batches.
    pub event_batches: u64,
    /// Number of events.
    pub events: u64,
    /// Number of event batches set aside.
    pub failed_batches: u64,
    /// Notifications caused by events.
    pub event_notifications: u64,
    /// Notifications caused by schedules.
    pub scheduled_notifications: u64,
    /// Number of its first notification batch; the others follow consecutively.
    pub first_batch: Option<NotificationBatchId>,
    /// Number of notification batches.
    pub notification_batches: u64,
    /// Firings that failed.
    pub firings_failed: u64,
    /// Firings that were skipped.
    pub firings_skipped: u64,
}

impl Quantum {
    /// Packed encoding of everything but the number and the two times.
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

    /// Reads the packed encoding.
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
