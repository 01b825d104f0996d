//! Legs that leave: due legs, their outcomes, timeouts and retention.

use std::{collections::HashSet, sync::Arc};

use rusqlite::Connection;
use tocsin_model::{
    id::{MessageId, Name},
    time::Timestamp,
};
use tokio::sync::oneshot;

use crate::{
    error::StoreError,
    spool::{
        CorrelatedLeg, CorrelationKey, ExpiredMessages, LegOrder, LegOutcome, SettleResult, WaitingLeg, WaitingLegs,
    },
    sqlite::{
        spool::{due_legs, outcomes, spool_files::SqliteSpool, views},
        writer::AfterCommit,
    },
};

impl SqliteSpool {
    /// Finds the first leg that awaits a reply with one of these correlation keys; if none waits any more, the last
    /// one that did.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn awaiting(
        &self,
        exchange: &Name,
        awaits: Vec<CorrelationKey>,
    ) -> Result<Option<CorrelatedLeg>, StoreError> {
        let awaits = Arc::new(awaits);
        let found = self.of_all(|partition| {
            let (exchange, awaits) = (exchange.clone(), awaits.clone());
            partition.read(move |connection| outcomes::awaiting(connection, &exchange, &awaits))
        });
        let found = found.await?.into_iter().flatten();
        Ok(found.min_by_key(|leg| (!leg.waits, if leg.waits { leg.message.0 } else { u64::MAX - leg.message.0 })))
    }

    /// Stores the outcome of an attempt, and the reply with its legs, in one commit. The reply's id is of the same
    /// partition.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn settle(&self, outcome: LegOutcome) -> Result<SettleResult, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.settle_then(Arc::new(outcome), move |settled| _ = answer.send(settled));
        answered.await.map_err(StoreError::unavailable)?
    }

    /// The same with a callback: `stored` is called after the commit or its failure. It must be quick, since the
    /// writer waits.
    pub fn settle_then(
        &self,
        outcome: Arc<LegOutcome>,
        stored: impl FnOnce(Result<SettleResult, StoreError>) + Send + 'static,
    ) {
        let partition = self.of(outcome.message);
        let open = partition.open.clone();
        let job = move |connection: &Connection, after: &mut AfterCommit| {
            let (settled, change) = outcomes::settle(connection, &outcome)?;
            open.change_after(after, &outcome.exchange, change);
            Ok(settled)
        };
        partition.write_retryable_then(job, stored);
    }

    /// Up to `limit` due legs of a send port with everything that sending needs, in the given order, without those in
    /// `not`. Stops after about `bytes_max` bytes of bodies.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn due_legs(
        &self,
        exchange: &Name,
        port: &Name,
        order: LegOrder,
        now: Timestamp,
        not: Arc<HashSet<(MessageId, u32)>>,
        (limit, bytes_max): (usize, usize),
    ) -> Result<Vec<WaitingLeg>, StoreError> {
        let (exchange, port) = (exchange.clone(), port.clone());
        let asked = due_legs::DueLegsQuery { exchange, port, now, not, limit, bytes_max };
        if let [only] = &self.partitions[..] {
            return only.read(move |connection| due_legs::due_legs(connection, &asked, order)).await;
        }
        due_legs::due_legs_of_all(&self.partitions, asked, order, self.assignment.horizon()).await
    }

    /// Due time of the next leg of a send port that is not due yet.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn next_due(
        &self,
        exchange: &Name,
        port: &Name,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StoreError> {
        let next = self.of_all(|partition| {
            let (exchange, port) = (exchange.clone(), port.clone());
            partition.read(move |connection| due_legs::next_due(connection, &exchange, &port, now))
        });
        Ok(next.await?.into_iter().flatten().min())
    }

    /// Legs that wait to be sent, by exchange and send port. A port can occur several times.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn waiting_legs(&self, now: Timestamp) -> Result<Vec<WaitingLegs>, StoreError> {
        let all = self.of_all(|partition| partition.read(move |connection| views::waiting_legs(connection, now)));
        Ok(all.await?.into_iter().flatten().collect())
    }

    /// Ends requests whose reply timeout has passed, and suspends legs whose later reply did not come in time, up to
    /// `limit` of each per partition.
    ///
    /// # Errors
    /// The messages of at least one partition are unchanged.
    pub async fn expire(&self, now: Timestamp, limit: usize) -> Result<ExpiredMessages, StoreError> {
        let over = self.of_all(|partition| {
            let open = partition.open.clone();
            partition.write(move |connection, after| {
                let (over, changes) = outcomes::expire(connection, now, limit)?;
                changes.count_after(after, &open);
                Ok(over)
            })
        });
        let mut all = ExpiredMessages::default();
        for over in over.await? {
            all.expired.extend(over.expired);
            all.unanswered.extend(over.unanswered);
            all.next = all.next.into_iter().chain(over.next).min();
        }
        Ok(all)
    }

    /// Deletes messages past their retention, up to `limit` per partition. Returns their number.
    ///
    /// # Errors
    /// Nothing was deleted.
    pub async fn prune(&self, now: Timestamp, limit: usize) -> Result<u64, StoreError> {
        let pruned =
            self.of_all(|partition| partition.write(move |connection, _| outcomes::prune(connection, now, limit)));
        Ok(pruned.await?.into_iter().sum())
    }
}
