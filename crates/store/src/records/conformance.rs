//! What every backend of the records does. Each story runs on each of them.

mod applications; // applications, keys
mod subscribers; // whom to tell
mod segments; // some of them
mod suppressions; // those who are not written to
mod subscriptions; // what they care about
mod schedules; // and when
mod feed; // what changed, in order
mod twins; // random acts, on every backend

use std::{collections::BTreeMap, sync::Arc};

use tocsin_model::{
    filter::{Dialect, Filter},
    id::{ChangeSequence, Name, SubscriberId, SubscriberNumber, SubscriptionId},
    preferences::Preferences,
    subscriber::{Device, DeviceState, Profile},
    subscription::Terms,
    suppression::{Cause, Policy, Report, Suppression, Target},
    time::Timestamp,
    value::Value,
};

use super::*;
use crate::{
    memory::records::MemoryRecords,
    sqlite::records::{RecordsOptions, SqliteRecords},
};

/// Runs a story on each backend, which keeps few places of its feed.
fn check(story: impl AsyncFn(&dyn Records)) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    println!("in memory");
    runtime.block_on(story(&MemoryRecords::with_feed_kept(FEW).expect("random numbers")));
    println!("on SQLite");
    let folder = tempfile::tempdir().expect("a folder");
    runtime.block_on(story(&open(folder.path())));
}

const FEW: u64 = 2_000;

fn open(folder: &std::path::Path) -> SqliteRecords {
    let options = RecordsOptions { reserve_bytes: 0, readers: 1, feed_kept: FEW, ..RecordsOptions::default() };
    SqliteRecords::open(folder, &options).expect("the records open")
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn who(text: &str) -> SubscriberId {
    text.parse().expect("a subscriber id")
}

const fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1_000)
}

fn mailbox(address: &str) -> Device {
    Device { channel: name("mail"), address: address.to_owned(), state: DeviceState::Active }
}

/// A subscriber with active devices, each as `name=channel`.
fn person(id: &str, devices: &[&str]) -> NewSubscriber {
    let device = |text: &&str| {
        let (device, channel) = text.split_once('=').expect("name=channel");
        let address = format!("{id}@{channel}.example");
        (name(device), Device { channel: name(channel), address, state: DeviceState::Active })
    };
    NewSubscriber {
        id: who(id),
        profile: Profile::default(),
        devices: Some(devices.iter().map(device).collect()),
        preferences: None,
    }
}

fn interest(subscriber: &str, key: Option<&str>) -> NewSubscription {
    NewSubscription {
        application: name("quakes"),
        class: name("near"),
        subscriber: who(subscriber),
        key: key.map(str::to_owned),
        device: None,
        enabled: true,
        values: r#"{"magnitude":5.5}"#.into(),
        terms: Terms::default(),
    }
}

fn change(device: Option<Name>, enabled: bool, values: &str) -> SubscriptionChange {
    SubscriptionChange { device, enabled, values: values.into(), terms: Terms::default() }
}

/// What the feed tells, in short.
fn told(changes: Vec<Change>) -> Vec<String> {
    let tell = |change: Change| match change.what {
        Changed::Application(name) => format!("application {name}"),
        Changed::Subscriber(number) => format!("subscriber {}", number.0),
        Changed::Subscriptions(first, last) => format!("{first} to {last}"),
        Changed::Moved(first, last) => format!("{first} to {last} moved"),
        Changed::ApiKey => "API key".to_owned(),
        Changed::Segment(name) => format!("segment {name}"),
        Changed::Profile(number) => format!("profile {}", number.0),
        Changed::Suppressions(targets) => {
            let targets: Vec<String> = targets.iter().map(ToString::to_string).collect();
            format!("suppressions of {}", targets.join(" "))
        }
    };
    changes.into_iter().map(tell).collect()
}

async fn news(records: &dyn Records, after: ChangeSequence) -> Vec<String> {
    told(records.changes(after, 1_000).await.expect("the feed"))
}

/// How many subscriptions each class has, and how many it was ever given.
async fn class_counts(records: &dyn Records) -> Vec<SubscriptionCounts> {
    records.subscription_counts().await.expect("counted")
}

async fn owned(records: &dyn Records, subscriber: u64) -> Vec<u64> {
    let found = records.subscriptions_of(&[SubscriberNumber(subscriber)], newest(records)).await;
    found.expect("read").into_iter().map(|id| id.0).collect()
}

fn newest(records: &dyn Records) -> ChangeSequence {
    *records.newest_change().borrow()
}

fn is_missing<T>(result: Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::Missing(_)))
}

fn told_of(target: &str, cause: Cause) -> Report {
    let target: Target = target.parse().expect("a target");
    Report { target, address: None, cause, origin: "t".to_owned(), detail: "d".to_owned(), notification: None }
}

fn filter(text: &str) -> LdapFilter {
    LdapFilter::parse(text).expect("a filter")
}
