//! Waits that end when they should. The runtime's own end with the next full millisecond, so what is to come at random or
//! evenly would come in bunches, late, and wait for one another: of that a latency in an open loop would tell, and not of
//! the server.

use std::{
    collections::BTreeMap,
    sync::{OnceLock, mpsc},
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

/// So long before its end a wait is handed to the clock.
const HANDED_OVER: Duration = Duration::from_millis(3);

/// Waits until then; not at all if it is past.
pub async fn until(due: Instant) {
    if let Some(early) = due.checked_sub(HANDED_OVER).filter(|early| *early > Instant::now()) {
        tokio::time::sleep_until(early.into()).await;
    }
    if due > Instant::now() {
        let (strike, struck) = oneshot::channel();
        // Neither fails while the thread of the clock runs, which ends with the process.
        let _ = clock().send((due, strike));
        let _ = struck.await;
    }
}

type Wait = (Instant, oneshot::Sender<()>);

fn clock() -> &'static mpsc::Sender<Wait> {
    static CLOCK: OnceLock<mpsc::Sender<Wait>> = OnceLock::new();
    CLOCK.get_or_init(|| {
        let (waits, asked) = mpsc::channel();
        std::thread::Builder::new().name("bench-clock".into()).spawn(move || run(&asked)).expect("a thread more");
        waits
    })
}

fn run(asked: &mpsc::Receiver<Wait>) {
    // By when they end, and in the order in which they were asked for.
    let mut waiting: BTreeMap<(Instant, u64), oneshot::Sender<()>> = BTreeMap::new();
    for number in 0.. {
        while let Some(first) = waiting.first_entry().filter(|first| first.key().0 <= Instant::now()) {
            let _ = first.remove().send(());
        }
        let asked = match waiting.first_key_value() {
            None => asked.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected),
            Some(((due, _), _)) => asked.recv_timeout(due.saturating_duration_since(Instant::now())),
        };
        match asked {
            Ok((due, strike)) => drop(waiting.insert((due, number), strike)),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_wait_ends_early_and_what_is_past_is_not_waited_for() {
        let begun = Instant::now();
        let waits = (0..50).rev().map(|number| async move {
            let due = begun + Duration::from_micros(number * 100);
            until(due).await;
            assert!(Instant::now() >= due, "{number}");
        });
        futures_util::future::join_all(waits).await;
        until(begun).await;
    }
}
