//! Per-minute activity counters: sums by class, rule and channel, from which reports are made. They are written in
//! the commit of what they count, a few bytes per stream and minute, so reports need not scan the journal.

use std::{collections::BTreeMap, time::Duration};

use tocsin_model::{
    duration_buckets::{bucket_of, upper_end},
    id::Name,
    notification::NotificationHead,
    pack::{Damaged, Reader, write_signed, write_varint},
    receipt::{Attempt, Outcome},
    time::Timestamp,
};

use crate::journal::quanta::NewQuantum;

/// Subject of a sum: what is counted separately. Backends and memory identify a stream by its names alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stream {
    /// Events of one class from one source.
    Events {
        /// Application.
        application: Name,
        /// Event class.
        class: Name,
        /// Source that submitted them.
        source: Name,
    },
    /// Notifications of one rule through one channel.
    Notifications {
        /// Application.
        application: Name,
        /// Rule.
        rule: Name,
        /// Notification class.
        class: Name,
        /// Class of the events they report.
        event_class: Name,
        /// Channel.
        channel: Name,
    },
    /// Failed and skipped firings of a rule.
    Firings {
        /// Application.
        application: Name,
        /// Rule.
        rule: Name,
    },
}

impl Stream {
    /// Application of the stream.
    pub fn application(&self) -> &Name {
        match self {
            Stream::Events { application, .. }
            | Stream::Notifications { application, .. }
            | Stream::Firings { application, .. } => application,
        }
    }

    pub(crate) fn of_head(head: &NotificationHead) -> Stream {
        Stream::Notifications {
            application: head.application.clone(),
            rule: head.rule.clone(),
            class: head.class.clone(),
            event_class: head.event_class.clone(),
            channel: head.channel.clone(),
        }
    }
}

/// Counter. Each count belongs to the minute in which it happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Event batches accepted.
    EventBatches,
    /// Events accepted.
    Events,
    /// Packed bytes of them.
    EventBytes,
    /// Event batches matched.
    MatchedBatches,
    /// Event batches set aside because matching failed.
    FailedBatches,
    /// Notification batches created.
    NotificationBatches,
    /// Notifications created.
    Notifications,
    /// Notification batches whose last notification was closed.
    ClosedBatches,
    /// Attempts that delivered.
    Delivered,
    /// Attempts that will be retried.
    Deferred,
    /// Attempts that were refused permanently.
    Refused,
    /// Notifications that expired.
    Expired,
    /// Notifications that were suspended.
    Suspended,
    /// Notifications that an operator ended.
    Ended,
    /// Firings that failed.
    FiringsFailed,
    /// Firings that were skipped.
    FiringsSkipped,
}

const COUNTS: usize = 16;

impl Count {
    fn of(outcome: Outcome) -> Count {
        match outcome {
            Outcome::Delivered => Count::Delivered,
            Outcome::Deferred => Count::Deferred,
            Outcome::Refused => Count::Refused,
            Outcome::Expired => Count::Expired,
            Outcome::Suspended => Count::Suspended,
            Outcome::Ended => Count::Ended,
        }
    }
}

/// Measured duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timing {
    /// From the first byte of an event batch to its acceptance.
    Collection,
    /// From the acceptance of an event batch until a quantum took it up.
    Pickup,
    /// From the acceptance of the oldest event of a notification batch to the match.
    Generation,
    /// From the match of a notification batch to its first send.
    Wait,
    /// From the first send of a notification batch to its last answer.
    Delivery,
    /// From the send of a notification to the answer.
    Answer,
    /// From the acceptance of the events to the delivery of a notification.
    EndToEnd,
}

impl Timing {
    /// All durations, in the order of the flow.
    pub const ALL: [Timing; 7] = [
        Timing::Collection,
        Timing::Pickup,
        Timing::Generation,
        Timing::Wait,
        Timing::Delivery,
        Timing::Answer,
        Timing::EndToEnd,
    ];

