//! Messages whose headers the client library cannot read. It closes the connection for each, so neither they nor those
//! behind them in the buffer arrive. They are found by the API of the stream, rejected, and acknowledged. An
//! acknowledgement may be lost: it is repeated after each lost connection until the server counts it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use async_nats::{
    ConnectOptions, Event,
    jetstream::{self, consumer::Info},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;

use super::accepted::AcceptedSequences;
use crate::source::SourceError;

/// Most messages that are examined at a time.
const EXAMINED_MAX: usize = 4_000;

/// Whether a connection was lost since the last look.
#[derive(Clone, Default)]
pub(super) struct LostConnections(Arc<AtomicBool>);

impl LostConnections {
    /// Watches the connection of a client.
    pub fn watch(&self, client: ConnectOptions) -> ConnectOptions {
        let lost = self.0.clone();
        client.event_callback(move |event| {
            if matches!(event, Event::Disconnected) {
                lost.store(true, Ordering::Relaxed);
            }
            tracing::info!(%event, "the connection to NATS");
            std::future::ready(())
        })
    }

    /// Requests another look.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// A message that cannot be received.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    pub sequence: u64,
    pub reason: &'static str,
    pub payload: Bytes,
}

#[derive(Deserialize)]
struct StoredMessageReply {
    message: Option<Stored>,
}

/// A stored message, as the API of the stream shows it.
#[derive(Deserialize)]
struct Stored {
    seq: u64,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
}

/// The delivered messages that are not acknowledged, not accepted, and cannot be received.
pub(super) async fn find(
    context: &jetstream::Context,
    consumer: &Info,
    subjects: &[String],
    accepted: &AcceptedSequences,
) -> Result<Vec<Unreadable>, SourceError> {
    let every = [">".to_owned()];
    let subjects = if subjects.is_empty() { &every } else { subjects };
    let mut found: Vec<Unreadable> = Vec::new();
    for subject in subjects {
        let mut next = consumer.ack_floor.stream_sequence + 1;
        for _ in 0..EXAMINED_MAX {
            next = accepted.first_missing(next);
            if next > consumer.delivered.stream_sequence {
                break;
            }
            let request = json!({"seq": next, "next_by_subj": subject});
            let reply = context.request(format!("STREAM.MSG.GET.{}", consumer.stream_name), &request).await;
            let reply: StoredMessageReply =
                reply.map_err(|error| SourceError::new("a message cannot be examined", error))?;
            let Some(stored) = reply.message.filter(|stored| stored.seq >= next) else { break };
            next = stored.seq + 1;
            let is_new = found.iter().all(|known| known.sequence != stored.seq);
            let decode = |text: &str| BASE64_STANDARD.decode(text).unwrap_or_default();
            if let Some(reason) = unreadable(&decode(&stored.hdrs)).filter(|_| is_new)
                && stored.seq <= consumer.delivered.stream_sequence
            {
                found.push(Unreadable { sequence: stored.seq, reason, payload: decode(&stored.data).into() });
            }
        }
    }
    Ok(found)
}

/// Acknowledges a message by its sequence. The server finds an unacknowledged message by the sequence in the stream;
/// the other numbers of the subject are of no effect there.
pub(super) async fn acknowledge(
    context: &jetstream::Context,
    consumer: &Info,
    sequence: u64,
) -> Result<(), SourceError> {
    let failed = |error: &dyn std::fmt::Display| SourceError::new("a message cannot be acknowledged", error);
    let subject = format!("$JS.ACK.{}.{}.1.{sequence}.1.0.0", consumer.stream_name, consumer.name);
    let client = context.client();
    client.publish(subject, Bytes::from_static(b"+ACK")).await.map_err(|error| failed(&error))?;
    client.flush().await.map_err(|error| failed(&error))
}

/// The reason why the library cannot read these headers, by its rules.
fn unreadable(headers: &[u8]) -> Option<&'static str> {
    if headers.is_empty() {
        return None;
    }
    let Ok(text) = str::from_utf8(headers) else { return Some("has headers that are no UTF-8") };
    let mut lines = text.lines();
    let Some(rest) = lines.next().and_then(|line| line.strip_prefix("NATS/1.0")) else {
        return Some("has headers of an unknown version");
    };
    let status = rest.split_whitespace().next();
    if status.is_some_and(|status| !status.parse().is_ok_and(|status: u16| (100..1_000).contains(&status))) {
        return Some("has headers with an invalid status");
    }
    // A line that begins with white space continues a value.
    let mut has_value = false;
    for line in lines.filter(|line| !line.is_empty()) {
        if has_value && line.starts_with(char::is_whitespace) {
            continue;
        }
        let Some((name, _)) = line.split_once(':') else { return Some("has a header line without a colon") };
        if !name.chars().all(|part| part.is_ascii_graphic()) {
            return Some("has a header whose name is not printable ASCII without spaces");
        }
        has_value = true;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_by_the_rules_of_the_library() {
        for readable in [
            "",
            "NATS/1.0\r\n\r\n",
            "NATS/1.0 503\r\n\r\n",
            "NATS/1.0 408 Timeout\r\na: b\r\n\r\n",
            "NATS/1.0\r\nA-b: M\u{fc}ller\r\n c\r\n: empty\r\ne:\r\n\r\n",
        ] {
            assert_eq!(unreadable(readable.as_bytes()), None, "{readable:?}");
        }
        for (bytes, reason) in [
            (&b"NATS/1.0\r\na: M\xfcller\r\n\r\n"[..], "no UTF-8"),
            (b"NATS/2.0\r\n\r\n", "version"),
            (b"NATS/1.0 soon\r\n\r\n", "status"),
            (b"NATS/1.0\r\nabc\r\n\r\n", "colon"),
            (b"NATS/1.0\r\na b: c\r\n\r\n", "name"),
            ("NATS/1.0\r\n\u{e9}: c\r\n\r\n".as_bytes(), "name"),
        ] {
            let found = unreadable(bytes).expect("unreadable");
            assert!(found.contains(reason), "{found}");
        }
    }
}
