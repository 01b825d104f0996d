//! Claims of event batches and work items: the oldest first, each by one worker.

use std::{collections::HashSet, time::Duration};

use rusqlite::{Connection, OptionalExtension, Params, Row};
use tocsin_model::{
    delivery_policy::Priority,
    id::{EventBatchId, NotificationBatchId, WorkItemId},
    time::Timestamp,
};

use super::{
    leases::LeaseTable,
    packing::unpack_ordinals,
    views::{self, find_event_batch},
};
use crate::{
    error::StoreError,
    journal::{
        Claim, ClaimedEvents, WorkItem, WorkState,
        work_state::{priority_number, priority_of},
    },
    sqlite::{journal::context::JournalContext, writer::store_error},
};

/// Claimed event batches, and unreadable ones with the reason.
pub type ClaimResult = (Vec<ClaimedEvents>, Vec<(Claim<EventBatchId>, String)>);

/// Event batches excluded from claiming, by the numbers of their applications and classes.
#[derive(Default)]
pub struct ExcludedEvents {
    pub applications: HashSet<i64>,
    pub classes: HashSet<(i64, i64)>,
}

impl ExcludedEvents {
    fn is_empty(&self) -> bool {
        self.applications.is_empty() && self.classes.is_empty()
    }
}

/// Claims waiting event batches.
pub fn claim_events(
    connection: &Connection,
    shared: &JournalContext,
    batches: usize,
    bytes: usize,
    except: &ExcludedEvents,
    lease: Duration,
    now: Timestamp,
) -> Result<ClaimResult, StoreError> {
    let granted = {
        let mut claims = shared.claims.lock();
        let is_free = |id| claims.events.is_free(id, now);
        let mut waiting = Vec::new();
        if except.is_empty() {
            let sql = "SELECT id, bytes FROM event_waiting ORDER BY id";
            first_free(connection, sql, (), batches, &is_free, &mut waiting)?;
        } else {
            // Searches class by class, so that excluded rows are not read.
            let sql = "SELECT id, bytes FROM event_waiting WHERE application = ?1 AND class = ?2 ORDER BY id";
            for class in waiting_classes(connection, except)? {
                first_free(connection, sql, class, batches, &is_free, &mut waiting)?;
            }
            waiting.sort_unstable();
        }
        let (mut free, mut free_bytes) = (Vec::new(), 0usize);
        for (id, size) in waiting.into_iter().take(batches) {
            free_bytes = free_bytes.saturating_add(size);
            if !free.is_empty() && free_bytes > bytes {
                break;
            }
            free.push(id);
        }
        grant(free, lease, now, &mut claims, |held| &mut held.events)
    };
    // The bodies are read without the lock: claimed batches stay.
    let (mut claimed, mut damaged) = (Vec::with_capacity(granted.len()), Vec::new());
    for (id, token) in &granted {
        let claim = Claim { id: EventBatchId(*id), token: *token };
        match find_event_batch(connection, &shared.names, claim.id) {
            Ok(Some((batch, _))) => claimed.push(ClaimedEvents { claim, batch }),
            Ok(None) => damaged.push((claim, format!("{} is queued but missing", claim.id))),
            Err(error @ StoreError::Damaged(_)) => damaged.push((claim, error.to_string())),
            Err(error) => {
                release_all(&granted, &mut shared.claims.lock().events);
                return Err(error);
            }
        }
    }
    Ok((claimed, damaged))
}

/// Finds numbers and sizes of the first unclaimed batches.
fn first_free(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    batches: usize,
    is_free: &dyn Fn(u64) -> bool,
    found: &mut Vec<(u64, usize)>,
) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let mut rows = statement.query(params).map_err(store_error)?;
    let mut left = batches;
    while left > 0
        && let Some(row) = rows.next().map_err(store_error)?
    {
        let (id, size): (u64, usize) = row.try_into().map_err(store_error)?;
        if is_free(id) {
            found.push((id, size));
            left -= 1;
        }
    }
    Ok(())
}

