//! Throttles: how many notifications an application may make per period, in total, per event class and by its
//! schedules. Token buckets that may go into debt, since an event batch is always matched whole.

use std::{collections::BTreeMap, time::Duration};

use tocsin_model::{
    application::{Application, Throttle, due_class},
    id::Name,
    time::Timestamp,
};

/// Throttles of one application.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    all: Rate,
    classes: BTreeMap<Name, Rate>,
}

/// Waiting times of events.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Waits {
    /// Waiting time of the whole application.
    pub all: Option<Duration>,
    /// Waiting times of event classes. Runs of schedules are of the class of due times; they also wait while the
    /// events they read wait.
    pub classes: BTreeMap<Name, Duration>,
}

/// Admission of event batches to one quantum.
pub(crate) struct Admission<'a> {
    rates: &'a mut Rates,
    application: &'a Application,
    now: Timestamp,
    all: Option<usize>,
    classes: BTreeMap<Name, Option<usize>>,
    /// Whether a batch was refused whose events scheduled runs read; such runs then wait, too.
    has_refused_run_input: bool,
}

impl Rates {
    /// Times for which events of the application have to wait.
    pub fn waits(&mut self, application: &Application, now: Timestamp) -> Waits {
        let throttled = application.events.iter().filter(|(_, class)| class.throttle.is_some());
        let mut waits = Waits { all: self.all.wait(application.limits.throttle, now), classes: BTreeMap::new() };
        for (name, class) in throttled {
            let Some(wait) = self.classes.get_mut(name).and_then(|rate| rate.wait(class.throttle, now)) else {
                continue;
            };
            waits.classes.insert(name.clone(), wait);
            if is_run_input(application, name) {
                // A run would miss the waiting events.
                let runs = waits.classes.entry(due_class()).or_default();
                *runs = wait.max(*runs);
            }
        }
        waits
    }

    /// Starts the admission for a quantum.
    pub fn admission<'a>(&'a mut self, application: &'a Application, now: Timestamp) -> Admission<'a> {
        let all = self.all.batches_max(application.limits.throttle, now);
        Admission { rates: self, application, now, all, classes: BTreeMap::new(), has_refused_run_input: false }
    }

    /// Counts the notifications of some event batches of a class against the throttles.
    pub fn charge(&mut self, application: &Application, class: &Name, made: NotificationCount, now: Timestamp) {
        self.all.charge(application.limits.throttle, made, now);
        match application.throttle_of(class) {
            Some(throttle) => self.classes.entry(class.clone()).or_default().charge(Some(throttle), made, now),
            None => drop(self.classes.remove(class)),
        }
    }

    /// Maximum number of notifications for a run of a schedule in one step; `None`: no limit.
    pub fn notifications_max(&mut self, application: &Application, now: Timestamp) -> Option<usize> {
        let of_runs = application.throttle_of(&due_class());
        let runs = self.classes.entry(due_class()).or_default().left(of_runs, now);
        let all = self.all.left(application.limits.throttle, now);
        let least = runs.into_iter().chain(all).reduce(f64::min)?;
        Some((least as usize).max(1))
    }
}

impl Admission<'_> {
    /// Whether the quantum may match one more batch of a class. After one refusal, all batches of the class are
    /// refused.
    pub fn take(&mut self, class: &Name) -> bool {
        let room = match self.classes.get(class) {
            Some(room) => *room,
            None => {
                let throttle = self.application.throttle_of(class);
                let rate = self.rates.classes.entry(class.clone()).or_default();
                rate.batches_max(throttle, self.now)
            }
        };
        let is_behind_run_input = self.has_refused_run_input && *class == due_class();
        let may = self.all != Some(0) && room != Some(0) && !is_behind_run_input;
        if may {
            self.all = self.all.map(|room| room - 1);
        } else {
            self.has_refused_run_input |= is_run_input(self.application, class);
        }
        let room = if may { room.map(|room| room - 1) } else { Some(0) };
        self.classes.insert(class.clone(), room);
        may
    }
}

/// Whether runs of schedules read events of a class.
fn is_run_input(application: &Application, class: &Name) -> bool {
    application.rules.values().any(|rule| rule.schedule.is_some() && rule.on == *class)
}

/// Notifications made by some event batches.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct NotificationCount {
    pub notifications: u64,
    pub batches: usize,
}

/// State of one throttle.
#[derive(Debug, Default)]
struct Rate {
    bucket: Option<Bucket>,
    /// Notifications per event batch: the average of the last quantum, or half of the previous value if that is more.
    /// `None`: nothing was matched under a throttle yet.
    per_batch: Option<f64>,
}

