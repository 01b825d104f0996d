//! Trace of a message: from its origin to its results.

use std::collections::{HashSet, VecDeque};

use tocsin_exchange::Exchanges;
use tocsin_model::{exchange::MessageKind, id::MessageId};
use tocsin_store::{
    spool::{Ending, HistoryAction, HistoryEntry, LegState, MessageFilter, StoredMessage},
    tracking::TrackedBody,
};

use super::TraceBuilder;
use crate::{Service, error::ServiceError};

/// Maximum number of messages of one journey.
const MESSAGES_MAX: usize = 100;

impl Service {
    pub(super) async fn add_message(&self, trace: &mut TraceBuilder, id: MessageId) -> Result<(), ServiceError> {
        let exchanges = self.exchanges()?;
        let asked = exchanges.operations.message(id).await?;
        let asked = asked.ok_or_else(|| ServiceError::Missing(format!("the message {id}")))?;
        trace.context = asked.head.trace.as_deref().cloned();
        let mut left = VecDeque::from([first(exchanges, asked.clone()).await?, asked]);
        let mut traced = HashSet::new();
        while let Some(message) = left.pop_front() {
            if traced.len() == MESSAGES_MAX {
                trace.truncated = true;
                break;
            }
            if !traced.insert(message.id) {
                continue;
            }
            let mut history = exchanges.operations.history(message.id).await?;
            for entry in &mut history {
                if let Some(name) = self.key_name(&entry.by) {
                    entry.by = name.into();
                }
            }
            trace.message(&message, &history);
            for body in exchanges.operations.tracked(message.id).await? {
                trace.tracked(&body);
            }
            left.extend(next(exchanges, &message).await?);
        }
        Ok(())
    }
}

/// Origin: the message of which it is a part, which it answers, and so on.
async fn first(exchanges: &Exchanges, mut message: StoredMessage) -> Result<StoredMessage, ServiceError> {
    for _ in 0..MESSAGES_MAX {
        // A message that was aggregated is a part of the aggregate.
        let whole = message.part_of.filter(|_| message.ending != Some(Ending::Assembled));
        let Some(before) = message.answers.or(whole) else { break };
        // Earlier messages may be removed by retention.
        let Some(found) = exchanges.operations.message(before).await? else { break };
        message = found;
    }
    Ok(message)
}

/// Results: its reply and its parts.
async fn next(exchanges: &Exchanges, message: &StoredMessage) -> Result<Vec<StoredMessage>, ServiceError> {
    let mut next = Vec::new();
    if let Some(reply) = message.reply {
        next.extend(exchanges.operations.message(reply).await?);
    }
    if message.ending == Some(Ending::Split) {
        let parts = MessageFilter { part_of: Some(message.id), ..MessageFilter::default() };
        let mut parts = exchanges.operations.messages(parts, None, MESSAGES_MAX).await?;
        parts.reverse();
        next.extend(parts);
    }
    if let (Some(Ending::Assembled), Some(whole)) = (message.ending, message.part_of) {
        next.extend(exchanges.operations.message(whole).await?);
    }
    Ok(next)
}

impl TraceBuilder {
    fn message(&mut self, message: &StoredMessage, history: &[HistoryEntry]) {
        let (id, bytes) = (message.id, message.bytes);
        let (what, how) = match message.kind {
            MessageKind::OneWay => ("received", "through"),
            MessageKind::Request => ("asked", "through"),
            MessageKind::Reply => ("replied", "by"),
        };
        let whole = message.part_of.map(|whole| format!(", part of {whole}")).unwrap_or_default();
        let text = format!("{how} `{}` of `{}`, {bytes} bytes{whole}", message.port, message.exchange);
        self.point(message.accepted_at, what, id, text);
        history.iter().for_each(|entry| self.entry(id, entry));
        let was_suspended = history.iter().any(|entry| entry.port.is_none() && entry.act == HistoryAction::Suspended);
        if let Some(reason) = message.suspended.as_ref().filter(|_| !was_suspended) {
            self.point(message.accepted_at, "suspended", id, reason.clone());
        }
        for leg in &message.legs {
            let what = match leg.state {
                LegState::Done | LegState::Awaiting => "delivered",
                LegState::Waiting => "retry",
                LegState::Suspended => "suspended",
                LegState::Ended => "ended",
            };
            let way = if leg.on_backup { " on its backup" } else { "" };
            let is_traced = |at| history.iter().any(|entry| entry.at == at && entry.port.as_ref() == Some(&leg.port));
            if let Some(at) = leg.tried_at.filter(|at| !is_traced(*at)) {
                let said = leg.said.as_deref().unwrap_or_default();
                self.point(at, what, id, format!("to `{}`{way}, attempt {}: {said}", leg.port, leg.attempts));
            }
            if let (LegState::Awaiting, Some(through)) = (leg.state, &leg.through) {
                self.point(leg.due_at, "due", id, format!("its reply from `{}`, through `{through}`", leg.port));
            }
            if leg.state == LegState::Waiting {
                self.point(leg.due_at, "due", id, format!("to `{}`{way}", leg.port));
            }
        }
        if let (Some(at), Some(ending)) = (message.ended_at, message.ending) {
            self.point(at, "over", id, ending.word().to_owned());
        }
    }

    /// An attempt or an operator action, from the history of a message.
    fn entry(&mut self, id: MessageId, entry: &HistoryEntry) {
        let what = match entry.act {
            HistoryAction::Sent | HistoryAction::Awaiting => "delivered",
            HistoryAction::Failed => "retry",
            act => act.word(),
        };
        let way = if entry.on_backup { " on its backup" } else { "" };
        let mut text = String::new();
        if let Some(port) = &entry.port {
            text.push_str(&format!("to `{port}`{way}"));
        }
        if let Some(attempt) = entry.attempt {
            text.push_str(&format!(", attempt {attempt}"));
        }
        if !entry.by.is_empty() {
            text.push_str(&format!("{}by the key {}", if text.is_empty() { "" } else { ", " }, entry.by));
        }
        if !entry.text.is_empty() {
            text.push_str(&format!("{}{}", if text.is_empty() { "" } else { ": " }, entry.text));
        }
        self.point(entry.at, what, id, text);
    }

    fn tracked(&mut self, body: &TrackedBody) {
        let attempt = body.attempt.map(|(_, number)| format!(", attempt {number}")).unwrap_or_default();
        let text = format!("body {} at `{}`{attempt}, {} bytes", body.point.word(), body.port, body.bytes);
        self.point(body.at, "tracked", body.message, text);
    }
}
