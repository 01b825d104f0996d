//! Feedback to sent messages: reports are counted by the feedback policy, and suppress their address or device.
//!
//! There is one policy for the replies of servers, mails that came back, webhooks of providers and reports of callers.
//! The entry of a report, the counts that it clears and the suppression that follows are one commit. A repeated report
//! changes nothing, so a caller may report again after a failure.

use std::{
    collections::{BTreeMap, HashSet},
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use parking_lot::RwLock;
use tocsin_connect::Clock;
use tocsin_feedback::policy::{
    CountedReport, Decision, DeviceHistory, Evidence, FeedbackPolicy, Reason, SuppressionAction,
};
use tocsin_model::{
    feedback::{Class, FeedbackEntry, Stage},
    id::{Name, NotificationId, SubscriberId},
    suppression::{Cause, Policy, SoftBounce, Suppression, Target, cut},
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    records::{FeedbackChange, FeedbackState, FeedbackStore},
};

/// Shortest retention of an entry.
pub const RETENTION: Duration = Duration::from_secs(30 * 86_400);
/// Attempts to store changes whose state another writer changed.
const ATTEMPTS_MAX: u32 = 8;

/// A report about a target.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedbackReport {
    /// The evidence.
    pub evidence: Evidence,
    /// The address or device.
    pub target: Target,
    /// For a device: the address that it has, in the form of [`bound`](tocsin_model::suppression::bound).
    pub address: Option<String>,
    /// The device, if known.
    pub device: Option<(SubscriberId, Name)>,
    /// The notification, if known.
    pub notification: Option<NotificationId>,
    /// The origin: `mail`, `session`, the name of a provider.
    pub origin: String,
    /// The text of the server or provider.
    pub detail: String,
    /// The enhanced status code (RFC 3463), or a provider's code.
    pub status: Option<String>,
}

/// Effect of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The target is unknown, or not any more.
    UnknownTarget,
    /// Reports of its class do not count.
    NotCounted,
    /// It was reported before.
    Repeated,
    /// Reports of its class, and the number that suppresses.
    Counted {
        /// Reports within the window.
        count: u32,
        /// The number that suppresses.
        limit: u32,
    },
    /// The target is suppressed.
    Suppressed {
        /// End of the suppression; none: until it is lifted.
        until: Option<Timestamp>,
    },
    /// A success: soft bounces before it no longer count.
    Cleared,
    /// The subscription ended.
    Unsubscribed,
}

impl Effect {
    /// Its name in metrics and answers.
    pub fn word(self) -> &'static str {
        match self {
            Effect::UnknownTarget => "unknown_target",
            Effect::NotCounted => "not_counted",
            Effect::Repeated => "repeated",
            Effect::Counted { .. } => "counted",
            Effect::Suppressed { .. } => "suppressed",
            Effect::Cleared => "cleared",
            Effect::Unsubscribed => "unsubscribed",
        }
    }

    /// As a text for the log of feedback.
    fn text(self) -> String {
        match self {
            Effect::Counted { count, limit } => format!("counted {count} of {limit}"),
            Effect::Suppressed { until: Some(until) } => format!("suppressed until {until}"),
            effect => effect.word().replace('_', " "),
        }
    }
}

/// Applies reports one after the other.
pub(crate) struct FeedbackApplier {
    policy: FeedbackPolicy,
    applying: tokio::sync::Mutex<()>,
    hasher: RandomState,
    /// Hashes of the targets of which a soft bounce in a session counts: a delivery to them is a success that clears
    /// it. Usually there are few.
    counted: RwLock<HashSet<u64>>,
}

impl FeedbackApplier {
    pub fn new(policy: &Policy) -> Self {
        FeedbackApplier {
            policy: FeedbackPolicy::from(policy),
            applying: tokio::sync::Mutex::default(),
            hasher: RandomState::new(),
            counted: RwLock::default(),
        }
    }

    /// Reads the targets that count in sessions.
    pub async fn load(&self, store: &dyn FeedbackStore) -> Result<(), StoreError> {
        let targets = store.counted_in_sessions().await?;
        *self.counted.write() = targets.iter().map(|target| self.hash(target)).collect();
        Ok(())
    }

