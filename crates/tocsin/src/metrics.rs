//! Every metric of the process: what the steps count, beside what the HTTP face does. The reference page is generated
//! from these lists, and a test compares them with the code.

use tocsin_face_http::metrics::{self as face, Kind, Metric};

/// Upper bounds of the buckets of every histogram: all of them measure seconds, from a look-up in memory to a far side
/// that hardly answers.
pub const SECONDS: &[f64] = &[
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0,
];

/// What the steps count, in their order.
pub const STEPS: &[Metric] = &[
    counter("accept_batches_total", "application, class", "Event batches accepted."),
    counter("accept_events_total", "application, class", "Events accepted."),
    counter(
        "accept_duplicates_total",
        "application, class",
        "Submissions that were there already, by their idempotency key.",
    ),
    counter(
        "accept_refused_total",
        "application, class",
        "Submissions refused because a bound was reached or the disk was full.",
    ),
    counter(
        "source_batches_total",
        "application, source",
        "Event batches that came from sources that run by themselves.",
    ),
    counter("source_events_total", "application, source", "Events in them."),
    counter(
        "source_files_total",
        "result",
        "Files that sources dealt with: `taken` or `refused`, which become `.err`.",
    ),
    counter(
        "source_mails_total",
        "result",
        "Mails that came to sources of the kind `mail`: `taken` to become events, `repeated`, `refused` for good, `deferred` \
         until they are sent again, or `dropped` as the definition says.",
    ),
    counter(
        "source_refused_total",
        "application, source",
        "Items that were no events of the class, and were kept aside.",
    ),
    counter(
        "source_left_out_total",
        "reason",
        "What sources left out by a stated rule: messages of MQTT of no topic of the definition (`topic`) or that another \
         topic gave already (`overlap`), and dates of feeds without a certain time zone (`date`).",
    ),
    counter("source_failures_total", "application, source", "Times that a source had trouble and was opened again."),
    histogram(
        "source_lag_seconds",
        "application, source",
        "How long the oldest event of a batch had waited to be taken by its source.",
    ),
    histogram("match_duration_seconds", "", "Matching of one quantum of event batches, with its commit."),
    counter(
        "telemetry_spans_total",
        "result",
        "Spans for the collector: `sent`, `dropped` for want of room, `refused` by it, `unsent` after some tries.",
    ),
    counter("match_quanta_total", "", "Quanta matched."),
    counter("match_event_batches_total", "application, class", "Event batches matched."),
    counter("match_failed_batches_total", "application, class", "Event batches set aside because matching failed."),
    counter("match_notification_batches_total", "application, class", "Notification batches made."),
    counter("match_notifications_total", "application, class", "Notifications made."),
    counter("match_rule_failures_total", "", "Pairs of event and subscription that no rule could decide, so no match."),
    counter(
        "match_suppressed_total",
        "reason",
        "Matches that were not told: cooldown, unarmed or unchanged, by what their rule remembers.",
    ),
    gauge("match_chronicle_keys", "", "Keys of all chronicles."),
    counter("match_chronicle_evictions_total", "", "Keys that chronicles forgot for others, at their bound."),
    counter(
        "match_chronicle_not_taken_total",
        "reason",
        "Events that a chronicle did not take although it should: `failed`, `late` or `long`.",
    ),
    histogram("match_query_duration_seconds", "", "Queries of rules in SQL, each over one event batch."),
    counter(
        "match_firings_missed_total",
        "status",
        "Rules that did not fire for an event batch: `failed`, `skipped`; see `tocsin firings list`.",
    ),
    counter(
        "match_slow_firings_total",
        "",
        "Firings of rules that took `pipeline.slow_rule` or longer; see `tocsin firings slow`.",
    ),
    gauge("match_stopped_rules", "", "Rules that are stopped."),
    gauge("match_throttled_applications", "", "Applications that make more notifications than they may and wait."),
    gauge("pipeline_suspects", "", "Event batches and work items that were under way when the process crashed."),
    counter(
        "pipeline_poison_total",
        "work",
        "Work that was set aside since the process crashed a hundred times in a row while it was under way: `events`, `delivery`.",
    ),
    gauge("match_throttled_classes", "", "Event classes that make more notifications than they may and wait."),
    counter("match_panics_total", "", "Matchers of an application that panicked and were started again."),
    counter(
        "match_filter_candidates_total",
        "",
        "Alternatives of filters that were looked at, since their values were found.",
    ),
    counter("match_filter_evaluations_total", "", "Filters that were evaluated, since no index says all of them."),
    counter("match_filter_matches_total", "", "Distinct filters that matched an event."),
    counter("match_unusable_subscriptions_total", "", "Stored subscriptions that do not fit their class any more."),
    counter("schedule_runs_total", "application, class", "Due times of scheduled rules that were accepted to be run."),
    counter(
        "schedule_skipped_runs_total",
        "application, class",
        "Runs that were missed and that another run, or none, makes up for.",
    ),
    counter(
        "schedule_unreadable_batches_total",
        "application, class",
        "Event batches that could not be read and were left out of a run.",
    ),
    histogram("schedule_lag_seconds", "application, class", "How late a run was accepted, from its due time."),
    histogram("schedule_run_duration_seconds", "application, class", "One step of runs, until it is ready to commit."),
    counter(
        "ldap_operations_total",
        "operation, result",
        "LDAP operations, by what came of them: `success`, `refused`, `busy` or `failed`.",
    ),
    histogram("ldap_operation_duration_seconds", "operation", "One LDAP operation, until its answer is ready."),
    gauge("ldap_connections", "", "LDAP connections that are open."),
    counter("directory_locked_total", "", "Entries locked after too many wrong passwords."),
    counter("directory_expired_total", "", "Dynamic entries removed because nobody refreshed them."),
    counter("ldap_connections_refused_total", "", "LDAP connections closed at once, because there were too many."),
    gauge("ldap_followers", "", "LDAP searches that follow what changes."),
    counter("ldap_followed_total", "", "Times that one of them was told what there was."),
    counter("match_index_rebuilds_total", "", "Match indexes that were lost and built anew."),
    counter(
        "match_displaced_batches_total",
        "",
        "Times that batches were matched by a later state than they should see.",
    ),
    counter(
        "format_requests_total",
        "application, class, result",
        "Notifications formatted, by whether it could be done: `ok`, `failed`; those that failed are suspended.",
    ),
    counter("format_compiled_total", "", "Notification classes whose templates were compiled, once for each version."),
    counter("format_panics_total", "", "Notifications whose formatting broke; they are suspended."),
    counter("xml_worker_started_total", "", "XML worker processes started; they run stylesheets and XML Schemas."),
    counter(
        "xml_worker_killed_total",
        "cause",
        "XML worker processes that were stopped or ended at a request, by cause: `time`, `memory`, `crash`. The request \
         failed, and the worker is replaced.",
    ),
    counter("xml_worker_refused_total", "", "Requests refused because all XML workers were busy and too many waited."),
    counter("deliver_attempts_total", "application, channel, outcome", "Attempts, by what the far side made of them."),
    counter(
        "deliver_returned_total",
        "application, channel",
        "Notifications that came back untried, because their destination was paused or had enough to do.",
    ),
    counter("deliver_troubles_total", "application, channel", "How often the log told that a channel only fails."),
    histogram(
        "deliver_duration_seconds",
        "application, channel",
        "One attempt, from handing over to the far side's answer.",
    ),
    counter(
        "deliver_smtp_sessions_total",
        "application, channel, server, outcome",
        "Sessions with a mail server: `opened`, or `failed` because it did not let us in.",
    ),
    gauge(
        "deliver_smtp_server_closed",
        "application, channel, server",
        "1 while a mail server that failed is left alone.",
    ),
    counter(
        "deliver_outcomes_total",
        "application, class, outcome",
        "Attempts recorded: delivered, deferred, refused, suspended and so on.",
    ),
    counter(
        "deliver_unsent_total",
        "outcome",
        "Notifications that were not sent: expired, or suspended before an attempt.",
    ),
    counter("deliver_snoozed_total", "", "Notifications that wait for the end of quiet hours or for their send hours."),
    counter("deliver_gathered_total", "", "Notifications that wait for the window of a digest to close."),
    counter("deliver_fallbacks_total", "", "Notifications that go on by the next channel of their chain."),
    counter("deliver_multicasts_total", "", "Messages that were made once for all who are told the same."),
    counter("deliver_digests_total", "", "Messages that were made of all notifications of a digest."),
    counter("deliver_devices_bounced_total", "", "Devices switched off because the far side said that they are gone."),
    gauge("deliver_failing_endpoints", "", "Endpoints of devices that have only failed of late."),
    counter(
        "deliver_endpoints_warned_total",
        "",
        "Endpoints that have failed for half the time after which they are switched off.",
    ),
    counter(
        "deliver_endpoints_disabled_total",
        "",
        "Devices switched off because their endpoint has failed for too long.",
    ),
    gauge("deliver_suppressions", "", "Addresses and devices that nothing is sent to."),
    counter(
        "deliver_suppressed_total",
        "cause",
        "Notifications that were not sent because their address is suppressed; those with a chain go on by its next channel.",
    ),
    counter("suppression_reports_total", "cause", "Bounces, complaints and unsubscriptions that were reported."),
    counter("resend_notifications_total", "", "Notifications that had failed and were sent again."),
    counter("deliver_leases_lost_total", "", "Work items that were taken from a worker that was too slow."),
    counter(
        "deliver_put_off_total",
        "",
        "Notifications of ordered events that were put off until the one before them is tried again.",
    ),
    counter("deliver_panics_total", "", "Work items whose worker broke; another takes them."),
    counter(
        "inbox_items_total",
        "result",
        "Items delivered into feeds: new, known from before, or evicted from a full feed.",
    ),
    counter("inbox_marks_total", "mark", "What readers did: read, unread, archive, unarchive, delete."),
    counter("inbox_expired_total", "", "Items and broadcasts removed because their time was over."),
    counter(
        "sync_sessions_total",
        "outcome",
        "Sessions of devices that ended: done, or lost when the device did not come back.",
    ),
    histogram("sync_session_seconds", "", "From the begin of a device's session to its end."),
    counter("sync_edits_total", "outcome", "Edits of devices: applied, conflict, refused."),
    counter(
        "sync_events_total",
        "outcome",
        "Events that changes of rows raised: accepted, or unfit because their class had changed meanwhile.",
    ),
    counter("sync_rows_total", "fate", "Rows told to devices: sent, or gone."),
    histogram(
        "sync_wait_seconds",
        "pool",
        "How long requests of devices waited for a place: upload, reconcile, download.",
    ),
    gauge(
        "sync_pool_places",
        "pool",
        "Places that a pool has: those of `reconcile` become more while more are done by it in all, and fewer when each only takes longer; `sync.reconciles` is the most.",
    ),
    counter(
        "sync_program_failures_total",
        "",
        "Times that a program which decides between edits did not; what the server has stayed.",
    ),
    counter(
        "sync_merges_refused_total",
        "",
        "Texts of two edits that were not merged, because their changes are too long to be compared; the resolver decided.",
    ),
    gauge("sync_watchers", "", "Devices that wait for news."),
    counter(
        "sync_refused_total",
        "pool",
        "Requests of devices that found a queue full (upload, reconcile, download) or too many that wait for news (watch), and were told when to come again.",
    ),
    gauge(
        "records_class_subscriptions",
        "application, class, state",
        "Subscriptions of a class that are `enabled` or `disabled`, counted every `pipeline.upkeep_interval`.",
    ),
    counter(
        "records_class_subscriptions_added_total",
        "application, class",
        "Subscriptions that a class was ever given, those that are gone included, counted every `pipeline.upkeep_interval`.",
    ),
    counter("subscriber_merges_total", "", "Subscribers that became parts of others."),
    counter("unsubscribe_total", "", "Subscriptions that were ended by the link of a mail."),
    histogram("upkeep_duration_seconds", "", "One round of removing what is past its retention."),
    gauge(
        "upkeep_remaining_batches",
        "",
        "Batches that are past their retention and still there when a round ended, counted up to 100,000.",
    ),
    counter(
        "upkeep_timeouts_total",
        "",
        "Times that the hours of `pipeline.retention_hours` ended before all was removed.",
    ),
    counter("upkeep_removed_batches_total", "", "Batches removed because their retention was over."),
    gauge(
        "upkeep_retention_ended_timestamp_seconds",
        "",
        "When retention was last done with what it had to remove, in seconds since 1970.",
    ),
    counter(
        "exchange_received_total",
        "exchange, port, result",
        "Messages that came through receive ports: `new`, or a `duplicate` by its idempotency key.",
    ),
    counter(
        "exchange_left_first_total",
        "exchange, port",
        "Requests that left before they were stored, at receive ports with `store_first: false`.",
    ),
    counter(
        "exchange_refused_total",
        "reason",
        "Messages that receive ports refused: `operator`, `memory`, `disk`, `store_growth`, `in_flight`, `rate_imbalance` or \
         `service_window`.",
    ),
    gauge(
        "exchange_throttled",
        "exchange, side, port, reason",
        "1 while messages are slowed down where they come in (`publishing`) or leave (`delivery`), else 0.",
    ),
    gauge(
        "exchange_queue_messages",
        "exchange, port",
        "Messages that are due at a send port and not under way, about.",
    ),
    gauge(
        "exchange_queue_wait_seconds",
        "exchange, port",
        "How long a new message would wait for its turn at a send port that sends.",
    ),
    histogram("exchange_wait_seconds", "exchange, port", "How long the callers of requests were held open."),
    counter(
        "exchange_stuck_total",
        "exchange, port",
        "Messages of which a step of their receive port's pipeline failed; they are suspended.",
    ),
    gauge(
        "exchange_workers",
        "group, state",
        "Messages that a worker group (`receive`, `route`, `send`, `track`) works on (`busy`), that wait for it (`waiting`), and \
         how many workers it may have now (`most`).",
    ),
    counter("exchange_location_messages_total", "exchange, port, location", "Messages that locations took."),
    counter(
        "exchange_location_failures_total",
        "exchange, port, location",
        "Troubles of locations, after which they are opened again.",
    ),
    counter(
        "exchange_location_refused_total",
        "exchange, port, location",
        "What came to locations and cannot be taken; it is kept in `refused` of the data folder.",
    ),
    histogram(
        "exchange_location_lag_seconds",
        "exchange, port, location",
        "How long the oldest message of what a location took had waited there.",
    ),
    gauge(
        "exchange_location_state",
        "exchange, port, location, state",
        "1 for the state that a location is in: `starting`, `running`, `waiting`, `held`, `backing_off` or `failed`; else 0.",
    ),
    counter("exchange_assembled_total", "exchange, port", "Messages that became one with others."),
    counter("exchange_unroutable_total", "exchange", "Messages that no route led anywhere; they are suspended."),
    counter(
        "exchange_sent_total",
        "exchange, port, result",
        "Attempts of send ports: `done`, `retry`, `suspended`, `wrong` for a reply that did not belong, `late` for one that \
         nobody waited for any more, `ended` for what was ended meanwhile, `unstored` for a request \
         that left first and could not be stored.",
    ),
    counter("exchange_expired_total", "", "Requests that nobody answered in time."),
    counter("exchange_unanswered_total", "", "Ways of messages suspended because no later reply came in time."),
    gauge("exchange_open_messages", "exchange", "Messages of an exchange that are not ended."),
    gauge("exchange_partition_open_messages", "partition", "Messages in a partition of the spool that are not ended."),
    gauge("exchange_partition_bytes", "partition", "Bytes of the file of a partition of the spool, and of its log."),
    histogram(
        "exchange_store_seconds",
        "partition",
        "How long a write of a partition of the spool took, from when it was asked for until it was durable.",
    ),
    counter(
        "exchange_tracking_dropped_total",
        "reason",
        "Bodies and properties that were to be tracked and are not: the `queue` was full, the `disk` or the `store` did not \
         take them.",
    ),
    counter("exchange_tracking_removed_total", "", "Blocks of tracked bodies that made room before their time."),
    gauge("exchange_tracking_bytes", "", "Bytes of what is tracked, compressed."),
    gauge(
        "saturation_used_ratio",
        "resource",
        "The share of a resource of this node that is used, 0 to 1: `processor`, `disk`, `syncs`; by the last minute.",
    ),
    gauge(
        "saturation_full_in_seconds",
        "resource",
        "When a resource is full, if the load goes on to grow as in the last hour; `+Inf` if it does not.",
    ),
    gauge(
        "saturation_headroom",
        "role",
        "How many times the load of a role may be, if that of the others stays; needs `capacity.vectors`.",
    ),
    gauge("pipeline_switched_off", "", "Roles, applications, classes, sources and channels that are switched off."),
];