    /// Name of the duration, as stored and reported.
    pub const fn word(self) -> &'static str {
        match self {
            Timing::Collection => "collection",
            Timing::Pickup => "pickup",
            Timing::Generation => "generation",
            Timing::Wait => "wait",
            Timing::Delivery => "delivery",
            Timing::Answer => "answer",
            Timing::EndToEnd => "end_to_end",
        }
    }
}

/// Histogram of durations: count, sum, and buckets about 6 % wide.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DurationHistogram {
    /// Number of durations.
    pub count: u64,
    total_micros: u64,
    buckets: BTreeMap<u16, u64>,
}

impl DurationHistogram {
    /// Adds a duration `times` times.
    pub fn record(&mut self, duration: Duration, times: u64) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.count += times;
        self.total_micros = self.total_micros.saturating_add(micros.saturating_mul(times));
        *self.buckets.entry(bucket_of(micros)).or_default() += times;
    }

    fn add(&mut self, other: &DurationHistogram) {
        self.count += other.count;
        self.total_micros = self.total_micros.saturating_add(other.total_micros);
        for (bucket, count) in &other.buckets {
            *self.buckets.entry(*bucket).or_default() += count;
        }
    }

    /// Average; `None` if empty.
    pub fn average(&self) -> Option<Duration> {
        (self.count > 0).then(|| Duration::from_micros(self.total_micros / self.count))
    }

    /// Percentile: the upper end of the bucket that holds this fraction of the durations. `None` if empty.
    pub fn percentile(&self, fraction: f64) -> Option<Duration> {
        let rank = ((self.count as f64 * fraction).ceil() as u64).max(1);
        let mut seen = 0;
        let found = self.buckets.iter().find(|(_, count)| {
            seen += **count;
            seen >= rank
        });
        found.map(|(bucket, _)| Duration::from_micros(upper_end(*bucket)))
    }
}

/// Counters and histograms of one stream over some time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Activity {
    counts: [u64; COUNTS],
    timings: [DurationHistogram; Timing::ALL.len()],
    /// Time of the last count.
    pub last_at: Option<Timestamp>,
}

impl Activity {
    /// Value of a counter.
    pub fn count(&self, count: Count) -> u64 {
        self.counts[count as usize]
    }

    /// Histogram of a duration.
    pub fn timing(&self, timing: Timing) -> &DurationHistogram {
        &self.timings[timing as usize]
    }

    /// Attempts that contacted a receiver, with any outcome.
    pub fn attempts(&self) -> u64 {
        self.count(Count::Delivered) + self.count(Count::Deferred) + self.count(Count::Refused)
    }