    /// Whether no delivery can clear a count.
    pub fn is_idle(&self) -> bool {
        self.counted.read().is_empty()
    }

    /// Whether a delivery to this target clears a count.
    pub fn counts(&self, target: &Target) -> bool {
        self.counted.read().contains(&self.hash(target))
    }

    fn hash(&self, target: &Target) -> u64 {
        self.hasher.hash_one(target.to_string())
    }
}

/// The feedback of a target while reports are applied to it.
struct Working {
    before: FeedbackState,
    entries: Vec<FeedbackEntry>,
    suppression: Option<Suppression>,
    added: usize,
    cleared: Vec<(Class, String)>,
    is_suppression_new: bool,
}

impl Working {
    fn new(before: FeedbackState) -> Self {
        let (entries, suppression) = (before.entries.clone(), before.suppression.clone());
        Working { before, entries, suppression, added: 0, cleared: Vec::new(), is_suppression_new: false }
    }

    fn history(&self) -> DeviceHistory {
        let counted = self.entries.iter().filter(|entry| entry.counts).map(|entry| CountedReport {
            class: entry.class,
            key: entry.key.clone(),
            at: entry.at,
            stage: entry.stage,
        });
        DeviceHistory { counted: counted.collect() }
    }

    /// Applies a report.
    fn apply(&mut self, policy: &FeedbackPolicy, report: &FeedbackReport, now: Timestamp) -> Effect {
        let evidence = &report.evidence;
        let (class, key) = (evidence.class(), evidence.key());
        let is_known = self.entries.iter().any(|entry| (entry.class, entry.key.as_str()) == (class, key));
        if is_known && class != Class::Delivered {
            return Effect::Repeated;
        }
        let Decision { action, reason, history, .. } = policy.decide(&self.history(), evidence, now);
        let effect = match (action, reason) {
            (SuppressionAction::SuppressUntil(until), _) => Effect::Suppressed { until: Some(until) },
            (SuppressionAction::Suppress, _) => Effect::Suppressed { until: None },
            (SuppressionAction::None, Reason::Counted(count, limit)) => Effect::Counted { count, limit },
            (SuppressionAction::None, Reason::Repeated) => Effect::Repeated,
            (SuppressionAction::None, Reason::NotCounted) => Effect::NotCounted,
            (SuppressionAction::None, Reason::Cleared) => match self.clear(&history, now) {
                true => Effect::Cleared,
                false => Effect::NotCounted,
            },
        };
        let counts = matches!(effect, Effect::Counted { .. } | Effect::Suppressed { .. });
        // Refusals of the sender in a session are in the attempts of their notification; replies are only counted.
        let is_logged = matches!(class, Class::Blocked | Class::Challenge) && evidence.stage() == Stage::Report;
        if counts || is_logged {
            let window = policy.threshold(class).map_or(Duration::ZERO, |threshold| threshold.window);
            self.added += 1;
            self.entries.push(FeedbackEntry {
                target: report.target.clone(),
                class,
                key: key.to_owned(),
                at: now,
                stage: evidence.stage(),
                counts,
                effect: effect.text(),
                origin: report.origin.clone(),
                detail: cut(report.detail.clone()),
                status: report.status.clone(),
                notification: report.notification,
                device: report.device.clone(),
                expires_at: now + window.max(RETENTION),
            });
        }
        if counts && let Some(new) = self.suppression_after(report, effect, &history, policy, now) {
            (self.suppression, self.is_suppression_new) = (Some(new), true);
        }
        effect
    }

