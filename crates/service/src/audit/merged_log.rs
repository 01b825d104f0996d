//! The trails of all files as one log, newest first.

use std::{cmp::Reverse, fmt, str::FromStr, sync::Arc, time::Duration};

use futures_util::future::try_join_all;
use tocsin_model::time::Timestamp;
use tocsin_store::{
    audit::{AuditEntry, AuditFilter, AuditPosition, AuditTrail},
    error::StoreError,
};

/// Number of entries that one commit of the retention removes.
const PRUNED_MAX: usize = 1_000;

/// An entry with its id.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AuditItem {
    /// Name of the file and number in it, such as `records-12`.
    pub(super) id: String,
    pub(super) entry: AuditEntry,
}

/// Trails of an installation.
pub struct AuditLog {
    pub(super) trails: Vec<Arc<dyn AuditTrail>>,
    /// Retention.
    keep: Duration,
}

/// Position in the merged log: newest first; of the same time, by file, then newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogPosition {
    at: Timestamp,
    trail: String,
    sequence: u64,
}

impl fmt::Display for LogPosition {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}.{}", self.at.0, self.sequence, self.trail)
    }
}

impl FromStr for LogPosition {
    type Err = ();

    fn from_str(text: &str) -> Result<LogPosition, ()> {
        let mut parts = text.splitn(3, '.');
        let mut part = || parts.next().ok_or(());
        let at = Timestamp(part()?.parse().map_err(drop)?);
        Ok(LogPosition { at, sequence: part()?.parse().map_err(drop)?, trail: part()?.to_owned() })
    }
}

/// Sort key of the merged log, ascending.
type Key = (Reverse<Timestamp>, usize, Reverse<u64>);

fn key(position: AuditPosition, trail: usize) -> Key {
    (Reverse(position.at), trail, Reverse(position.sequence))
}

impl AuditLog {
    /// A log over trails, in the order of entries with the same time.
    pub fn new(trails: Vec<Arc<dyn AuditTrail>>, keep: Duration) -> AuditLog {
        AuditLog { trails, keep }
    }

    /// A page of the merged log. It can be short and have a next one: each trail reads a bounded number of rows.
    pub(super) async fn page(
        &self,
        filter: &AuditFilter,
        after: Option<&LogPosition>,
        limit: usize,
    ) -> Result<(Vec<AuditItem>, Option<LogPosition>), StoreError> {
        let last = after.and_then(|after| self.trails.iter().position(|trail| trail.trail() == after.trail));
        let reads = self.trails.iter().enumerate().map(|(number, trail)| {
            let before = after.map(|after| AuditPosition {
                at: after.at,
                sequence: match last {
                    // Entries of the same time were returned with those of an earlier trail.
                    Some(last) if number < last => 0,
                    Some(last) if number > last => u64::MAX,
                    _ => after.sequence,
                },
            });
            trail.entries(filter, before, limit)
        });
        let found = try_join_all(reads).await?;
        // Beyond the first place at which a trail stopped, the order of the entries is not known.
        let stops =
            found.iter().enumerate().filter_map(|(number, page)| Some((key(page.next?, number), number, page.next?)));
        let stop = stops.min_by_key(|(key, ..)| *key);
        let mut items: Vec<(Key, usize, AuditEntry)> = Vec::new();
        for (number, page) in found.into_iter().enumerate() {
            items.extend(page.items.into_iter().map(|entry| (key(entry.position(), number), number, entry)));
        }
        items.sort_by_key(|(key, ..)| *key);
        if let Some((stop, ..)) = &stop {
            items.retain(|(key, ..)| key <= stop);
        }
        let place = |number: usize, position: AuditPosition| LogPosition {
            at: position.at,
            trail: self.trails[number].trail().to_owned(),
            sequence: position.sequence,
        };
        let is_cut = items.len() > limit;
        items.truncate(limit);
        let next = match (is_cut, items.last(), stop) {
            (true, Some((_, number, last)), _) => Some(place(*number, last.position())),
            (_, _, Some((_, number, position))) => Some(place(number, position)),
            _ => None,
        };
        let items = items.into_iter().map(|(_, number, entry)| AuditItem {
            id: format!("{}-{}", self.trails[number].trail(), entry.sequence),
            entry,
        });
        Ok((items.collect(), next))
    }

