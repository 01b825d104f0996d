//! Callers that wait for replies. A caller that disconnects, or whose node stops, finds the reply in the spool.

use std::collections::HashMap;

use bytes::Bytes;
use parking_lot::Mutex;
use tocsin_model::id::MessageId;
use tocsin_store::spool::Head;
use tokio::sync::oneshot;

/// Notification to the callers that wait for a reply.
#[derive(Debug, Clone)]
pub(crate) enum ReplyNotice {
    /// The reply: its id, head and body.
    Reply(MessageId, Head, Bytes),
    /// No reply at present; the spool has the state of the request.
    None,
}

#[derive(Default)]
pub(crate) struct ReplyWaiters(Mutex<HashMap<MessageId, Vec<oneshot::Sender<ReplyNotice>>>>);

impl ReplyWaiters {
    /// Registers a caller that waits for the reply to a request.
    pub fn wait_for(&self, request: MessageId) -> oneshot::Receiver<ReplyNotice> {
        let (answer, answered) = oneshot::channel();
        let mut waiting = self.0.lock();
        let reply_waiters = waiting.entry(request).or_default();
        reply_waiters.retain(|caller| !caller.is_closed());
        reply_waiters.push(answer);
        answered
    }

    /// Notifies all callers that wait for this request.
    pub fn answer(&self, request: MessageId, answer: ReplyNotice) {
        let mut reply_waiters = self.0.lock().remove(&request).unwrap_or_default();
        let Some(last) = reply_waiters.pop() else { return };
        for caller in reply_waiters {
            // A caller that has timed out reads the spool.
            let _ = caller.send(answer.clone());
        }
        let _ = last.send(answer);
    }

    /// Wakes all callers without a result; each of them reads the spool.
    pub fn release(&self) {
        self.0.lock().clear();
    }

    /// Removes callers that have timed out.
    pub fn forget(&self, request: MessageId) {
        let mut waiting = self.0.lock();
        if let Some(reply_waiters) = waiting.get_mut(&request) {
            reply_waiters.retain(|caller| !caller.is_closed());
            if reply_waiters.is_empty() {
                waiting.remove(&request);
            }
        }
    }
}
