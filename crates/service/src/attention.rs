//! Attention list: the problems that need an operator now, each with its cause and the action to take.
//!
//! Four delays that users notice come first: events wait to be matched, matching is slow, delivery is slow, storing
//! subscriptions is slow. Each has a few causes, and the figures of the last quarter of an hour separate them.

use std::time::Duration;

use serde::Serialize;
use tocsin_capacity::saturation::Saturation;
use tocsin_model::{definition::write_duration, time::Timestamp};
use tocsin_pipeline::DestinationState;
use tocsin_store::journal::{Activity, Count, FiringFilter, Timing, Window};
use utoipa::ToSchema;

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
};

/// Period whose activity is examined.
const LATELY: Duration = Duration::from_secs(15 * 60);
/// Shortest delay that is reported.
const SLOW: Duration = Duration::from_secs(5);
/// A disk that takes longer for a few bytes holds up everything that is stored.
const DISK_SLOW: Duration = Duration::from_millis(50);
/// Response time from which a receiver is slow.
const ANSWER_SLOW: Duration = Duration::from_secs(1);
/// Firings that are counted.
const FIRINGS_MAX: usize = 1_000;

/// Share from which a resource is nearly full.
const NEARLY_FULL: f64 = 0.9;
/// Headroom factor below which a role is nearly full.
const HEADROOM_MIN: f64 = 1.1;
/// Time until full (in seconds) below which a resource is reported.
const SOON_SECONDS: f64 = 86_400.0;

/// Urgency of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Urgency {
    /// Notifications are lost, or will be soon.
    Now,
    /// Degraded operation.
    Soon,
    /// For information.
    Note,
}

/// A problem that needs attention.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Attention {
    /// Urgency.
    pub urgency: Urgency,
    /// Kind of the problem, in words with hyphens: `slow-distribution`, `suspended`, ...
    pub what: &'static str,
    /// Figures of the problem, as text.
    pub text: String,
    /// Probable cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Recommended action.
    pub advice: String,
}

/// Input of the diagnosis.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Activity of the recent period.
    pub lately: Activity,
    /// Event batches waiting to be matched.
    pub event_batches_waiting: u64,
    /// Age of the oldest of them.
    pub oldest_event: Duration,
    /// Notifications waiting to be sent.
    pub notifications_waiting: u64,
    /// Notifications waiting for an operator.
    pub suspended: u64,
    /// Event batches that were set aside.
    pub failed_batches: u64,
    /// Write latency of the journal.
    pub journal_probe: Duration,
    /// Write latency of the records.
    pub records_probe: Duration,
    /// Shards of the match indexes.
    pub shards: u64,
    /// Cores of the machine.
    pub cores: u64,
    /// Stopped rules, as `application/rule`.
    pub stopped_rules: Vec<String>,
    /// Missed firings.
    pub firings_missed: u64,
    /// Switched-off components, with their states.
    pub switches: Vec<String>,
    /// Paused destinations, by `application/channel`.
    pub destinations_paused: Vec<(String, u64)>,
    /// Stalled destinations, by `application/channel`: messages wait although the destination is not paused.
    pub destinations_stalled: Vec<(String, u64)>,
    /// Free bytes on the disk, and the minimum.
    pub free_bytes: Option<(u64, u64)>,
    /// Saturation of the node.
    pub saturation: Saturation,
}

impl Service {
    /// Lists the problems that need an operator now, the most urgent first.
    ///
    /// # Errors
    /// The scope `operations:read` is missing, or a store is unavailable.
    pub async fn attention(&self, caller: &Caller) -> Result<Vec<Attention>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        Ok(diagnose(&self.figures().await?))
    }

    async fn figures(&self) -> Result<Figures, ServiceError> {
        let now = self.clock.now();
        let window = Window { from: now - LATELY, to: Timestamp(i64::MAX), interval: LATELY * 2 };
        let mut lately = Activity::default();
        for row in self.journal.activity(&window, None).await? {
            lately.add(&row.activity);
        }
        let backlog = self.journal.backlog();
        let status = self.pipeline.status();
        let stops = self.pipeline.stopped_rules();
        let firings = self.journal.firings(&FiringFilter::default(), 0, FIRINGS_MAX).await?;
        let switches =
            self.pipeline.switches().into_iter().map(|found| {
                format!("{} is {} by {}", found.switch.component, found.switch.state.word(), found.switch.by)
            });
        Ok(Figures {
            lately,
            event_batches_waiting: backlog.event_batches,
            oldest_event: backlog.oldest_event.map_or(Duration::ZERO, |oldest| now.since(oldest)),
            notifications_waiting: backlog.notifications,
            suspended: backlog.suspended,
            failed_batches: backlog.failed_batches,
            journal_probe: self.journal.probe().await?,
            records_probe: self.records.probe().await?,
            shards: status.iter().map(|(_, status)| status.shards).max().unwrap_or(0),
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64),
            stopped_rules: stops.iter().map(|stop| format!("{}/{}", stop.application, stop.rule)).collect(),
            firings_missed: firings.iter().map(|firing| firing.batches).sum(),
            switches: switches.collect(),
            destinations_paused: self.destinations_in(DestinationState::Paused),
            destinations_stalled: self.destinations_in(DestinationState::Stalled),
            free_bytes: self.free_space.as_ref().and_then(|space| Some(((space.bytes)()?, space.bytes_min))),
            saturation: self.saturation.as_ref().map(|watch| watch.lock().state()).unwrap_or_default(),
        })
    }
}