    /// Adds the sums of another minute or source.
    pub fn add(&mut self, other: &Activity) {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, more)| *sum += more);
        self.timings.iter_mut().zip(&other.timings).for_each(|(sum, more)| sum.add(more));
        self.last_at = self.last_at.max(other.last_at);
    }

    /// Adds a duration `times` times.
    pub fn record(&mut self, timing: Timing, duration: Duration, times: u64) {
        self.timings[timing as usize].record(duration, times);
    }

    fn increase(&mut self, count: Count, times: u64) {
        self.counts[count as usize] += times;
    }

    fn time(&mut self, timing: Timing, from: Timestamp, to: Timestamp) {
        self.record(timing, to.since(from), 1);
    }

    /// Packed encoding; zero counters take no space.
    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        write_signed(&mut out, self.last_at.map_or(0, |at| at.0));
        let counts = || self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        write_varint(&mut out, counts().count() as u64);
        for (at, count) in counts() {
            write_varint(&mut out, at as u64);
            write_varint(&mut out, *count);
        }
        let timings = || self.timings.iter().enumerate().filter(|(_, histogram)| histogram.count > 0);
        write_varint(&mut out, timings().count() as u64);
        for (at, histogram) in timings() {
            write_varint(&mut out, at as u64);
            write_varint(&mut out, histogram.count);
            write_varint(&mut out, histogram.total_micros);
            write_varint(&mut out, histogram.buckets.len() as u64);
            let mut last = 0;
            for (bucket, count) in &histogram.buckets {
                write_varint(&mut out, u64::from(bucket - last));
                write_varint(&mut out, *count);
                last = *bucket;
            }
        }
        out
    }

    /// Reads the packed encoding. Counters of newer versions are ignored.
    ///
    /// # Errors
    /// The bytes are damaged.
    pub(crate) fn unpack(bytes: &[u8]) -> Result<Activity, Damaged> {
        let mut reader = Reader::new(bytes);
        let mut activity = Activity { last_at: Some(Timestamp(reader.signed()?)), ..Activity::default() };
        for _ in 0..reader.count()? {
            let (at, count) = (reader.varint()?, reader.varint()?);
            if let Some(found) = usize::try_from(at).ok().and_then(|at| activity.counts.get_mut(at)) {
                *found = count;
            }
        }
        for _ in 0..reader.count()? {
            let at = reader.varint()?;
            let mut histogram = DurationHistogram {
                count: reader.varint()?,
                total_micros: reader.varint()?,
                ..DurationHistogram::default()
            };
            let mut bucket = 0u16;
            for _ in 0..reader.count()? {
                let step = u16::try_from(reader.varint()?).map_err(|_| Damaged)?;
                bucket = bucket.checked_add(step).ok_or(Damaged)?;
                histogram.buckets.insert(bucket, reader.varint()?);
            }
            if let Some(found) = usize::try_from(at).ok().and_then(|at| activity.timings.get_mut(at)) {
                *found = histogram;
            }
        }
        if reader.is_empty() { Ok(activity) } else { Err(Damaged) }
    }
}

/// Time range of a report, divided into intervals of equal length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Start of the first interval.
    pub from: Timestamp,
    /// End of the range, exclusive.
    pub to: Timestamp,
    /// Length of an interval. A minute belongs to the interval in which it begins.
    pub interval: Duration,
}

impl Window {
    /// Start of the interval that contains a minute; `None` outside of the range.
    pub(crate) fn part_of(&self, minute: Timestamp) -> Option<Timestamp> {
        if minute < self.from || minute >= self.to {
            return None;
        }
        let length = i64::try_from(self.interval.as_micros()).unwrap_or(i64::MAX).max(1);
        Some(Timestamp(self.from.0 + (minute.0 - self.from.0) / length * length))
    }
}

/// Activity of a stream in one interval or minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActivityRow {
    /// Stream.
    pub stream: Stream,
    /// Start of the interval or minute.
    pub from: Timestamp,
    /// Counters and histograms.
    pub activity: Activity,
}

/// Sums of a report, by stream and interval.
#[derive(Default)]
pub(crate) struct WindowSums(BTreeMap<(Stream, Timestamp), Activity>);

impl WindowSums {
    pub fn add(&mut self, window: &Window, stream: Stream, minute: Timestamp, activity: &Activity) {
        if let Some(part) = window.part_of(minute) {
            self.0.entry((stream, part)).or_default().add(activity);
        }
    }

    pub fn rows(self) -> Vec<ActivityRow> {
        self.0.into_iter().map(|((stream, from), activity)| ActivityRow { stream, from, activity }).collect()
    }
}

/// Start of the minute that contains a time.
pub(crate) fn minute_of(time: Timestamp) -> Timestamp {
    Timestamp(time.0 - time.0.rem_euclid(60_000_000))
}

/// Sums that one commit adds, by stream and minute. `Key` is the backend's identifier of a stream.
#[derive(Debug)]
pub(crate) struct MinuteSums<Key>(BTreeMap<(Key, Timestamp), Activity>);

impl<Key> Default for MinuteSums<Key> {
    fn default() -> Self {
        MinuteSums(BTreeMap::new())
    }
}

