//! Byte-counting TCP relay to a port of this machine. Each hop costs CPU time, so nothing is timed while it is in use.

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

/// Buffer size in bytes.
const PART_BYTES: usize = 64 << 10;

/// Relay. Its connections end on drop.
pub struct Relay {
    /// Listening port.
    pub port: u16,
    bytes: Arc<AtomicU64>,
    _serving: JoinSet<()>,
}

impl Relay {
    /// Starts a relay to this port.
    ///
    /// # Errors
    /// If there is no free port.
    pub async fn to(behind: u16) -> Outcome<Self> {
        let failed = |error: std::io::Error| Failure::failed("cannot open a port for a relay").because(&error);
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let (bytes, mut serving) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
        let counted = bytes.clone();
        serving.spawn(async move {
            // Dropping the set ends its connections.
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                connections.spawn(forward_connection(near, behind, counted.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Relay { port, bytes, _serving: serving })
    }

    /// Bytes received so far from both sides, without TCP and IP headers. A received response is already counted.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

async fn forward_connection(client: TcpStream, behind: u16, bytes: Arc<AtomicU64>) {
    // Without a server behind the relay the connection is closed.
    let Ok(server) = TcpStream::connect(("127.0.0.1", behind)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::join!(pass(from_client, to_server, &bytes), pass(from_server, to_client, &bytes));
}

/// Forwards bytes until the end of the stream, then shuts down the other side.
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
    async fn both_directions_are_counted_and_shutdowns_are_forwarded() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let relay = Relay::to(listener.local_addr().expect("an address").port()).await.expect("a relay");
        let asked = vec![b'q'; 3 * PART_BYTES + 7];
        let length = asked.len();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut received = Vec::new();
            stream.read_to_end(&mut received).await.expect("until its end");
            stream.write_all(b"hello").await.expect("written");
            received.len()
        });
        let mut near = TcpStream::connect(("127.0.0.1", relay.port)).await.expect("a door");
        near.write_all(&asked).await.expect("written");
        near.shutdown().await.expect("said");
        let mut answer = Vec::new();
        near.read_to_end(&mut answer).await.expect("until its end");
        assert_eq!((server.await.expect("served"), answer.as_slice()), (length, &b"hello"[..]));
        assert_eq!(relay.bytes(), length as u64 + 5);
    }

    #[tokio::test]
    async fn a_connection_without_a_server_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let relay = Relay::to(port).await.expect("a relay");
        let mut near = TcpStream::connect(("127.0.0.1", relay.port)).await.expect("a door");
        assert!(matches!(near.read(&mut [0; 8]).await, Ok(0) | Err(_)));
        assert_eq!(relay.bytes(), 0);
    }
}
