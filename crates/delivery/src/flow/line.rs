//! Priority queue of a destination with aging: higher priority leaves first, and no message starves.

use std::collections::VecDeque;

use tocsin_model::delivery_policy::Priority;
use tokio::time::Instant;

/// An item of a [`AgingQueue`].
pub(crate) trait Waits {
    /// Its priority.
    fn priority(&self) -> Priority;
    /// When it was queued.
    fn since(&self) -> Instant;
}

/// One queue per priority with priority aging. The oldest head leaves first, where a lower priority counts as queued
/// later by its [`Priority::aging`].
#[derive(Clone)]
pub(crate) struct AgingQueue<T>([VecDeque<T>; Priority::ALL.len()]);

impl<T: Waits> AgingQueue<T> {
    /// An empty queue.
    pub fn new() -> Self {
        AgingQueue(Default::default())
    }

    /// Number of waiting items.
    pub fn len(&self) -> usize {
        self.0.iter().map(VecDeque::len).sum()
    }

    /// Number of waiting items of this priority.
    pub fn len_of(&self, priority: Priority) -> usize {
        self.0[priority as usize].len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(VecDeque::is_empty)
    }

    /// Adds an item behind those of its priority.
    pub fn push_back(&mut self, item: T) {
        self.0[item.priority() as usize].push_back(item);
    }

    /// Adds an item before those of its priority.
    pub fn push_front(&mut self, item: T) {
        self.0[item.priority() as usize].push_front(item);
    }

    /// The queue whose head leaves next, if any item waits.
    pub fn front(&mut self) -> Option<&mut VecDeque<T>> {
        let waiting = self.0.iter_mut().filter(|line| !line.is_empty());
        waiting.min_by_key(|line| line.front().map(|first| first.since() + first.priority().aging()))
    }

    /// Takes the next item.
    pub fn pop_front(&mut self) -> Option<T> {
        self.front()?.pop_front()
    }

    /// Removes all items.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.0.iter_mut().flat_map(|line| line.drain(..))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq)]
    struct One(Priority, Instant);

    impl Waits for One {
        fn priority(&self) -> Priority {
            self.0
        }

        fn since(&self) -> Instant {
            self.1
        }
    }

    #[test]
    fn higher_priority_goes_first_with_aging() {
        let start = Instant::now();
        let at = |minutes: u64, priority| One(priority, start + Duration::from_secs(60 * minutes));
        use Priority::{High, Low, Normal, Urgent};
        let mut line = AgingQueue::new();
        let came = [at(0, Low), at(1, Normal), at(1, Low), at(2, High), at(4, Urgent), at(8, Urgent), at(40, High)];
        came.iter().for_each(|one| line.push_back(*one));
        assert_eq!((line.len(), line.len_of(Low), line.len_of(High)), (7, 2, 2));
        let left: Vec<One> = std::iter::from_fn(|| line.pop_front()).collect();
        let expected = [at(2, High), at(4, Urgent), at(1, Normal), at(8, Urgent), at(0, Low), at(1, Low), at(40, High)];
        assert_eq!(left, expected);
        assert!(line.is_empty());
    }

    #[test]
    fn an_item_put_back_is_the_first_of_its_priority() {
        let start = Instant::now();
        let mut line = AgingQueue::new();
        let (one, other) = (One(Priority::Low, start), One(Priority::Low, start + Duration::from_secs(1)));
        line.push_back(other);
        line.push_front(one);
        assert_eq!(line.drain().collect::<Vec<_>>(), [one, other]);
    }
}