    /// Clears the counts that are no longer in the history. Returns whether there were any.
    fn clear(&mut self, history: &DeviceHistory, now: Timestamp) -> bool {
        let stays = |entry: &FeedbackEntry| {
            history.counted.iter().any(|counted| (counted.class, &counted.key) == (entry.class, &entry.key))
        };
        let mut is_any = false;
        for entry in self.entries.iter_mut().filter(|entry| entry.counts) {
            if matches!(entry.class, Class::Soft | Class::Challenge) && !stays(entry) {
                (entry.counts, is_any) = (false, true);
                self.cleared.push((entry.class, entry.key.clone()));
            }
        }
        // A suppression that only counts follows the counts.
        if let Some(known) = self.suppression.as_mut().filter(|known| is_any && !known.in_force) {
            known.bounces.retain(|bounce| {
                let key = bounce.notification.map(|id| id.to_string());
                key.is_none_or(|key| !self.cleared.iter().any(|(_, cleared)| *cleared == key))
            });
            known.updated_at = now;
            if known.bounces.is_empty() {
                known.expires_at = Some(now);
            }
            self.is_suppression_new = true;
        }
        is_any
    }

    /// The suppression after a counted report; `None` if it stays as it is. Soft bounces below their limit are shown
    /// as a suppression that is not in force.
    fn suppression_after(
        &self,
        report: &FeedbackReport,
        effect: Effect,
        history: &DeviceHistory,
        policy: &FeedbackPolicy,
        now: Timestamp,
    ) -> Option<Suppression> {
        let class = report.evidence.class();
        let cause = cause_of(class)?;
        // A suppression bound to a previous address of the device does not apply to the present one.
        let is_same = |found: &&Suppression| found.address.is_none() || found.address == report.address;
        let before = self.suppression.as_ref().filter(|found| found.is_active(now)).filter(is_same);
        let (in_force, expires_at) = match effect {
            Effect::Suppressed { until } => (true, until),
            _ => (false, Some(now + policy.threshold(class)?.window)),
        };
        let stays = |found: &&Suppression| found.in_force && (found.cause > cause || !in_force);
        if before.filter(stays).is_some() || (!in_force && cause != Cause::SoftBounce) {
            return None;
        }
        let soft = history.counted.iter().filter(|counted| counted.class == Class::Soft);
        let bounces = soft.map(|counted| SoftBounce { at: counted.at, notification: counted.key.parse().ok() });
        let same = before.filter(|found| found.cause == cause);
        Some(Suppression {
            target: report.target.clone(),
            // A suppression for any address of the device stays so.
            address: report.address.clone().filter(|_| before.is_none_or(|found| found.address.is_some())),
            cause,
            in_force,
            origin: report.origin.clone(),
            detail: cut(report.detail.clone()),
            notification: same.and_then(|found| found.notification).or(report.notification),
            bounces: if cause == Cause::SoftBounce { bounces.collect() } else { Vec::new() },
            since: same.filter(|found| found.in_force == in_force).map_or(now, |found| found.since),
            updated_at: now,
            expires_at,
        })
    }

    /// The change to store, if there is one.
    fn change(self, target: Target) -> Option<FeedbackChange> {
        let Working { before, mut entries, suppression, added, cleared, is_suppression_new } = self;
        if added == 0 && cleared.is_empty() && !is_suppression_new {
            return None;
        }
        let added = entries.split_off(entries.len() - added);
        let suppression = suppression.filter(|_| is_suppression_new);
        Some(FeedbackChange { target, before, added, cleared, suppression })
    }
}

/// The cause of a suppression by reports of a class.
pub fn cause_of(class: Class) -> Option<Cause> {
    match class {
        Class::Soft | Class::Challenge => Some(Cause::SoftBounce),
        Class::Hard => Some(Cause::HardBounce),
        Class::Unsubscribe => Some(Cause::Unsubscribed),
        Class::Complaint => Some(Cause::Complaint),
        Class::Blocked | Class::OutOfOffice | Class::Delivered | Class::Unknown => None,
    }
}

