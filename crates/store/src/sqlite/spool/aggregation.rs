//! Aggregator (EIP): groups of messages that become one. Each member is stored, and all are aggregated in one commit.

use bytes::Bytes;
use rusqlite::{Connection, Row};
use tocsin_model::{
    id::{MessageId, Name},
    time::Timestamp,
};

use crate::{
    error::StoreError,
    spool::{Ending, Head, MessageGroup, NewMessage},
    sqlite::{
        spool::{
            columns::{head, ordinal_of, parsed},
            intake::insert,
            spool_files::SqliteSpool,
        },
        statements::{execute, query_all, query_one},
        writer::AfterCommit,
    },
};

impl SqliteSpool {
    /// Up to `limit` due groups of these exchanges per partition, oldest first, and the time when the next one is
    /// due. A due group accepts no more members; it is returned again until it is aggregated.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn due_groups(
        &self,
        exchanges: &[Name],
        now: Timestamp,
        limit: usize,
    ) -> Result<(Vec<MessageGroup>, Option<Timestamp>), StoreError> {
        let names = serde_json::to_string(exchanges).expect("names are always JSON");
        let found = self.of_all_numbered(|number, partition| {
            let names = names.clone();
            let job = move |connection: &Connection, _: &mut AfterCommit| {
                let next = "SELECT min(due_at) FROM gatherings WHERE due_at > ?1";
                let next = query_one(connection, next, [now.0], |row| row.get::<_, Option<i64>>(0))?.flatten();
                execute(connection, "UPDATE gatherings SET is_full = 1 WHERE due_at <= ?1 AND is_full = 0", [now.0])?;
                // Groups of other exchanges must not take up the limit.
                let sql = "SELECT id, exchange, port, form FROM gatherings WHERE due_at <= ?1 AND exchange IN (SELECT value FROM \
                           json_each(?3)) ORDER BY due_at, id LIMIT ?2";
                let read = |row: &Row<'_>| {
                    let (exchange, port) = (parsed(row, 1)?, parsed(row, 2)?);
                    Ok(MessageGroup { partition: number, id: row.get(0)?, exchange, port, form: row.get(3)? })
                };
                Ok((query_all(connection, sql, (now.0, limit, &names), read)?, next))
            };
            partition.write(job)
        });
        let (found, next): (Vec<_>, Vec<_>) = found.await?.into_iter().unzip();
        Ok((found.into_iter().flatten().collect(), next.into_iter().flatten().min().map(Timestamp)))
    }

    /// Messages of a group, in order of receipt.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn group_messages(&self, gathering: &MessageGroup) -> Result<Vec<(MessageId, Head, Bytes)>, StoreError> {
        let sql = "SELECT messages.id, head, body FROM gathered JOIN messages ON messages.id = message JOIN bodies ON \
                   bodies.id = message WHERE gathering = ?1 ORDER BY message";
        let read = |row: &Row<'_>| Ok((MessageId(row.get(0)?), head(row, 1)?, Bytes::from(row.get::<_, Vec<u8>>(2)?)));
        let id = gathering.id;
        self.at(gathering.partition).read(move |connection| query_all(connection, sql, [id], read)).await
    }

    /// Stores the aggregated message with its legs and ends its members, in one commit in their partition. Returns
    /// `false` if the group was aggregated already, or its members have changed since they were read.
    ///
    /// # Errors
    /// Nothing was stored; `Full` if the disk is full.
    pub async fn assemble(
        &self,
        gathering: &MessageGroup,
        members: Vec<MessageId>,
        whole: NewMessage,
    ) -> Result<bool, StoreError> {
        self.free_space.check()?;
        let partition = self.at(gathering.partition);
        debug_assert!(std::ptr::eq(self.of(whole.id), partition), "it is beside those that it is made of");
        let (open, gathering) = (partition.open.clone(), gathering.id);
        let job = move |connection: &Connection, after: &mut AfterCommit| {
            let sql = "SELECT message FROM gathered WHERE gathering = ?1 ORDER BY message";
            if query_all(connection, sql, [gathering], |row| Ok(MessageId(row.get(0)?)))? != members {
                return Ok(false);
            }
            let mut change = insert(connection, &whole)?;
            let sql = "UPDATE messages SET open = 0, ended_at = ?2, ending = ?3, part_of = ?4 WHERE id = ?1";
            for member in &members {
                let ending = ordinal_of(&Ending::ALL, Ending::Assembled);
                execute(connection, sql, (member.0, whole.accepted_at.0, ending, whole.id.0))?;
                change -= 1;
            }
            execute(connection, "DELETE FROM gathered WHERE gathering = ?1", [gathering])?;
            execute(connection, "DELETE FROM gatherings WHERE id = ?1", [gathering])?;
            open.change_after(after, &whole.exchange, change);
            Ok(true)
        };
        partition.write(job).await
    }
}
