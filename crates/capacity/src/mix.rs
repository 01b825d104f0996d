//! Predicts the throughput and latency of a mix of operations from measurements of each operation alone.
//!
//! Closed loop: a saturated machine serves one kind after the other. Its speed for a kind depends on the number of
//! operations in flight that share wake-ups, system calls and commits with it. An operation that waits for a disk or a
//! peer shares with its own kind; one that only reads shares with all, since it runs while others wait. So each kind
//! gets machine time in proportion to its operations in flight, and in that time it achieves its solo throughput at the
//! same number of users. Idle time that a kind leaves while waiting is used by others to one quarter.
//!
//! Below the knee an operation takes as long as alone, plus waits for shared resources: the processors, and the disk,
//! which serializes the commits of different writers.
//!
//! The solo behaviour is measured at several numbers of users; nothing is fitted to mixes. Two parameters come from
//! other mixes: the loss of reads beside each kind, [`MixEntry::disturbs`], and the fraction of time spent waiting for
//! commits, [`CommitWait::part`].

use std::collections::BTreeMap;

use crate::queue::Times;

/// Iterations of the fixed-point solver.
const STEPS: usize = 400;
/// Damping of each iteration, since numbers of kinds that help each other oscillate.
const STEP: f64 = 0.15;
/// The fraction of a kind's idle time that others use, if there are only others.
const FILLED: f64 = 0.25;
/// Quantiles used to combine latency distributions.
const QUANTILES: usize = 200;

/// Measurements of an operation that ran alone.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SoloMeasurement {
    /// Closed loops, with increasing numbers of users.
    pub levels: Vec<ClosedLoopLevel>,
    /// Open loops (Poisson arrivals), with increasing rates.
    pub open: Vec<OpenLoopRun>,
}

/// A closed-loop measurement of one operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClosedLoopLevel {
    /// The number of users; each starts the next operation when one completes.
    pub users: usize,
    /// The throughput per second.
    pub per_second: f64,
    /// The idle fraction of processor time, relative to the highest usage by operations that wait for commits.
    pub idle: f64,
}

/// An open-loop measurement of one operation.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenLoopRun {
    /// The arrival rate, as a fraction of the throughput with most users.
    pub part: f64,
    /// The latencies, in seconds.
    pub times: Times,
}

/// An operation in a mix.
#[derive(Debug, Clone, PartialEq)]
pub struct MixEntry {
    /// Share of the operations, in any unit.
    pub share: f64,
    /// Solo measurement.
    pub alone: SoloMeasurement,
    /// The commits that it waits for, if any.
    pub commits: Option<CommitWait>,
    /// Whether it waits only for the processor.
    pub only_reads: bool,
    /// The fraction of speed that a machine loses if every second operation is of this kind and the others only read:
    /// pure reads run without releasing the processor, which makes them fast.
    pub disturbs: f64,
}

/// The commits that an operation waits for. One commit serves all operations of its writer (group commit).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CommitWait {
    /// The number of the writer.
    pub writer: usize,
    /// The fraction of its solo time that it waits for them.
    pub part: f64,
}

impl MixEntry {
    /// The overlap of this kind's commits with another's: 1 if both only wait for the same writer, 0 if they have none
    /// in common.
    fn in_common(&self, other: &MixEntry) -> f64 {
        match (self.commits, other.commits) {
            (Some(own), Some(other)) if own.writer == other.writer => own.part * other.part,
            _ => 0.0,
        }
    }
}

/// The predicted throughput of a closed loop over a mix.
#[derive(Debug, Clone, PartialEq)]
pub struct MixThroughput {
    /// Operations per second.
    pub per_second: f64,
    /// The number of operations in flight per kind, in the order of the mix.
    pub in_flight: Vec<f64>,
}

impl MixThroughput {
    /// The mean latency of a kind, in seconds.
    pub fn mean(&self, mix: &[MixEntry], kind: usize) -> f64 {
        self.in_flight[kind] / (self.per_second * mix[kind].share / shares(mix)).max(1e-9)
    }
}

impl SoloMeasurement {
    /// The throughput with a number of users.
    fn rate(&self, users: f64) -> f64 {
        self.at(users, |level| level.per_second)
    }

    /// The idle fraction with a number of users.
    fn idle(&self, users: f64) -> f64 {
        self.at(users, |level| level.idle)
    }

    /// A value of the measurements, interpolated over the logarithm of the number of users.
    fn at(&self, users: f64, of: impl Fn(&ClosedLoopLevel) -> f64) -> f64 {
        let points = self.levels.iter().map(|level| ((level.users.max(1) as f64).ln(), of(level)));
        between(points, users.max(1.0).ln()).unwrap_or(0.0)
    }

