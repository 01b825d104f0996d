//! Permitted ranges of the numeric keys: integers, numbers, durations and sizes.
//!
//! One row for each key, both ends included, in the spelling of the configuration file. A value outside is refused at
//! the
//! start, with the source of the value; the reference page shows the range.

use std::{fmt, str::FromStr, time::Duration};

use serde_json::Value;

use super::{Key, Period, Size};

/// Minimum and maximum of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Minimum.
    pub min: &'static str,
    /// Maximum.
    pub max: &'static str,
}

const TIB: &str = "1024GiB";

#[rustfmt::skip]
const RANGES: &[(&str, &str, &str)] = &[
    ("http.connections_max", "1", "1000000"),
    ("http.connections_per_address_max", "1", "1000000"),
    ("http.health_connections", "1", "1000"),
    ("http.header_timeout", "10ms", "1h"),
    ("http.body_idle_timeout", "10ms", "1h"),
    ("http.write_timeout", "10ms", "1h"),
    ("http.body_memory_max", "1MiB", TIB),
    ("http.requests_per_key_max", "0", "1000000"),
    ("http.requests_per_address_max", "0", "1000000"),
    ("http.requests_burst_seconds", "1", "3600"),
    ("http.streams_max", "0", "1000000"),
    ("ldap.lockout_failures", "0", "1000000"),
    ("ldap.lockout_duration", "0s", "3650d"),
    ("ldap.dynamic_ttl", "1s", "366d"),
    ("ldap.dynamic_ttl_min", "1s", "366d"),
    ("ldap.dynamic_ttl_max", "1s", "366d"),
    ("ldap.cache", "0B", TIB),
    ("ldap.connections_max", "1", "1000000"),
    ("ldap.connections_per_address_max", "1", "1000000"),
    ("ldap.requests_per_identity_max", "0", "1000000"),
    ("ldap.requests_per_address_max", "0", "1000000"),
    ("ldap.requests_burst_seconds", "1", "3600"),
    ("ldap.pending_max", "1", "65536"),
    ("ldap.message_max", "4KiB", "1GiB"),
    ("ldap.patience", "10ms", "1h"),
    ("ldap.idle_timeout", "1s", "30d"),
    ("ldap.size_limit", "1", "2147483647"),
    ("ldap.time_limit", "10ms", "1d"),
    ("ldap.followers_max", "0", "1000000"),
    ("records.disk_reserve", "0B", TIB),
    ("records.readers", "1", "64"),
    ("journal.disk_reserve", "0B", TIB),
    ("journal.waiting_batches_max", "1", "1000000000"),
    ("journal.waiting_bytes_max", "1KiB", TIB),
    ("journal.waiting_notifications_max", "1", "100000000000"),
    ("inbox.disk_reserve", "0B", TIB),
    ("inbox.readers", "1", "64"),
    ("sync.disk_reserve", "0B", TIB),
    ("sync.readers", "1", "64"),
    ("sync.uploads", "1", "1024"),
    ("sync.reconciles", "1", "1024"),
    ("sync.downloads", "1", "1024"),
    ("sync.waiting_max", "0", "1000000"),
    ("sync.watchers_max", "0", "1000000"),
    ("spool.disk_reserve", "0B", TIB),
    ("spool.memory_max", "0B", TIB),
    ("spool.readers", "1", "64"),
    ("spool.partitions", "1", "16"),
    ("spool.tracking_max", "0B", TIB),
    ("spool.receive_workers", "0", "4096"),
    ("spool.route_workers", "0", "4096"),
    ("spool.send_workers", "0", "4096"),
    ("pipeline.quantum_batches", "1", "1000000"),
    ("pipeline.quantum_bytes", "1B", "1GiB"),
    ("pipeline.match_shards", "0", "64"),
    ("pipeline.match_concurrency", "1", "256"),
    ("pipeline.in_flight_per_channel", "1", "10000000"),
    ("pipeline.receipts_chunk", "1", "1000000"),
    ("pipeline.receipts_delay", "0ms", "1m"),
    ("pipeline.slow_rule", "1ms", "1d"),
    ("pipeline.run_subscriptions", "1", "100000000"),
    ("pipeline.run_notifications", "1", "100000000"),
    ("pipeline.upkeep_interval", "10ms", "7d"),
    ("pipeline.prune_batches", "1", "1000000"),
    ("pipeline.activity_days", "1", "3650"),
    ("pipeline.drain_patience", "0s", "1h"),
    ("audit.keep", "1d", "36500d"),
    ("consent.evidence_kept", "0s", "36500d"),
    ("suppression.soft_bounces", "1", "100"),
    ("suppression.soft_bounce_window", "1s", "3650d"),
    ("suppression.soft_bounce_lasts", "0s", "36500d"),
    ("suppression.hard_bounces", "0", "100"),
    ("suppression.hard_bounce_window", "1s", "3650d"),
    ("suppression.hard_bounce_lasts", "0s", "36500d"),
    ("suppression.challenges", "0", "100"),
    ("suppression.challenge_window", "1s", "3650d"),
    ("suppression.challenge_lasts", "0s", "36500d"),
    ("suppression.complaints", "0", "100"),
    ("suppression.complaint_window", "1s", "3650d"),
    ("feedback.connections_max", "1", "10000"),
    ("feedback.connections_per_address_max", "1", "10000"),
    ("feedback.mail_max", "64KiB", "100MiB"),
    ("feedback.idle_timeout", "1s", "1h"),
    ("telemetry.sample_ratio", "0", "1"),
    ("telemetry.queue_spans", "1", "10000000"),
    ("telemetry.delay", "1ms", "1h"),
    ("telemetry.timeout", "10ms", "1h"),
    ("runtime.threads", "0", "1024"),
];

