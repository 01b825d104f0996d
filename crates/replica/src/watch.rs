//! A rest between two syncs, which ends when there is something to do: news of the server, or edits that were made here.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{Link, LinkError, Replica, ReplicaError};

/// How long the server is asked to wait at a time: shorter than what most ways to it bear.
const WAIT: Duration = Duration::from_secs(50);
/// Time between two looks at edits.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A rest takes this long at least, so that many changes come by one sync.
const SHORTEST: Duration = Duration::from_millis(100);

/// Why a rest has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// The server may have something new.
    News,
    /// Rows were edited here.
    Edited,
    /// The server could not be asked to wake the replica, and the time is over.
    Later,
}

impl Replica {
    /// Rests after a sync, until the server may have something new or rows were edited here. Where the server cannot be asked to
    /// wake the replica, or has too many that wait, for `every` only.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn rest(&mut self, link: &impl Link, every: Duration) -> Result<Woken, ReplicaError> {
        let began = Instant::now();
        let cursor = self.cursor()?;
        let news = async {
            let Some(cursor) = &cursor else {
                sleep(every).await;
                return Woken::Later;
            };
            loop {
                let asked = Instant::now();
                let pause = match link.wait(cursor, WAIT).await {
                    Ok(true) => return Woken::News,
                    // A server that ends lets go of all who wait.
                    Ok(false) if asked.elapsed() < Duration::from_secs(1) => every,
                    Ok(false) => continue,
                    // Its token was revoked or has expired: the session that begins now says so.
                    Err(LinkError::Refused(_)) => return Woken::News,
                    Err(LinkError::Busy(after)) => after.max(every),
                    Err(_) => every,
                };
                sleep(pause).await;
                return Woken::Later;
            }
        };
        tokio::pin!(news);
        let woken = loop {
            tokio::select! {
                woken = &mut news => break woken,
                () = sleep(LOOK_EVERY) => {
                    if self.has_edits()? {
                        break Woken::Edited;
                    }
                }
            }
        };
        sleep(SHORTEST.saturating_sub(began.elapsed())).await;
        Ok(woken)
    }

    /// Whether there are edits that the server does not have.
    fn has_edits(&self) -> Result<bool, ReplicaError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM _pending) OR EXISTS (SELECT 1 FROM _outbox)";
        Ok(self.connection.query_row(sql, (), |row| row.get(0))?)
    }
}
