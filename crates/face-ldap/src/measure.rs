//! Metrics of operations: count, result and duration.

use std::{sync::OnceLock, time::Instant};

use tocsin_directory::ldap_error::Code;

/// Operation label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Bind,
    Search,
    Modify,
    Add,
    Delete,
    Rename,
    Compare,
    Extended,
}

const WORDS: [&str; 8] = ["bind", "search", "modify", "add", "delete", "rename", "compare", "extended"];

/// Result labels.
const RESULTS: [&str; 4] = ["success", "refused", "busy", "failed"];

fn result(code: Code) -> usize {
    match code {
        Code::Success | Code::CompareTrue | Code::CompareFalse => 0,
        Code::Busy | Code::Unavailable => 2,
        Code::Other => 3,
        _ => 1,
    }
}

struct Handles {
    counts: [metrics::Counter; 4],
    seconds: metrics::Histogram,
}

/// Records an operation. The metric handles are created once, so recording needs no lookup.
pub fn record(operation: Operation, code: Code, started: Instant) {
    static HANDLES: OnceLock<Vec<Handles>> = OnceLock::new();
    let handles = HANDLES.get_or_init(|| {
        let of = |word: &'static str| Handles {
            counts: RESULTS.map(
                |result| metrics::counter!("tocsin_ldap_operations_total", "operation" => word, "result" => result),
            ),
            seconds: metrics::histogram!("tocsin_ldap_operation_duration_seconds", "operation" => word),
        };
        WORDS.map(of).into_iter().collect()
    });
    let of = &handles[operation as usize];
    of.counts[result(code)].increment(1);
    of.seconds.record(started.elapsed().as_secs_f64());
}
