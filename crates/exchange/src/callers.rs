//! Who waits for which reply. A caller that is gone, or whose node is, finds the reply in the spool.

use std::collections::HashMap;

use bytes::Bytes;
use parking_lot::Mutex;
use tocsin_model::id::MessageId;
use tocsin_store::spool::Head;
use tokio::sync::oneshot;

/// What a caller waited for.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// The reply, and its body.
    Reply(MessageId, Head, Bytes),
    /// There is none now; the spool says why.
    None,
}

#[derive(Default)]
pub(crate) struct Callers(Mutex<HashMap<MessageId, Vec<oneshot::Sender<Answer>>>>);

impl Callers {
    /// Waits for the answer to a request from now on.
    pub fn wait_for(&self, request: MessageId) -> oneshot::Receiver<Answer> {
        let (answer, answered) = oneshot::channel();
        let mut waiting = self.0.lock();
        let callers = waiting.entry(request).or_default();
        callers.retain(|caller| !caller.is_closed());
        callers.push(answer);
        answered
    }

    /// Tells everybody who waits.
    pub fn answer(&self, request: MessageId, answer: Answer) {
        let mut callers = self.0.lock().remove(&request).unwrap_or_default();
        let Some(last) = callers.pop() else { return };
        for caller in callers {
            // One that has given up meanwhile asks the spool.
            let _ = caller.send(answer.clone());
        }
        let _ = last.send(answer);
    }

    /// Tells everybody to look into the spool.
    pub fn release(&self) {
        self.0.lock().clear();
    }

    /// Forgets those who have given up waiting for this.
    pub fn forget(&self, request: MessageId) {
        let mut waiting = self.0.lock();
        if let Some(callers) = waiting.get_mut(&request) {
            callers.retain(|caller| !caller.is_closed());
            if callers.is_empty() {
                waiting.remove(&request);
            }
        }
    }
}
