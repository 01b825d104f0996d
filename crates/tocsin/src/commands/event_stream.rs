//! Client of server-sent events: reopens a stream at its last event when it ends.

use std::{ops::ControlFlow, time::Duration};

use reqwest::Method;
use serde_json::Value;

use crate::{
    client::{Client, with_query},
    failure::{Failure, Outcome},
};

/// Time without any bytes after which a stream counts as broken.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Pause before a stream is reopened.
const COME_BACK: Duration = Duration::from_secs(2);
/// Maximum size of an event in bytes.
const EVENT_BYTES_MAX: usize = 64 << 20;

/// An event of a stream.
pub struct StreamEvent {
    pub id: String,
    pub name: String,
    pub data: Value,
}

impl StreamEvent {
    /// Parses a block; `None` for a keep-alive comment, and for an event without an id.
    fn read(block: &str) -> Option<StreamEvent> {
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        let data = serde_json::from_str(&field("data: ")?).ok()?;
        Some(StreamEvent { id: field("id: ")?, name: field("event: ")?, data })
    }
}

/// Follows a stream after an event, which may be empty, until `take` breaks.
///
/// # Errors
/// If the server refuses the stream, or `take` fails.
pub async fn follow(
    client: &Client,
    path: &str,
    query: &[(&str, &str)],
    mut after: String,
    mut take: impl FnMut(&StreamEvent) -> Outcome<ControlFlow<()>>,
) -> Outcome {
    loop {
        let mut query = query.to_vec();
        if !after.is_empty() {
            query.push(("last_event_id", after.as_str()));
        }
        let mut answer = client.send(client.request(Method::GET, &with_query(path, &query))).await?;
        let mut waiting = Vec::new();
        while let Ok(Ok(Some(chunk))) = tokio::time::timeout(SILENCE_MAX, answer.chunk()).await {
            waiting.extend_from_slice(&chunk);
            while let Some(end) = waiting.windows(2).position(|two| two == b"\n\n") {
                let block: Vec<u8> = waiting.drain(..end + 2).collect();
                let Some(event) = StreamEvent::read(&String::from_utf8_lossy(&block)) else { continue };
                after.clone_from(&event.id);
                if take(&event)?.is_break() {
                    return Ok(());
                }
            }
            if waiting.len() > EVENT_BYTES_MAX {
                return Err(Failure::failed("the stream has no event ids; is this a Tocsin server?"));
            }
        }
        tokio::time::sleep(COME_BACK).await;
    }
}
