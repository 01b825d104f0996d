//! Table of all metrics of the process. The reference page is generated from it, and a test compares it with the code.

use tocsin_face_http::metrics::{self as face, Kind, Metric};

/// Upper bounds of the histogram buckets in seconds, from a memory look-up to a slow receiver.
pub const SECONDS: &[f64] = &[
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0,
];

/// Metrics of the pipeline, in the order of its steps.
pub const STEPS: &[Metric] = &[
    counter("tocsin_accept_batches_total", "application, class", "Event batches accepted."),
    counter("tocsin_accept_events_total", "application, class", "Events accepted."),
    counter(
        "tocsin_accept_duplicates_total",
        "application, class",
        "Submissions that repeat the idempotency key of an accepted one.",
    ),
    counter(
        "tocsin_accept_refused_total",
        "application, class",
        "Submissions refused at a limit or because the disk is full.",
    ),
    counter("tocsin_source_batches_total", "application, source", "Event batches accepted from sources."),
    counter("tocsin_source_events_total", "application, source", "Events accepted from sources."),
    counter(
        "tocsin_source_files_total",
        "result",
        "Files processed by sources: `taken` or `refused`. A refused file is renamed to `.err`.",
    ),
    counter(
        "tocsin_source_mails_total",
        "result",
        "Messages received by `mail` sources: `taken` as events, `repeated`, `refused` permanently, `deferred` until the client retries, or `dropped` by the definition.",
    ),
    counter(
        "tocsin_source_refused_total",
        "application, source",
        "Items that are not valid events of the class. They are kept in `refused` of the data folder.",
    ),
    counter(
        "tocsin_source_filtered_total",
        "reason",
        "Items skipped by a documented rule: MQTT messages on a topic outside the definition (`topic`) or received on another topic already (`overlap`), and feed dates without a known time zone (`date`).",
    ),
    counter(
        "tocsin_source_failures_total",
        "application, source",
        "Errors of a source after which the server reopened it.",
    ),
    histogram(
        "tocsin_source_lag_seconds",
        "application, source",
        "Age of the oldest event of a batch when its source reads it.",
    ),
    histogram("tocsin_match_duration_seconds", "", "Matching of one quantum of event batches, including its commit."),
    counter(
        "tocsin_telemetry_spans_total",
        "result",
        "Spans for the collector: `sent`, `dropped` because the queue is full, `refused` by the collector, `unsent` after the retries.",
    ),
    counter("tocsin_match_quanta_total", "", "Quanta matched."),
    counter("tocsin_match_event_batches_total", "application, class", "Event batches matched."),
    counter(
        "tocsin_match_failed_batches_total",
        "application, class",
        "Event batches suspended because matching failed.",
    ),
    counter("tocsin_match_notification_batches_total", "application, class", "Notification batches created."),
    counter("tocsin_match_notifications_total", "application, class", "Notifications created."),
    counter(
        "tocsin_match_rule_failures_total",
        "",
        "Pairs of event and subscription whose rule failed to evaluate. They do not match.",
    ),
    counter(
        "tocsin_match_suppressed_total",
        "reason",
        "Matches suppressed by the state of their rule: cooldown, unarmed or unchanged.",
    ),
    gauge("tocsin_match_chronicle_keys", "", "Keys of all chronicles."),
    counter("tocsin_match_chronicle_evictions_total", "", "Keys evicted from chronicles at their limit."),
    counter(
        "tocsin_match_chronicle_skipped_total",
        "reason",
        "Events that a chronicle did not include: `failed`, `late` or `long`.",
    ),
    histogram("tocsin_match_query_duration_seconds", "", "Queries of rules in SQL, each over one event batch."),
    counter(
        "tocsin_match_missed_firings_total",
        "status",
        "Rules that did not run for an event batch: `failed` or `skipped`. `tocsin firings list` shows them.",
    ),
    counter(
        "tocsin_match_slow_firings_total",
        "",
        "Runs of rules that took `pipeline.slow_rule` or longer. `tocsin firings slow` shows them.",
    ),
    gauge("tocsin_match_stopped_rules", "", "Rules that are stopped."),
    gauge(
        "tocsin_match_throttled_applications",
        "",
        "Applications delayed because they exceed their notification rate.",
    ),
    gauge("tocsin_pipeline_suspects", "", "Event batches and work items in progress at the last crash of the process."),
    counter(
        "tocsin_pipeline_poison_total",
        "work",
        "Work set aside because it was in progress at a hundred crashes in a row: `events` or `delivery`.",
    ),
    gauge("tocsin_match_throttled_classes", "", "Event classes delayed because they exceed their notification rate."),
    counter("tocsin_match_panics_total", "", "Matchers restarted after a panic."),
    counter(
        "tocsin_match_filter_candidates_total",
        "",
        "Filter alternatives examined because the index found their values in an event.",
    ),
    counter(
        "tocsin_match_filter_evaluations_total",
        "",
        "Filters evaluated because the index covers them only in part.",
    ),
    counter("tocsin_match_filter_matches_total", "", "Distinct filters that matched an event."),
    counter(
        "tocsin_match_unusable_subscriptions_total",
        "",
        "Stored subscriptions that are invalid under the current version of their class.",
    ),
    counter("tocsin_lifecycle_events_total", "application, class", "Lifecycle events accepted."),
    histogram(
        "tocsin_lifecycle_lag_seconds",
        "application, class",
        "Delay between a change of a subscription and the acceptance of its event.",
    ),
    counter(
        "tocsin_delay_started_total",
        "application, class",
        "Delayed notifications that began to wait. The class is that of the notification.",
    ),
    gauge("tocsin_delay_waiting", "", "Delayed notifications that wait."),
    counter("tocsin_delay_cancelled_total", "by", "Delayed notifications cancelled, by `event` or by `operator`."),
    counter(
        "tocsin_delay_dropped_total",
        "reason",
        "Delayed notifications not sent when due: `no_match`, `removed`, `inactive`, `active_again`, `other_class`, \
         `rule_removed`, `event_removed` or `event_unreadable`.",
    ),
    counter(
        "tocsin_delay_due_batches_total",
        "application, class",
        "Due times of delayed rules accepted, each of up to 1,000 notifications.",
    ),
    histogram("tocsin_delay_lag_seconds", "application, class", "Delay between a due time and its acceptance."),
    counter("tocsin_schedule_runs_total", "application, class", "Due times of scheduled rules accepted for execution."),
    counter(
        "tocsin_schedule_skipped_runs_total",
        "application, class",
        "Missed runs that the server does not make up for, or that a later run replaces.",
    ),
    counter(
        "tocsin_schedule_unreadable_batches_total",
        "application, class",
        "Event batches left out of a run because they cannot be read.",
    ),
    histogram(
        "tocsin_schedule_lag_seconds",
        "application, class",
        "Delay between the due time of a run and its acceptance.",
    ),
    histogram(
        "tocsin_schedule_run_duration_seconds",
        "application, class",
        "One step of a run, until it is ready to commit.",
    ),
    counter(
        "tocsin_ldap_operations_total",
        "operation, result",
        "LDAP operations by result: `success`, `refused`, `busy` or `failed`.",
    ),
    histogram(
        "tocsin_ldap_operation_duration_seconds",
        "operation",
        "One LDAP operation, until its response is ready.",
    ),
    gauge("tocsin_ldap_connections", "", "Open LDAP connections."),
    counter("tocsin_directory_locked_total", "", "Entries locked after too many wrong passwords."),
    counter("tocsin_directory_expired_total", "", "Dynamic entries deleted at the end of their time to live."),
    counter("tocsin_ldap_connections_refused_total", "", "LDAP connections refused at the connection limit."),
    counter(
        "tocsin_ldap_rate_limited_total",
        "by",
        "LDAP requests answered with `busy` at the rate limit of a bound `identity`, or of an `address` without a bind.",
    ),
    gauge("tocsin_ldap_sync_searches", "", "Open refreshAndPersist searches (RFC 4533)."),
    counter("tocsin_ldap_sync_updates_total", "", "Updates sent to refreshAndPersist searches (RFC 4533)."),
    counter("tocsin_match_index_rebuilds_total", "", "Match indexes rebuilt after a loss."),
    counter("tocsin_match_later_snapshot_total", "", "Event batches matched against a later snapshot than their own."),
    counter(
        "tocsin_format_requests_total",
        "application, class, result",
        "Notifications formatted: `ok` or `failed`. Failed ones are suspended.",
    ),
    counter(
        "tocsin_format_compiled_total",
        "",
        "Notification classes whose templates were compiled, once for each version.",
    ),
    counter("tocsin_format_panics_total", "", "Notifications suspended because their formatting panicked."),
    counter(
        "tocsin_xml_worker_started_total",
        "",
        "XML worker processes started. They run stylesheets and XML Schemas.",
    ),
    counter(
        "tocsin_xml_worker_killed_total",
        "cause",
        "XML worker processes that ended during a request, by cause: `time`, `memory` or `crash`. The request fails and the worker is replaced.",
    ),
    counter(
        "tocsin_xml_worker_refused_total",
        "",
        "Requests refused because all XML workers are busy and the queue is full.",
    ),
    counter("tocsin_deliver_attempts_total", "application, channel, outcome", "Delivery attempts by outcome."),
    counter(
        "tocsin_deliver_released_total",
        "application, channel",
        "Notifications released without an attempt because their destination is paused or at its limit.",
    ),
    counter(
        "tocsin_deliver_channel_alerts_total",
        "application, channel",
        "Log entries that report a channel without successful attempts.",
    ),
    histogram(
        "tocsin_deliver_duration_seconds",
        "application, channel",
        "One delivery attempt, from hand-over to the response of the receiver.",
    ),
    counter(
        "tocsin_deliver_smtp_sessions_total",
        "application, channel, server, outcome",
        "SMTP sessions: `opened` or `failed`.",
    ),
    gauge(
        "tocsin_deliver_smtp_server_closed",
        "application, channel, server",
        "1 while the circuit breaker of a mail server is open, else 0.",
    ),
    counter(
        "tocsin_deliver_provider_recipients_total",
        "application, channel, provider, outcome",
        "Recipients of paced mail channels by mailbox provider: `accepted` by the mail server, or `held_back` by the \
         provider. Providers without a name are `other`.",
    ),
    gauge(
        "tocsin_deliver_providers_held_back",
        "application, channel, provider",
        "Mailbox providers that hold mail back: sending pauses, or its rate or concurrency is lowered.",
    ),
    counter(
        "tocsin_deliver_outcomes_total",
        "application, class, outcome",
        "Attempts recorded: delivered, deferred, refused, suspended and so on.",
    ),
    counter(
        "tocsin_deliver_unsent_total",
        "outcome",
        "Notifications that ended without an attempt: expired or suspended.",
    ),
    counter(
        "tocsin_deliver_snoozed_total",
        "",
        "Notifications deferred to the end of quiet hours or to their send hours.",
    ),
    counter("tocsin_deliver_digest_deferred_total", "", "Notifications deferred until their digest window closes."),
    counter("tocsin_deliver_fallbacks_total", "", "Notifications that continue with the next channel of their chain."),
    counter("tocsin_deliver_multicast_messages_total", "", "Messages formatted once for several recipients."),
    counter("tocsin_deliver_digest_messages_total", "", "Messages that contain all notifications of a digest."),
    counter(
        "tocsin_deliver_devices_bounced_total",
        "",
        "Devices disabled because the receiver reports that their address does not exist.",
    ),
    gauge(
        "tocsin_deliver_failing_endpoints",
        "",
        "Endpoints of devices without a successful attempt since their first failure.",
    ),
    counter(
        "tocsin_deliver_endpoints_warned_total",
        "",
        "Endpoints that failed for half of the time after which they are disabled.",
    ),
    counter(
        "tocsin_deliver_endpoints_disabled_total",
        "",
        "Devices disabled because their endpoint failed for too long.",
    ),
    gauge("tocsin_deliver_suppressions", "", "Suppressed addresses and devices."),
    counter(
        "tocsin_deliver_suppressed_total",
        "cause",
        "Notifications not sent because their address is suppressed. Those with a chain continue with its next channel.",
    ),
    counter(
        "tocsin_feedback_reports_total",
        "class, origin, effect",
        "Reports about sent messages. Automatic replies and repeated reports have no effect.",
    ),
    counter(
        "tocsin_feedback_refused_total",
        "reason",
        "Recipients that the server for feedback refused: foreign, forged, expired or early return addresses.",
    ),
    counter(
        "tocsin_feedback_webhooks_total",
        "application, channel, provider, result",
        "Webhooks of providers: `accepted`, `repeated`, `ignored` (no event of a notification), or the reason of a refusal.",
    ),
    counter("tocsin_feedback_events_total", "application, channel, class", "Events in accepted webhooks of providers."),
    counter("tocsin_feedback_keywords_total", "application, channel, keyword", "Keywords in replies by SMS."),
    counter("tocsin_suppression_reports_total", "cause", "Bounces, complaints and unsubscriptions reported."),
    counter("tocsin_resend_notifications_total", "", "Failed notifications sent again."),
    counter("tocsin_broadcast_stored_total", "", "Broadcasts stored."),
    counter("tocsin_broadcast_started_total", "", "Starts of broadcasts, and continuations after a pause."),
    counter("tocsin_broadcast_examined_total", "", "Subscriptions examined for broadcasts."),
    counter("tocsin_broadcast_recipients_total", "", "Notifications of broadcasts."),
    counter(
        "tocsin_broadcast_unusable_subscriptions_total",
        "",
        "Subscriptions whose filter does not fit the data of a broadcast.",
    ),
    histogram(
        "tocsin_broadcast_part_duration_seconds",
        "",
        "Matching of one part of a broadcast's audience, until it is ready to commit.",
    ),
    counter("tocsin_deliver_leases_lost_total", "", "Work items whose lease expired before their worker finished."),
    counter(
        "tocsin_deliver_order_deferred_total",
        "",
        "Notifications of ordered events deferred until the preceding one is retried.",
    ),
    counter("tocsin_deliver_panics_total", "", "Work items whose worker panicked. Another worker claims them."),
    counter(
        "tocsin_inbox_items_total",
        "result",
        "Items delivered to inbox feeds: new, duplicate, or evicted from a full feed.",
    ),
    counter("tocsin_inbox_marks_total", "mark", "Marks set by readers: read, unread, archive, unarchive or delete."),
    counter("tocsin_inbox_expired_total", "", "Items and broadcasts deleted at their expiry."),
    counter(
        "tocsin_sync_sessions_total",
        "outcome",
        "Device sessions ended: done, or lost because the device did not return.",
    ),
    histogram("tocsin_sync_session_duration_seconds", "", "Duration of a device session."),
    counter("tocsin_sync_edits_total", "outcome", "Edits of devices: applied, conflict or refused."),
    counter(
        "tocsin_sync_events_total",
        "outcome",
        "Events raised by row changes: accepted, or unfit because their class changed.",
    ),
    counter("tocsin_sync_rows_total", "fate", "Row states sent to devices: sent, or gone for deleted rows."),
    histogram(
        "tocsin_sync_wait_seconds",
        "pool",
        "Time that device requests wait for a slot of a pool: upload, reconcile or download.",
    ),
    gauge(
        "tocsin_sync_pool_slots",
        "pool",
        "Slots of a pool. Adaptive concurrency sets those of `reconcile` between 1 and `sync.reconciles`.",
    ),
    counter("tocsin_sync_program_failures_total", "", "Failures of conflict resolver programs. The server row stays."),
    counter(
        "tocsin_sync_merges_refused_total",
        "",
        "Text merges skipped because the changes are too long to compare. The conflict resolver decides.",
    ),
    gauge("tocsin_sync_waiting_devices", "", "Devices with an open long poll for changes."),
    counter(
        "tocsin_sync_refused_total",
        "pool",
        "Device requests refused with a retry time because a queue is full: upload, reconcile, download or watch.",
    ),
    gauge(
        "tocsin_records_class_subscriptions",
        "application, class, state",
        "Subscriptions of a class: `enabled` or `disabled`, counted every `pipeline.upkeep_interval`.",
    ),
    counter(
        "tocsin_records_class_subscriptions_added_total",
        "application, class",
        "Subscriptions added to a class, including deleted ones, counted every `pipeline.upkeep_interval`.",
    ),
    counter("tocsin_audit_entries_total", "", "Entries of the audit log written."),
    counter("tocsin_audit_removed_total", "", "Entries of the audit log removed after their retention."),
    counter("tocsin_subscriber_merges_total", "", "Subscribers merged into others."),
    counter("tocsin_subscriber_erasures_total", "", "Persons erased."),
    counter("tocsin_notifybc_broadcasts_total", "", "Broadcasts started by clients of the NotifyBC interface."),
    counter("tocsin_erasure_batches_total", "kind", "Batches rewritten by erasures of persons, by their kind."),
    gauge("tocsin_subscriber_erasures_waiting", "", "Erasures that are not finished."),
    counter(
        "tocsin_consent_requests_total",
        "result",
        "Requests for consent: started, resent, too_soon (nothing is sent) or confirmed (nothing is sent).",
    ),
    counter(
        "tocsin_consent_confirmations_total",
        "way, result",
        "Confirmations of consents: confirmed, repeated, wrong_code, exhausted or void.",
    ),
    counter("tocsin_consent_withdrawals_total", "way", "Consents withdrawn by operators."),
    counter("tocsin_consent_expired_total", "", "Subscriptions removed since their consent was not given in time."),
    counter(
        "tocsin_unsubscribe_total",
        "way",
        "Subscriptions ended by their owner or in bulk: by a `link`, a `page`, a `mail`, an `sms`, or an `operator`.",
    ),
    counter("tocsin_page_changes_total", "change", "Changes by hosted pages, by the action of the page."),
    histogram("tocsin_upkeep_duration_seconds", "", "One round of deleting expired data."),
    gauge("tocsin_upkeep_remaining_batches", "", "Expired batches left at the end of a round, counted up to 100,000."),
    counter(
        "tocsin_upkeep_timeouts_total",
        "",
        "Rounds that ended with `pipeline.retention_hours` before all expired data was deleted.",
    ),
    counter("tocsin_upkeep_deleted_batches_total", "", "Batches deleted at the end of their retention."),
    gauge(
        "tocsin_upkeep_retention_ended_timestamp_seconds",
        "",
        "Time at which retention last deleted all expired data, in seconds since 1970.",
    ),
    counter(
        "tocsin_exchange_received_total",
        "exchange, port, result",
        "Messages received by receive ports: `new`, or `duplicate` by their idempotency key.",
    ),
    counter(
        "tocsin_exchange_sent_before_commit_total",
        "exchange, port",
        "Requests dispatched before their commit, at receive ports with `store_first: false`.",
    ),
    counter(
        "tocsin_exchange_refused_total",
        "reason",
        "Messages refused by receive ports: `operator`, `memory`, `disk`, `store_growth`, `in_flight`, `rate_imbalance` or `service_window`.",
    ),
    gauge(
        "tocsin_exchange_throttled",
        "exchange, side, port, reason",
        "1 while messages are throttled at intake (`publishing`) or at sending (`delivery`), else 0.",
    ),
    gauge(
        "tocsin_exchange_queue_messages",
        "exchange, port",
        "Approximate number of due messages of a send port that are not in progress.",
    ),
    gauge(
        "tocsin_exchange_queue_wait_seconds",
        "exchange, port",
        "Expected waiting time of a new message at an active send port.",
    ),
    histogram(
        "tocsin_exchange_request_duration_seconds",
        "exchange, port",
        "Time until a caller receives the response to its request.",
    ),
    counter(
        "tocsin_exchange_step_failures_total",
        "exchange, port",
        "Messages suspended because a step of the receive pipeline failed.",
    ),
    gauge(
        "tocsin_exchange_workers",
        "group, state",
        "Worker groups (`receive`, `route`, `send`, `track`): messages in progress (`busy`), queued (`waiting`), and the present limit of workers (`most`).",
    ),
    counter("tocsin_exchange_location_messages_total", "exchange, port, location", "Messages received by locations."),
    counter(
        "tocsin_exchange_location_failures_total",
        "exchange, port, location",
        "Errors of locations after which the server reopened them.",
    ),
    counter(
        "tocsin_exchange_location_refused_total",
        "exchange, port, location",
        "Items that a location cannot read as messages. They are kept in `refused` of the data folder.",
    ),
    histogram(
        "tocsin_exchange_location_lag_seconds",
        "exchange, port, location",
        "Age of the oldest message of a batch when its location reads it.",
    ),
    gauge(
        "tocsin_exchange_location_state",
        "exchange, port, location, state",
        "1 for the state of a location: `starting`, `running`, `waiting`, `held`, `backing_off` or `failed`; else 0.",
    ),
    counter("tocsin_exchange_aggregated_total", "exchange, port", "Messages combined into others by an aggregator."),
    counter("tocsin_exchange_unroutable_total", "exchange", "Messages suspended because no route matches."),
    counter(
        "tocsin_exchange_sent_total",
        "exchange, port, result",
        "Attempts of send ports: `done`, `retry`, `suspended`, `wrong` for an unrelated reply, `late` for a reply after the timeout, `ended` for a terminated message, `unstored` for a request dispatched before its commit and not stored.",
    ),
    counter("tocsin_exchange_expired_total", "", "Requests that reached their reply timeout."),
    counter("tocsin_exchange_reply_timeouts_total", "", "Legs suspended because no correlated reply arrived in time."),
    gauge("tocsin_exchange_open_messages", "exchange", "Messages of an exchange that are not completed."),
    gauge(
        "tocsin_exchange_partition_open_messages",
        "partition",
        "Messages of a spool partition that are not completed.",
    ),
    gauge(
        "tocsin_exchange_partition_bytes",
        "partition",
        "Size of the database file of a spool partition, including its WAL.",
    ),
    histogram(
        "tocsin_exchange_store_duration_seconds",
        "partition",
        "One write of a spool partition, from request to durable commit.",
    ),
    counter(
        "tocsin_exchange_tracking_dropped_total",
        "reason",
        "Bodies and properties not tracked: `queue` full, or not written by `disk` or `store`.",
    ),
    counter(
        "tocsin_exchange_tracking_removed_total",
        "",
        "Blocks of tracked bodies deleted before the end of their retention to free space.",
    ),
    gauge("tocsin_exchange_tracking_bytes", "", "Compressed size of tracked bodies."),
    gauge(
        "tocsin_saturation_used_ratio",
        "resource",
        "Used share of a resource of this node during the last minute, 0 to 1: `processor`, `disk` or `syncs`.",
    ),
    gauge(
        "tocsin_saturation_full_in_seconds",
        "resource",
        "Time until a resource is full if the load grows as in the last hour; `+Inf` if it does not grow.",
    ),
    gauge(
        "tocsin_saturation_headroom",
        "role",
        "Factor by which the load of a role can grow while the others stay the same. Needs `capacity.vectors`.",
    ),
    gauge(
        "tocsin_pipeline_switched_off",
        "",
        "Roles, applications, classes, sources and channels that are switched off.",
    ),
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

/// Registers the help text of each metric with the installed recorder.
pub fn describe() {
    for list in [STEPS, face::GAUGES, face::METRICS] {
        face::describe(list);
    }
}

/// Page `docs/reference/metrics.md`.
pub fn reference_page() -> String {
    format!(
        "# Metrics\n\n<!-- Generated from the code; `UPDATE=1 cargo test -p tocsin` regenerates it. -->\n\n\
         Served at `/metrics` in the Prometheus text format, without a key; `metrics.enabled = false` disables it. Counters begin \
         at the start of the process. Histograms measure seconds.\n\n\
         ## Pipeline\n\n{}\n## Backlog and stores\n\n{}\n## HTTP\n\n{}",
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
        // Gauges are set by a name in a variable, which the search cannot find.
        let unused: Vec<&Metric> =
            STEPS.iter().chain(face::METRICS).filter(|metric| !used.contains(metric.name)).collect();
        assert!(unused.is_empty(), "described, but not measured: {unused:?}");
    }

    #[test]
    fn the_committed_page_is_up_to_date() {
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