impl Rate {
    fn charge(
        &mut self,
        throttle: Option<Throttle>,
        NotificationCount { notifications, batches }: NotificationCount,
        now: Timestamp,
    ) {
        let Some(throttle) = throttle else {
            (self.bucket, self.per_batch) = (None, None);
            return;
        };
        let bucket = self.bucket.get_or_insert_with(|| Bucket::full(throttle, now));
        bucket.fill(throttle, now);
        bucket.left -= notifications as f64;
        let average = notifications as f64 / batches.max(1) as f64;
        self.per_batch = Some(average.max(self.per_batch.unwrap_or_default() / 2.0));
    }

    /// Notifications that may be made now.
    fn left(&mut self, throttle: Option<Throttle>, now: Timestamp) -> Option<f64> {
        let throttle = throttle?;
        Some(match &mut self.bucket {
            Some(bucket) => {
                bucket.fill(throttle, now);
                bucket.left
            }
            None => throttle.notifications as f64,
        })
    }

    /// Maximum number of event batches for one quantum; `None`: no limit. Estimated from the notifications of recent
    /// batches; at least one, since a batch is matched whole.
    fn batches_max(&mut self, throttle: Option<Throttle>, now: Timestamp) -> Option<usize> {
        let left = self.left(throttle, now)?;
        // Before anything was matched, a batch may make any number.
        let per_batch = self.per_batch.map_or(f64::INFINITY, |made| made.max(0.01));
        Some(((left / per_batch) as usize).max(1))
    }

    /// Time until notifications may be made again; `None`: now.
    fn wait(&mut self, throttle: Option<Throttle>, now: Timestamp) -> Option<Duration> {
        let (throttle, bucket) = (throttle?, self.bucket.as_mut()?);
        bucket.fill(throttle, now);
        (bucket.left < 0.0).then(|| {
            let share = -bucket.left / throttle.notifications.max(1) as f64;
            throttle.per.mul_f64(share.min(1e6)) + Duration::from_millis(1)
        })
    }
}

/// Token bucket that may go into debt: a batch is matched whole, and its excess is waited for.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: f64,
    at: Timestamp,
}

impl Bucket {
    fn full(throttle: Throttle, now: Timestamp) -> Bucket {
        Bucket { left: throttle.notifications as f64, at: now }
    }

    fn fill(&mut self, throttle: Throttle, now: Timestamp) {
        let most = throttle.notifications as f64;
        let share = now.since(self.at).as_secs_f64() / throttle.per.as_secs_f64().max(1e-6);
        self.left = (self.left + most * share).min(most);
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    fn made(notifications: u64, batches: usize) -> NotificationCount {
        NotificationCount { notifications, batches }
    }

    #[test]
    fn b13_a_quantum_takes_as_many_batches_as_the_rate_allows() {
        let throttle = Some(Throttle { notifications: 5, per: Duration::from_secs(2) });
        let mut rate = Rate::default();
        assert_eq!(rate.batches_max(None, at(0)), None);
        assert_eq!(rate.batches_max(throttle, at(0)), Some(1), "what a batch makes is not known yet");
        rate.charge(throttle, made(1, 1), at(0));
        assert_eq!(rate.batches_max(throttle, at(0)), Some(4), "4 of 5 are left, and a batch makes 1");
        rate.charge(throttle, made(4, 4), at(0));
        assert_eq!(rate.batches_max(throttle, at(0)), Some(1), "nothing is left: at least one, once it may go on");
        rate.charge(throttle, made(3, 1), at(2));
        assert_eq!(rate.batches_max(throttle, at(4)), Some(1), "a batch made 3");
        rate.charge(throttle, made(0, 10), at(100));
        assert_eq!(rate.batches_max(throttle, at(100)), Some(3), "the average falls by half at most");
    }

    #[test]
    fn debt_is_waited_for() {
        let throttle = Some(Throttle { notifications: 100, per: Duration::from_secs(10) });
        let mut rate = Rate::default();
        assert_eq!(rate.wait(throttle, at(0)), None);
        rate.charge(throttle, made(80, 1), at(0));
        assert_eq!(rate.wait(throttle, at(0)), None, "80 of 100 are made");
        rate.charge(throttle, made(70, 1), at(0));
        assert_eq!(rate.wait(throttle, at(0)), Some(Duration::from_millis(5_001)), "50 too many take 5 s");
        assert_eq!(rate.wait(throttle, at(4)), Some(Duration::from_millis(1_001)));
        assert_eq!(rate.wait(throttle, at(5)), None);
        rate.charge(throttle, made(100, 1), at(1_000));
        assert_eq!(rate.wait(throttle, at(1_000)), None, "no more than 100 are saved up");
        rate.charge(throttle, made(1, 1), at(1_000));
        assert!(rate.wait(throttle, at(1_000)).is_some());
        rate.charge(None, made(1, 1), at(1_000));
        assert_eq!(rate.wait(throttle, at(1_000)), None, "without a throttle it is forgotten");
    }
}