impl Service {
    /// Number of destinations in this state, by `application/channel`; zeros are left out.
    pub(crate) fn destinations_in(&self, state: DestinationState) -> Vec<(String, u64)> {
        let counts = self.pipeline.destination_counts().into_iter();
        let in_state = counts.map(|(application, channel, counts)| {
            let count = DestinationState::ALL.iter().zip(counts).find(|(found, _)| **found == state);
            (format!("{application}/{channel}"), count.map_or(0, |(_, count)| count as u64))
        });
        in_state.filter(|(_, count)| *count > 0).collect()
    }
}

/// Destinations of each channel, as text.
pub(crate) fn each_channel(counts: &[(String, u64)]) -> String {
    counts.iter().map(|(channel, count)| format!("{count} of {channel}")).collect::<Vec<_>>().join(", ")
}

/// Diagnoses these figures: the problems, the most urgent first.
pub fn diagnose(figures: &Figures) -> Vec<Attention> {
    let mut found = Vec::new();
    found.extend(slow_pickup(figures));
    found.extend(slow_generation(figures));
    found.extend(slow_distribution(figures));
    found.extend(slow_records(figures));
    found.extend(saturation(&figures.saturation));
    others(figures, &mut found);
    found.sort_by_key(|attention| attention.urgency);
    found
}

fn p95(figures: &Figures, timing: Timing) -> Duration {
    figures.lately.timing(timing).percentile(0.95).unwrap_or_default()
}

/// Formats a duration with two significant digits or so.
fn shown(duration: Duration) -> String {
    let digits = if duration >= Duration::from_secs(1) { 100 } else { 1 };
    write_duration(Duration::from_millis(duration.as_millis() as u64 / digits * digits))
}

fn attention(urgency: Urgency, what: &'static str, text: String, cause: &str, advice: &str) -> Attention {
    Attention { urgency, what, text, cause: Some(cause.to_owned()), advice: advice.to_owned() }
}

/// Event batches wait too long for the matcher.
fn slow_pickup(figures: &Figures) -> Option<Attention> {
    let (collection, pickup) = (p95(figures, Timing::Collection), p95(figures, Timing::Pickup));
    if collection < SLOW && pickup < SLOW && figures.oldest_event < SLOW {
        return None;
    }
    let text = format!(
        "events take {} to be accepted and {} to be picked up (95 of 100); {} batches wait, the oldest for {}",
        shown(collection),
        shown(pickup),
        figures.event_batches_waiting,
        shown(figures.oldest_event)
    );
    let (cause, advice) = if figures
        .switches
        .iter()
        .any(|off| off.starts_with("role:match") || off.starts_with("application:"))
    {
        ("matching is switched off", "`tocsin switch list` says by whom; `tocsin switch enable` lets it go on")
    } else if figures.journal_probe >= DISK_SLOW || collection >= SLOW {
        (
            "the disk of the journal is slow, and every acceptance waits for it",
            "give the data folder a disk of its own with a fast fsync; `tocsin doctor` measures it; submit more events at a time",
        )
    } else {
        (
            "the matcher is busy with what came before",
            "see the report `quantum-list` for how long its turns take, and `subscription-class` for the rules",
        )
    };
    Some(attention(Urgency::Now, "slow-pickup", text, cause, advice))
}

