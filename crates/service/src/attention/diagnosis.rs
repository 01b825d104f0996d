//! Diagnosis: the problems that the figures of a node show, each with its probable cause and the action to take. No I/O.

#[cfg(test)]
mod tests;

use std::time::Duration;

use tocsin_capacity::saturation::Saturation;
use tocsin_model::{definition::write_duration, plural::plural};
use tocsin_pipeline::HeldBackMail;
use tocsin_store::journal::{Count, Timing};

use super::{Attention, ENDPOINTS_MAX, Figures, LATELY, SUSPENDED_MESSAGES_MAX, Urgency, each_channel};

/// Messages refused because of the sender from which they are reported.
const BLOCKED_MIN: u64 = 10;
/// Mailbox providers that are listed.
const HELD_BACK_MAX: usize = 20;
/// Shortest delay that is reported.
const SLOW: Duration = Duration::from_secs(5);
/// A disk that takes longer for a few bytes holds up everything that is stored.
const DISK_SLOW: Duration = Duration::from_millis(50);
/// Response time from which a receiver is slow.
const ANSWER_SLOW: Duration = Duration::from_secs(1);
/// Share from which a resource is nearly full.
const NEARLY_FULL: f64 = 0.9;
/// Headroom factor below which a role is nearly full.
const HEADROOM_MIN: f64 = 1.1;
/// Time until full (in seconds) below which a resource is reported.
const SOON_SECONDS: f64 = 86_400.0;

/// A list of problems that grows.
struct AttentionList<'a>(&'a mut Vec<Attention>);

impl AttentionList<'_> {
    fn add(&mut self, urgency: Urgency, what: &'static str, text: String, advice: &str) -> &mut Attention {
        self.0.push(Attention::new(urgency, what, text, advice));
        self.0.last_mut().expect("it was just added")
    }
}

fn sum(counts: &[(String, u64)]) -> u64 {
    counts.iter().map(|(_, count)| count).sum()
}