    /// Removes entries past their retention.
    pub(super) async fn prune(&self, now: Timestamp) -> Result<u64, StoreError> {
        let before = now - self.keep;
        let mut removed = 0;
        for trail in &self.trails {
            loop {
                let count = trail.prune_entries(before, PRUNED_MAX).await?;
                removed += count as u64;
                if count < PRUNED_MAX {
                    break;
                }
            }
        }
        metrics::counter!("tocsin_audit_removed_total").increment(removed);
        Ok(removed)
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use tocsin_store::{
        audit::{Image, Match},
        bounded_scan::ScanPage,
        journal::PersonNames,
    };

    use super::*;

    /// A trail that reads at most `rows` entries for a page.
    struct Listed {
        name: &'static str,
        /// Newest first.
        entries: Vec<AuditEntry>,
        rows: usize,
    }

    #[async_trait]
    impl AuditTrail for Listed {
        fn trail(&self) -> &'static str {
            self.name
        }

        async fn entries(
            &self,
            filter: &AuditFilter,
            before: Option<AuditPosition>,
            limit: usize,
        ) -> Result<ScanPage<AuditEntry, AuditPosition>, StoreError> {
            let rest = self.entries.iter().filter(|entry| before.is_none_or(|before| entry.position() < before));
            let read: Vec<_> = rest.take(self.rows.min(limit)).cloned().collect();
            let next = read.last().map(AuditEntry::position).filter(|_| read.len() == self.rows.min(limit));
            Ok(ScanPage { items: read.into_iter().filter(|entry| filter.holds(entry)).collect(), next })
        }

        async fn record(&self, _: Image) -> Result<(), StoreError> {
            Ok(())
        }

        async fn prune_entries(&self, _: Timestamp, _: usize) -> Result<usize, StoreError> {
            Ok(0)
        }

        async fn erase_entries(&self, _: &PersonNames) -> Result<usize, StoreError> {
            Ok(0)
        }
    }

    fn trail(name: &'static str, times: &[i64], rows: usize) -> Arc<dyn AuditTrail> {
        let mut entries: Vec<AuditEntry> = (1..)
            .zip(times)
            .map(|(sequence, at)| AuditEntry {
                sequence,
                at: Timestamp(*at),
                actor: format!("key:{}", sequence % 3),
                address: None,
                action: "test".to_owned(),
                object: None,
                before: None,
                after: None,
                more: 0,
                reason: None,
                request_id: None,
            })
            .collect();
        entries.sort_by_key(|entry| Reverse(entry.position()));
        Arc::new(Listed { name, entries, rows })
    }

    #[tokio::test]
    async fn pages_of_several_files_are_in_order_and_complete() {
        let (records, journal) = ([1, 3, 3, 7, 7, 7, 9, 2], [3, 3, 7, 8, 1, 1]);
        for (limit, rows) in [(1, 1), (1, 5), (2, 3), (3, 2), (5, 100), (100, 1), (100, 100)] {
            let trails =
                vec![trail("records", &records, rows), trail("journal", &journal, rows), trail("inbox", &[], rows)];
            let log = AuditLog::new(trails, Duration::ZERO);
            for filter in [
                AuditFilter::default(),
                AuditFilter { actor: Some(Match::Exactly("key:1".to_owned())), ..AuditFilter::default() },
                AuditFilter { actor: Some(Match::Prefix("user:".to_owned())), ..AuditFilter::default() },
            ] {
                let (mut all, mut after, mut requests) = (Vec::new(), None::<LogPosition>, 0);
                loop {
                    let (items, next) = log.page(&filter, after.as_ref(), limit).await.expect("a page");
                    assert!(items.len() <= limit, "limit {limit}, rows {rows}");
                    all.extend(items.into_iter().map(|item| (item.entry.at.0, item.id)));
                    requests += 1;
                    assert!(requests < 100, "limit {limit}, rows {rows}: the pages do not end");
                    match next {
                        Some(next) => after = Some(next.to_string().parse().expect("a cursor")),
                        None => break,
                    }
                }
                let whole = AuditLog::new(
                    vec![trail("records", &records, 1_000), trail("journal", &journal, 1_000)],
                    Duration::ZERO,
                );
                let (expected, _) = whole.page(&filter, None, 900).await.expect("a page");
                let expected: Vec<_> = expected.into_iter().map(|item| (item.entry.at.0, item.id)).collect();
                assert_eq!(all, expected, "limit {limit}, rows {rows}, {filter:?}");
                assert!(all.is_sorted_by_key(|(at, _)| Reverse(*at)));
            }
        }
    }
}
