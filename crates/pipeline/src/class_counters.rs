//! Counters by application and class. Definitions name classes, so there are few; what is beyond a bound is counted
//! together, so that nobody who applies definitions can fill the memory of whoever keeps the figures.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use metrics::Counter;
use parking_lot::Mutex;
use tocsin_model::{id::Name, receipt::Outcome};

/// So many pairs of application and class have counters of their own.
const PAIRS_MAX: usize = 2_000;
/// What stands for all others.
const OTHER: &str = "(other)";

/// The labels of a pair.
pub(crate) type Labels = [(&'static str, String); 2];

/// Counters of what becomes of the notifications of a class.
pub(crate) struct NotificationCounters {
    /// What became of attempts, in the order of `Outcome::ALL`.
    pub outcomes: [Counter; Outcome::ALL.len()],
    /// Those that could be formatted.
    pub formatted: Counter,
    /// Those that could not.
    pub format_failed: Counter,
}

/// Knows which pairs have counters.
#[derive(Default)]
pub(crate) struct ClassCounters {
    pairs: Mutex<HashSet<(Name, Name)>>,
    notifications: Mutex<HashMap<(Name, Name), Arc<NotificationCounters>>>,
    other: OnceLock<Arc<NotificationCounters>>,
}

impl ClassCounters {
    /// The labels under which something of this class is counted.
    pub fn labels(&self, application: &Name, class: &Name) -> Labels {
        let mut pairs = self.pairs.lock();
        let pair = (application.clone(), class.clone());
        if pairs.contains(&pair) || pairs.len() < PAIRS_MAX {
            let labels = labels_of(application.as_str(), class.as_str());
            pairs.insert(pair);
            return labels;
        }
        labels_of(OTHER, OTHER)
    }

    /// Counters of a notification class, found once for each work item: each notification then costs no look-up.
    pub fn notifications(&self, application: &Name, class: &Name) -> Arc<NotificationCounters> {
        let pair = (application.clone(), class.clone());
        if let Some(known) = self.notifications.lock().get(&pair) {
            return known.clone();
        }
        let labels = self.labels(application, class);
        if labels[0].1 == OTHER {
            return self.other();
        }
        let made = Arc::new(NotificationCounters::new(&labels));
        self.notifications.lock().insert(pair, made.clone());
        made
    }

    /// Counters of what belongs to no class that can be read.
    pub fn other(&self) -> Arc<NotificationCounters> {
        self.other.get_or_init(|| Arc::new(NotificationCounters::new(&labels_of(OTHER, OTHER)))).clone()
    }
}

impl NotificationCounters {
    /// The metrics recorder must be in place by now.
    fn new([(_, application), (_, class)]: &Labels) -> NotificationCounters {
        let of = |name: &'static str, value: &'static str| {
            [("application", application.clone()), ("class", class.clone()), (name, value.to_owned())]
        };
        let formats = |result| metrics::counter!("format_requests_total", &of("result", result));
        NotificationCounters {
            outcomes: Outcome::ALL
                .map(|outcome| metrics::counter!("deliver_outcomes_total", &of("outcome", outcome.word()))),
            formatted: formats("ok"),
            format_failed: formats("failed"),
        }
    }
}

fn labels_of(application: &str, class: &str) -> Labels {
    [("application", application.to_owned()), ("class", class.to_owned())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_the_bound_is_counted_together() {
        let counters = ClassCounters::default();
        let name = |text: String| text.parse::<Name>().expect("a name");
        let class = name("c".to_owned());
        for at in 0..PAIRS_MAX {
            assert_eq!(counters.labels(&name(format!("a{at}")), &class)[0].1, format!("a{at}"));
        }
        assert_eq!(counters.labels(&name("more".to_owned()), &class), labels_of(OTHER, OTHER));
        assert_eq!(counters.labels(&name("a7".to_owned()), &class), labels_of("a7", "c"));
        counters.notifications(&name("more".to_owned()), &class);
        assert_eq!((counters.pairs.lock().len(), counters.notifications.lock().len()), (PAIRS_MAX, 0));
    }
}
