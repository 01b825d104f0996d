//! Snapshot reports: components, whether they are enabled, and their last activity.

use std::collections::{BTreeMap, BTreeSet};

use tocsin_model::{application::Application, id::Name, time::Timestamp};
use tocsin_pipeline::{Compiled, DestinationState};
use tocsin_store::journal::{ActivityRow, Component, Count, Role, Stream, Switch};

use super::{Cell, Column, Report, ReportRequest, Table, request::is_or_any, table::column};
use crate::{Service, error::ServiceError};

pub(super) const APPLICATIONS: &[Column] = &[
    column("application", "The application."),
    column("state", "`enabled`, `paused` or `disabled`; `starting` until its index is built."),
    column("version", "Active version."),
    column("event_classes", "Number of event classes."),
    column("rules", "Number of rules."),
    column("rules_stopped", "Number of stopped rules."),
    column("channels", "Number of channels."),
    column("subscriptions_enabled", "Number of enabled subscriptions."),
    column("subscriptions_disabled", "Number of disabled subscriptions."),
    column("subscriptions_indexed", "Number of subscriptions in the index."),
    column("changes_behind", "Number of record changes that the index has not applied yet."),
    column("last_event_at", "Time at which an event was last accepted or matched."),
    column("last_notification_at", "Time at which a notification was last created or delivered."),
];

pub(super) const SOURCES: &[Column] = &[
    column("application", "The application."),
    column("source", "The source."),
    column("state", "`enabled`, `paused` or `disabled`."),
    column("defined", "Whether the active version of the application defines the source."),
    column("last_batch_at", "Time of the last event batch of the source."),
    column("seconds_since", "Age of that time, in seconds."),
    column("last_minute_batches", "Number of event batches in the most recent minute with activity."),
    column("last_minute_events", "Number of events in that minute."),
];

pub(super) const EVENTS: &[Column] = &[
    column("application", "The application."),
    column("class", "The event class."),
    column("state", "`enabled`, `paused` or `disabled`."),
    column("rules", "Number of rules that use the class."),
    column("retention_ms", "Retention of finished event batches."),
    column("last_event_at", "Time of the last event of the class."),
    column("seconds_since", "Age of that time, in seconds."),
    column("last_minute_events", "Number of events in the most recent minute with activity."),
];

pub(super) const SUBSCRIPTIONS: &[Column] = &[
    column("application", "The application."),
    column("class", "The subscription class."),
    column("state", "State of the application."),
    column("rules", "Number of rules that use the class."),
    column("enabled", "Number of enabled subscriptions."),
    column("disabled", "Number of disabled subscriptions."),
    column("last_added_at", "Time at which a subscription was last added."),
    column("seconds_since", "Age of that time, in seconds."),
];

pub(super) const CHANNELS: &[Column] = &[
    column("application", "The application."),
    column("channel", "The channel."),
    column("protocol", "The protocol."),
    column("state", "`enabled` or `paused`."),
    column("destinations_open", "Number of destinations with a closed circuit breaker."),
    column("destinations_trial", "Number of destinations that are probed after a pause."),
    column("destinations_paused", "Number of destinations that are paused after failures."),
    column("destinations_stalled", "Number of destinations whose messages wait although nothing holds them back."),
    column("last_at", "Time at which a notification was last created for the channel or sent by it."),
    column("seconds_since", "Age of that time, in seconds."),
    column("last_minute_delivered", "Number of deliveries in the most recent minute with activity."),
    column("last_minute_failed", "Number of failed attempts in that minute."),
];

/// Current state of all parts.
struct Now {
    at: Timestamp,
    switches: Vec<Switch>,
    latest: Vec<ActivityRow>,
}

impl Now {
    /// State of a component, or of the component that contains it.
    fn state(&self, of: &[Component]) -> &'static str {
        let found = of.iter().find_map(|of| self.switches.iter().find(|switch| switch.component == *of));
        found.map_or("enabled", |switch| switch.state.word())
    }

    /// Newest minute of some streams.
    fn latest(&self, of: impl Fn(&Stream) -> bool) -> Latest {
        let mut latest = Latest::default();
        for row in self.latest.iter().filter(|row| of(&row.stream)) {
            latest.last_at = latest.last_at.max(row.activity.last_at);
            if latest.minute < Some(row.from) {
                latest = Latest { minute: Some(row.from), last_at: latest.last_at, ..Latest::default() };
            }
            if latest.minute == Some(row.from) {
                let count = |count| row.activity.count(count);
                latest.batches += count(Count::EventBatches);
                latest.events += count(Count::Events);
                latest.delivered += count(Count::Delivered);
                latest.failed += count(Count::Deferred) + count(Count::Refused);
            }
        }
        latest.ago = latest.last_at.map(|last| self.at.since(last).as_secs_f64());
        latest
    }
}

