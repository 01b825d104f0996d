//! Windows of chronicles, divided into parts.

use jiff::tz::TimeZone;
use tocsin_model::{
    chronicle::{Calendar, SLIDES},
    time::Timestamp,
};

/// A window; maps a time to one of its parts.
#[derive(Debug)]
pub(crate) enum Span {
    Always,
    /// By the width of a part, in microseconds.
    Sliding(i64),
    Calendar(Calendar, TimeZone),
}

impl Span {
    /// The part that contains a time. Later times are in the same part or in one with a higher number.
    pub fn part(&self, at: i64) -> i64 {
        match self {
            Span::Always => 0,
            Span::Sliding(width) => at.div_euclid(*width),
            Span::Calendar(calendar, zone) => calendar.begin(zone, Timestamp(at)).0,
        }
    }

    /// The first part in the window where another is the current one.
    pub fn first(&self, present: i64) -> i64 {
        match self {
            Span::Always => 0,
            Span::Sliding(_) => present.saturating_sub(SLIDES),
            Span::Calendar(..) => present,
        }
    }
}
