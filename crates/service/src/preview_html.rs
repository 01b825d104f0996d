//! HTML of recent previews, for frames of the console. In memory, each for the caller that made it.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tocsin_model::time::Timestamp;

/// Maximum number of HTML texts.
const TEXTS_MAX: usize = 100;
/// Maximum size of all of them.
const BYTES_MAX: usize = 16 << 20;
/// Time for which they are kept.
const LASTS: Duration = Duration::from_secs(600);

/// Ring of HTML texts, oldest first.
#[derive(Default)]
pub(crate) struct PreviewHtml(Mutex<VecDeque<KeptHtml>>);

struct KeptHtml {
    id: String,
    caller: String,
    at: Timestamp,
    html: Arc<str>,
}

impl PreviewHtml {
    /// Adds a text. The oldest ones are dropped at the bounds.
    pub fn put(&self, id: String, caller: String, at: Timestamp, html: Arc<str>) {
        let mut kept = self.0.lock();
        kept.push_back(KeptHtml { id, caller, at, html });
        let mut bytes: usize = kept.iter().map(|kept| kept.html.len()).sum();
        while kept.len() > TEXTS_MAX || bytes > BYTES_MAX {
            bytes -= kept.pop_front().map_or(0, |oldest| oldest.html.len());
        }
    }

    /// A text of a caller.
    pub fn find(&self, id: &str, caller: &str, now: Timestamp) -> Option<Arc<str>> {
        let mut kept = self.0.lock();
        kept.retain(|kept| now.since(kept.at) < LASTS);
        kept.iter().find(|kept| kept.id == id && kept.caller == caller).map(|kept| kept.html.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_bounded_and_belong_to_their_caller() {
        let (kept, start) = (PreviewHtml::default(), Timestamp(0));
        for number in 0..TEXTS_MAX + 1 {
            kept.put(format!("p-{number}"), "key".to_owned(), start, "x".into());
        }
        assert!(kept.find("p-0", "key", start).is_none());
        assert!(kept.find("p-1", "key", start).is_some());
        assert!(kept.find("p-1", "other", start).is_none());
        kept.put("large".to_owned(), "key".to_owned(), start, "x".repeat(BYTES_MAX).into());
        assert!(kept.find("p-1", "key", start).is_none());
        assert!(kept.find("large", "key", start).is_some());
        assert!(kept.find("large", "key", start + LASTS).is_none());
    }
}
