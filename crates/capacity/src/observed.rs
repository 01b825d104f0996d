//! A load profile derived from recorded activity, as YAML: what the counters of an installation say about its load.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

/// Hours of a day.
const HOURS: usize = 24;
/// Factor above that of its hour at which the busiest hour becomes a peak of its own.
const PEAK_FACTOR: f64 = 1.2;

/// Recorded load of an installation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ObservedLoad {
    /// Name of the profile.
    pub name: String,
    /// Description.
    pub description: String,
    /// Recorded time.
    pub time: Duration,
    /// Event streams, by name.
    pub events: BTreeMap<String, ObservedEvents>,
    /// Channels, by name.
    pub channels: BTreeMap<String, ObservedChannel>,
    /// Stored objects, by their names in vectors.
    pub stored: BTreeMap<String, f64>,
    /// Work in each recorded hour: hour of the day and the number of events and notifications.
    pub hours: Vec<(usize, f64)>,
}

/// Recorded events of one class.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ObservedEvents {
    /// Number of event batches.
    pub batches: f64,
    /// Number of events.
    pub events: f64,
    /// Bytes of events.
    pub bytes: f64,
    /// Number of notifications by channel.
    pub notifications: BTreeMap<String, f64>,
}

/// A recorded channel.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ObservedChannel {
    /// Protocol.
    pub protocol: Option<String>,
    /// Mean response time.
    pub answer: Option<Duration>,
}

/// A derived profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DerivedProfile {
    /// The profile, as YAML that [`crate::read_profile`] reads.
    pub yaml: String,
    /// Data that the record does not contain, with the assumption instead.
    pub notes: Vec<String>,
}

/// Derives a profile. Rates are the means of the recorded time; the curve has the factor of each hour of the day.
pub fn derive(load: &ObservedLoad) -> DerivedProfile {
    let mut notes = Vec::new();
    let mut yaml = format!("profile: {}\ndescription: {}\n", quoted(&load.name), quoted(&load.description));
    let seconds = load.time.as_secs_f64().max(1.0);
    let events: Vec<_> = load.events.iter().filter(|(_, stream)| stream.events > 0.0).collect();
    if events.is_empty() {
        // A profile needs a load.
        yaml.push_str("events: { events: { rate: { count: 0, per: 1h } } }\n");
        notes.push("no event was recorded in this time; the profile has an event stream without events".to_owned());
    } else {
        yaml.push_str("events:\n");
    }
    for (name, stream) in events {
        let notifications: f64 = stream.notifications.values().sum();
        let _ = writeln!(yaml, "  {}:", quoted(name));
        let _ = writeln!(yaml, "    rate: {{ count: {}, per: 1h }}", number(stream.events / seconds * 3_600.0));
        let _ = writeln!(yaml, "    batch: {}", number((stream.events / stream.batches.max(1.0)).max(1.0)));
        let _ = writeln!(yaml, "    bytes: {}", number(stream.bytes / stream.events));
        let _ = writeln!(yaml, "    matches: {}", number(notifications / stream.events));
        if notifications > 0.0 {
            let shares = stream.notifications.iter().filter(|(_, count)| **count > 0.0);
            let shares: Vec<String> = shares
                .map(|(channel, count)| format!("{}: {}", quoted(channel), number(count / notifications * 100.0)))
                .collect();
            let _ = writeln!(yaml, "    channels: {{ {} }}", shares.join(", "));
        }
    }
    if !load.channels.is_empty() {
        yaml.push_str("channels:\n");
    }
    for (name, channel) in &load.channels {
        let operation =
            channel.protocol.as_ref().map(|protocol| format!("operation: {}", quoted(&format!("deliver.{protocol}"))));
        let answer = channel.answer.filter(|answer| *answer >= Duration::from_micros(1));
        let answer = answer.map(|answer| format!("answer: {}us", answer.as_micros()));
        let members: Vec<String> = operation.into_iter().chain(answer).collect();
        let _ = writeln!(yaml, "  {}: {{ {} }}", quoted(name), members.join(", "));
    }
    if !load.stored.is_empty() {
        yaml.push_str("stored:\n");
        for (name, count) in &load.stored {
            let _ = writeln!(yaml, "  {}: {}", quoted(name), number(*count));
        }
    }
    write_day(load, &mut yaml, &mut notes);
    if load.events.values().any(|stream| stream.notifications.values().sum::<f64>() > 0.0) {
        notes.push(
            "the size of formatted notifications is not recorded; the default of a profile is assumed".to_owned(),
        );
    }
    notes.push("directory operations, exchange messages and sync sessions are not part of the record".to_owned());
    DerivedProfile { yaml, notes }
}