/// Range of a key; `None` for keys that are not numeric.
pub(super) fn range_of(path: &str) -> Option<Range> {
    RANGES.iter().find(|row| row.0 == path).map(|(_, min, max)| Range { min, max })
}

/// Comparable value of a numeric key.
#[derive(PartialEq, PartialOrd)]
enum Measure {
    Number(f64),
    Duration(Duration),
    Bytes(u64),
}

impl Measure {
    fn of(kind: &str, text: &str) -> Option<Measure> {
        match kind {
            "duration" => Period::from_str(text).ok().map(|period| Measure::Duration(period.0)),
            "size" => Size::from_str(text).ok().map(|size| Measure::Bytes(size.0)),
            "integer" | "number" => text.parse().ok().map(Measure::Number),
            _ => None,
        }
    }
}

impl Key {
    /// Checks that a valid value is within the key's range.
    ///
    /// # Errors
    /// If it is outside; the text names the range.
    pub(super) fn check_range(&self, value: &Value) -> Result<(), String> {
        let Some(range) = self.range else { return Ok(()) };
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let measure = |text: &str| Measure::of(self.kind, text);
        match (measure(&text), measure(range.min), measure(range.max)) {
            (Some(value), Some(min), Some(max)) if min <= value && value <= max => Ok(()),
            _ => Err(format!("`{text}` is out of range: expected {range}")),
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.min, self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::{Layers, keys};

    #[test]
    fn b31_every_numeric_key_has_a_range_that_holds_its_default() {
        for key in keys() {
            let is_numeric = matches!(key.kind, "integer" | "number" | "duration" | "size");
            assert_eq!(key.range.is_some(), is_numeric, "`{}` needs a row in RANGES", key.path);
            assert_eq!(key.check_range(&key.default), Ok(()), "{}", key.path);
            if let Some(range) = key.range {
                let (min, max) = (Measure::of(key.kind, range.min), Measure::of(key.kind, range.max));
                assert!(min.is_some() && min < max, "{}: {range}", key.path);
            }
        }
        for (path, ..) in RANGES {
            assert!(keys().any(|key| key.path == *path), "unknown key `{path}`");
        }
    }

    fn refusal(path: &str, value: &str) -> Option<String> {
        let flag = (format!("--set {path}"), path.to_owned(), value.to_owned());
        Layers { flags: vec![flag], ..Layers::default() }.merge().err().map(|problems| problems.join("\n"))
    }

    #[test]
    fn b31_every_numeric_key_refuses_a_value_beyond_either_end() {
        for key in keys().filter(|key| key.range.is_some()) {
            let range = key.range.expect("numeric keys have a range");
            let (below, above) = match key.kind {
                "integer" | "number" => ("-1", "99999999999999"),
                "duration" => ("-1s", "99999999d"),
                _ => ("-1B", "999999999GiB"),
            };
            for wrong in [below, above] {
                assert!(refusal(&key.path, wrong).is_some(), "{} takes {wrong}", key.path);
            }
            for end in [range.min, range.max] {
                assert_eq!(refusal(&key.path, end), None, "{}", key.path);
            }
        }
        let message = refusal("http.connections_max", "0").expect("refused");
        assert_eq!(
            message,
            "--set http.connections_max: http.connections_max: `0` is out of range: expected 1 to 1000000"
        );
        assert!(refusal("telemetry.sample_ratio", "2").is_some());
        assert!(refusal("telemetry.sample_ratio", "NaN").is_some());
        assert!(refusal("pipeline.match_shards", "65").is_some());
    }
}
