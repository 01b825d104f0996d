//! Operator actions on messages of all partitions.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use futures_util::future::try_join_all;
use rusqlite::Connection;
use tocsin_model::{
    id::{MessageId, Name},
    time::Timestamp,
};

use crate::{
    error::StoreError,
    spool::{AffectedCounts, EditedMessage, MessageEdit, NewLeg, ReprocessedMessage},
    sqlite::{
        spool::{operator_actions, orphaned_legs, spool_files::SqliteSpool},
        writer::AfterCommit,
    },
};

impl SqliteSpool {
    /// Resumes suspended legs, due at `now`, with no attempts counted. Each is given by message and leg number; legs
    /// of one message must be consecutive.
    ///
    /// # Errors
    /// The legs of at least one partition are unchanged.
    pub async fn resume_legs(
        &self,
        legs: Vec<(MessageId, u32)>,
        by: &str,
        now: Timestamp,
    ) -> Result<AffectedCounts, StoreError> {
        let mut by_partition: BTreeMap<_, Vec<_>> = BTreeMap::new();
        legs.into_iter().for_each(|leg| by_partition.entry(self.assignment.of(leg.0)).or_default().push(leg));
        let acts = by_partition.into_iter().map(|(number, legs)| {
            let by = by.to_owned();
            self.at(number).write(move |connection, _| operator_actions::resume_legs(connection, &legs, &by, now))
        });
        Ok(AffectedCounts::sum(try_join_all(acts).await?))
    }

    /// Suspends legs that wait for send ports of an exchange other than `known`, up to `limit` per partition and
    /// without those in `not`. Returns their messages. Cheap if there are none.
    ///
    /// # Errors
    /// The legs of at least one partition are unchanged.
    pub async fn suspend_orphaned_legs(
        &self,
        exchange: &Name,
        known: Arc<[Name]>,
        not: Arc<HashSet<(MessageId, u32)>>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<MessageId>, StoreError> {
        let suspended = self.of_all(|partition| {
            let (exchange, known, not) = (exchange.clone(), known.clone(), not.clone());
            async move {
                let of = exchange.clone();
                let ports = partition.read(move |connection| orphaned_legs::ports(connection, &of, &known)).await?;
                if ports.is_empty() {
                    return Ok(Vec::new());
                }
                let job = move |connection: &Connection, _: &mut AfterCommit| {
                    orphaned_legs::suspend(connection, &exchange, &ports, &not, limit, now)
                };
                partition.write(job).await
            }
        });
        Ok(suspended.await?.into_iter().flatten().collect())
    }

    /// Replaces suspended legs of a message by others, due at `now`, or stores the reason why there are none. Returns
    /// the number of new legs: zero if the old ones are no longer suspended.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn replace_legs(
        &self,
        exchange: &Name,
        id: MessageId,
        orphans: Vec<u32>,
        legs: Result<Vec<NewLeg>, String>,
        by: &str,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        let (exchange, by) = (exchange.clone(), by.to_owned());
        let job = move |connection: &Connection, _: &mut AfterCommit| {
            operator_actions::record_routed(connection, id, &legs, &by, now)?;
            orphaned_legs::replace(connection, (&exchange, id), &orphans, &legs, now)
        };
        self.of(id).write(job).await
    }

    /// Routes a message that is suspended as a whole: stores its legs, or another reason. Returns whether it was
    /// suspended.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn reroute(
        &self,
        id: MessageId,
        legs: Result<Vec<NewLeg>, String>,
        by: &str,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let by = by.to_owned();
        let job = move |connection: &Connection, _: &mut AfterCommit| {
            let was_suspended = operator_actions::reroute(connection, id, &legs, now)?;
            if was_suspended {
                operator_actions::record_routed(connection, id, &legs, &by, now)?;
            }
            Ok(was_suspended)
        };
        self.of(id).write(job).await
    }

    /// Stores an operator's edit of a suspended message. The content before the first edit is kept.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn edit(&self, id: MessageId, edited: EditedMessage) -> Result<MessageEdit, StoreError> {
        self.of(id).write(move |connection, _| operator_actions::edit(connection, id, &edited)).await
    }

    /// Stores the result of processing a suspended raw message again. A message that is no longer suspended stays
    /// unchanged.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn rework(
        &self,
        exchange: &Name,
        id: MessageId,
        reworked: ReprocessedMessage,
        by: &str,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let partition = self.of(id);
        let (open, exchange, by) = (partition.open.clone(), exchange.clone(), by.to_owned());
        let job = move |connection: &Connection, after: &mut AfterCommit| {
            open.change_after(after, &exchange, operator_actions::rework(connection, id, &reworked, &by, now)?);
            Ok(())
        };
        partition.write(job).await
    }

    /// Ends messages: none of their legs is sent any more.
    ///
    /// # Errors
    /// The messages of at least one partition are unchanged.
    pub async fn end(&self, ids: Vec<MessageId>, by: &str, now: Timestamp) -> Result<AffectedCounts, StoreError> {
        let acts = self.by_partition(ids).into_iter().map(|(number, ids)| {
            let partition = self.at(number);
            let (open, by) = (partition.open.clone(), by.to_owned());
            partition.write(move |connection, after| {
                let (acted, changes) = operator_actions::end(connection, &ids, &by, now)?;
                changes.count_after(after, &open);
                Ok(acted)
            })
        });
        Ok(AffectedCounts::sum(try_join_all(acts).await?))
    }
}
