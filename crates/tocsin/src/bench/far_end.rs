//! A far end of our own: answers posts as slowly as it is told.

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

use super::wire::whole_request;
use crate::failure::{Failure, Outcome};

/// How it answers.
#[derive(Debug, Clone, Copy)]
pub struct Nature {
    /// So many at a time; the others wait.
    pub workers: usize,
    /// After so long.
    pub millis: u64,
}

/// Sees the bodies of the posts that a far end answers.
pub trait Reader: Fn(&[u8]) + Send + Sync + 'static {}

impl<T: Fn(&[u8]) + Send + Sync + 'static> Reader for T {}

/// A listener at every address of loopback, for as long as it is kept. `/dead` is never answered, `/slow` after 3 s.
pub struct FarEnd {
    /// Where it listens.
    pub port: u16,
    _serving: JoinSet<()>,
}

impl FarEnd {
    /// Starts it; its nature may change over time. Its answers have no body.
    ///
    /// # Errors
    /// There is no free port.
    pub async fn start(nature: fn(Duration) -> Nature) -> Outcome<Self> {
        FarEnd::that_reads(nature, Arc::new(|_: &[u8]| {})).await
    }

    /// The same, and `reader` sees each body before it is answered.
    ///
    /// # Errors
    /// As [`FarEnd::start`].
    pub async fn that_reads(nature: fn(Duration) -> Nature, reader: Arc<dyn Reader>) -> Outcome<Self> {
        FarEnd::listen(nature, Manner { reader, echoes: false }).await
    }

    /// One that answers each post with its body, taken for JSON.
    ///
    /// # Errors
    /// As [`FarEnd::start`].
    pub async fn that_echoes(nature: fn(Duration) -> Nature) -> Outcome<Self> {
        FarEnd::listen(nature, Manner { reader: Arc::new(|_: &[u8]| {}), echoes: true }).await
    }

    async fn listen(nature: fn(Duration) -> Nature, manner: Manner) -> Outcome<Self> {
        let failed = |error: std::io::Error| Failure::failed("no port for a far end").because(&error);
        let listener = TcpListener::bind("0.0.0.0:0").await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let (began, desk) = (Instant::now(), Arc::new(Desk::default()));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            // Ends the connections with it.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, began, nature, desk.clone(), manner.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(FarEnd { port, _serving: serving })
    }
}

/// What it does with bodies.
#[derive(Clone)]
struct Manner {
    reader: Arc<dyn Reader>,
    /// Whether they are its answers.
    echoes: bool,
}

/// Places to work at, as many as the far end has at the moment.
struct Desk {
    free: Semaphore,
    places: parking_lot::Mutex<Places>,
}

struct Places {
    /// Free ones and those that are taken.
    present: usize,
    wanted: usize,
}

const PLACES: usize = 10_000;

impl Default for Desk {
    fn default() -> Self {
        let places = Places { present: PLACES, wanted: PLACES };
        Desk { free: Semaphore::new(PLACES), places: parking_lot::Mutex::new(places) }
    }
}

impl Desk {
    /// Takes places away, or brings them back. Those at work finish first.
    fn resize(&self, workers: usize) {
        let mut places = self.places.lock();
        places.wanted = workers;
        if places.present < workers {
            self.free.add_permits(workers - places.present);
            places.present = workers;
        } else {
            places.present -= self.free.forget_permits(places.present - workers);
        }
    }

    /// Frees a place, unless there are too many: who waits would have it at once, and it could never be taken away.
    fn leave(&self, place: SemaphorePermit<'_>) {
        let mut places = self.places.lock();
        if places.present > places.wanted {
            places.present -= 1;
            place.forget();
        }
    }
}

async fn serve(
    mut stream: TcpStream,
    began: Instant,
    nature: fn(Duration) -> Nature,
    desk: Arc<Desk>,
    Manner { reader, echoes }: Manner,
) {
    let _ = stream.set_nodelay(true);
    let mut unread = Vec::with_capacity(4096);
    loop {
        let Some((head, length)) = whole_request(&unread) else {
            match stream.read_buf(&mut unread).await {
                Ok(1..) => continue,
                _ => return,
            }
        };
        let begins = |text: &[u8]| unread.starts_with(text);
        if begins(b"POST /dead") {
            std::future::pending::<()>().await;
        }
        let Nature { workers, millis } = nature(began.elapsed());
        if begins(b"POST /slow") {
            tokio::time::sleep(Duration::from_secs(3)).await;
        } else if millis > 0 {
            desk.resize(workers);
            let Ok(place) = desk.free.acquire().await else { return };
            tokio::time::sleep(Duration::from_millis(millis)).await;
            desk.leave(place);
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
    use crate::bench::wire::{Connection, post};

    #[tokio::test]
    async fn an_echo_answers_each_post_with_its_body() {
        let far = FarEnd::that_echoes(|_| Nature { workers: 1, millis: 0 }).await.expect("a far end");
        let mut connection = Connection::open(far.port).await.expect("a connection");
        for body in ["hello", "", "and more"] {
            let answer = connection.exchange(&post("/x", "k", "text/plain", body.as_bytes())).await.expect("an answer");
            assert_eq!(answer, (200, body.as_bytes().to_vec()));
        }
    }

    #[test]
    fn places_are_taken_away_although_others_wait_for_them() {
        let desk = Desk::default();
        desk.resize(40);
        let mut waiting: FuturesUnordered<_> = (0..64).map(|_| desk.free.acquire()).collect();
        let mut seated = || -> Vec<_> {
            std::iter::from_fn(|| waiting.next().now_or_never().flatten()).map(|place| place.expect("open")).collect()
        };
        let first = seated();
        assert_eq!(first.len(), 40);
        desk.resize(6);
        first.into_iter().for_each(|place| desk.leave(place));
        let second = seated();
        assert_eq!(second.len(), 6);
        desk.resize(10);
        let third = seated();
        assert_eq!(third.len(), 4);
        second.into_iter().chain(third).for_each(|place| desk.leave(place));
        assert_eq!(seated().len(), 10);
    }
}
