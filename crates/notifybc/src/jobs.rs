//! Scheduled jobs: their times, and the records that each applies to.

mod crontab; // fields and occurrences of a time specification

use tocsin_model::time::Timestamp;

pub use crontab::{Crontab, CrontabError};

use crate::{
    configuration::Retention,
    identity::expiry_millis,
    record::{Collection, Document, parse_date, text, truthy},
};

/// Milliseconds of a day.
const DAY: f64 = 86_400_000.0;
/// Milliseconds after which an untouched broadcast in state `sending` is resumed.
const STALE: f64 = 600_000.0;

/// Whether the job `purgeData` deletes a record.
pub fn is_purged(collection: Collection, record: &Document, retention: &Retention, now: Timestamp) -> bool {
    let state = text(record, "state");
    match collection {
        Collection::Notification if text(record, "channel") == Some("inApp") => {
            state == Some("deleted") || is_older(record, "validTill", retention.expired_in_app_notification, now)
        }
        Collection::Notification => {
            !matches!(state, Some("new" | "sending")) && is_older(record, "created", retention.push_notification, now)
        }
        Collection::Subscription => {
            state != Some("confirmed") && is_older(record, "updated", retention.non_confirmed_subscription, now)
        }
        Collection::Bounce => state == Some("deleted") && is_older(record, "updated", retention.deleted_bounce, now),
        Collection::AccessToken => expiry_millis(record)
            .is_some_and(|expiry| expiry < now.as_millis() as f64 - retention.expired_access_token * DAY),
        Collection::Configuration | Collection::Administrator | Collection::UserCredential | Collection::Rss => false,
    }
}

/// Whether a date lies more than this number of days ago.
fn is_older(record: &Document, name: &str, days: f64, now: Timestamp) -> bool {
    let date = text(record, name).and_then(parse_date);
    date.is_some_and(|date| (now.as_millis() - date.as_millis()) as f64 > days * DAY)
}

/// Whether the job `reDispatchBroadcastPushNotifications` resumes a notification: a broadcast in state `sending` that
/// was not touched for ten minutes.
pub fn is_stale(record: &Document, now: Timestamp) -> bool {
    text(record, "state") == Some("sending")
        && text(record, "channel") != Some("inApp")
        && record.get("isBroadcast").is_some_and(truthy)
        && is_older(record, "updated", STALE / DAY, now)
}

#[cfg(test)]
mod tests;