/// Matching is slow.
fn slow_generation(figures: &Figures) -> Option<Attention> {
    let generation = p95(figures, Timing::Generation);
    let own = generation.saturating_sub(p95(figures, Timing::Pickup));
    if own < SLOW {
        return None;
    }
    let text =
        format!("matching takes {} of the {} until notifications are made (95 of 100)", shown(own), shown(generation));
    let (cause, advice) = if figures.shards < figures.cores {
        (
            "the cores of the machine are not used",
            "set `pipeline.match_shards = 0`, so that each core matches a part of the subscriptions",
        )
    } else {
        ("a rule is expensive", "`tocsin rule explain APPLICATION` shows which index answers it, and which rule scans")
    };
    Some(attention(Urgency::Soon, "slow-generation", text, cause, advice))
}

/// Delivery is slow.
fn slow_distribution(figures: &Figures) -> Option<Attention> {
    let (wait, answer) = (p95(figures, Timing::Wait), p95(figures, Timing::Answer));
    if wait < SLOW {
        return None;
    }
    let text = format!(
        "notifications wait {} before they are handed over (95 of 100), the receivers answer in {}; {} wait",
        shown(wait),
        shown(answer),
        figures.notifications_waiting
    );
    // Slow rules delay the notifications of their whole quantum, even where the delay is counted as waiting.
    let generation = p95(figures, Timing::Generation).saturating_sub(p95(figures, Timing::Pickup));
    let deferred = figures.lately.count(Count::Deferred) * 2 > figures.lately.attempts();
    let (cause, advice) = if figures
        .switches
        .iter()
        .any(|off| off.starts_with("role:deliver") || off.starts_with("channel:"))
    {
        ("delivery is switched off", "`tocsin switch list` says by whom; `tocsin switch enable` lets it go on")
    } else if generation >= SLOW && generation >= wait / 2 {
        (
            "rules take long, and what they make waits for the rest of its quantum",
            "`tocsin rule explain APPLICATION` shows which rule scans; see the report `quantum-list`",
        )
    } else if answer >= ANSWER_SLOW || deferred || !figures.destinations_paused.is_empty() {
        (
            "a channel cannot keep up: its receiver is slow or defers messages",
            "see the report `channel` and `tocsin destinations`; raise `concurrency` of the channel if the receiver can take \
             more",
        )
    } else {
        (
            "the receivers are fast: formatting, or the limit of notifications in flight, is the bottleneck",
            "simplify the templates, lower `batch_size` so that more is made at a time, or raise \
             `pipeline.in_flight_per_channel`",
        )
    };
    Some(attention(Urgency::Soon, "slow-distribution", text, cause, advice))
}

/// Storing subscribers and subscriptions is slow.
fn slow_records(figures: &Figures) -> Option<Attention> {
    (figures.records_probe >= DISK_SLOW).then(|| {
        let text = format!("storing a few bytes in the records takes {}", shown(figures.records_probe));
        let advice = "give the data folder a disk of its own with a fast fsync; import in bulk: many lines share one";
        attention(Urgency::Soon, "slow-records", text, "the disk of the records is slow", advice)
    })
}

/// The node is nearly full, or will be soon.
fn saturation(state: &Saturation) -> Option<Attention> {
    let whole = state.resources.iter().find(|found| found.used >= NEARLY_FULL);
    let role = state.roles.iter().find(|found| found.headroom.is_some_and(|headroom| headroom < HEADROOM_MIN));
    let soon = state.resources.iter().filter_map(|found| Some((found.full_in_seconds?, found.resource)));
    let soon = soon.filter(|(seconds, _)| *seconds < SOON_SECONDS).min_by(|one, other| one.0.total_cmp(&other.0));
    let percent = |share: f64| (share * 100.0).round();
    let busiest = state.roles.iter().max_by(|one, other| one.processor.total_cmp(&other.processor));
    let cause = busiest.filter(|found| found.processor > 0.0).map(|found| {
        format!("the role `{}` uses {} % of the processors by its costs", found.role, percent(found.processor))
    });
    let advice =
        "`tocsin capacity` says how many nodes the load takes and what gives out next; see the guide on capacity";
    let found = |urgency, text| Attention {
        urgency,
        what: "saturation",
        text,
        cause: cause.clone(),
        advice: advice.to_owned(),
    };
    match (whole, role, soon) {
        (Some(whole), _, _) => {
            let text = format!("{} % of the {} of this node are used", percent(whole.used), whole.resource.word());
            Some(found(Urgency::Soon, text))
        }
        (_, Some(role), _) => {
            let first = role.first.as_deref().unwrap_or_default();
            let text = format!(
                "the role `{}` can do {:.2} times what it does now, then `{first}` gives out",
                role.role,
                role.headroom.unwrap_or_default()
            );
            Some(found(Urgency::Soon, text))
        }
        (_, _, Some((seconds, resource))) => {
            let text = format!(
                "if the load goes on to grow as in the last hour, the {} of this node is full in {}",
                resource.word(),
                shown(Duration::from_secs((seconds / 60.0).round() as u64 * 60))
            );
            Some(found(Urgency::Note, text))
        }
        _ => None,
    }
}