/// Progress of a notification batch around some attempts.
pub(crate) struct BatchProgress {
    pub matched_at: Timestamp,
    pub accepted_at: Timestamp,
    /// Whether these are the first attempts at the batch.
    pub is_first: bool,
    /// First send and last answer, if these attempts close the batch.
    pub closed: Option<(Timestamp, Timestamp)>,
}

impl<Key: Ord + Clone> MinuteSums<Key> {
    pub fn into_entries(self) -> impl Iterator<Item = ((Key, Timestamp), Activity)> {
        self.0.into_iter()
    }

    fn at(&mut self, stream: &Key, time: Timestamp) -> &mut Activity {
        let activity = self.0.entry((stream.clone(), minute_of(time))).or_default();
        activity.last_at = activity.last_at.max(Some(time));
        activity
    }

    pub fn add_accepted(
        &mut self,
        stream: &Key,
        received_at: Timestamp,
        accepted_at: Timestamp,
        events: u32,
        bytes: u64,
    ) {
        let activity = self.at(stream, accepted_at);
        activity.increase(Count::EventBatches, 1);
        activity.increase(Count::Events, u64::from(events));
        activity.increase(Count::EventBytes, bytes);
        activity.time(Timing::Collection, received_at, accepted_at);
    }

    pub fn add_matched(&mut self, stream: &Key, quantum: &NewQuantum, accepted_at: Timestamp, has_failed: bool) {
        let activity = self.at(stream, quantum.ended_at);
        activity.increase(if has_failed { Count::FailedBatches } else { Count::MatchedBatches }, 1);
        activity.time(Timing::Pickup, accepted_at, quantum.started_at);
    }

    pub fn add_notifications(&mut self, stream: &Key, head: &NotificationHead, count: u32) {
        let activity = self.at(stream, head.matched_at);
        activity.increase(Count::NotificationBatches, 1);
        activity.increase(Count::Notifications, u64::from(count));
        activity.time(Timing::Generation, head.accepted_at, head.matched_at);
    }

    pub fn add_missed_firing(&mut self, stream: &Key, has_failed: bool, at: Timestamp) {
        self.at(stream, at).increase(if has_failed { Count::FiringsFailed } else { Count::FiringsSkipped }, 1);
    }

    /// Adds attempts. `by` is the stream of the channel used, `of` the stream of the batch.
    pub fn add_attempts(&mut self, by: &Key, of: &Key, progress: &BatchProgress, attempts: &[Attempt]) {
        for run in attempts.chunk_by(|one, next| minute_of(one.answered_at) == minute_of(next.answered_at)) {
            let last_at = run.iter().map(|attempt| attempt.answered_at).max().expect("a run is not empty");
            let activity = self.at(by, last_at);
            for attempt in run {
                activity.increase(Count::of(attempt.outcome), 1);
                if was_sent(attempt) {
                    activity.time(Timing::Answer, attempt.sent_at, attempt.answered_at);
                }
                if attempt.outcome == Outcome::Delivered {
                    activity.time(Timing::EndToEnd, progress.accepted_at, attempt.answered_at);
                }
            }
        }
        if progress.is_first
            && let Some(first) = attempts.iter().map(|attempt| attempt.sent_at).min()
        {
            self.at(of, first).time(Timing::Wait, progress.matched_at, first);
        }
        if let Some((first, last)) = progress.closed {
            let activity = self.at(of, last);
            activity.increase(Count::ClosedBatches, 1);
            activity.time(Timing::Delivery, first, last);
        }
    }
}

/// Whether an attempt contacted a receiver, as opposed to a local decision.
pub(crate) fn was_sent(attempt: &Attempt) -> bool {
    matches!(attempt.outcome, Outcome::Delivered | Outcome::Deferred | Outcome::Refused)
}

/// Delivery progress of a notification batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Notifications without a closing attempt.
    pub open: u32,
    /// Recorded attempts.
    pub attempts: u64,
    /// Delivered notifications.
    pub delivered: u32,
    /// Refused and expired notifications.
    pub failed: u32,
    /// Time of the first send.
    pub first_sent_at: Option<Timestamp>,
    /// Time of the last answer.
    pub last_answered_at: Option<Timestamp>,
    /// Time at which the last notification was closed.
    pub closed_at: Option<Timestamp>,
}