/// Applications and classes with waiting batches, except the excluded ones. One index search each (skip scan).
fn waiting_classes(connection: &Connection, except: &ExcludedEvents) -> Result<Vec<(i64, i64)>, StoreError> {
    let mut statement = connection
        .prepare_cached(
            "SELECT application, class FROM event_waiting WHERE (application, class) > (?1, ?2)
             ORDER BY application, class LIMIT 1",
        )
        .map_err(store_error)?;
    let (mut after, mut found) = ((i64::MIN, i64::MIN), Vec::new());
    loop {
        let next: Option<(i64, i64)> =
            statement.query_row(after, |row| row.try_into()).optional().map_err(store_error)?;
        let Some(next) = next else { return Ok(found) };
        after = next;
        if except.applications.contains(&next.0) {
            // Skips all classes of the application.
            after.1 = i64::MAX;
        } else if !except.classes.contains(&next) {
            found.push(next);
        }
    }
}

/// Claims due work items of a channel with priority `least` or higher.
pub fn claim_work(
    connection: &Connection,
    shared: &JournalContext,
    (application, channel): (i64, i64),
    least: Priority,
    limit: usize,
    lease: Duration,
    now: Timestamp,
) -> Result<Vec<WorkItem>, StoreError> {
    let granted = {
        let mut claims = shared.claims.lock();
        let mut statement = connection
            .prepare_cached(
                "SELECT id, due_at FROM work WHERE application = ?1 AND channel = ?2 AND priority = ?3 AND due_at <= ?4
                 ORDER BY due_at, id",
            )
            .map_err(store_error)?;
        let mut free: Vec<(Timestamp, u64)> = Vec::new();
        for priority in Priority::ALL.into_iter().filter(|priority| *priority <= least) {
            let params = (application, channel, priority_number(priority), now.0);
            let mut rows = statement.query(params).map_err(store_error)?;
            let mut found = 0;
            while found < limit
                && let Some(row) = rows.next().map_err(store_error)?
            {
                let (id, due_at): (u64, i64) = row.try_into().map_err(store_error)?;
                if claims.work.is_free(id, now) {
                    free.push((Timestamp(due_at) + priority.aging(), id));
                    found += 1;
                }
            }
        }
        free.sort_unstable();
        free.truncate(limit);
        grant(free.into_iter().map(|(_, id)| id).collect(), lease, now, &mut claims, |held| &mut held.work)
    };
    read_granted(connection, shared, &granted)
}

/// Claims due work items of a digest window.
pub fn claim_window(
    connection: &Connection,
    shared: &JournalContext,
    (application, channel): (i64, i64),
    window: Timestamp,
    notifications: usize,
    lease: Duration,
    now: Timestamp,
) -> Result<Vec<WorkItem>, StoreError> {
    let granted = {
        let mut claims = shared.claims.lock();
        let mut statement = connection
            .prepare_cached(
                "SELECT id, open FROM work
                 WHERE application = ?1 AND channel = ?2 AND window_end = ?3 AND due_at <= ?4 ORDER BY id",
            )
            .map_err(store_error)?;
        let mut rows = statement.query((application, channel, window.0, now.0)).map_err(store_error)?;
        let (mut free, mut room) = (Vec::new(), notifications);
        while let Some(row) = rows.next().map_err(store_error)? {
            let (id, open): (u64, usize) = row.try_into().map_err(store_error)?;
            if !claims.work.is_free(id, now) {
                continue;
            }
            if !free.is_empty() && open > room {
                break;
            }
            room = room.saturating_sub(open);
            free.push(id);
        }
        grant(free, lease, now, &mut claims, |held| &mut held.work)
    };
    read_granted(connection, shared, &granted)
}

fn read_granted(
    connection: &Connection,
    shared: &JournalContext,
    granted: &[(u64, u64)],
) -> Result<Vec<WorkItem>, StoreError> {
    let read = |(id, token): &(u64, u64)| find_item(connection, *id, *token);
    let claimed: Result<Vec<_>, StoreError> = granted.iter().filter_map(|grant| read(grant).transpose()).collect();
    claimed.inspect_err(|_| release_all(granted, &mut shared.claims.lock().work))
}

