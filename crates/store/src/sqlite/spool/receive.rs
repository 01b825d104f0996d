//! Accepts messages: alone, with parts, or with the outcome of their only leg.

use std::sync::{Arc, atomic::Ordering};

use rusqlite::Connection;
use tocsin_model::{
    id::{MessageId, Name},
    time::Timestamp,
};
use tokio::sync::oneshot;

use crate::{
    error::StoreError,
    spool::{IdempotencyKey, LegOutcome, MessageAcceptance, NewMessage, ReceivedMessage, SettleResult},
    sqlite::{
        spool::{
            intake, outcomes,
            spool_files::{RESERVED_IDS, ReservedIds, SqliteSpool},
        },
        writer::AfterCommit,
    },
};

impl SqliteSpool {
    /// Result of storing a message with this key, if one exists.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn known(
        &self,
        exchange: &Name,
        port: &Name,
        sender: &str,
        key: &IdempotencyKey,
    ) -> Result<Option<MessageAcceptance>, StoreError> {
        for partition in &self.partitions {
            let (exchange, port, key) = (exchange.clone(), port.clone(), key.clone());
            let sender = sender.to_owned();
            let find = move |connection: &Connection| intake::find_key(connection, (&exchange, &port), &sender, &key);
            if let Some(known) = partition.read(find).await? {
                return Ok(Some(known));
            }
        }
        Ok(None)
    }

    /// The same for a message whose key may be stored in another partition.
    async fn find_in_other_partitions(&self, new: &NewMessage) -> Result<Option<MessageAcceptance>, StoreError> {
        let Some(key) = &new.key else { return Ok(None) };
        let here = self.assignment.of(new.id);
        for other in self.assignment.former_of_key(&new.exchange, &new.port, &key.key) {
            if other != here {
                let (exchange, port, key) = (new.exchange.clone(), new.port.clone(), key.clone());
                let sender = new.sender.clone();
                let find =
                    move |connection: &Connection| intake::find_key(connection, (&exchange, &port), &sender, &key);
                if let Some(known) = self.at(other).read(find).await? {
                    return Ok(Some(known));
                }
            }
        }
        Ok(None)
    }

    /// Stores a message with its legs, unless its key exists. Its parts or its membership in a group are stored in
    /// the same commit.
    ///
    /// # Errors
    /// Nothing was stored; `Full` if the disk is full.
    pub async fn accept(&self, taken: impl Into<ReceivedMessage>) -> Result<MessageAcceptance, StoreError> {
        let (answer, answered) = oneshot::channel();
        let answer = move |accepted| _ = answer.send(accepted);
        self.accept_then(Arc::new(taken.into()), answer).await;
        let (accepted, _) = answered.await.map_err(StoreError::unavailable)??;
        Ok(accepted)
    }

    /// The same with a callback: `stored` is called after the commit or its failure. It must be quick, since the
    /// writer waits. It also gets the time at which the message's group is due, if any.
    pub async fn accept_then(
        &self,
        taken: Arc<ReceivedMessage>,
        stored: impl FnOnce(Result<(MessageAcceptance, Option<Timestamp>), StoreError>) + Send + 'static,
    ) {
        let known = match self.free_space.check() {
            Ok(()) => self.find_in_other_partitions(&taken.whole).await,
            Err(error) => Err(error),
        };
        if let Some(known) = known.transpose() {
            return stored(known.map(|known| (known, None)));
        }
        let partition = self.of(taken.whole.id);
        let open = partition.open.clone();
        let job = move |connection: &Connection, after: &mut AfterCommit| {
            if let Some(known) = intake::find_known(connection, &taken.whole)? {
                return Ok((known, None));
            }
            let (change, due_at) = intake::insert_received(connection, &taken)?;
            open.change_after(after, &taken.whole.exchange, change);
            Ok((MessageAcceptance::New, due_at))
        };
        partition.write_retryable_then(job, stored);
    }

    /// Whether an id is reserved durably, so that the message can be sent before it is stored. If not, starts a
    /// reservation for later ids.
    pub fn is_reserved(&self, id: MessageId) -> bool {
        let ReservedIds { last, is_pending } = &*self.reserved_ids;
        let taken = last.load(Ordering::Acquire);
        if self.assignment.ids_ahead(RESERVED_IDS / 2).0 > taken && !is_pending.swap(true, Ordering::AcqRel) {
            let (until, reserved_ids) = (self.assignment.ids_ahead(RESERVED_IDS), self.reserved_ids.clone());
            let job = move |connection: &Connection, _: &mut AfterCommit| outcomes::reserve_ids(connection, until);
            self.first().write_retryable_then(job, move |stored| {
                if stored.is_ok() {
                    reserved_ids.last.store(until.0, Ordering::Release);
                }
                reserved_ids.is_pending.store(false, Ordering::Release);
            });
        }
        id.0 <= taken
    }

    /// Checks whether new messages are accepted as far as disk space is concerned.
    ///
    /// # Errors
    /// `Full`: the free space is below the reserve.
    pub fn room(&self) -> Result<(), StoreError> {
        self.free_space.check()
    }

    /// Stores a message that was sent before the commit together with its outcome. The message has no key, and is
    /// neither split nor aggregated. `stored` is called as by [`SqliteSpool::accept_then`].
    pub fn accept_settled_then(
        &self,
        taken: Arc<ReceivedMessage>,
        outcome: Arc<LegOutcome>,
        stored: impl FnOnce(Result<SettleResult, StoreError>) + Send + 'static,
    ) {
        if let Err(error) = self.free_space.check() {
            return stored(Err(error));
        }
        let partition = self.of(outcome.message);
        let open = partition.open.clone();
        let job = move |connection: &Connection, after: &mut AfterCommit| {
            let (settled, change) = outcomes::insert_settled(connection, &taken, &outcome)?;
            open.change_after(after, &outcome.exchange, change);
            Ok(settled)
        };
        partition.write_retryable_then(job, stored);
    }
}