/// Writes the day curve, and the busiest hour as a peak if it stands out.
fn write_day(load: &ObservedLoad, yaml: &mut String, notes: &mut Vec<String>) {
    let (mut sums, mut counts) = ([0.0; HOURS], [0.0; HOURS]);
    for (hour, work) in &load.hours {
        sums[hour % HOURS] += work;
        counts[hour % HOURS] += 1.0;
    }
    let total: f64 = load.hours.iter().map(|(_, work)| work).sum();
    let mean = total / load.hours.len().max(1) as f64;
    if mean <= 0.0 {
        return;
    }
    if counts.contains(&0.0) {
        notes.push("less than a day was recorded; hours without a record have the factor 1".to_owned());
    }
    let factor = |hour: usize| if counts[hour] > 0.0 { sums[hour] / counts[hour] / mean } else { 1.0 };
    let curve: Vec<String> = (0..HOURS).map(|hour| number(factor(hour))).collect();
    let _ = writeln!(yaml, "day:\n  curve: [{}]", curve.join(", "));
    let busiest = load.hours.iter().max_by(|one, other| one.1.total_cmp(&other.1));
    if let Some((hour, work)) = busiest
        && work / mean > factor(hour % HOURS) * PEAK_FACTOR
    {
        let times = number(work / mean);
        let _ = writeln!(yaml, "  peaks: [{{ at: \"{:02}:00\", lasts: 1h, times: {times} }}]", hour % HOURS);
    }
}

/// A number with about four significant digits after the point.
fn number(value: f64) -> String {
    let rounded = format!("{value:.4}");
    let short = rounded.trim_end_matches('0').trim_end_matches('.');
    match short {
        // Too small for four digits.
        "0" if value > 0.0 => format!("{value:.9}"),
        "-0" => "0".to_owned(),
        short => short.to_owned(),
    }
}

/// A text as YAML: JSON strings are YAML.
fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a text is JSON")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_profile;

    fn shop() -> ObservedLoad {
        let orders = ObservedEvents {
            batches: 1_200.0,
            events: 12_000.0,
            bytes: 2_400_000.0,
            notifications: [("mail".to_owned(), 30_000.0), ("web".to_owned(), 10_000.0)].into(),
        };
        let mail = ObservedChannel { protocol: Some("smtp".to_owned()), answer: Some(Duration::from_micros(12_500)) };
        ObservedLoad {
            name: "shop".to_owned(),
            description: "derived: \"from\" activity".to_owned(),
            time: Duration::from_secs(2 * 86_400),
            events: [("orders".to_owned(), orders)].into(),
            channels: [("mail".to_owned(), mail), ("web".to_owned(), ObservedChannel::default())].into(),
            stored: [("subscriptions".to_owned(), 1_000.0)].into(),
            // The second day has a burst at noon.
            hours: (0..48).map(|at| (at % 24, if at == 36 { 4_800.0 } else { 1_000.0 })).collect(),
        }
    }

    #[test]
    fn a_derived_profile_has_the_recorded_rates_and_can_be_read() {
        let derived = derive(&shop());
        let profile = read_profile(&derived.yaml).unwrap_or_else(|problems| panic!("{problems:?}\n{}", derived.yaml));
        let orders = &profile.events["orders"];
        assert!((orders.rate * 2.0 * 86_400.0 - 12_000.0).abs() < 1.0, "{}", orders.rate);
        assert_eq!((orders.batch, orders.bytes), (10.0, 200.0));
        assert!((orders.matches - 40_000.0 / 12_000.0).abs() < 1e-3 && (orders.channels["mail"] - 0.75).abs() < 1e-9);
        assert_eq!(profile.channels["mail"].answer, Some(Duration::from_micros(12_500)));
        assert_eq!(
            (profile.channels["mail"].operation.as_str(), profile.stored["subscriptions"]),
            ("deliver.smtp", 1_000.0)
        );
        let noon = profile.day.at(12.0 * 3_600.0 + 60.0);
        assert!((noon - 4_800.0 / (51_800.0 / 48.0)).abs() < 1e-3, "the busiest hour is a peak: {noon}");
        assert!(profile.day.at(0.0) < 1.0, "{:?}", profile.day);
    }

    #[test]
    fn an_empty_record_gives_a_valid_profile_with_notes() {
        let derived = derive(&ObservedLoad { name: "empty".to_owned(), ..ObservedLoad::default() });
        read_profile(&derived.yaml).unwrap_or_else(|problems| panic!("{problems:?}\n{}", derived.yaml));
        assert!(derived.notes.iter().any(|note| note.contains("no event")), "{:?}", derived.notes);
    }

    #[test]
    fn numbers_are_short_and_never_vanish() {
        let check = |value: f64, expected: &str| assert_eq!(number(value), expected);
        check(100.0, "100");
        check(0.12345, "0.1235");
        check(0.000_001, "0.000001000");
        check(0.0, "0");
        check(-0.0, "0");
    }
}