#[derive(Default)]
struct Latest {
    minute: Option<Timestamp>,
    last_at: Option<Timestamp>,
    ago: Option<f64>,
    batches: u64,
    events: u64,
    delivered: u64,
    failed: u64,
}

impl Service {
    async fn now_of(&self, request: &ReportRequest) -> Result<Now, ServiceError> {
        let latest = self.activity_log.latest_activity(request.application.as_ref()).await?;
        let switches = self.pipeline.switches().into_iter().map(|switched| switched.switch).collect();
        Ok(Now { at: self.clock.now(), switches, latest })
    }

    /// Running applications, or the requested one.
    pub(super) fn requested_applications(
        &self,
        request: &ReportRequest,
    ) -> Result<Vec<std::sync::Arc<Compiled>>, ServiceError> {
        let names = self.pipeline.status().into_iter().map(|(name, _)| name);
        let found: Vec<_> = names.filter(|name| is_or_any(&request.application, name)).collect();
        match &request.application {
            Some(name) if found.is_empty() => Err(self.no_running(name)),
            _ => Ok(found.iter().filter_map(|name| self.pipeline.application(name)).collect()),
        }
    }

    pub(super) async fn snapshot_applications(&self, request: &ReportRequest) -> Result<Report, ServiceError> {
        let now = self.now_of(request).await?;
        let counts = self.subscription_store.subscription_counts().await?;
        let stops = self.pipeline.stopped_rules();
        let status: BTreeMap<Name, _> = self.pipeline.status().into_iter().collect();
        let mut table = Table::new("applications", APPLICATIONS);
        for compiled in self.requested_applications(request)? {
            let application = &compiled.application;
            let name = &application.name;
            let status = status.get(name).cloned().unwrap_or_default();
            let state = match now.state(&[Component::Application(name.clone())]) {
                "enabled" if !status.ready => "starting",
                state => state,
            };
            let mine = || counts.iter().filter(|found| found.application == *name);
            let events = |stream: &Stream| stream.application() == name && matches!(stream, Stream::Events { .. });
            let of_notifications =
                |stream: &Stream| stream.application() == name && matches!(stream, Stream::Notifications { .. });
            table.push([
                name.into(),
                state.into(),
                status.version.into(),
                (application.events.len() as u64).into(),
                (application.rules.len() as u64).into(),
                (stops.iter().filter(|stop| stop.application == *name).count() as u64).into(),
                (application.channels.len() as u64).into(),
                mine().map(|found| found.enabled).sum::<u64>().into(),
                mine().map(|found| found.disabled).sum::<u64>().into(),
                status.indexed.into(),
                status.changes_behind.into(),
                now.latest(events).last_at.into(),
                now.latest(of_notifications).last_at.into(),
            ]);
        }
        Ok(table.alone())
    }

    pub(super) async fn snapshot_sources(&self, request: &ReportRequest) -> Result<Report, ServiceError> {
        let now = self.now_of(request).await?;
        let mut sources: BTreeMap<(Name, Name), bool> = BTreeMap::new();
        for row in &now.latest {
            if let Stream::Events { application, source, .. } = &row.stream {
                sources.insert((application.clone(), source.clone()), false);
            }
        }
        for compiled in self.requested_applications(request)? {
            let Application { name, sources: defined, .. } = &compiled.application;
            sources.extend(defined.keys().map(|source| ((name.clone(), source.clone()), true)));
        }
        let mut table = Table::new("sources", SOURCES);
        for ((application, source), is_defined) in &sources {
            if !is_or_any(&request.source, source) {
                continue;
            }
            let of = |stream: &Stream| matches!(stream, Stream::Events { application: a, source: s, .. } if a == application && s == source);
            let latest = now.latest(of);
            let parts = [
                Component::Source(application.clone(), source.clone()),
                Component::Application(application.clone()),
                Component::Role(Role::Sources),
            ];
            table.push([
                application.into(),
                source.into(),
                now.state(&parts).into(),
                (*is_defined).into(),
                latest.last_at.into(),
                latest.ago.into(),
                latest.batches.into(),
                latest.events.into(),
            ]);
        }
        Ok(table.alone())
    }