impl FeedbackApplier {
    /// Applies reports in order. They are durable when this returns; repeating them changes nothing.
    ///
    /// # Errors
    /// The records are unavailable. Nothing was stored.
    pub async fn apply(
        &self,
        store: &dyn FeedbackStore,
        clock: &dyn Clock,
        reports: &[FeedbackReport],
    ) -> Result<Vec<Effect>, StoreError> {
        let _one_at_a_time = self.applying.lock().await;
        let mut targets: Vec<Target> = Vec::new();
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        for report in reports {
            places.entry(report.target.to_string()).or_insert_with(|| {
                targets.push(report.target.clone());
                targets.len() - 1
            });
        }
        let mut attempts = 0;
        let effects = loop {
            attempts += 1;
            let states = store.feedback_states(&targets).await?;
            let mut working: Vec<Working> = states.into_iter().map(Working::new).collect();
            let now = clock.now();
            let apply =
                |report: &FeedbackReport| working[places[&report.target.to_string()]].apply(&self.policy, report, now);
            let effects: Vec<Effect> = reports.iter().map(apply).collect();
            let pairs = working.into_iter().zip(&targets);
            let changes = pairs.filter_map(|(working, target)| working.change(target.clone()));
            let changes: Vec<FeedbackChange> = changes.collect();
            if changes.is_empty() {
                break effects;
            }
            match store.change_feedback(changes).await {
                Ok(()) => break effects,
                // A change of an operator or of an import came first.
                Err(StoreError::Changed(_)) if attempts < ATTEMPTS_MAX => {}
                Err(error) => return Err(error),
            }
        };
        for (report, effect) in reports.iter().zip(&effects) {
            note(self, report, *effect);
        }
        Ok(effects)
    }
}

/// Counts and logs an applied report.
fn note(applier: &FeedbackApplier, report: &FeedbackReport, effect: Effect) {
    let class = report.evidence.class();
    count(class, &report.origin, effect);
    if let Some(cause) = cause_of(class) {
        metrics::counter!("tocsin_suppression_reports_total", "cause" => cause.word()).increment(1);
    }
    match effect {
        Effect::Counted { .. } if report.evidence.stage() == Stage::Session => {
            applier.counted.write().insert(applier.hash(&report.target));
        }
        _ if class == Class::Delivered => drop(applier.counted.write().remove(&applier.hash(&report.target))),
        _ => {}
    }
    let (key, origin) = (report.evidence.key(), report.origin.as_str());
    match effect {
        Effect::Suppressed { .. } => {
            tracing::warn!(key, class = class.word(), origin, reason = report.detail, "an address is suppressed");
        }
        _ => tracing::debug!(key, class = class.word(), origin, effect = effect.word(), "feedback"),
    }
}

/// Counts a report. Origins of callers are free texts and have one label.
pub(crate) fn count(class: Class, origin: &str, effect: Effect) {
    const ORIGINS: [&str; 12] = [
        "mail",
        "session",
        "ses",
        "sendgrid",
        "mailgun",
        "postmark",
        "brevo",
        "twilio",
        "vonage",
        "messagebird",
        "sinch",
        "webhook",
    ];
    let origin = ORIGINS.into_iter().find(|known| *known == origin).unwrap_or("api");
    metrics::counter!(
        "tocsin_feedback_reports_total", "class" => class.word(), "origin" => origin, "effect" => effect.word()
    )
    .increment(1);
}

#[cfg(test)]
mod tests {
    use tocsin_model::id::NotificationBatchId;

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn target() -> Target {
        Target::address(&"smtp".parse().expect("a name"), " Bob@Example.ORG")
    }

    fn report(class: Class, notification: Option<u32>, number: usize) -> FeedbackReport {
        let notification = notification.map(|ordinal| NotificationId { batch: NotificationBatchId(3), ordinal });
        let key = notification.map_or_else(|| format!("report-{number}"), |id| id.to_string());
        FeedbackReport {
            evidence: Evidence::of_caller(class, key),
            target: target(),
            address: None,
            device: None,
            notification,
            origin: "test".to_owned(),
            detail: String::new(),
            status: None,
        }
    }