/// Change that some attempts make to a [`Progress`].
pub(crate) struct ProgressUpdate {
    pub attempts: u64,
    pub closing: u32,
    pub delivered: u32,
    pub failed: u32,
    pub first_sent_at: Timestamp,
    pub last_answered_at: Timestamp,
}

impl ProgressUpdate {
    pub fn of(attempts: &[Attempt]) -> Option<ProgressUpdate> {
        let of =
            |outcomes: &[Outcome]| attempts.iter().filter(|attempt| outcomes.contains(&attempt.outcome)).count() as u32;
        Some(ProgressUpdate {
            attempts: attempts.len() as u64,
            closing: attempts.iter().filter(|attempt| attempt.outcome.closes()).count() as u32,
            delivered: of(&[Outcome::Delivered]),
            failed: of(&[Outcome::Refused, Outcome::Expired]),
            first_sent_at: attempts.iter().map(|attempt| attempt.sent_at).min()?,
            last_answered_at: attempts.iter().map(|attempt| attempt.answered_at).max()?,
        })
    }
}

/// Totals since the creation of the journal, for status and reports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Totals {
    /// Event batches accepted.
    pub event_batches: u64,
    /// Events accepted.
    pub events: u64,
    /// Notification batches made.
    pub notification_batches: u64,
    /// Notifications made.
    pub notifications: u64,
    /// Attempts by outcome, in the order of `Outcome::ALL`.
    pub attempts: [u64; Outcome::ALL.len()],
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packed_activity_round_trips(counts: [u32; COUNTS], durations in proptest::collection::vec((0usize..7, 0u64..1 << 50), 0..40)) {
            let mut activity = Activity { counts: counts.map(u64::from), last_at: Some(Timestamp(7)), ..Activity::default() };
            for (timing, micros) in durations {
                activity.timings[timing].record(Duration::from_micros(micros), 1 + micros % 3);
            }
            prop_assert_eq!(Activity::unpack(&activity.pack()), Ok(activity));
        }

        #[test]
        fn damage_is_an_error(bytes: Vec<u8>) {
            let _ = Activity::unpack(&bytes);
        }

        #[test]
        fn a_percentile_is_close_and_never_too_low(mut micros in proptest::collection::vec(0u64..1 << 40, 1..60), at in 1usize..100) {
            let mut histogram = DurationHistogram::default();
            micros.iter().for_each(|micros| histogram.record(Duration::from_micros(*micros), 1));
            micros.sort_unstable();
            let fraction = at as f64 / 100.0;
            let exact = micros[((micros.len() as f64 * fraction).ceil() as usize).max(1) - 1];
            let found = histogram.percentile(fraction).expect("some").as_micros() as f64;
            prop_assert!(found >= exact as f64 && found <= exact as f64 * 1.07 + 1.0, "{} {}", found, exact);
        }
    }

    #[test]
    fn a_quiet_minute_takes_a_few_bytes() {
        let mut sums = MinuteSums::default();
        for _ in 0..1_000 {
            sums.add_accepted(&1, Timestamp(60_000_000), Timestamp(60_000_900), 3, 90);
        }
        let [(_, activity)] = &sums.into_entries().collect::<Vec<_>>()[..] else { panic!("one minute") };
        assert!(activity.pack().len() < 40, "{}", activity.pack().len());
        assert_eq!(activity.timing(Timing::Collection).average(), Some(Duration::from_micros(900)));
    }

    #[test]
    fn the_longest_times_have_a_bucket() {
        let mut histogram = DurationHistogram::default();
        histogram.record(Duration::MAX, 1);
        assert_eq!(histogram.percentile(1.0), Some(Duration::from_micros(u64::MAX)));
    }
}