const fn counter(name: &'static str, labels: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, labels, help }
}

const fn gauge(name: &'static str, labels: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, labels, help }
}

const fn histogram(name: &'static str, labels: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Histogram, labels, help }
}

/// Tells the installed recorder what each metric means.
pub fn describe() {
    for list in [STEPS, face::GAUGES, face::METRICS] {
        face::describe(list);
    }
}

/// `docs/reference/metrics.md`.
pub fn reference_page() -> String {
    format!(
        "# Metrics\n\n<!-- Generated from the code; `UPDATE=1 cargo test -p tocsin` writes it anew. -->\n\n\
         Served at `/metrics` in the text format of Prometheus, without a key; `metrics.enabled` closes it. Counters begin \
         at the start of the process. Histograms measure seconds.\n\n\
         ## The steps of the flow\n\n{}\n## What waits and what is stored\n\n{}\n## The HTTP face\n\n{}",
        face::reference(STEPS),
        face::reference(face::GAUGES),
        face::reference(face::METRICS)
    )
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    fn names_in(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                names_in(&path, found);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&path).expect("text");
                for kind in ["counter", "gauge", "histogram"] {
                    let call = format!("metrics::{kind}!(");
                    let uses = text.split(&call).skip(1);
                    let named = uses.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
                    found.extend(named.map(str::to_owned));
                }
            }
        }
    }

    #[test]
    fn every_metric_of_the_code_is_described() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut used = BTreeSet::new();
        for entry in fs::read_dir(crates).expect("the crates") {
            let source = entry.expect("an entry").path().join("src");
            if source.is_dir() {
                names_in(&source, &mut used);
            }
        }
        let described: BTreeSet<String> =
            [STEPS, face::GAUGES, face::METRICS].concat().iter().map(|metric| metric.name.to_owned()).collect();
        let unknown: Vec<&String> = used.difference(&described).collect();
        assert!(unknown.is_empty(), "not described: {unknown:?}");
        // Gauges are set by their name in a variable, so that the source does not show them in that form.
        let unused: Vec<&Metric> =
            STEPS.iter().chain(face::METRICS).filter(|metric| !used.contains(metric.name)).collect();
        assert!(unused.is_empty(), "described, but not measured: {unused:?}");
    }

    #[test]
    fn the_committed_page_is_the_generated_one() {
        crate::cli::compare_reference("metrics.md", &reference_page());
    }

    #[test]
    fn names_end_with_their_unit() {
        for metric in [STEPS, face::GAUGES, face::METRICS].concat() {
            let fits = match metric.kind {
                Kind::Counter => metric.name.ends_with("_total"),
                Kind::Histogram => metric.name.ends_with("_seconds"),
                Kind::Gauge => !metric.name.ends_with("_total"),
            };
            assert!(fits, "{}", metric.name);
        }
        assert!(SECONDS.is_sorted());
    }
}
