//! All figures, one file each; `bench/README.md` describes them.

mod accept_batch;
pub(super) mod accept_single;
mod auto_http;
mod auto_pools;
mod bench_overhead;
mod binary_size;
mod case_acceptance;
mod case_broadcast;
mod case_stock;
mod case_stock_paced;
mod deliver_digest;
mod deliver_file;
mod deliver_http;
mod deliver_inbox;
mod deliver_smtp;
pub(super) mod directory;
mod exchange_paper;
pub(super) mod exchange_roundtrip;
mod exchange_sides;
mod format_jinja;
pub(super) mod format_sizes;
mod idle_memory;
mod import_subscribers;
mod import_subscriptions;
mod intake;
mod match_changes;
mod match_commit;
mod match_filter;
mod match_generate;
mod match_memory;
mod match_pattern;
mod match_scan;
mod match_stock;
mod match_unmatched;
mod notifybc;
mod population;
mod prediction;
mod restart;
mod safety_bomb;
mod start_ready;
pub(super) mod sync;
mod sync_sweep;

use std::sync::LazyLock;

use tocsin_model::problem::closest;

use crate::{
    bench::Bench,
    failure::{Failure, Outcome},
    workloads,
};

/// All figures, in measuring order.
pub static ALL: LazyLock<Vec<Bench>> = LazyLock::new(|| [SINGLE, notifybc::ALL, population::ALL, intake::ALL].concat());

/// Figures that do not belong to a family.
const SINGLE: &[Bench] = &[
    binary_size::BENCH,
    start_ready::BENCH,
    idle_memory::BENCH,
    accept_single::BENCH,
    accept_batch::BENCH,
    import_subscribers::BENCH,
    import_subscriptions::BENCH,
    // First of the in-process figures: memory freed by others would hide the growth.
    match_memory::BENCH,
    match_memory::TEN_MILLION,
    match_stock::BENCH,
    match_stock::TEN_MILLION,
    match_stock::FORTY_MILLION,
    match_unmatched::BENCH,
    match_scan::BENCH,
    match_changes::BENCH,
    match_generate::BENCH,
    match_generate::BY_32,
    match_filter::SHARED,
    match_filter::TEN_THOUSAND,
    match_pattern::TEN_THOUSAND,
    match_pattern::HUNDRED_THOUSAND,
    match_pattern::MILLION,
    match_commit::BENCH,
    safety_bomb::BENCH,
    safety_bomb::QUERY,
    format_jinja::BENCH,
    format_sizes::XSLT,
    format_sizes::JINJA_25,
    format_sizes::JINJA_50,
    format_sizes::JINJA_100,
    format_sizes::JINJA_250,
    format_sizes::JINJA_500,
    format_sizes::JINJA_1000,
    format_sizes::JINJA_2000,
    format_sizes::XSLT_25,
    format_sizes::XSLT_50,
    format_sizes::XSLT_100,
    format_sizes::XSLT_250,
    format_sizes::XSLT_500,
    format_sizes::XSLT_1000,
    format_sizes::XSLT_2000,
    deliver_smtp::BENCH,
    deliver_smtp::TWO_SINKS,
    deliver_smtp::FAST_SINK,
    deliver_smtp::MANY_2,
    deliver_smtp::MANY_4,
    deliver_smtp::MANY_10,
    deliver_smtp::MANY_50,
    deliver_smtp::MANY_100,
    deliver_smtp::MANY_10_FAST_SINK,
    deliver_smtp::MANY_50_FAST_SINK,
    deliver_smtp::POOL_50,
    deliver_http::BENCH,
    auto_http::ISOLATION,
    auto_http::FAST,
    auto_http::SLOW,
    auto_http::CHANGING,
    auto_pools::PARALLEL,
    auto_pools::MATCHING,
    auto_pools::EXCHANGE,
    deliver_file::BENCH,
    deliver_digest::DIGEST_1,
    deliver_digest::DIGEST_2,
    deliver_digest::DIGEST_3,
    deliver_digest::DIGEST_4,
    deliver_digest::DIGEST_5,
    deliver_digest::DIGEST_10,
    deliver_inbox::ALONE,
    deliver_inbox::MULTICAST,
    case_stock::BENCH,
    case_stock_paced::BENCH,
    case_acceptance::BENCH,
    case_broadcast::TEN,
    case_broadcast::THOUSAND,
    case_broadcast::HUNDRED_THOUSAND,
    case_broadcast::SENT,
    case_broadcast::BENCH,
    directory::BASE,
    directory::EQUALITY,
    directory::MODIFY_ADD,
    directory::MODIFY_REPLACE,
    directory::ADD,
    directory::MIX,
    directory::GROUPS,
    directory::PROCESSORS,
    directory::CLIENTS,
    directory::IMPORT,
    exchange_roundtrip::BENCH,
    exchange_roundtrip::ONE,
    exchange_roundtrip::FIRST,
    exchange_sides::BENCH,
    exchange_roundtrip::TRACKING,
    exchange_roundtrip::TRACKING_ONE,
    exchange_roundtrip::WORKERS,
    exchange_paper::TRIP,
    exchange_paper::KNEE,
    exchange_paper::SENDERS,
    exchange_paper::TOO_FAST,
    exchange_paper::CHECKPOINTS,
    exchange_paper::SMALL,
    exchange_paper::PARTITIONS,
    exchange_paper::PARTITIONS_FOR_FEW,
    sync::STORM,
    sync::ROWS,
    sync_sweep::SWEEP,
    sync_sweep::FEW,
    sync_sweep::TWENTY,
    sync_sweep::LOOP_300,
    sync_sweep::LOOP_800,
    sync_sweep::BROKEN,
    sync_sweep::CONFLICTS,
    restart::BENCH,
    restart::SINGLE,
    restart::TEN_MILLION,
    bench_overhead::BENCH,
    prediction::ERROR,
    prediction::PAIRS,
    prediction::BACKLOG,
];