    /// A latency quantile at an arrival rate, as a fraction of the knee; interpolated over the logarithm of the
    /// latency.
    fn quantile(&self, part: f64, fraction: f64) -> f64 {
        let points = self.open.iter().map(|open| (open.part, open.times.quantile(fraction).max(1e-9).ln()));
        between(points, part).map_or(0.0, f64::exp)
    }
}

/// Linear interpolation between sorted points; constant outside their range. `None` without points.
fn between(points: impl Iterator<Item = (f64, f64)>, at: f64) -> Option<f64> {
    let mut below: Option<(f64, f64)> = None;
    for (place, value) in points {
        if place >= at {
            let from = below.unwrap_or((place, value));
            let way = (at - from.0) / (place - from.0).max(1e-9);
            return Some(from.1 + way.max(0.0) * (value - from.1));
        }
        below = Some((place, value));
    }
    below.map(|(_, value)| value)
}

fn shares(mix: &[MixEntry]) -> f64 {
    mix.iter().map(|kind| kind.share).sum::<f64>().max(1e-9)
}

/// The operations of a kind in flight, plus those of others that share its commits.
fn sharing_commits(mix: &[MixEntry], in_flight: &[f64], at: usize) -> f64 {
    let others = mix.iter().zip(in_flight).enumerate().filter(|(other, _)| *other != at);
    in_flight[at] + others.map(|(_, (other, count))| mix[at].in_common(other) * count).sum::<f64>()
}

/// The predicted throughput of `users` in a closed loop, who draw each operation by its share.
pub fn closed(mix: &[MixEntry], users: usize) -> MixThroughput {
    let all = shares(mix);
    let mut in_flight: Vec<f64> = mix.iter().map(|kind| users as f64 * kind.share / all).collect();
    let mut per_second = 0.0;
    for _ in 0..STEPS {
        // Machine time per operation of the mix, by kind.
        let seconds = mix.iter().enumerate().map(|(at, kind)| {
            let level = if kind.only_reads { users as f64 } else { sharing_commits(mix, &in_flight, at) };
            let others = 1.0 - in_flight[at] / users.max(1) as f64;
            let filled = FILLED * kind.alone.idle(level) * others;
            (1.0 - filled) * kind.share / all / kind.alone.rate(level).max(1e-9)
        });
        let seconds: Vec<f64> = seconds.collect();
        let sum: f64 = seconds.iter().sum();
        per_second = (1.0 - lost(mix, &seconds)) / sum;
        for (count, own) in in_flight.iter_mut().zip(&seconds) {
            *count += STEP * (users as f64 * own / sum - *count);
        }
    }
    MixThroughput { per_second, in_flight }
}

/// The fraction of speed that the machine loses to switches between kinds, if each kind uses this much time: the
/// probability of a switch is the share of the other kinds. Kinds of one writer disturb as much as the worst of them,
/// as they commit together.
fn lost(mix: &[MixEntry], seconds: &[f64]) -> f64 {
    let sum: f64 = seconds.iter().sum();
    let parts = || mix.iter().zip(seconds).map(|(kind, own)| (kind, own / sum));
    let reading: f64 = parts().filter(|(kind, _)| kind.only_reads).map(|(_, part)| part).sum();
    let disturbs =
        |kind: &MixEntry| mix.iter().map(|other| kind.in_common(other) * other.disturbs).fold(kind.disturbs, f64::max);
    let disturbed: f64 = parts().filter(|(kind, _)| !kind.only_reads).map(|(kind, part)| disturbs(kind) * part).sum();
    2.0 * reading * disturbed
}

