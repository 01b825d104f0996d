//! Delivery policy of a notification class: digests, send hours, priority and fall-back channels.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    definition::{parse_duration, write_duration},
    hours::{Hours, date_of, first_at, time_of_day, write_time_of_day, zone_of},
    id::Name,
    time::Timestamp,
};

/// Longest window of a digest.
pub const DIGEST_WAIT_MAX: Duration = Duration::from_secs(31 * 86_400);
/// Default number of digest members that templates see.
pub const DIGEST_ITEMS: u32 = 100;

/// Delivery policy of a notification class.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct DeliveryPolicy {
    /// Priority in a channel's queue.
    #[serde(skip_serializing_if = "Priority::is_normal")]
    pub priority: Priority,
    /// Whether they are sent in quiet hours and against preferences as well.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub critical: bool,
    /// The only hours at which they are sent, in the subscriber's time zone. Notifications at other hours wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_hours: Option<Hours>,
    /// Digest configuration: which of them are combined into one message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Multicast: notifications with equal content leave as one message to up to this many recipients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multicast: Option<u32>,
    /// Fall-back channels, tried in order when the previous one has failed or takes too long.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fallback: Vec<Fallback>,
}

/// Priority in a channel's queue, with aging: an item is overtaken only by items that became due within its
/// [`Priority::aging`] after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Before all others.
    Urgent,
    /// Before most.
    High,
    /// The default.
    #[default]
    Normal,
    /// After what is due at about the same time.
    Low,
}

impl Priority {
    /// All of them, by descending priority; in the order of their stored numbers.
    pub const ALL: [Priority; 4] = [Priority::Urgent, Priority::High, Priority::Normal, Priority::Low];

    /// Priority aging: how much later an urgent item may be due and still go first.
    pub const fn aging(self) -> Duration {
        match self {
            Priority::Urgent => Duration::ZERO,
            Priority::High => Duration::from_secs(60),
            Priority::Normal => Duration::from_secs(5 * 60),
            Priority::Low => Duration::from_secs(30 * 60),
        }
    }

    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            Priority::Urgent => "urgent",
            Priority::High => "high",
            Priority::Normal => "normal",
            Priority::Low => "low",
        }
    }

    fn is_normal(&self) -> bool {
        *self == Priority::Normal
    }
}

/// A fall-back channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fallback {
    /// The channel.
    pub channel: Name,
    /// Time without delivery by the previous channel after which it is tried, even if attempts are left; `None`: when
    /// the previous one has finally failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Duration>,
}

/// A digest: notifications for the same subscriber, device and locale become one message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Digest {
    /// Further grouping fields of the class.
    pub by: Vec<Name>,
    /// Collection window.
    pub window: DigestWindow,
    /// Most members that templates see individually; the rest is only counted.
    pub items_max: u32,
}

/// Collection window of a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DigestWindow {
    /// None: the notifications of one batch.
    Batch,
    /// This long after the first.
    After(Duration),
    /// Until the next full hour of the subscriber's clock.
    Hourly,
    /// Until this time of the subscriber's day, in minutes since midnight.
    Daily(u16),
}

impl DigestWindow {
    /// End of the window for a first notification at `now`. `None`: it does not wait.
    pub fn end(self, time_zone: Option<&str>, now: Timestamp) -> Option<Timestamp> {
        match self {
            DigestWindow::Batch => None,
            // Whole seconds, so that notifications at about the same time share a window.
            DigestWindow::After(wait) => {
                Some(Timestamp((now + wait).0.saturating_add(SECOND - 1).div_euclid(SECOND).saturating_mul(SECOND)))
            }
            DigestWindow::Hourly => {
                let zone = zone_of(time_zone);
                let instant = jiff::Timestamp::from_microsecond(now.0).ok()?;
                let offset = i64::from(zone.to_offset(instant).seconds()) * SECOND;
                let hour = 3_600 * SECOND;
                Some(Timestamp(((now.0 + offset).div_euclid(hour) + 1) * hour - offset))
            }
            DigestWindow::Daily(minutes) => {
                let zone = zone_of(time_zone);
                let today = date_of(&zone, now)?;
                let days = today.series(jiff::Span::new().days(1)).take(4);
                days.filter_map(|day| first_at(&zone, day, minutes)).find(|time| *time > now)
            }
        }
    }
}

const SECOND: i64 = 1_000_000;

/// The text is not a window of a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("is not `batch`, a time such as `10m`, `hourly` or `daily 08:00`")]
pub struct DigestWindowError;

impl FromStr for DigestWindow {
    type Err = DigestWindowError;
    fn from_str(text: &str) -> Result<Self, DigestWindowError> {
        match text.trim() {
            "batch" => Ok(DigestWindow::Batch),
            "hourly" => Ok(DigestWindow::Hourly),
            text => match text.strip_prefix("daily ") {
                Some(time) => {
                    let minutes = time_of_day(time.trim()).filter(|minutes| *minutes < 24 * 60);
                    minutes.map(DigestWindow::Daily).ok_or(DigestWindowError)
                }
                None => {
                    let wait = parse_duration(text).map_err(|_| DigestWindowError)?;
                    let fits = (Duration::from_secs(1)..=DIGEST_WAIT_MAX).contains(&wait);
                    if fits { Ok(DigestWindow::After(wait)) } else { Err(DigestWindowError) }
                }
            },
        }
    }
}