    pub(super) async fn snapshot_events(&self, request: &ReportRequest) -> Result<Report, ServiceError> {
        let now = self.now_of(request).await?;
        let mut table = Table::new("event_classes", EVENTS);
        for compiled in self.requested_applications(request)? {
            let application = &compiled.application;
            let name = &application.name;
            for class in application.events.keys().filter(|class| is_or_any(&request.class, class)) {
                let of = |stream: &Stream| matches!(stream, Stream::Events { application: a, class: c, .. } if a == name && c == class);
                let latest = now.latest(of);
                let parts = [
                    Component::EventClass(name.clone(), class.clone()),
                    Component::Application(name.clone()),
                    Component::Role(Role::Accept),
                ];
                table.push([
                    name.into(),
                    class.into(),
                    now.state(&parts).into(),
                    (application.rules.values().filter(|rule| rule.on == *class).count() as u64).into(),
                    application.events_kept(class).into(),
                    latest.last_at.into(),
                    latest.ago.into(),
                    latest.events.into(),
                ]);
            }
        }
        Ok(table.alone())
    }

    pub(super) async fn snapshot_subscriptions(&self, request: &ReportRequest) -> Result<Report, ServiceError> {
        let now = self.now_of(request).await?;
        let counts = self.subscription_store.subscription_counts().await?;
        let mut table = Table::new("subscription_classes", SUBSCRIPTIONS);
        for compiled in self.requested_applications(request)? {
            let application = &compiled.application;
            let name = &application.name;
            for class in application.subscriptions.keys().filter(|class| is_or_any(&request.class, class)) {
                let found = counts.iter().find(|found| (&found.application, &found.class) == (name, class));
                let last = found.and_then(|found| found.last_added_at);
                table.push([
                    name.into(),
                    class.into(),
                    now.state(&[Component::Application(name.clone())]).into(),
                    (application.rules.values().filter(|rule| rule.subscription == *class).count() as u64).into(),
                    found.map_or(0, |found| found.enabled).into(),
                    found.map_or(0, |found| found.disabled).into(),
                    last.into(),
                    last.map(|last| now.at.since(last).as_secs_f64()).into(),
                ]);
            }
        }
        Ok(table.alone())
    }

    pub(super) async fn snapshot_channels(&self, request: &ReportRequest) -> Result<Report, ServiceError> {
        let now = self.now_of(request).await?;
        let destination_counts: BTreeMap<(Name, Name), [usize; DestinationState::ALL.len()]> = self
            .pipeline
            .destination_counts()
            .into_iter()
            .map(|(application, channel, counts)| ((application, channel), counts))
            .collect();
        let mut table = Table::new("channels", CHANNELS);
        for compiled in self.requested_applications(request)? {
            let application = &compiled.application;
            let name = &application.name;
            let mut used: BTreeSet<Name> = application.channels.keys().cloned().collect();
            used.extend(now.latest.iter().filter_map(|row| match &row.stream {
                Stream::Notifications { application, channel, .. } if application == name => Some(channel.clone()),
                _ => None,
            }));
            for channel in used.iter().filter(|channel| is_or_any(&request.channel, channel)) {
                let of = |stream: &Stream| {
                    matches!(stream, Stream::Notifications { application: a, channel: c, .. }
                        if a == name && c == channel)
                };
                let latest = now.latest(of);
                let counts = destination_counts.get(&(name.clone(), channel.clone())).copied().unwrap_or_default();
                let in_state = |state: DestinationState| -> Cell {
                    let at = DestinationState::ALL.iter().position(|found| *found == state);
                    at.map(|at| counts[at] as u64).into()
                };
                let parts = [
                    Component::Channel(name.clone(), channel.clone()),
                    Component::Application(name.clone()),
                    Component::Role(Role::Deliver),
                ];
                table.push([
                    name.into(),
                    channel.into(),
                    application.channels.get(channel).map(|found| &found.protocol).into(),
                    now.state(&parts).into(),
                    in_state(DestinationState::Open),
                    in_state(DestinationState::Trial),
                    in_state(DestinationState::Paused),
                    in_state(DestinationState::Stalled),
                    latest.last_at.into(),
                    latest.ago.into(),
                    latest.delivered.into(),
                    latest.failed.into(),
                ]);
            }
        }
        Ok(table.alone())
    }
}
