//! Waiting between two syncs, for changes on the server or local edits.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{Link, LinkError, Replica, ReplicaError};

/// Duration of one long poll: shorter than the timeouts of most proxies.
const WAIT: Duration = Duration::from_secs(50);
/// Interval of checks for local edits.
const EDITS_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum wait, so that many changes are synchronized together.
const SHORTEST: Duration = Duration::from_millis(100);

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeReason {
    /// The server may have changes.
    ServerChanges,
    /// Rows were edited locally.
    Edited,
    /// The server could not be asked to wake the replica, and the time is up.
    Later,
}

impl Replica {
    /// Waits after a sync until the server may have changes or rows were edited locally. If the server does not support
    /// long polling or has too many waiting devices, waits for `every`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn wait_for_work(&mut self, link: &impl Link, every: Duration) -> Result<WakeReason, ReplicaError> {
        let began = Instant::now();
        let cursor = self.cursor()?;
        let news = async {
            let Some(cursor) = &cursor else {
                sleep(every).await;
                return WakeReason::Later;
            };
            loop {
                let asked = Instant::now();
                let pause = match link.wait(cursor, WAIT).await {
                    Ok(true) => return WakeReason::ServerChanges,
                    // A stopping server ends all long polls.
                    Ok(false) if asked.elapsed() < Duration::from_secs(1) => every,
                    Ok(false) => continue,
                    // The token was revoked or has expired, or the device was removed; the next session reports it.
                    Err(LinkError::Refused(_) | LinkError::SessionEnded(_)) => return WakeReason::ServerChanges,
                    Err(LinkError::Busy(after)) => after.max(every),
                    Err(_) => every,
                };
                sleep(pause).await;
                return WakeReason::Later;
            }
        };
        tokio::pin!(news);
        let woken = loop {
            tokio::select! {
                woken = &mut news => break woken,
                () = sleep(EDITS_POLL_INTERVAL) => {
                    if self.has_edits()? {
                        break WakeReason::Edited;
                    }
                }
            }
        };
        sleep(SHORTEST.saturating_sub(began.elapsed())).await;
        Ok(woken)
    }

    /// Whether there are edits that the server has not confirmed.
    fn has_edits(&self) -> Result<bool, ReplicaError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM _pending) OR EXISTS (SELECT 1 FROM _outbox)";
        Ok(self.connection.query_row(sql, (), |row| row.get(0))?)
    }
}
