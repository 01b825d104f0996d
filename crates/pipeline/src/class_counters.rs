//! Metrics by application and class, with bounded label cardinality: beyond the bound, all further classes share one
//! label. So definitions cannot exhaust the memory of the monitoring system.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use metrics::Counter;
use parking_lot::Mutex;
use tocsin_model::{id::Name, receipt::Outcome};

/// Maximum number of label pairs.
const PAIRS_MAX: usize = 2_000;
/// Label of all other pairs.
const OTHER: &str = "(other)";

/// Metric labels of a pair.
pub(crate) type Labels = [(&'static str, String); 2];

/// Counters of the notifications of a class.
pub(crate) struct NotificationCounters {
    /// Attempts by outcome, in the order of `Outcome::ALL`.
    pub outcomes: [Counter; Outcome::ALL.len()],
    /// Successfully formatted notifications.
    pub formatted: Counter,
    /// Notifications that could not be formatted.
    pub format_failed: Counter,
}

/// The known label pairs and their counters.
#[derive(Default)]
pub(crate) struct ClassCounters {
    pairs: Mutex<HashSet<(Name, Name)>>,
    notifications: Mutex<HashMap<(Name, Name), Arc<NotificationCounters>>>,
    other: OnceLock<Arc<NotificationCounters>>,
}

impl ClassCounters {
    /// Labels for a class.
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

    /// Counters of a notification class, looked up once per work item.
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

    /// Counters for notifications without a readable class.
    pub fn other(&self) -> Arc<NotificationCounters> {
        self.other.get_or_init(|| Arc::new(NotificationCounters::new(&labels_of(OTHER, OTHER)))).clone()
    }
}

impl NotificationCounters {
    /// Requires an installed metrics recorder.
    fn new([(_, application), (_, class)]: &Labels) -> NotificationCounters {
        let of = |name: &'static str, value: &'static str| {
            [("application", application.clone()), ("class", class.clone()), (name, value.to_owned())]
        };
        let formats = |result| metrics::counter!("tocsin_format_requests_total", &of("result", result));
        NotificationCounters {
            outcomes: Outcome::ALL
                .map(|outcome| metrics::counter!("tocsin_deliver_outcomes_total", &of("outcome", outcome.word()))),
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
    fn pairs_beyond_the_bound_share_a_label() {
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
