//! A far end of our own: answers posts as slowly as it is told.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
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
    /// Starts it; its nature may change over time.
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
        let failed = |error: std::io::Error| Failure::failed("no port for a far end").because(&error);
        let listener = TcpListener::bind("0.0.0.0:0").await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let (began, desk) = (Instant::now(), Arc::new(Desk::default()));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            // Ends the connections with it.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, began, nature, desk.clone(), reader.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(FarEnd { port, _serving: serving })
    }
}

/// Places to work at, as many as the far end has at the moment.
struct Desk {
    places: Semaphore,
    workers: parking_lot::Mutex<usize>,
}

const PLACES: usize = 10_000;

impl Default for Desk {
    fn default() -> Self {
        Desk { places: Semaphore::new(PLACES), workers: parking_lot::Mutex::new(PLACES) }
    }
}

impl Desk {
    /// Takes places away, or brings them back.
    fn resize(&self, workers: usize) {
        let mut present = self.workers.lock();
        if *present < workers {
            self.places.add_permits(workers - *present);
            *present = workers;
        } else {
            // Those at work finish first; what is not free yet is taken at a later look.
            *present -= self.places.forget_permits(*present - workers);
        }
    }
}

async fn serve(
    mut stream: TcpStream,
    began: Instant,
    nature: fn(Duration) -> Nature,
    desk: Arc<Desk>,
    reader: Arc<dyn Reader>,
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
            let Ok(place) = desk.places.acquire().await else { return };
            tokio::time::sleep(Duration::from_millis(millis)).await;
            drop(place);
        }
        reader(&unread[head..length]);
        unread.drain(..length);
        if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.is_err() {
            return;
        }
    }
}
