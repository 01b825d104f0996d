//! Counters of all mails, and a ring of the newest ones.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use tocsin_model::time::Timestamp;

/// Maximum number of `Message-ID`s compared.
const IDS_MAX: usize = 4_000_000;

/// Maximum number of recipients with their own counter.
const RECIPIENTS_MAX: usize = 1_000_000;

/// Received mail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mail {
    /// Number in order of arrival, starting at 1.
    pub number: u64,
    /// Time of its last byte.
    pub received_at: Timestamp,
    /// Envelope sender.
    pub from: String,
    /// Envelope recipients.
    pub to: Vec<String>,
    /// Headers and body.
    pub bytes: Vec<u8>,
}

/// Counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Mails, independent of the number of recipients.
    pub mails: u64,
    /// Recipients of all mails.
    pub recipients: u64,
    /// Bytes of all mails.
    pub bytes: u64,
    /// Mails whose `Message-ID` is a duplicate, among the first four million.
    pub repeated: u64,
}

pub(super) struct Ring {
    newest: VecDeque<Arc<Mail>>,
    kept_bytes: usize,
    keep: usize,
    keep_bytes: usize,
    counts: Counts,
    hasher: RandomState,
    ids: HashSet<u64>,
    recipients: HashMap<String, u64>,
}

impl Ring {
    pub(super) fn new(keep: usize, keep_bytes: usize) -> Self {
        Ring {
            newest: VecDeque::new(),
            kept_bytes: 0,
            keep,
            keep_bytes,
            counts: Counts::default(),
            hasher: RandomState::new(),
            ids: HashSet::new(),
            recipients: HashMap::new(),
        }
    }

    /// Counts a mail and stores it; returns the number of mails so far.
    pub(super) fn put(&mut self, from: String, to: Vec<String>, bytes: Vec<u8>, now: Timestamp) -> u64 {
        self.counts.mails += 1;
        self.counts.recipients += to.len() as u64;
        self.counts.bytes += bytes.len() as u64;
        if let Some(id) = message_id(&bytes) {
            let hash = self.hasher.hash_one(id);
            if self.ids.contains(&hash) {
                self.counts.repeated += 1;
            } else if self.ids.len() < IDS_MAX {
                self.ids.insert(hash);
            }
        }
        for address in &to {
            if let Some(count) = self.recipients.get_mut(address) {
                *count += 1;
            } else if self.recipients.len() < RECIPIENTS_MAX {
                self.recipients.insert(address.clone(), 1);
            }
        }
        self.kept_bytes += bytes.len();
        self.newest.push_front(Arc::new(Mail { number: self.counts.mails, received_at: now, from, to, bytes }));
        while self.newest.len() > self.keep || self.kept_bytes > self.keep_bytes {
            match self.newest.pop_back() {
                Some(oldest) => self.kept_bytes -= oldest.bytes.len(),
                None => break,
            }
        }
        self.counts.mails
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn mails_for(&self, address: &str) -> u64 {
        self.recipients.get(address).copied().unwrap_or_default()
    }

    pub(super) fn newest(&self) -> impl Iterator<Item = &Arc<Mail>> {
        self.newest.iter()
    }

    pub(super) fn find(&self, number: u64) -> Option<Arc<Mail>> {
        let newest = self.newest.front()?.number;
        self.newest.get(usize::try_from(newest.checked_sub(number)?).ok()?).cloned()
    }
}

/// Value of the first `Message-ID` header.
fn message_id(mail: &[u8]) -> Option<&[u8]> {
    const NAME: &[u8] = b"message-id:";
    let headers = mail.split(|byte| *byte == b'\n').take_while(|line| !line.iter().all(u8::is_ascii_whitespace));
    let mut lines = headers.filter_map(|line| {
        let (name, value) = line.split_at_checked(NAME.len())?;
        name.eq_ignore_ascii_case(NAME).then_some(value.trim_ascii())
    });
    lines.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_include_evicted_mails() {
        let mut ring = Ring::new(2, 1000);
        for at in 0..5 {
            let bytes = format!("Subject: x\r\nMESSAGE-ID: <{}@x>\r\n\r\nMessage-ID: <body>", at % 4).into_bytes();
            ring.put("a@x".into(), vec![format!("{}@x", at % 2)], bytes, Timestamp(at));
        }
        assert_eq!(ring.counts(), Counts { mails: 5, recipients: 5, bytes: 5 * 51, repeated: 1 });
        assert_eq!(ring.newest().map(|mail| mail.number).collect::<Vec<_>>(), [5, 4]);
        assert_eq!((ring.mails_for("0@x"), ring.mails_for("1@x"), ring.mails_for("2@x")), (3, 2, 0));
        assert_eq!(ring.find(4).map(|mail| mail.number), Some(4));
        assert_eq!([0, 3, 6].map(|number| ring.find(number)), [None, None, None]);
        ring.put("a@x".into(), vec![], vec![b'x'; 2000], Timestamp(9));
        assert_eq!((ring.newest().count(), ring.kept_bytes), (0, 0));
    }
}
