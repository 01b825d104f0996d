//! Accepted mails, for de-duplication: a mail that is sent again is not an event again.

use std::collections::{HashSet, VecDeque};

use tocsin_model::{mark::Mark, problem::Problem, time::Timestamp};

use crate::source::read_mark;

/// Prefix of the parts of mails.
const PREFIX: &str = "mail:";
/// Most remembered mails; beyond, the oldest are forgotten.
pub(super) const REMEMBERED_MAX: usize = 100_000;
const DAY_MILLIS: i64 = 86_400_000;

/// Accepted mails, by their de-duplication keys.
pub(super) struct AcceptedMails {
    keys: HashSet<String>,
    /// The same, oldest first, with the time of their acceptance.
    order: VecDeque<(i64, String)>,
    days: u32,
}

impl AcceptedMails {
    /// Reads the mails from the marks of a source.
    ///
    /// # Errors
    /// One of them is unreadable: without it, its mail would be an event again.
    pub fn read(marks: &[Mark], days: u32) -> Result<AcceptedMails, Vec<Problem>> {
        let entry = |mark: &Mark| {
            let key = mark.part.strip_prefix(PREFIX)?;
            Some(read_mark(mark)?.map(|time| (time, key.to_owned())))
        };
        let mut order: Vec<(i64, String)> = marks.iter().filter_map(entry).collect::<Result<_, _>>()?;
        order.sort_unstable();
        Ok(AcceptedMails { keys: order.iter().map(|(_, key)| key.clone()).collect(), order: order.into(), days })
    }

    /// Whether a mail was accepted.
    pub fn knows(&self, key: &str) -> bool {
        self.keys.contains(key)
    }

    /// Records a mail, and forgets those that are too old or too many.
    pub fn remember(&mut self, key: String, now: Timestamp, marks: &mut Vec<Mark>) {
        let now = now.as_millis();
        marks.push(Mark::set(format!("{PREFIX}{key}"), now.to_string()));
        self.keys.insert(key.clone());
        self.order.push_back((now, key));
        let oldest = now - i64::from(self.days) * DAY_MILLIS;
        while self.order.len() > REMEMBERED_MAX || self.order.front().is_some_and(|(time, _)| *time < oldest) {
            let Some((_, key)) = self.order.pop_front() else { break };
            self.keys.remove(&key);
            marks.push(Mark::delete(format!("{PREFIX}{key}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mails_are_remembered_for_some_days() {
        let mut marks = Vec::new();
        let mut remembered = AcceptedMails::read(&[], 1).expect("no marks");
        remembered.remember("a".to_owned(), Timestamp::from_millis(1_000), &mut marks);
        remembered.remember("b".to_owned(), Timestamp::from_millis(DAY_MILLIS), &mut marks);
        assert_eq!(marks, [Mark::set("mail:a", "1000"), Mark::set("mail:b", "86400000")]);
        let stored = [marks.remove(1), marks.remove(0), Mark::set("other", "x")];
        let mut remembered = AcceptedMails::read(&stored, 1).expect("readable marks");
        assert!(remembered.knows("a") && remembered.knows("b"));
        remembered.remember("c".to_owned(), Timestamp::from_millis(DAY_MILLIS + 1_001), &mut marks);
        assert_eq!(marks[1..], [Mark::delete("mail:a")]);
        assert!(!remembered.knows("a") && remembered.knows("b"));
    }

    #[test]
    fn d_an_unreadable_mail_is_an_error() {
        for value in ["", "soon", "1 2", "1.5"] {
            let problems = AcceptedMails::read(&[Mark::set("mail:a", value)], 1).err().expect(value);
            assert!(problems[0].message.contains("`mail:a` cannot be read"), "{problems:?}");
        }
    }

    #[test]
    fn the_oldest_are_forgotten_first() {
        let mut remembered = AcceptedMails::read(&[], 1).expect("no marks");
        let mut marks = Vec::new();
        for number in 0..=REMEMBERED_MAX {
            remembered.remember(number.to_string(), Timestamp::from_millis(1), &mut marks);
        }
        assert_eq!(marks.last(), Some(&Mark::delete("mail:0")));
        assert!(!remembered.knows("0") && remembered.knows("1"));
    }
}