fn names(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

fn channels(counts: &[(String, u64)]) -> Vec<&str> {
    counts.iter().map(|(channel, _)| channel.as_str()).collect()
}

/// `1 batch waits`, `2 batches wait`.
fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", plural(count, one, many))
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

/// Kinds of problems, each with its meaning. A code is the kind with underscores.
pub const KINDS: &[(&str, &str)] = &[
    ("slow-pickup", "Events wait long for the matcher."),
    ("slow-generation", "Matching takes long."),
    ("slow-distribution", "Notifications wait long before they are sent."),
    ("slow-records", "Storing subscribers and subscriptions takes long."),
    ("saturation", "The node is nearly full, or will be soon."),
    ("disk-space", "The disk is nearly full."),
    ("unreadable-store", "A store cannot be read."),
    ("unwritable-store", "A store cannot be written."),
    ("not-running", "An application or exchange does not run."),
    ("failed-batches", "Event batches could not be matched."),
    ("suspended", "Notifications wait for an operator."),
    ("suspended-messages", "Exchange messages wait for an operator."),
    ("stopped-rules", "Rules are stopped."),
    ("failed-broadcasts", "Broadcasts have failed."),
    ("paused-broadcasts", "Broadcasts are paused."),
    ("missed-firings", "Rules did not fire for event batches."),
    ("paused-destinations", "Destinations are paused after failures."),
    ("undefined-channel", "Notifications are for devices on a channel that is not defined."),
    ("failing-endpoints", "Endpoints of devices fail."),
    ("expiring-key", "An API key expires soon."),
    ("mail-held-back", "A mailbox provider holds mail back."),
    ("stalled-destinations", "Messages wait for an open destination without being sent."),
    ("refused", "Many notifications were refused."),
    ("blocked-mail", "Servers refused mail because of the sender."),
    ("complaints", "Recipients reported messages as spam."),
    ("switched-off", "Components are switched off."),
];

/// Probable cause of a problem: its code, and its text.
pub type Cause = (&'static str, &'static str);

const MATCHING_OFF: Cause = ("matching_off", "matching is switched off");
const SLOW_JOURNAL: Cause = ("slow_journal", "the disk of the journal is slow, and every acceptance waits for it");
const BUSY_MATCHER: Cause = ("busy_matcher", "the matcher is busy with earlier batches");
const UNUSED_CORES: Cause = ("unused_cores", "the cores of the machine are not used");
const EXPENSIVE_RULE: Cause = ("expensive_rule", "a rule is expensive");
const DELIVERY_OFF: Cause = ("delivery_off", "delivery is switched off");
const SLOW_RULES: Cause = ("slow_rules", "rules take long, and their notifications wait for the rest of the quantum");
const SLOW_RECEIVER: Cause = ("slow_receiver", "a channel cannot keep up: its receiver is slow or defers messages");
const SLOW_FORMATTING: Cause = (
    "slow_formatting",
    "the receivers are fast: formatting, or the limit of notifications in flight, is the bottleneck",
);
const SLOW_RECORDS: Cause = ("slow_records", "the disk of the records is slow");

/// All causes.
pub const CAUSES: [Cause; 10] = [
    MATCHING_OFF,
    SLOW_JOURNAL,
    BUSY_MATCHER,
    UNUSED_CORES,
    EXPENSIVE_RULE,
    DELIVERY_OFF,
    SLOW_RULES,
    SLOW_RECEIVER,
    SLOW_FORMATTING,
    SLOW_RECORDS,
];

fn attention(urgency: Urgency, what: &'static str, text: String, cause: Cause, advice: &str) -> Attention {
    let (code, cause) = cause;
    Attention { cause: Some(cause.to_owned()), cause_code: Some(code), ..Attention::new(urgency, what, text, advice) }
}

/// Event batches wait too long for the matcher.
fn slow_pickup(figures: &Figures) -> Option<Attention> {
    let (collection, pickup) = (p95(figures, Timing::Collection), p95(figures, Timing::Pickup));
    if collection < SLOW && pickup < SLOW && figures.oldest_event < SLOW {
        return None;
    }
    let text = format!(
        "events take {} to be accepted and {} to be picked up (95 of 100); {}, the oldest for {}",
        shown(collection),
        shown(pickup),
        counted(figures.event_batches_waiting, "batch waits", "batches wait"),
        shown(figures.oldest_event)
    );
    let (cause, advice) = if figures
        .switches
        .iter()
        .any(|off| off.starts_with("role:match") || off.starts_with("application:"))
    {
        (MATCHING_OFF, "see `tocsin switch list`; `tocsin switch enable` switches it on again")
    } else if figures.journal_probe >= DISK_SLOW || collection >= SLOW {
        (
            SLOW_JOURNAL,
            "give the data folder a disk of its own with a fast fsync; `tocsin doctor` measures it; submit more events at a time",
        )
    } else {
        (
            BUSY_MATCHER,
            "see the report `quantum-list` for the duration of its turns, and `subscription-class` for the rules",
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
        (UNUSED_CORES, "set `pipeline.match_shards = 0`, so that each core matches a part of the subscriptions")
    } else {
        (EXPENSIVE_RULE, "`tocsin rule explain APPLICATION` shows the index of each rule, and rules that scan")
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
        "notifications wait {} before they are sent (95 of 100), the receivers answer in {}; {}",
        shown(wait),
        shown(answer),
        counted(figures.notifications_waiting, "notification waits", "notifications wait")
    );
    // Slow rules delay the notifications of their whole quantum, even where the delay is counted as waiting.
    let generation = p95(figures, Timing::Generation).saturating_sub(p95(figures, Timing::Pickup));
    let deferred = figures.lately.count(Count::Deferred) * 2 > figures.lately.attempts();
    let (cause, advice) = if figures
        .switches
        .iter()
        .any(|off| off.starts_with("role:deliver") || off.starts_with("channel:"))
    {
        (DELIVERY_OFF, "see `tocsin switch list`; `tocsin switch enable` switches it on again")
    } else if generation >= SLOW && generation >= wait / 2 {
        (SLOW_RULES, "`tocsin rule explain APPLICATION` shows rules that scan; see the report `quantum-list`")
    } else if answer >= ANSWER_SLOW || deferred || !figures.destinations_paused.is_empty() {
        (
            SLOW_RECEIVER,
            "see the report `channel` and `tocsin destinations`; raise `concurrency` of the channel if the receiver can take \
             more",
        )
    } else {
        (
            SLOW_FORMATTING,
            "simplify the templates, lower `batch_size` so that more batches are formatted at a time, or raise \
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
        attention(Urgency::Soon, "slow-records", text, SLOW_RECORDS, advice)
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
    let advice = "`tocsin capacity` computes the number of nodes for the load and the next bottleneck; see the guide on capacity";
    let found =
        |urgency, text| Attention { cause: cause.clone(), ..Attention::new(urgency, "saturation", text, advice) };
    match (whole, role, soon) {
        (Some(whole), _, _) => {
            let text = format!("{} % of the {} of this node is used", percent(whole.used), whole.resource.word());
            Some(found(Urgency::Soon, text))
        }
        (_, Some(role), _) => {
            let first = role.first.as_deref().unwrap_or_default();
            let text = format!(
                "the load of the role `{}` can grow by the factor {:.2}, then `{first}` is exhausted",
                role.role,
                role.headroom.unwrap_or_default()
            );
            Some(found(Urgency::Soon, text))
        }
        (_, _, Some((seconds, resource))) => {
            let text = format!(
                "if the load keeps growing as in the last hour, the {} of this node is full in {}",
                resource.word(),
                shown(Duration::from_secs((seconds / 60.0).round() as u64 * 60))
            );
            Some(found(Urgency::Note, text))
        }
        _ => None,
    }
}

fn others(figures: &Figures, found: &mut Vec<Attention>) {
    let mut found = AttentionList(found);
    if let Some((free, least)) = figures.free_bytes.filter(|(free, least)| *free < least.saturating_mul(4)) {
        let urgency = if free < least { Urgency::Now } else { Urgency::Soon };
        let text =
            format!("{} MiB of the disk is free; below {} MiB the server accepts nothing", free >> 20, least >> 20);
        found
            .add(
                urgency,
                "disk-space",
                text,
                "free disk space, or shorten `retention`; `tocsin retention` deletes expired data at once",
            )
            .param("free_bytes", free)
            .param("least_bytes", least);
    }
    for reason in &figures.unreadable {
        let text = format!("cannot be read: {reason}");
        found
            .add(Urgency::Now, "unreadable-store", text, "examine the disk; the log of the server has the error")
            .param("detail", reason.as_str());
    }
    for reason in &figures.unwritable {
        let text = format!("cannot be written: {reason}");
        found
            .add(
                Urgency::Now,
                "unwritable-store",
                text,
                "examine the disk and its free space; after a failed fsync, restart the server",
            )
            .param("detail", reason.as_str());
    }
    for reason in &figures.not_running {
        let text = format!("does not run: {reason}");
        let advice = "correct the cause, then apply the definition again or restart the server; until then events and \
                      messages are refused with 503, and waiting ones stay stored";
        found.add(Urgency::Now, "not-running", text, advice).param("detail", reason.as_str());
    }
    if figures.failed_batches > 0 {
        let count = counted(figures.failed_batches, "event batch", "event batches");
        let text = format!("{count} could not be matched");
        found
            .add(
                Urgency::Now,
                "failed-batches",
                text,
                "`tocsin report event-batch-list --status failed` lists the reasons",
            )
            .param("count", figures.failed_batches);
    }
    if figures.suspended > 0 {
        let waits = counted(figures.suspended, "notification waits", "notifications wait");
        let text = format!("{waits} for an operator");
        found
            .add(Urgency::Now, "suspended", text, "`tocsin suspended list` lists the reasons; resume or end each")
            .param("count", figures.suspended);
    }
    if figures.suspended_messages > 0 {
        let least = if figures.suspended_messages >= SUSPENDED_MESSAGES_MAX { "at least " } else { "" };
        let waits = counted(figures.suspended_messages, "exchange message waits", "exchange messages wait");
        let text = format!("{least}{waits} for an operator");
        let advice = "`tocsin messages list --state suspended` lists the reasons; `tocsin messages resume` sends \
                      messages again, `tocsin messages end` ends them";
        found.add(Urgency::Now, "suspended-messages", text, advice).param("count", figures.suspended_messages);
    }
    if !figures.stopped_rules.is_empty() {
        let count = figures.stopped_rules.len() as u64;
        let stopped = counted(count, "rule is stopped", "rules are stopped");
        found
            .add(
                Urgency::Now,
                "stopped-rules",
                format!("{stopped}: {}", figures.stopped_rules.join(", ")),
                "fix the rule, then `tocsin rule resume`; `tocsin firings list` lists missed firings",
            )
            .param("count", count)
            .param("names", figures.stopped_rules.clone())
            .only("rule", &names(&figures.stopped_rules));
    }
    if !figures.broadcasts_failed.is_empty() {
        let count = figures.broadcasts_failed.len() as u64;
        let failed = counted(count, "broadcast has failed", "broadcasts have failed");
        let text = format!("{failed}: {}", figures.broadcasts_failed.join(", "));
        found
            .add(
                Urgency::Now,
                "failed-broadcasts",
                text,
                "`tocsin broadcast show` names the reason; send it again corrected",
            )
            .param("count", count)
            .param("names", figures.broadcasts_failed.clone());
    }
    if !figures.broadcasts_paused.is_empty() {
        let count = figures.broadcasts_paused.len() as u64;
        let paused = counted(count, "broadcast is paused", "broadcasts are paused");
        let text = format!("{paused}: {}", figures.broadcasts_paused.join(", "));
        found
            .add(Urgency::Soon, "paused-broadcasts", text, "`tocsin broadcast resume` continues it, `cancel` ends it")
            .param("count", count)
            .param("names", figures.broadcasts_paused.clone());
    }
    if figures.firings_missed > 0 {
        let batches = counted(figures.firings_missed, "event batch", "event batches");
        let text = format!("rules did not fire for {batches}");
        found
            .add(
                Urgency::Soon,
                "missed-firings",
                text,
                "`tocsin firings list` lists them; fire them again or dismiss them",
            )
            .param("count", figures.firings_missed);
    }
    if !figures.destinations_paused.is_empty() {
        let paused = counted(sum(&figures.destinations_paused), "destination is paused", "destinations are paused");
        let text = format!("{paused} after failures: {}", each_channel(&figures.destinations_paused));
        found
            .add(Urgency::Soon, "paused-destinations", text, "`tocsin destinations` shows their last responses")
            .param("count", sum(&figures.destinations_paused))
            .only("channel", &channels(&figures.destinations_paused));
    }
    for (channel, count) in &figures.undefined_channels {
        let waits = counted(*count, "notification waits", "notifications wait");
        let text = format!("{waits} for devices on `{channel}`, which is not defined");
        let advice = "add the channel to the definition and resume the notifications, or change the devices";
        found.add(Urgency::Soon, "undefined-channel", text, advice).param("count", *count).only("channel", &[channel]);
    }
    if figures.endpoints_failing > 0 {
        let least = if figures.endpoints_failing >= ENDPOINTS_MAX as u64 { "at least " } else { "" };
        let fails = counted(figures.endpoints_failing, "endpoint of a device fails", "endpoints of devices fail");
        let advice = "`tocsin endpoints list` shows since when and why; each is disabled after `disable_after`";
        let text = format!("{least}{fails}");
        found.add(Urgency::Note, "failing-endpoints", text, advice).param("count", figures.endpoints_failing);
    }
    for (key, at) in &figures.keys_expiring {
        let text = format!("the API key `{key}` expires at {at}");
        let advice = "`tocsin keys create` makes a new one; replace it at its client before it expires";
        let item = found.add(Urgency::Soon, "expiring-key", text, advice);
        item.param("at", at.to_string()).only("key", &[key.split(' ').next().unwrap_or(key)]);
    }
    for (channel, provider) in figures.held_back.iter().take(HELD_BACK_MAX) {
        let HeldBackMail { provider, lasted, paused_for, interval, said, .. } = provider;
        let pace = match (paused_for, interval) {
            (Some(pause), _) => format!("no mail is sent to it for {}", shown(*pause)),
            (None, Some(interval)) => format!("it gets one mail in {}", shown(*interval)),
            (None, None) => "it gets fewer mails at a time".to_owned(),
        };
        let text =
            format!("{provider} has held mail of {channel} back for {}; {pace}; it said: {said}", shown(*lasted));
        let advice = "its mails wait and others are not delayed; `tocsin destinations` shows the pace; if it goes on, check \
                      the sender with `tocsin doctor --domain`, lower `pacing.rate` or begin a warm-up";
        let urgency = if paused_for.is_some() { Urgency::Soon } else { Urgency::Note };
        found
            .add(urgency, "mail-held-back", text, advice)
            .param("provider", provider.as_str())
            .param("detail", said.as_str())
            .only("channel", &[channel]);
    }
    if !figures.destinations_stalled.is_empty() {
        let text = format!(
            "messages wait for {} without being sent: {}",
            counted(sum(&figures.destinations_stalled), "open destination", "open destinations"),
            each_channel(&figures.destinations_stalled)
        );
        let advice = "raise `concurrency` of the channel if all its sessions are busy (`tocsin destinations`); otherwise \
                      restart the server, which sends them, and report a defect";
        found
            .add(Urgency::Now, "stalled-destinations", text, advice)
            .param("count", sum(&figures.destinations_stalled))
            .only("channel", &channels(&figures.destinations_stalled));
    }
    let (refused, delivered) = (figures.lately.count(Count::Refused), figures.lately.count(Count::Delivered));
    if refused > 20 && refused * 10 > delivered {
        let text = format!("{refused} notifications were refused in {}, {delivered} delivered", shown(LATELY));
        found
            .add(Urgency::Soon, "refused", text, "`tocsin report failed-notifications` shows the receiver's replies")
            .param("refused", refused)
            .param("delivered", delivered);
    }
    let (blocked, said) = &figures.blocked;
    if *blocked >= BLOCKED_MIN {
        let count = counted(*blocked, "message", "messages");
        let text = format!("servers refused {count} because of the sender in 24h; the newest: {said}");
        let advice = "`tocsin feedback list --class blocked` lists them; `tocsin doctor --domain` checks the sender";
        found.add(Urgency::Soon, "blocked-mail", text, advice).param("count", *blocked).param("detail", said.as_str());
    }
    let (complaints, said) = &figures.complaints;
    if *complaints > 0 {
        let count = counted(*complaints, "recipient", "recipients");
        let text = format!("{count} reported messages as spam in 24h; the newest: {said}");
        let advice = "`tocsin feedback list --class complaint` lists the notifications; examine who gets them and why";
        found.add(Urgency::Note, "complaints", text, advice).param("count", *complaints).param("detail", said.as_str());
    }
    if !figures.switches.is_empty() {
        let text = format!("switched off: {}", figures.switches.join(", "));
        found
            .add(Urgency::Note, "switched-off", text, "`tocsin switch enable` switches it on again")
            .param("count", figures.switches.len())
            .param("names", figures.switches.clone());
    }
}