fn others(figures: &Figures, found: &mut Vec<Attention>) {
    let mut add = |urgency, what, text: String, advice: &str| {
        found.push(Attention { urgency, what, text, cause: None, advice: advice.to_owned() });
    };
    if let Some((free, least)) = figures.free_bytes.filter(|(free, least)| *free < least.saturating_mul(4)) {
        let urgency = if free < least { Urgency::Now } else { Urgency::Soon };
        let text = format!("{} MiB are free on the disk; below {} MiB nothing is accepted", free >> 20, least >> 20);
        add(
            urgency,
            "disk-space",
            text,
            "make room, or shorten `retention`; `tocsin retention` removes at once what may go",
        );
    }
    if figures.failed_batches > 0 {
        let text = format!("{} event batches could not be matched and are set aside", figures.failed_batches);
        add(Urgency::Now, "failed-batches", text, "`tocsin report event-batch-list --status failed` says why");
    }
    if figures.suspended > 0 {
        let text = format!("{} notifications wait for an operator", figures.suspended);
        add(Urgency::Now, "suspended", text, "`tocsin suspended list` says why; resume or end them");
    }
    if !figures.stopped_rules.is_empty() {
        let text = format!("rules are stopped: {}", figures.stopped_rules.join(", "));
        add(
            Urgency::Now,
            "stopped-rules",
            text,
            "mend them and `tocsin rule resume`; `tocsin firings list` lists what they missed",
        );
    }
    if figures.firings_missed > 0 {
        let text = format!("rules did not fire for {} event batches", figures.firings_missed);
        add(Urgency::Soon, "missed-firings", text, "`tocsin firings list` lists them; fire them again or dismiss them");
    }
    if !figures.destinations_paused.is_empty() {
        let text = format!("destinations are let be after failures: {}", each_channel(&figures.destinations_paused));
        add(Urgency::Soon, "paused-destinations", text, "`tocsin destinations` says what they answer");
    }
    if !figures.destinations_stalled.is_empty() {
        let text = format!(
            "messages wait for destinations that are open and get none: {}",
            each_channel(&figures.destinations_stalled)
        );
        let advice = "raise `concurrency` of the channel if all its sessions are busy (`tocsin destinations`); otherwise \
                      restart the server, which sends them, and report a defect";
        add(Urgency::Now, "stalled-destinations", text, advice);
    }
    let (refused, delivered) = (figures.lately.count(Count::Refused), figures.lately.count(Count::Delivered));
    if refused > 20 && refused * 10 > delivered {
        let text = format!("{refused} notifications were refused in {}, {delivered} delivered", shown(LATELY));
        add(Urgency::Soon, "refused", text, "`tocsin report failed-notifications` has the receiver's replies");
    }
    if !figures.switches.is_empty() {
        let text = format!("switched off: {}", figures.switches.join(", "));
        add(Urgency::Note, "switched-off", text, "`tocsin switch enable` switches it on again");
    }
}

#[cfg(test)]
mod tests {
    use tocsin_capacity::{
        saturation::{ResourceState, RoleState},
        vectors::Resource,
    };

    use super::*;

    /// The problems found, as `kind: cause`.
    fn check(figures: Figures, expected: &[&str]) {
        let found: Vec<String> = diagnose(&figures)
            .into_iter()
            .map(|found| match found.cause {
                Some(cause) => format!("{}: {cause}", found.what),
                None => found.what.to_owned(),
            })
            .collect();
        assert_eq!(found, expected);
    }

    fn timed(timings: &[(Timing, u64)]) -> Activity {
        let mut activity = Activity::default();
        for (timing, millis) in timings {
            activity.record(*timing, Duration::from_millis(*millis), 100);
        }
        activity
    }

    #[test]
    fn nothing_needs_attention_when_all_is_well() {
        check(Figures::default(), &[]);
        let well = timed(&[(Timing::Pickup, 3), (Timing::Generation, 8), (Timing::Wait, 20), (Timing::Answer, 300)]);
        check(Figures { lately: well, shards: 1, cores: 8, ..Figures::default() }, &[]);
    }