impl fmt::Display for DigestWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DigestWindow::Batch => f.write_str("batch"),
            DigestWindow::After(wait) => f.write_str(&write_duration(*wait)),
            DigestWindow::Hourly => f.write_str("hourly"),
            DigestWindow::Daily(minutes) => write!(f, "daily {}", write_time_of_day(*minutes)),
        }
    }
}

impl Serialize for DigestWindow {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DigestWindow {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(window: &str, zone: &str, now: &str, end: &str) {
        let window: DigestWindow = window.parse().expect("a window");
        let found = window.end(Some(zone), now.parse().expect("a time"));
        assert_eq!(found.map_or("none".to_owned(), |time| time.to_string()), end);
    }

    #[test]
    fn windows_close_by_the_subscribers_clock() {
        check("batch", "UTC", "2026-11-20T23:10:00Z", "none");
        check("10m", "UTC", "2026-11-20T23:10:00.5Z", "2026-11-20T23:20:01Z");
        check("hourly", "UTC", "2026-11-20T23:10:00Z", "2026-11-21T00:00:00Z");
        check("hourly", "UTC", "2026-11-21T00:00:00Z", "2026-11-21T01:00:00Z");
        check("hourly", "Asia/Kolkata", "2026-11-20T23:10:00Z", "2026-11-20T23:30:00Z");
        check("daily 08:00", "Europe/Vienna", "2026-11-20T06:59:59Z", "2026-11-20T07:00:00Z");
        check("daily 08:00", "Europe/Vienna", "2026-11-20T07:00:00Z", "2026-11-21T07:00:00Z");
        // In Vienna there is no 02:30 on 29 March, and two on 25 October: the first counts.
        check("daily 02:30", "Europe/Vienna", "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z");
        check("daily 02:30", "Europe/Vienna", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z");
        check("daily 02:30", "Europe/Vienna", "2026-10-25T00:45:00Z", "2026-10-26T01:30:00Z");
    }

    #[test]
    fn windows_are_read_as_they_are_written() {
        for text in ["batch", "hourly", "daily 08:05", "1h30m"] {
            assert_eq!(text.parse::<DigestWindow>().expect("a window").to_string(), text);
        }
        for wrong in ["", "daily", "daily 24:00", "weekly", "0s", "32d", "10"] {
            assert!(wrong.parse::<DigestWindow>().is_err(), "{wrong}");
        }
    }

    fn problems(delivery_policy: &str) -> String {
        let text = format!(
            "application: a\nevents: {{ e: {{ fields: {{ n: number }} }} }}\nsubscriptions: {{ s: {{}} }}\n\
             notifications:\n  notice:\n    fields: {{ n: number, region: string }}\n    content: {{ templates: {{ base: {{ text: x }} }} }}\n    \
             {delivery_policy}\nchannels: {{ mail: {{ protocol: smtp }}, sms: {{ protocol: http }} }}\n"
        );
        match crate::definition::read(&text, &|_| None) {
            Ok(application) => serde_json::to_string(&application.notifications["notice"].delivery_policy)
                .expect("a delivery policy is JSON"),
            Err(problems) => problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
        }
    }

    #[test]
    fn delivery_policies_are_parsed() {
        assert_eq!(problems(""), "{}");
        assert_eq!(
            problems(
                "digest: { by: [region], window: daily 8:05, items_max: 3 }\n    priority: low\n    send_hours: 9:00-17:00 mo-fr"
            ),
            r#"{"priority":"low","send_hours":"09:00-17:00 mo-fr","digest":{"by":["region"],"window":"daily 08:05","items_max":3}}"#
        );
        assert_eq!(
            problems(
                "multicast: {}\n    critical: true\n    fallback: [{ channel: sms, after: 30m }, { channel: mail }]"
            ),
            r#"{"critical":true,"multicast":50,"fallback":[{"channel":"sms","after":{"secs":1800,"nanos":0}},{"channel":"mail"}]}"#
        );
    }

    #[test]
    fn invalid_delivery_policies_are_reported() {
        for (delivery_policy, expected) in [
            ("digest: { window: weekly }", "notifications.notice.digest.window: is not `batch`"),
            ("digest: { by: [regoin] }", "`regoin` is not a field of the class; did you mean `region`?"),
            ("digest: {}\n    multicast: {}", "cannot be given together with `digest`"),
            ("send_hours: always", "`always` is not a time of the day"),
            ("critical: true\n    send_hours: 09:00-10:00", "cannot be given for a critical class"),
            ("fallback: [{ channel: smsx }]", "names the channel `smsx`, which does not exist; did you mean `sms`?"),
            ("fallback: [{ channel: sms }, { channel: sms }]", "names the channel `sms` twice"),
            ("priority: highest", "`highest` is not known here"),
            ("multicast: { recipient_limit: 1 }", "give 2 to 1000"),
        ] {
            let found = problems(delivery_policy);
            assert!(found.contains(expected), "{delivery_policy}: {found}");
        }
    }
}