/// Work items of a channel whose digest window is still open.
pub fn digest_window_work(
    connection: &Connection,
    shared: &JournalContext,
    (application, channel): (i64, i64),
    now: Timestamp,
    after: WorkItemId,
    limit: usize,
) -> Result<Vec<WorkItem>, StoreError> {
    let sql =
        format!("{ITEM} WHERE application = ?1 AND channel = ?2 AND window_end > ?3 AND id > ?4 ORDER BY id LIMIT ?5");
    let after = i64::try_from(after.0).unwrap_or(i64::MAX);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    views::collect(connection, &sql, (application, channel, now.0, after, limit), |row| {
        let token = shared.claims.lock().work.token(row.get(0).map_err(store_error)?);
        read_item(row, token)
    })
}

fn grant(
    ids: Vec<u64>,
    lease: Duration,
    now: Timestamp,
    claims: &mut super::leases::LeaseTables,
    lane: impl Fn(&mut super::leases::LeaseTables) -> &mut LeaseTable,
) -> Vec<(u64, u64)> {
    ids.into_iter()
        .map(|id| {
            let token = claims.next_token();
            lane(claims).grant(id, token, lease, now);
            (id, token)
        })
        .collect()
}

/// Releases items that could not be read.
fn release_all(granted: &[(u64, u64)], lane: &mut LeaseTable) {
    for (id, token) in granted {
        // If the lease was short, another worker may have claimed the item already.
        let _ = lane.release(*id, *token, WorkItemId(*id));
    }
}

/// Work item by number.
pub fn find_item(connection: &Connection, id: u64, token: u64) -> Result<Option<WorkItem>, StoreError> {
    let mut statement = connection.prepare_cached(&format!("{ITEM} WHERE id = ?1")).map_err(store_error)?;
    statement.query_row([id], |row| Ok(read_item(row, token))).optional().map_err(store_error)?.transpose()
}

/// Open work items of a batch.
pub fn open_work(
    connection: &Connection,
    shared: &JournalContext,
    batch: NotificationBatchId,
) -> Result<Vec<WorkItem>, StoreError> {
    if batch.0 > views::NUMBER_MAX {
        return Ok(Vec::new());
    }
    let sql = format!("{ITEM} WHERE batch = ?1 ORDER BY id");
    views::collect(connection, &sql, [batch.0], |row| {
        let token = shared.claims.lock().work.token(row.get(0).map_err(store_error)?);
        read_item(row, token)
    })
}

const ITEM: &str = "SELECT id, batch, attempts, due_at, notifications, ordinals, done, priority, window_end, fallback,
        since, edit FROM work";

fn read_item(row: &Row<'_>, token: u64) -> Result<WorkItem, StoreError> {
    type Columns =
        (u64, u64, u32, i64, u32, Option<Vec<u8>>, Option<Vec<u8>>, u8, Option<i64>, u8, Option<i64>, Option<String>);
    let (id, batch, attempts, due_at, notifications, ordinals, done, priority, window, fallback, since, edit): Columns =
        row.try_into().map_err(store_error)?;
    let mut ordinals = ordinals.map(|packed| unpack_ordinals(&packed)).transpose()?;
    if let Some(done) = done {
        let done = unpack_ordinals(&done)?;
        let mut left = ordinals.unwrap_or_else(|| (0..notifications).collect());
        left.retain(|ordinal| done.binary_search(ordinal).is_err());
        ordinals = Some(left);
    }
    Ok(WorkItem {
        claim: Claim { id: WorkItemId(id), token },
        batch: NotificationBatchId(batch),
        ordinals,
        attempts,
        due_at: Timestamp(due_at),
        work_state: WorkState {
            priority: priority_of(priority),
            window: window.map(Timestamp),
            fallback,
            since: since.map(Timestamp),
            edit: edit.map(Into::into),
        },
    })
}