    #[test]
    fn each_slow_part_is_reported_with_its_cause() {
        let slow =
            |timings: &[(Timing, u64)]| Figures { lately: timed(timings), shards: 4, cores: 4, ..Figures::default() };
        let wait = slow(&[(Timing::Wait, 9_000), (Timing::Answer, 3_000)]);
        check(wait, &["slow-distribution: a channel cannot keep up: its receiver is slow or defers messages"]);
        let format = slow(&[(Timing::Wait, 9_000), (Timing::Answer, 3)]);
        check(
            format,
            &[
                "slow-distribution: the receivers are fast: formatting, or the limit of notifications in flight, is the bottleneck",
            ],
        );
        // Time of a slow rule is not counted for templates.
        let matching =
            slow(&[(Timing::Pickup, 10), (Timing::Generation, 11_300), (Timing::Wait, 11_400), (Timing::Answer, 3)]);
        check(
            matching,
            &[
                "slow-generation: a rule is expensive",
                "slow-distribution: rules take long, and what they make waits for the rest of its quantum",
            ],
        );
        let rule = slow(&[(Timing::Pickup, 10), (Timing::Generation, 8_000)]);
        check(rule.clone(), &["slow-generation: a rule is expensive"]);
        check(Figures { shards: 1, ..rule }, &["slow-generation: the cores of the machine are not used"]);
        let busy = slow(&[(Timing::Pickup, 8_000)]);
        check(busy.clone(), &["slow-pickup: the matcher is busy with what came before"]);
        let disk = Figures { journal_probe: Duration::from_millis(80), ..busy.clone() };
        check(disk, &["slow-pickup: the disk of the journal is slow, and every acceptance waits for it"]);
        let off = Figures { switches: vec!["role:match is paused by ann".to_owned()], ..busy };
        check(off, &["slow-pickup: matching is switched off", "switched-off"]);
        let records = Figures { records_probe: Duration::from_millis(70), ..Figures::default() };
        check(records, &["slow-records: the disk of the records is slow"]);
    }

    #[test]
    fn b1_a_destination_that_is_not_served_needs_attention_now() {
        let stalled = Figures { destinations_stalled: vec![("shop/hook".to_owned(), 1)], ..Figures::default() };
        let found = diagnose(&stalled);
        assert_eq!((found[0].what, found[0].urgency), ("stalled-destinations", Urgency::Now));
        assert!(found[0].text.ends_with("1 of shop/hook"), "{}", found[0].text);
    }

    #[test]
    fn a_nearly_full_node_is_reported_with_its_largest_consumer() {
        let resource = |used, full_in_seconds| ResourceState {
            resource: Resource::Processor,
            used,
            by_vectors: None,
            headroom: Some(1.0 / used),
            full_in_seconds,
        };
        let role = |headroom| RoleState {
            role: "deliver".to_owned(),
            headroom: Some(headroom),
            first: Some("processor".to_owned()),
            processor: 0.4,
            per_second: Default::default(),
        };
        let texts = |resources, roles| {
            let state = Saturation { seconds: 60.0, has_vectors: true, resources, roles };
            let found = diagnose(&Figures { saturation: state, ..Figures::default() });
            found.into_iter().map(|found| found.text).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(texts(vec![resource(0.5, None)], vec![role(2.0)]), "");
        assert_eq!(texts(vec![resource(0.93, None)], vec![role(1.0)]), "93 % of the processor of this node are used");
        assert_eq!(
            texts(vec![resource(0.5, None)], vec![role(1.05)]),
            "the role `deliver` can do 1.05 times what it does now, then `processor` gives out"
        );
        assert_eq!(
            texts(vec![resource(0.5, Some(7_205.0))], vec![role(2.0)]),
            "if the load goes on to grow as in the last hour, the processor of this node is full in 2h"
        );
        let full =
            Saturation { resources: vec![resource(0.95, None)], roles: vec![role(1.0)], ..Saturation::default() };
        let cause = "saturation: the role `deliver` uses 40 % of the processors by its costs";
        check(Figures { saturation: full, ..Figures::default() }, &[cause]);
    }

    #[test]
    fn lost_notifications_come_first() {
        let figures = Figures {
            suspended: 3,
            stopped_rules: vec!["stock/near".to_owned()],
            firings_missed: 9,
            switches: vec!["role:sources is paused by ann".to_owned()],
            destinations_paused: vec![("stock/hook".to_owned(), 2)],
            free_bytes: Some((1 << 30, 256 << 20)),
            ..Figures::default()
        };
        check(figures, &["suspended", "stopped-rules", "missed-firings", "paused-destinations", "switched-off"]);
        check(Figures { free_bytes: Some((1, 2)), ..Figures::default() }, &["disk-space"]);
    }
}