/// Name that selects every figure.
pub const EVERY: &str = "all";

/// Figures with these names, in measuring order. Without names: all that do not take hours. The name of a published
/// workload selects the figures that measure the same work.
///
/// # Errors
/// If a name is unknown, or a workload has no figure yet.
pub fn choose(names: &[String]) -> Outcome<Vec<Bench>> {
    let every = names.iter().any(|name| name == EVERY);
    let mut chosen = Vec::new();
    for name in names.iter().filter(|name| *name != EVERY) {
        chosen.extend(named(name)?);
    }
    let is_chosen = |bench: &Bench| match names {
        [] => bench.by_default,
        _ => every || chosen.contains(&bench.name),
    };
    Ok(ALL.iter().copied().filter(is_chosen).collect())
}

/// Figures that a name selects.
fn named(name: &str) -> Outcome<Vec<&'static str>> {
    if let Some(bench) = ALL.iter().find(|bench| bench.name == name) {
        return Ok(vec![bench.name]);
    }
    if let Some(workload) = workloads::find(name) {
        return Ok(workload.figures());
    }
    let known = ALL.iter().map(|bench| bench.name).chain(workloads::workloads().map(|workload| workload.name));
    let advice = match closest(name, known) {
        Some(word) => format!("did you mean `{word}`?"),
        None => "`tocsin bench --list` lists them".to_owned(),
    };
    Err(Failure::usage(format!("unknown figure `{name}`; {advice}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::workload::Workload;

    fn check(names: &[&str], expected: &str) {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let chosen = match choose(&names) {
            Ok(benches) => benches.iter().map(|bench| bench.name).collect::<Vec<_>>().join(" "),
            Err(failure) => failure.message,
        };
        assert_eq!(chosen, expected);
    }

    #[test]
    fn figures_are_chosen_by_name() {
        check(&["deliver.smtp", "accept.single"], "accept.single deliver.smtp");
        check(&["match.memory.10m"], "match.memory.10m");
        check(&["accept.singel"], "unknown figure `accept.singel`; did you mean `accept.single`?");
        check(&["wns-03"], "population.delete");
        check(
            &["wns-20"],
            "deliver.smtp deliver.smtp.many2 deliver.smtp.many4 deliver.smtp.many10 deliver.smtp.many50 deliver.smtp.many100",
        );
        check(&["NBC-03"], "case.broadcast.100k");
        check(&["WSS-07"], "ldap.processors");
        check(&["WNS-119"], "unknown figure `WNS-119`; did you mean `WNS-11`?");
        check(&["accept.single", "speed"], "unknown figure `speed`; `tocsin bench --list` lists them");
    }

    #[test]
    fn every_published_workload_is_measured() {
        let left_out = workloads::workloads().filter(|workload| workload.figures().is_empty());
        assert_eq!(left_out.map(|workload| workload.name).collect::<Vec<_>>(), Vec::<&str>::new());
        for figure in workloads::workloads().flat_map(Workload::figures) {
            assert!(ALL.iter().any(|bench| bench.name == figure), "{figure}");
        }
    }

    #[test]
    fn large_figures_are_measured_on_request_only() {
        let whole = choose(&[]).expect("the default figures");
        assert_eq!(choose(&["all".to_owned()]).expect("all").len(), ALL.len());
        let left_out: Vec<&str> = ALL.iter().filter(|bench| !bench.by_default).map(|bench| bench.name).collect();
        let families = [
            "format.",
            "population.",
            "subscriptions.",
            "intake.",
            "deliver.smtp.many",
            "deliver.digest.",
            "sync.",
            "case.",
            "notifybc.",
        ];
        let is_single = |name: &&str| !families.iter().any(|family| name.starts_with(family));
        let large: Vec<&str> = left_out.iter().copied().filter(is_single).collect();
        assert_eq!(
            large,
            [
                "match.memory.10m",
                "match.stock.10m",
                "match.stock.40m",
                "match.stock.generate.by32",
                "match.pattern.1m",
                "match.parallel",
                "ldap.groups",
                "ldap.processors",
                "ldap.clients",
                "exchange.receive",
                "exchange.partitions.few",
                "restart.10m",
                "bench.overhead",
                "plan.error",
                "plan.pairs",
                "plan.backlog"
            ]
        );
        assert_eq!(whole.len(), ALL.len() - left_out.len());
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = ALL.iter().map(|bench| bench.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
