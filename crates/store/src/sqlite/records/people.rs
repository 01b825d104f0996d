//! Subscribers as delivery sees them, kept in memory: an audience is mostly told more than once.
//!
//! Numbers are given one after the other, so a number's place in the table is its remainder: an installation with fewer
//! subscribers than places never pushes one out. What a commit changes is forgotten before its caller hears of it.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::records::Person;

/// Most subscribers that are kept; another one takes the place of an older. About 400 bytes each.
const PEOPLE_MAX: usize = 1 << 18;

/// Those that were looked up of late.
#[derive(Default)]
pub(super) struct People(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    epoch: Epoch,
    places: Vec<Option<(u64, Arc<Person>)>>,
}

/// How often something was forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Epoch(u64);

impl People {
    /// To be asked before anybody is read who is to be kept.
    pub fn epoch(&self) -> Epoch {
        self.0.lock().epoch
    }

    /// Those of these numbers that are kept, in their order.
    pub fn find(&self, numbers: impl Iterator<Item = u64>) -> Vec<Option<Arc<Person>>> {
        let kept = self.0.lock();
        let find = |number: u64| match kept.places.get(place(number)) {
            Some(Some((known, person))) if *known == number => Some(person.clone()),
            _ => None,
        };
        numbers.map(find).collect()
    }

    /// Keeps what was read since `epoch`; nothing of it if anything was forgotten meanwhile, for it may be out of date.
    pub fn keep(&self, epoch: Epoch, people: impl IntoIterator<Item = (u64, Arc<Person>)>) {
        let mut kept = self.0.lock();
        if kept.epoch != epoch {
            return;
        }
        for (number, person) in people {
            let place = place(number);
            if kept.places.len() <= place {
                kept.places.resize(place + 1, None);
            }
            kept.places[place] = Some((number, person));
        }
    }

    /// Forgets those that a commit has changed.
    pub fn forget(&self, numbers: &[u64]) {
        if numbers.is_empty() {
            return;
        }
        let mut kept = self.0.lock();
        kept.epoch.0 += 1;
        for number in numbers {
            if let Some(found) = kept.places.get_mut(place(*number))
                && found.as_ref().is_some_and(|(known, _)| known == number)
            {
                *found = None;
            }
        }
    }
}

fn place(number: u64) -> usize {
    number as usize % PEOPLE_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn person(id: &str) -> Arc<Person> {
        let id = id.parse().expect("an id");
        Arc::new(Person {
            id,
            profile: Default::default(),
            preferences: Default::default(),
            devices: Default::default(),
        })
    }

    #[test]
    fn what_was_read_before_a_change_is_not_kept_after_it() {
        let people = People::default();
        let shown = |numbers: &[u64]| -> Vec<Option<String>> {
            let found = people.find(numbers.iter().copied());
            found.into_iter().map(|person| person.map(|person| person.id.to_string())).collect()
        };
        let epoch = people.epoch();
        people.keep(epoch, [(1, person("ann")), (2, person("bob"))]);
        assert_eq!(shown(&[2, 3, 1]), [Some("bob".into()), None, Some("ann".into())]);
        let before = people.epoch();
        people.forget(&[2, 7]);
        people.keep(before, [(2, person("bob as he was"))]);
        assert_eq!(shown(&[1, 2]), [Some("ann".into()), None]);
        people.keep(people.epoch(), [(1 + PEOPLE_MAX as u64, person("eve"))]);
        assert_eq!(shown(&[1, 1 + PEOPLE_MAX as u64]), [None, Some("eve".into())]);
        people.forget(&[1]);
        assert_eq!(shown(&[1 + PEOPLE_MAX as u64]), [Some("eve".into())]);
    }
}
