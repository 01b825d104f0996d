//! Counters and log lines of matching.

use std::collections::BTreeSet;

use tocsin_matching::{cut::RuleFailure, filter::index::Counts, rule::RuleSet, state::Suppression};

use tocsin_model::{event::EventBatch, id::EventBatchId};
use tocsin_store::journal::{ClaimedEvents, QuantumInput, Step};

use crate::{Flow, compile::Compiled};

/// Counts the results of a quantum by class.
pub(super) fn count(flow: &Flow, claimed: &[ClaimedEvents], step: &Step) {
    let classes = &flow.classes;
    let failed: BTreeSet<EventBatchId> = step.failed.iter().map(|(claim, _)| claim.id).collect();
    let matched: BTreeSet<EventBatchId> = step.matched.iter().map(|claim| claim.id).collect();
    for events in claimed {
        let labels = classes.labels(&events.batch.application, &events.batch.class);
        if matched.contains(&events.claim.id) {
            metrics::counter!("tocsin_match_event_batches_total", &labels).increment(1);
        } else if failed.contains(&events.claim.id) {
            metrics::counter!("tocsin_match_failed_batches_total", &labels).increment(1);
        }
    }
    for batch in &step.batches {
        let labels = classes.labels(&batch.head.application, &batch.head.class);
        metrics::counter!("tocsin_match_notification_batches_total", &labels).increment(1);
        metrics::counter!("tocsin_match_notifications_total", &labels).increment(u64::from(batch.count));
    }
}

/// An event batch as the input of a quantum.
pub(super) fn quantum_input(events: &ClaimedEvents) -> QuantumInput {
    let EventBatch { id, application, class, source, accepted_at, events, .. } = &events.batch;
    QuantumInput {
        id: *id,
        application: application.clone(),
        class: class.clone(),
        source: source.clone(),
        accepted_at: *accepted_at,
        events: events.count(),
    }
}

/// Counts suppressed matches.
pub(super) fn report_suppressed(suppressed: &[u64; Suppression::ALL.len()]) {
    for (reason, count) in Suppression::ALL.into_iter().zip(suppressed) {
        metrics::counter!("tocsin_match_suppressed_total", "reason" => reason.name()).increment(*count);
    }
}

/// Counts evaluations of the subscriptions' own filters.
pub(super) fn report_filtered(counts: Counts) {
    metrics::counter!("tocsin_match_filter_candidates_total").increment(counts.candidates);
    metrics::counter!("tocsin_match_filter_evaluations_total").increment(counts.evaluated);
    metrics::counter!("tocsin_match_filter_matches_total").increment(counts.matched);
}

/// Counts and logs rule failures: a rule that cannot be evaluated for an event does not match.
pub(crate) fn report_failures(compiled: &Compiled, rules: &RuleSet, failures: &[RuleFailure]) {
    for failure in failures {
        let (application, rule) = (&compiled.application.name, rules.name(failure.rule));
        metrics::counter!("tocsin_match_rule_failures_total").increment(failure.count);
        tracing::warn!(%application, %rule, count = failure.count, error = %failure.error, "a rule could not be decided");
    }
}
