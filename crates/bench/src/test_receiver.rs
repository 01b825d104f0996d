//! HTTP receiver with configurable concurrency and latency.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, SemaphorePermit},
    task::JoinSet,
};

use super::http_client::complete_request;
use crate::failure::{Failure, Outcome};

/// Speed of a receiver.
#[derive(Debug, Clone, Copy)]
pub struct ReceiverSpeed {
    /// Requests handled concurrently; further requests wait.
    pub workers: usize,
    /// Latency of each response, in milliseconds.
    pub millis: u64,
}

/// Callback that receives the body of each request.
pub trait Reader: Fn(&[u8]) + Send + Sync + 'static {}

impl<T: Fn(&[u8]) + Send + Sync + 'static> Reader for T {}

/// HTTP listener on all loopback addresses, until dropped. `/dead` never responds, `/slow` responds after 3 s.
pub struct TestReceiver {
    /// Listening port.
    pub port: u16,
    _serving: JoinSet<()>,
}

impl TestReceiver {
    /// Starts a receiver with empty responses; its speed is a function of the elapsed time.
    ///
    /// # Errors
    /// If there is no free port.
    pub async fn start(speed: fn(Duration) -> ReceiverSpeed) -> Outcome<Self> {
        TestReceiver::with_reader(speed, Arc::new(|_: &[u8]| {})).await
    }

    /// Starts a receiver that passes each body to `reader` before the response.
    ///
    /// # Errors
    /// As [`TestReceiver::start`].
    pub async fn with_reader(speed: fn(Duration) -> ReceiverSpeed, reader: Arc<dyn Reader>) -> Outcome<Self> {
        TestReceiver::listen(speed, BodyHandling { reader, echoes: false }).await
    }

    /// Starts a receiver that echoes each request body as JSON.
    ///
    /// # Errors
    /// As [`TestReceiver::start`].
    pub async fn echoing(speed: fn(Duration) -> ReceiverSpeed) -> Outcome<Self> {
        TestReceiver::listen(speed, BodyHandling { reader: Arc::new(|_: &[u8]| {}), echoes: true }).await
    }

    async fn listen(speed: fn(Duration) -> ReceiverSpeed, handling: BodyHandling) -> Outcome<Self> {
        let failed =
            |error: std::io::Error| Failure::failed("cannot open a port for the test receiver").because(&error);
        let listener = TcpListener::bind("0.0.0.0:0").await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let (began, slots) = (Instant::now(), Arc::new(WorkerSlots::default()));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            // Dropping the set ends its connections.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, began, speed, slots.clone(), handling.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(TestReceiver { port, _serving: serving })
    }
}

/// Handling of request bodies.
#[derive(Clone)]
struct BodyHandling {
    reader: Arc<dyn Reader>,
    /// Whether the response repeats the body.
    echoes: bool,
}

/// Concurrency limit that can change while requests wait.
struct WorkerSlots {
    free: Semaphore,
    counts: parking_lot::Mutex<SlotCounts>,
}

struct SlotCounts {
    /// Idle and busy slots.
    present: usize,
    target: usize,
}

const SLOTS_MAX: usize = 10_000;

impl Default for WorkerSlots {
    fn default() -> Self {
        let counts = SlotCounts { present: SLOTS_MAX, target: SLOTS_MAX };
        WorkerSlots { free: Semaphore::new(SLOTS_MAX), counts: parking_lot::Mutex::new(counts) }
    }
}

impl WorkerSlots {
    /// Changes the number of slots. Busy slots finish their request first.
    fn resize(&self, workers: usize) {
        let mut counts = self.counts.lock();
        counts.target = workers;
        if counts.present < workers {
            self.free.add_permits(workers - counts.present);
            counts.present = workers;
        } else {
            counts.present -= self.free.forget_permits(counts.present - workers);
        }
    }

    /// Releases a slot, or removes it if there are too many. A released slot would go to a waiting request at once and
    /// could not be removed any more.
    fn release(&self, slot: SemaphorePermit<'_>) {
        let mut counts = self.counts.lock();
        if counts.present > counts.target {
            counts.present -= 1;
            slot.forget();
        }
    }
}

async fn serve(
    mut stream: TcpStream,
    began: Instant,
    speed: fn(Duration) -> ReceiverSpeed,
    slots: Arc<WorkerSlots>,
    BodyHandling { reader, echoes }: BodyHandling,
) {
    let _ = stream.set_nodelay(true);
    let mut unread = Vec::with_capacity(4096);
    loop {
        let Some((head, length)) = complete_request(&unread) else {
            match stream.read_buf(&mut unread).await {
                Ok(1..) => continue,
                _ => return,
            }
        };
        let begins = |text: &[u8]| unread.starts_with(text);
        if begins(b"POST /dead") {
            std::future::pending::<()>().await;
        }
        let ReceiverSpeed { workers, millis } = speed(began.elapsed());
        if begins(b"POST /slow") {
            tokio::time::sleep(Duration::from_secs(3)).await;
        } else if millis > 0 {
            slots.resize(workers);
            let Ok(slot) = slots.free.acquire().await else { return };
            tokio::time::sleep(Duration::from_millis(millis)).await;
            slots.release(slot);
        }
        let body = &unread[head..length];
        reader(body);
        let answer = match echoes {
            true => Cow::from([echo_head(body).as_bytes(), body].concat()),
            false => Cow::from(&b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"[..]),
        };
        unread.drain(..length);
        if stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}

fn echo_head(body: &[u8]) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len())
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};

    use super::*;
    use crate::http_client::{Connection, post};

    #[tokio::test]
    async fn an_echo_answers_each_post_with_its_body() {
        let receiver = TestReceiver::echoing(|_| ReceiverSpeed { workers: 1, millis: 0 }).await.expect("a receiver");
        let mut connection = Connection::open(receiver.port).await.expect("a connection");
        for body in ["hello", "", "and more"] {
            let answer = connection.exchange(&post("/x", "k", "text/plain", body.as_bytes())).await.expect("an answer");
            assert_eq!(answer, (200, body.as_bytes().to_vec()));
        }
    }

    #[test]
    fn slots_are_removed_while_requests_wait() {
        let slots = WorkerSlots::default();
        slots.resize(40);
        let mut waiting: FuturesUnordered<_> = (0..64).map(|_| slots.free.acquire()).collect();
        let mut acquired = || -> Vec<_> {
            std::iter::from_fn(|| waiting.next().now_or_never().flatten()).map(|slot| slot.expect("open")).collect()
        };
        let first = acquired();
        assert_eq!(first.len(), 40);
        slots.resize(6);
        first.into_iter().for_each(|slot| slots.release(slot));
        let second = acquired();
        assert_eq!(second.len(), 6);
        slots.resize(10);
        let third = acquired();
        assert_eq!(third.len(), 4);
        second.into_iter().chain(third).for_each(|slot| slots.release(slot));
        assert_eq!(acquired().len(), 10);
    }
}
