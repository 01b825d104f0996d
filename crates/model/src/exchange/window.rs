//! Service windows: the hours at which a port works.

use jiff::tz::TimeZone;

use crate::{hours::Hours, time::Timestamp};

/// Hours of the day in a time zone.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceWindow {
    /// Opening hours; at least one.
    pub hours: Vec<Hours>,
    /// Time zone of the hours.
    pub zone: TimeZone,
}

impl ServiceWindow {
    /// Next opening; `None` while it is open.
    pub fn opens(&self, now: Timestamp) -> Option<Timestamp> {
        let next = self.hours.iter().filter_map(|hours| hours.next(&self.zone, now)).min()?;
        (next > now).then_some(next)
    }

    /// Next closing; `None` while it is closed.
    pub fn closes(&self, now: Timestamp) -> Option<Timestamp> {
        self.hours.iter().filter_map(|hours| hours.end_of(&self.zone, now)).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_opens_at_the_first_of_its_hours() {
        let hours = |text: &str| text.parse::<Hours>().expect("hours");
        let zone = TimeZone::get("Europe/Vienna").expect("a zone");
        let window = ServiceWindow { hours: vec![hours("09:00-17:00 mo-fr"), hours("12:00-14:00 sa")], zone };
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        // A Friday in winter, an hour ahead of UTC.
        for (now, opens) in [
            ("2026-11-20T07:59:59Z", Some("2026-11-20T08:00:00Z")),
            ("2026-11-20T08:00:00Z", None),
            ("2026-11-20T15:59:59Z", None),
            ("2026-11-20T16:00:00Z", Some("2026-11-21T11:00:00Z")),
            ("2026-11-21T14:00:00Z", Some("2026-11-23T08:00:00Z")),
        ] {
            assert_eq!(window.opens(at(now)), opens.map(at), "{now}");
            assert_eq!(window.closes(at(now)).is_some(), opens.is_none(), "{now}");
        }
        assert_eq!(window.closes(at("2026-11-20T08:00:00Z")), Some(at("2026-11-20T16:00:00Z")));
    }
}
