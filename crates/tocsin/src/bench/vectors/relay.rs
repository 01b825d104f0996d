//! A door before a port of this machine that counts what goes through it. Each hop costs time of the processors, so nothing
//! is timed while it is in use.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinSet,
};

use crate::failure::{Failure, Outcome};

/// Bytes that are carried at once.
const PART_BYTES: usize = 64 << 10;

/// A door. What goes through it ends with the value.
pub struct Relay {
    /// Where it is.
    pub port: u16,
    bytes: Arc<AtomicU64>,
    _serving: JoinSet<()>,
}

impl Relay {
    /// Opens a door before this port.
    ///
    /// # Errors
    /// There is no free port.
    pub async fn to(behind: u16) -> Outcome<Self> {
        let failed = |error: std::io::Error| Failure::failed("no port for a relay").because(&error);
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let (bytes, mut serving) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
        let counted = bytes.clone();
        serving.spawn(async move {
            // Ends the connections with it.
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                connections.spawn(carry(near, behind, counted.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Relay { port, bytes, _serving: serving })
    }

    /// Bytes that have come to it so far, from both sides, without what TCP and IP put around them. Whoever has an answer
    /// finds it counted.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

async fn carry(near: TcpStream, behind: u16, bytes: Arc<AtomicU64>) {
    // If nobody is behind the door it is closed again.
    let Ok(far) = TcpStream::connect(("127.0.0.1", behind)).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
    tokio::join!(pass(from_near, to_far, &bytes), pass(from_far, to_near, &bytes));
}

/// Passes on what comes until no more does, and then says so.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, bytes: &AtomicU64) {
    let mut part = vec![0; PART_BYTES];
    while let Ok(length @ 1..) = from.read(&mut part).await {
        bytes.fetch_add(length as u64, Ordering::Relaxed);
        if to.write_all(&part[..length]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_ways_are_counted_and_ends_are_passed_on() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let relay = Relay::to(listener.local_addr().expect("an address").port()).await.expect("a relay");
        let asked = vec![b'q'; 3 * PART_BYTES + 7];
        let length = asked.len();
        let far = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut heard = Vec::new();
            stream.read_to_end(&mut heard).await.expect("until its end");
            stream.write_all(b"hello").await.expect("written");
            heard.len()
        });
        let mut near = TcpStream::connect(("127.0.0.1", relay.port)).await.expect("a door");
        near.write_all(&asked).await.expect("written");
        near.shutdown().await.expect("said");
        let mut answer = Vec::new();
        near.read_to_end(&mut answer).await.expect("until its end");
        assert_eq!((far.await.expect("served"), answer.as_slice()), (length, &b"hello"[..]));
        assert_eq!(relay.bytes(), length as u64 + 5);
    }

    #[tokio::test]
    async fn a_door_to_nobody_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let relay = Relay::to(port).await.expect("a relay");
        let mut near = TcpStream::connect(("127.0.0.1", relay.port)).await.expect("a door");
        assert!(matches!(near.read(&mut [0; 8]).await, Ok(0) | Err(_)));
        assert_eq!(relay.bytes(), 0);
    }
}
