//! Conformance suite of the records port. Each scenario runs on every backend.

// One suite for each facet
mod installation; // identity, counts, health check
mod application_store; // applications and their versions
mod subscriber_store; // subscribers, devices, merges
mod segment_store; // segments
mod subscription_store; // subscriptions
mod consent_store; // consent of subscriptions, with its evidence
mod lifecycle_store; // outbox of lifecycle events
mod suppression_store; // suppressions
mod feedback_store; // feedback to sent messages
mod notifybc_store; // documents of NotifyBC records
mod recipient_store; // recipients and failing endpoints
mod change_log; // the change log
mod match_store; // profiles and members at any sequence
mod schedule_store; // subscriptions with schedules
mod api_key_store; // API keys
mod capacity_profile_store; // saved capacity profiles
mod user_store; // users of the console and their sessions
mod differential; // random operations with equal results on every backend

use std::{collections::BTreeMap, sync::Arc};

use tocsin_model::{
    filter::{Dialect, Filter},
    id::{ChangeSequence, Name, SubscriberId, SubscriberNumber, SubscriptionId},
    ldap::LdapFilter,
    preferences::Preferences,
    subscriber::{Device, DeviceState, Profile},
    subscription::{Subscription, SubscriptionParams},
    suppression::{Cause, Suppression, Target},
    time::Timestamp,
    value::Value,
};

use super::*;
use crate::{
    error::StoreError,
    memory::records::MemoryRecords,
    sqlite::records::{RecordsOptions, SqliteRecords},
};

/// Runs a scenario on each backend, with a short change log.
fn check(scenario: impl AsyncFn(&dyn Records)) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    println!("in memory");
    runtime.block_on(scenario(&MemoryRecords::with_changes_kept(CHANGES_KEPT_IN_TESTS).expect("random numbers")));
    println!("on SQLite");
    let folder = tempfile::tempdir().expect("a folder");
    runtime.block_on(scenario(&open(folder.path())));
}

const CHANGES_KEPT_IN_TESTS: u64 = 2_000;

fn open(folder: &std::path::Path) -> SqliteRecords {
    let options = RecordsOptions {
        reserve_bytes: 0,
        readers: 1,
        changes_kept: CHANGES_KEPT_IN_TESTS,
        ..RecordsOptions::default()
    };
    SqliteRecords::open(folder, &options).expect("the records open")
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn subscriber_id(text: &str) -> SubscriberId {
    text.parse().expect("a subscriber id")
}

const fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1_000)
}

fn mailbox(address: &str) -> Device {
    Device { channel: name("mail"), address: address.to_owned(), state: DeviceState::Active }
}

/// Subscriber with active devices, each given as `name=channel`.
fn person(id: &str, devices: &[&str]) -> NewSubscriber {
    let device = |text: &&str| {
        let (device, channel) = text.split_once('=').expect("name=channel");
        let address = format!("{id}@{channel}.example");
        (name(device), Device { channel: name(channel), address, state: DeviceState::Active })
    };
    NewSubscriber {
        kept: Default::default(),
        id: subscriber_id(id),
        profile: Profile::default(),
        devices: Some(devices.iter().map(device).collect()),
        preferences: None,
    }
}

fn interest(subscriber: &str, key: Option<&str>) -> NewSubscription {
    NewSubscription {
        application: name("quakes"),
        class: name("near"),
        subscriber: subscriber_id(subscriber),
        key: key.map(str::to_owned),
        device: None,
        enabled: Some(true),
        values: r#"{"magnitude":5.5}"#.into(),
        terms: SubscriptionParams::default(),
    }
}

fn change(device: Option<Name>, enabled: bool, values: &str) -> SubscriptionChange {
    SubscriptionChange { device, enabled: Some(enabled), values: values.into(), terms: SubscriptionParams::default() }
}

/// Changes as short texts.
fn describe_all(changes: Vec<RecordChange>) -> Vec<String> {
    let describe = |change: RecordChange| match change.what {
        ChangeKind::Application(name) => format!("application {name}"),
        ChangeKind::Subscriber(number) => format!("subscriber {}", number.0),
        ChangeKind::Subscriptions(first, last) => format!("{first} to {last}"),
        ChangeKind::Moved(first, last) => format!("{first} to {last} moved"),
        ChangeKind::ApiKey => "API key".to_owned(),
        ChangeKind::Segment(name) => format!("segment {name}"),
        ChangeKind::Profile(number) => format!("profile {}", number.0),
        ChangeKind::Suppressions(targets) => {
            let targets: Vec<String> = targets.iter().map(ToString::to_string).collect();
            format!("suppressions of {}", targets.join(" "))
        }
    };
    changes.into_iter().map(describe).collect()
}

async fn news(records: &dyn Records, after: ChangeSequence) -> Vec<String> {
    describe_all(records.changes(after, 1_000).await.expect("the feed"))
}

/// Subscriptions of each class, with the total ever added.
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

fn suppression_of(target: &str, cause: Cause, in_force: bool, now: Timestamp) -> Suppression {
    Suppression {
        target: target.parse().expect("a target"),
        address: None,
        cause,
        in_force,
        origin: "t".to_owned(),
        detail: "d".to_owned(),
        notification: None,
        bounces: Vec::new(),
        since: now,
        updated_at: now,
        expires_at: None,
    }
}

fn filter(text: &str) -> LdapFilter {
    LdapFilter::parse(text).expect("a filter")
}
