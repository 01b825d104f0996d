//! Restore drills of this process.

use std::{collections::VecDeque, time::Duration};

use tocsin_model::{id::Name, time::Timestamp};

use crate::{error::ServiceError, server_host::DrillReport};

/// Restore drills that are kept in memory.
const DRILLS_MAX: usize = 20;

/// State of a restore drill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrillState {
    /// In progress.
    Running,
    /// The backup was restored, examined and opened.
    Succeeded(Box<DrillReport>),
    /// The reason.
    Failed(String),
}

/// A restore drill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreDrill {
    /// Number, from 1 since the start of the process.
    pub number: u64,
    /// The backup; `None`: one was taken for the drill.
    pub backup: Option<Name>,
    /// Id of the caller that started it.
    pub by: String,
    /// Start.
    pub started_at: Timestamp,
    /// End.
    pub ended_at: Option<Timestamp>,
    /// State.
    pub state: DrillState,
}

/// The restore drills of this process, newest first.
#[derive(Debug, Default)]
pub(crate) struct Drills {
    drills: VecDeque<RestoreDrill>,
    started: u64,
}

impl Drills {
    pub(crate) fn start(
        &mut self,
        backup: Option<Name>,
        by: String,
        now: Timestamp,
    ) -> Result<RestoreDrill, ServiceError> {
        if self.drills.iter().any(|drill| drill.state == DrillState::Running) {
            return Err(ServiceError::TooMany {
                reason: "another restore drill is running".to_owned(),
                retry_after: Duration::from_secs(10),
            });
        }
        self.started += 1;
        let (number, state) = (self.started, DrillState::Running);
        let drill = RestoreDrill { number, backup, by, started_at: now, ended_at: None, state };
        self.drills.push_front(drill.clone());
        self.drills.truncate(DRILLS_MAX);
        Ok(drill)
    }

    pub(crate) fn end(&mut self, number: u64, state: DrillState, now: Timestamp) {
        if let Some(drill) = self.drills.iter_mut().find(|drill| drill.number == number) {
            (drill.state, drill.ended_at) = (state, Some(now));
        }
    }

    /// All of them, newest first.
    pub(crate) fn all(&self) -> Vec<RestoreDrill> {
        self.drills.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_drill_runs_at_a_time_and_twenty_are_kept() {
        let mut drills = Drills::default();
        for number in 1..=25 {
            let drill = drills.start(None, "k".to_owned(), Timestamp(0)).expect("none is running");
            assert_eq!(drill.number, number);
            assert!(drills.start(None, "k".to_owned(), Timestamp(0)).is_err());
            drills.end(number, DrillState::Failed("no disk".to_owned()), Timestamp(1));
        }
        assert_eq!((drills.drills.len(), drills.drills[0].number), (DRILLS_MAX, 25));
    }
}
