//! Due occurrences since the last run, under a policy for missed ones.

use std::{collections::VecDeque, time::Duration};

use super::{Occurrence, Schedule};
use crate::time::Timestamp;

/// Most occurrences counted after a downtime; beyond that the number skipped is a lower bound.
pub const MISSED_COUNTED_MAX: u64 = 100_000;
/// Most runs of [`MissedPolicy::All`] at once.
pub const CATCH_UP_MAX: u32 = 1_000;

/// Policy for occurrences that passed without a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MissedPolicy {
    /// They are skipped. An occurrence at most `grace` ago counts as on time, because checks are not instantaneous;
    /// of several such the newest runs.
    Skip {
        /// Largest delay of a run.
        grace: Duration,
    },
    /// One run, for the newest of them.
    #[default]
    Once,
    /// The newest `limit` of them run, oldest first; at most [`CATCH_UP_MAX`].
    All {
        /// Most runs.
        limit: u32,
    },
}

/// Due runs, skipped occurrences, and the time of the next check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// Due runs, oldest first.
    pub runs: Vec<Occurrence>,
    /// Number of occurrences that are skipped.
    pub skipped: u64,
    /// Whether more were skipped, because counting stopped at [`MISSED_COUNTED_MAX`].
    pub skipped_at_least: bool,
    /// The first occurrence after now; `None` if the schedule is over.
    pub next: Option<Timestamp>,
}

impl Schedule {
    /// The occurrences after `last_run` up to and including `now`, under a policy. Without a last run, all from the
    /// start on; pass the creation time of the schedule to exclude earlier ones. If the clock was put back, nothing
    /// is due, and next is after the last run.
    ///
    /// Store `now` (or the newest run) as the next `last_run` in the same commit as the results of the runs, so that
    /// a crash neither repeats nor loses one. Costs a search for each occurrence passed, up to
    /// [`MISSED_COUNTED_MAX`].
    pub fn due(&self, last_run: Option<Timestamp>, now: Timestamp, policy: MissedPolicy) -> Due {
        let after = last_run.unwrap_or(Timestamp(i64::MIN));
        let keep = match policy {
            MissedPolicy::Skip { .. } | MissedPolicy::Once => 1,
            MissedPolicy::All { limit } => limit.min(CATCH_UP_MAX) as usize,
        };
        let mut passed = 0_u64;
        let mut newest = VecDeque::new();
        let mut next = None;
        let mut counted_out = false;
        for occurrence in self.occurrences_after(after) {
            if occurrence.at > now {
                next = Some(occurrence.at);
                break;
            }
            if passed == MISSED_COUNTED_MAX {
                counted_out = true;
                break;
            }
            passed += 1;
            newest.push_back(occurrence);
            if newest.len() > keep {
                newest.pop_front();
            }
        }
        if counted_out {
            newest = self.newest(after, now, keep).into();
            next = self.next_after(now).map(|occurrence| occurrence.at);
        }
        let mut runs: Vec<Occurrence> = newest.into();
        if let MissedPolicy::Skip { grace } = policy {
            runs.retain(|run| now.since(run.at) <= grace);
        }
        Due { skipped: passed - runs.len() as u64, skipped_at_least: counted_out, runs, next }
    }

    /// The newest `keep` occurrences after `after` up to `now`, of which there are at least so many: halves the time
    /// span until only they are left.
    fn newest(&self, after: Timestamp, now: Timestamp, keep: usize) -> Vec<Occurrence> {
        let Some(first) = self.next_after(after) else { return Vec::new() };
        let (mut enough, mut too_few) = (first.at.0 - 1, now.0);
        while too_few - enough > 1 && keep > 0 {
            let middle = enough + (too_few - enough) / 2;
            let there = self.occurrences_after(Timestamp(middle)).take_while(|run| run.at <= now).take(keep).count();
            if there == keep {
                enough = middle;
            } else {
                too_few = middle;
            }
        }
        self.occurrences_after(Timestamp(enough)).take_while(|run| run.at <= now).take(keep).collect()
    }
}
