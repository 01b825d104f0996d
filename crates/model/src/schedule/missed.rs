//! What is to run now: the occurrences since the last run, under a policy for those that were missed.

use std::{collections::VecDeque, time::Duration};

use super::{Occurrence, Schedule};
use crate::time::Timestamp;

/// Occurrences counted one by one after a downtime; beyond them the number skipped is a lower bound.
pub const MISSED_COUNTED_MAX: u64 = 100_000;
/// The most runs that [`MissedPolicy::All`] makes up for at once.
pub const CATCH_UP_MAX: u32 = 1_000;

/// What becomes of occurrences that passed while nobody looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MissedPolicy {
    /// They are not made up for. An occurrence at most `grace` ago still counts as on time, for nobody looks at
    /// the very instant; of several such the newest runs.
    Skip {
        /// How late a run may begin.
        grace: Duration,
    },
    /// One run, for the newest of them.
    #[default]
    Once,
    /// The newest `limit` of them run, oldest first; at most [`CATCH_UP_MAX`].
    All {
        /// How many.
        limit: u32,
    },
}

/// What is to run, what is not, and when to look again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// To run now, oldest first.
    pub runs: Vec<Occurrence>,
    /// How many occurrences passed that will not run.
    pub skipped: u64,
    /// Whether even more were skipped than that, because counting stopped at [`MISSED_COUNTED_MAX`].
    pub skipped_at_least: bool,
    /// The first occurrence after now; `None` if the schedule is over.
    pub next: Option<Timestamp>,
}

impl Schedule {
    /// The occurrences after `last_run` up to and including `now`, under a policy. Without a last run, all from the
    /// start on: give the time at which the schedule was made, if those before it are not wanted. A clock that was put
    /// back runs nothing again: nothing is due, and next is after the last run.
    ///
    /// Record `now` (or the newest run) as the next `last_run` in the same commit as what the runs produced, so that a
    /// crash neither repeats nor loses one. Costs a search for each occurrence passed, up to [`MISSED_COUNTED_MAX`].
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
    /// until only they are left.
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