    /// Applies reports, as `day class[notification]`, and compares effect and suppression after each.
    fn check(policy: &Policy, reports: &[(u64, Class, Option<u32>)], expected: &[&str]) {
        let policy = FeedbackPolicy::from(policy);
        let mut working = Working::new(FeedbackState { entries: Vec::new(), suppression: None });
        let mut states = Vec::new();
        for (number, (day, class, notification)) in reports.iter().enumerate() {
            let now = Timestamp::from_millis(*day as i64 * 86_400_000);
            let effect = working.apply(&policy, &report(*class, *notification, number), now);
            let known = working.suppression.as_ref().filter(|known| known.is_active(now));
            let shown = known.map_or_else(
                || "none".to_owned(),
                |known| {
                    let force = if known.in_force { "in force" } else { "counted" };
                    let end = known.expires_at.map(|end| format!("day {}", end.0 / 86_400_000_000));
                    let end = end.unwrap_or_else(|| "never".to_owned());
                    format!("{} {force} {} bounces, ends {end}", known.cause.word(), known.bounces.len())
                },
            );
            states.push(format!("{}: {shown}", effect.word()));
        }
        assert_eq!(states, expected);
    }

    #[test]
    fn soft_bounces_count_up_to_the_limit() {
        check(
            &Policy { soft_bounces: 3, ..Policy::default() },
            &[
                (0, Class::Soft, Some(1)),
                (1, Class::Soft, Some(1)),
                (10, Class::Soft, None),
                (15, Class::Soft, None),
                (16, Class::Soft, Some(4)),
                (17, Class::Soft, Some(5)),
            ],
            &[
                "counted: soft_bounce counted 1 bounces, ends day 14",
                "repeated: soft_bounce counted 1 bounces, ends day 14",
                "counted: soft_bounce counted 2 bounces, ends day 24",
                "counted: soft_bounce counted 2 bounces, ends day 29",
                "suppressed: soft_bounce in force 3 bounces, ends day 46",
                "suppressed: soft_bounce in force 4 bounces, ends day 47",
            ],
        );
    }

    #[test]
    fn a_more_severe_cause_replaces_a_less_severe_one() {
        check(
            &Policy { hard_bounce_lasts: Some(DAY * 90), ..Policy::default() },
            &[
                (0, Class::Soft, None),
                (1, Class::Hard, None),
                (2, Class::Soft, None),
                (3, Class::Hard, None),
                (4, Class::Complaint, None),
                (5, Class::Hard, None),
            ],
            &[
                "counted: soft_bounce counted 1 bounces, ends day 14",
                "suppressed: hard_bounce in force 0 bounces, ends day 91",
                "counted: hard_bounce in force 0 bounces, ends day 91",
                "suppressed: hard_bounce in force 0 bounces, ends day 93",
                "suppressed: complaint in force 0 bounces, ends never",
                "suppressed: complaint in force 0 bounces, ends never",
            ],
        );
    }

    #[test]
    fn an_expired_suppression_has_no_effect() {
        check(
            &Policy { hard_bounce_lasts: Some(DAY), ..Policy::default() },
            &[(0, Class::Hard, None), (1, Class::Soft, None)],
            &[
                "suppressed: hard_bounce in force 0 bounces, ends day 1",
                "counted: soft_bounce counted 1 bounces, ends day 15",
            ],
        );
    }

    #[test]
    fn a_success_ends_the_count() {
        check(
            &Policy::default(),
            &[(0, Class::Soft, Some(1)), (1, Class::Delivered, Some(2)), (2, Class::Soft, Some(3))],
            &[
                "counted: soft_bounce counted 1 bounces, ends day 14",
                "cleared: none",
                "counted: soft_bounce counted 1 bounces, ends day 16",
            ],
        );
    }

    #[test]
    fn replies_and_refusals_of_the_sender_suppress_nothing() {
        check(
            &Policy::default(),
            &[
                (0, Class::OutOfOffice, Some(1)),
                (0, Class::Blocked, Some(1)),
                (0, Class::Challenge, Some(1)),
                (0, Class::Unknown, Some(1)),
            ],
            &["not_counted: none"; 4],
        );
        check(
            &Policy { challenges: 2, ..Policy::default() },
            &[(0, Class::Challenge, Some(1)), (1, Class::Challenge, Some(2))],
            &[
                "counted: soft_bounce counted 0 bounces, ends day 30",
                "suppressed: soft_bounce in force 0 bounces, ends day 31",
            ],
        );
    }
}
