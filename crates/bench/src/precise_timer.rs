//! Timer with sub-millisecond precision for open loops. The timer of tokio rounds up to full milliseconds: arrivals
//! would come late and in bursts, queue behind each other, and the measured latency would be that of the load
//! generator.

use std::{
    collections::BTreeMap,
    sync::{OnceLock, mpsc},
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

/// Remaining time at which a wait is handed to the timer thread.
const HANDED_OVER: Duration = Duration::from_millis(3);

/// Waits until this time; returns at once if it is past.
pub async fn until(due: Instant) {
    if let Some(early) = due.checked_sub(HANDED_OVER).filter(|early| *early > Instant::now()) {
        tokio::time::sleep_until(early.into()).await;
    }
    if due > Instant::now() {
        let (strike, struck) = oneshot::channel();
        // Neither fails while the timer thread runs, which ends with the process.
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
    // Ordered by end time, then by order of arrival.
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
    async fn no_wait_ends_early_and_a_past_time_returns_at_once() {
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