/// The predicted latencies of a mix with Poisson arrivals, at a fraction of the closed-loop throughput.
///
/// The latency of an operation is between its solo latencies at this fraction of the knee and at half of it: the
/// smaller its share of the load, the lower, since bursts of one kind are worse than those of many. To this are added
/// the fraction of time in which other writers commit, and the fraction in which the machine serves other kinds.
pub fn open(mix: &[MixEntry], users: usize, part: f64) -> Times {
    let all = shares(mix);
    let outcome = closed(mix, users);
    let rate = |kind: &MixEntry| outcome.per_second * part * kind.share / all;
    // The fraction of time that the disk is busy with commits of each writer. Operations in flight at this load share
    // commits, as they did alone with as many users.
    let mut committing = BTreeMap::<usize, f64>::new();
    for (at, kind) in mix.iter().enumerate() {
        if let Some(commits) = kind.commits {
            let sharing = part * sharing_commits(mix, &outcome.in_flight, at);
            *committing.entry(commits.writer).or_default() +=
                rate(kind) * commits.part / kind.alone.rate(sharing).max(1e-9);
        }
    }
    let busy = |writer: usize| committing.get(&writer).map_or(0.0, |busy| busy.min(1.0));
    let writers: f64 = committing.keys().map(|writer| busy(*writer)).sum();
    // The number of each kind in a thousand operations.
    let of_kind = |at: usize| {
        let kind = &mix[at];
        let is_own = |other: &usize| *other == at || kind.in_common(&mix[*other]) > 0.0;
        let own = (0..mix.len()).filter(is_own).map(|other| outcome.in_flight[other]).sum::<f64>();
        let others = 1.0 - own / users.max(1) as f64;
        let waits = kind.commits.map_or(0.0, |commits| commits.part * (writers - busy(commits.writer)));
        let longer = 1.0 + waits + part * others;
        let many = (kind.share / all * (5 * QUANTILES) as f64).round().max(1.0) as usize;
        let alone_at = part * (1.0 - others / 2.0);
        let time = move |number: usize| longer * kind.alone.quantile(alone_at, (number as f64 + 0.5) / many as f64);
        (0..many).map(time).collect::<Vec<f64>>()
    };
    (0..mix.len()).flat_map(of_kind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The throughput with 1, 4 and 16 users, and the latency at 30 and 60 percent.
    fn kind(share: f64, rates: [f64; 3], times: [f64; 2]) -> MixEntry {
        let levels = [1, 4, 16].into_iter().zip(rates).map(|(users, per_second)| ClosedLoopLevel {
            users,
            per_second,
            idle: 0.0,
        });
        let open = [0.3, 0.6].into_iter().zip(times);
        let open =
            open.map(|(part, time)| OpenLoopRun { part, times: (1..=100).map(|at| time * f64::from(at)).collect() });
        MixEntry {
            share,
            alone: SoloMeasurement { levels: levels.collect(), open: open.collect() },
            commits: None,
            only_reads: false,
            disturbs: 0.0,
        }
    }

    fn near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 0.01, "{found} is not {expected}");
    }

    #[test]
    fn a_single_kind_has_its_solo_throughput() {
        let mix = [kind(7.0, [100.0, 300.0, 500.0], [1.0, 2.0])];
        near(closed(&mix, 16).per_second, 500.0);
        near(closed(&mix, 4).per_second, 300.0);
        // Half way between 4 and 16 on a logarithmic scale.
        near(closed(&mix, 8).per_second, 400.0);
        near(closed(&mix, 16).mean(&mix, 0), 16.0 / 500.0);
    }

    #[test]
    fn kinds_share_machine_time_and_reads_lose_speed_beside_disturbing_kinds() {
        // Throughput independent of the number of users: 1 ms and 4 ms each.
        let mut mix = vec![kind(50.0, [1_000.0; 3], [1.0, 2.0]), kind(50.0, [250.0; 3], [1.0, 2.0])];
        let outcome = closed(&mix, 10);
        near(outcome.per_second, 400.0);
        near(outcome.in_flight[0], 2.0);
        near(outcome.in_flight[1], 8.0);
        near(outcome.mean(&mix, 1) / outcome.mean(&mix, 0), 4.0);
        mix[1].disturbs = 0.5;
        near(closed(&mix, 10).per_second, 400.0);
        // One fifth and four fifths of the time: the next operation is of the other kind in 32 of 100 cases.
        mix[0].only_reads = true;
        near(closed(&mix, 10).per_second, (1.0 - 0.5 * 0.32) * 400.0);
        // Kinds with common commits disturb as the worst of them.
        let commits = Some(CommitWait { writer: 0, part: 1.0 });
        mix[1].commits = commits;
        mix.push(MixEntry { commits, disturbs: 1.0, ..kind(0.0, [1.0; 3], [1.0, 2.0]) });
        near(closed(&mix, 10).per_second, (1.0 - 0.32) * 400.0);
        mix[1].only_reads = true;
        near(closed(&mix, 10).per_second, 400.0);
    }

    #[test]
    fn reads_share_with_all_kinds() {
        let reading = MixEntry { only_reads: true, ..kind(50.0, [100.0, 1_000.0, 4_000.0], [1.0, 2.0]) };
        let mix = [reading, kind(50.0, [4_000.0; 3], [1.0, 2.0])];
        near(closed(&mix, 16).per_second, 4_000.0);
    }

    #[test]
    fn waiting_kinds_leave_time_to_others() {
        let idle = |idle| {
            let mut kind = kind(50.0, [1_000.0; 3], [1.0, 2.0]);
            kind.alone.levels.iter_mut().for_each(|level| level.idle = idle);
            kind
        };
        near(closed(&[idle(0.4)], 16).per_second, 1_000.0);
        near(closed(&[idle(0.0), idle(0.0)], 16).per_second, 1_000.0);
        // Each kind runs half of the time; the other uses a quarter of half of its idle fraction of 0.4.
        near(closed(&[idle(0.4), idle(0.4)], 16).per_second, 1_000.0 / 0.95);
    }

    #[test]
    fn few_operations_of_a_kind_have_the_solo_speed_of_few() {
        let mix = [kind(90.0, [1_000.0; 3], [1.0, 2.0]), kind(10.0, [100.0, 1_000.0, 4_000.0], [1.0, 2.0])];
        let outcome = closed(&mix, 16);
        let alone = &mix[1].alone;
        assert!(outcome.in_flight[1] < 8.0 && alone.rate(outcome.in_flight[1]) < 2_000.0, "{outcome:?}");
        near(outcome.in_flight.iter().sum::<f64>(), 16.0);
    }

    #[test]
    fn operations_of_one_writer_share_commits() {
        let rates = [100.0, 400.0, 1_600.0];
        let apart = [kind(50.0, rates, [1.0, 2.0]), kind(50.0, rates, [1.0, 2.0])];
        let with = |part| {
            let commits = Some(CommitWait { writer: 0, part });
            closed(&apart.clone().map(|kind| MixEntry { commits, ..kind }), 16).per_second
        };
        // All 16 count for each.
        near(with(1.0), 1_600.0);
        // A quarter of the other 8: 10.
        near(with(0.5), 400.0 + 1_200.0 * (10.0_f64 / 4.0).log(4.0));
        near(with(0.0), closed(&apart, 16).per_second);
        near(with(0.0), 1_000.0);
    }

    #[test]
    fn open_loop_latencies_are_those_of_each_kind() {
        let one = kind(1.0, [100.0; 3], [0.01, 0.04]);
        near(open(std::slice::from_ref(&one), 16, 0.6).quantile(0.95), 3.8);
        near(open(std::slice::from_ref(&one), 16, 0.3).quantile(0.95), 0.95);
        // Half way on a logarithmic scale; constant beyond the measured range.
        near(open(std::slice::from_ref(&one), 16, 0.45).quantile(0.95), 1.9);
        near(open(std::slice::from_ref(&one), 16, 0.9).quantile(0.95), 3.8);
    }

    #[test]
    fn open_loop_latencies_include_waits_for_machine_and_commits() {
        // Both equally fast, so each has half of the machine.
        let mix = [kind(50.0, [100.0; 3], [0.01, 0.01]), kind(50.0, [100.0; 3], [0.01, 0.01])];
        let alone = open(&mix[..1], 16, 0.6).quantile(0.5);
        near(alone, 0.51);
        near(open(&mix, 16, 0.6).quantile(0.5), alone * (1.0 + 0.6 * 0.5));
        let of = |writers: [usize; 2]| {
            let commits = |writer| Some(CommitWait { writer, part: 1.0 });
            let [one, other] = mix.clone();
            [MixEntry { commits: commits(writers[0]), ..one }, MixEntry { commits: commits(writers[1]), ..other }]
        };
        // 30 per second, each of which uses the disk for 10 ms.
        near(open(&of([0, 1]), 16, 0.6).quantile(0.5), alone * (1.0 + 0.3 + 0.6 * 0.5));
        near(open(&of([0, 0]), 16, 0.6).quantile(0.5), alone);
        // With more operations in flight, more share a commit: 8 of each at the knee, with 500 per second, and half of
        // both at half of it, for which the disk performs 400 commits per second.
        let sharing = of([0, 1]).map(|kind| {
            let faster = self::kind(50.0, [100.0, 400.0, 1_600.0], [0.01, 0.01]);
            MixEntry { alone: faster.alone, ..kind }
        });
        near(open(&sharing, 16, 0.5).quantile(0.5), alone * (1.0 + 250.0 / 400.0 + 0.5 * 0.5));
        // A kind with half of the load has half the bursts beside others.
        let bursting = [kind(50.0, [100.0; 3], [0.01, 0.04]), kind(50.0, [100.0; 3], [0.01, 0.04])];
        near(open(&bursting, 16, 0.6).quantile(0.5), 1.3 * 2.0 * alone);
        // 10 of 100 take a hundred times as long: the slower half of them are above p95.
        let one = kind(0.9, [100.0; 3], [0.01, 0.01]);
        let slow = kind(0.1, [100.0; 3], [1.0, 1.0]);
        let p95 = open(&[one, slow], 16, 0.6).quantile(0.95);
        near(p95, 50.0 * (1.0 + 0.6 * 0.9));
    }

    #[test]
    fn without_measurements_there_is_no_prediction() {
        let kind =
            MixEntry { share: 1.0, alone: SoloMeasurement::default(), commits: None, only_reads: false, disturbs: 0.0 };
        assert!(closed(std::slice::from_ref(&kind), 4).per_second < 1e-6);
        assert!(open(&[kind], 4, 0.5).quantile(0.95) < 1e-6);
    }
}
