//! Many kinds of operations at once, predicted from what each does alone.
//!
//! A machine that is busy serves one kind after the other. How fast it serves a kind depends on how many are under way
//! that share wake-ups, system calls and commits with it: of those that wait for a disk or a far side their own, of those
//! that only read all, since these are done in the waits of others. So each kind has, of the machine's time, the part that
//! it has of all who are under way; in that part it does what it did alone with as many users. While all of one kind wait,
//! others can go on: of the time that a kind alone left idle they have a quarter.
//!
//! Below the knee an operation takes what it took alone, and waits for what it has in common with the others: for the
//! processors, and for the disk, which does one writer's commit after the other's.
//!
//! What a kind does alone is measured at several numbers of users, and nothing is learned from the mixes themselves. What is
//! of other mixes is how much reads lose beside each kind, [`Kind::disturbs`], and what part of its time it waits for
//! commits, [`Commits::part`].

use std::collections::BTreeMap;

use crate::queue::Times;

/// Steps towards numbers that agree with each other.
const STEPS: usize = 400;
/// How far each step goes: less than the whole way, since numbers of kinds that help each other sway.
const STEP: f64 = 0.15;
/// What part of the time that a kind leaves idle others make use of, if there are only others.
const FILLED: f64 = 0.25;
/// Quantiles of a kind's times that are put together.
const QUANTILES: usize = 200;

/// What was measured of an operation that ran alone.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Alone {
    /// In closed loops, with more and more users.
    pub levels: Vec<Level>,
    /// At random arrivals, with more and more of them.
    pub open: Vec<Open>,
}

/// A closed loop of one operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    /// How many users, each of whom begins the next as soon as one is done.
    pub users: usize,
    /// How many they did in a second.
    pub per_second: f64,
    /// The part of the processors' time that they left to nobody, of what is used when the machine is busiest with
    /// operations that wait for commits.
    pub idle: f64,
}

/// A run in which one operation came at random times.
#[derive(Debug, Clone, PartialEq)]
pub struct Open {
    /// At which part of the rate of the level with most users.
    pub part: f64,
    /// How long they took, in seconds.
    pub times: Times,
}

/// An operation of a mix.
#[derive(Debug, Clone, PartialEq)]
pub struct Kind {
    /// Its share of the operations, in any unit.
    pub share: f64,
    /// What it does alone.
    pub alone: Alone,
    /// Whose commits it waits for, if it does.
    pub commits: Option<Commits>,
    /// It waits for nothing but the processor.
    pub only_reads: bool,
    /// What part of its speed a machine loses if every other operation is of this kind and those between only read: reads
    /// alone never let the processor go, and are quick because they are done in one go.
    pub disturbs: f64,
}

/// The commits that an operation waits for. Those of one writer are taken along by the same commits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Commits {
    /// A number for each writer.
    pub writer: usize,
    /// What part of its time, alone, it waits for them.
    pub part: f64,
}

impl Kind {
    /// How much this kind and another have to do with the commits of one writer: 1 if both wait for nothing else, 0 if they
    /// have none in common.
    fn in_common(&self, other: &Kind) -> f64 {
        match (self.commits, other.commits) {
            (Some(own), Some(other)) if own.writer == other.writer => own.part * other.part,
            _ => 0.0,
        }
    }
}

/// What a closed loop over a mix comes to.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Operations in a second.
    pub per_second: f64,
    /// How many of each kind are under way, in the order of the mix.
    pub under_way: Vec<f64>,
}

impl Outcome {
    /// How long one of this kind takes in the mean, in seconds.
    pub fn mean(&self, mix: &[Kind], kind: usize) -> f64 {
        self.under_way[kind] / (self.per_second * mix[kind].share / shares(mix)).max(1e-9)
    }
}

impl Alone {
    /// How many in a second so many users do.
    fn rate(&self, users: f64) -> f64 {
        self.at(users, |level| level.per_second)
    }

    /// What so many users leave idle.
    fn idle(&self, users: f64) -> f64 {
        self.at(users, |level| level.idle)
    }

    /// A number of a level, between two of them by a straight line over the logarithm of the users.
    fn at(&self, users: f64, of: impl Fn(&Level) -> f64) -> f64 {
        let points = self.levels.iter().map(|level| ((level.users.max(1) as f64).ln(), of(level)));
        between(points, users.max(1.0).ln()).unwrap_or(0.0)
    }

    /// The time below which this fraction stayed where so large a part of the knee came at random; in between by a
    /// straight line over the logarithm of the time.
    fn quantile(&self, part: f64, fraction: f64) -> f64 {
        let points = self.open.iter().map(|open| (open.part, open.times.quantile(fraction).max(1e-9).ln()));
        between(points, part).map_or(0.0, f64::exp)
    }
}

/// The value at a place, by straight lines between points that are in order; before the first and behind the last it stays.
/// `None` if there are none.
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

fn shares(mix: &[Kind]) -> f64 {
    mix.iter().map(|kind| kind.share).sum::<f64>().max(1e-9)
}

/// How many of a kind are under way, and of others as far as the same commits take them along.
fn taken_along(mix: &[Kind], under_way: &[f64], at: usize) -> f64 {
    let others = mix.iter().zip(under_way).enumerate().filter(|(other, _)| *other != at);
    under_way[at] + others.map(|(_, (other, count))| mix[at].in_common(other) * count).sum::<f64>()
}

/// What so many users do together, each of whom begins the next operation as soon as one is done, drawn by its share.
pub fn closed(mix: &[Kind], users: usize) -> Outcome {
    let all = shares(mix);
    let mut under_way: Vec<f64> = mix.iter().map(|kind| users as f64 * kind.share / all).collect();
    let mut per_second = 0.0;
    for _ in 0..STEPS {
        // Seconds of the machine for one operation of the mix, kind by kind.
        let seconds = mix.iter().enumerate().map(|(at, kind)| {
            let level = if kind.only_reads { users as f64 } else { taken_along(mix, &under_way, at) };
            let others = 1.0 - under_way[at] / users.max(1) as f64;
            let filled = FILLED * kind.alone.idle(level) * others;
            (1.0 - filled) * kind.share / all / kind.alone.rate(level).max(1e-9)
        });
        let seconds: Vec<f64> = seconds.collect();
        let sum: f64 = seconds.iter().sum();
        per_second = (1.0 - lost(mix, &seconds)) / sum;
        for (count, own) in under_way.iter_mut().zip(&seconds) {
            *count += STEP * (users as f64 * own / sum - *count);
        }
    }
    Outcome { per_second, under_way }
}

/// What part of its speed the machine loses, if each kind has so many seconds: an operation follows one of another kind as
/// often as that has time. Those of one writer disturb as much as the worst of them, as they are committed together.
fn lost(mix: &[Kind], seconds: &[f64]) -> f64 {
    let sum: f64 = seconds.iter().sum();
    let parts = || mix.iter().zip(seconds).map(|(kind, own)| (kind, own / sum));
    let reading: f64 = parts().filter(|(kind, _)| kind.only_reads).map(|(_, part)| part).sum();
    let disturbs =
        |kind: &Kind| mix.iter().map(|other| kind.in_common(other) * other.disturbs).fold(kind.disturbs, f64::max);
    let disturbed: f64 = parts().filter(|(kind, _)| !kind.only_reads).map(|(kind, part)| disturbs(kind) * part).sum();
    2.0 * reading * disturbed
}

/// How long operations of a mix take that come at random, at this part of what so many users do in a closed loop.
///
/// An operation takes what it took alone between this part of the knee and half of it: the lower the less of the load is of
/// its kind, since bursts of one kind are worse than those of many. It takes longer by its part of the time in which other
/// writers commit, and by the part of the time in which the machine does other kinds.
pub fn open(mix: &[Kind], users: usize, part: f64) -> Times {
    let all = shares(mix);
    let outcome = closed(mix, users);
    let rate = |kind: &Kind| outcome.per_second * part * kind.share / all;
    // What part of the time the disk is at the commits of each writer. Those who are under way at this part of the load share
    // them, as they did alone with as many users.
    let mut committing = BTreeMap::<usize, f64>::new();
    for (at, kind) in mix.iter().enumerate() {
        if let Some(commits) = kind.commits {
            let sharing = part * taken_along(mix, &outcome.under_way, at);
            *committing.entry(commits.writer).or_default() +=
                rate(kind) * commits.part / kind.alone.rate(sharing).max(1e-9);
        }
    }
    let busy = |writer: usize| committing.get(&writer).map_or(0.0, |busy| busy.min(1.0));
    let writers: f64 = committing.keys().map(|writer| busy(*writer)).sum();
    // As many of each as are in a thousand operations.
    let of_kind = |at: usize| {
        let kind = &mix[at];
        let is_own = |other: &usize| *other == at || kind.in_common(&mix[*other]) > 0.0;
        let own = (0..mix.len()).filter(is_own).map(|other| outcome.under_way[other]).sum::<f64>();
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

    /// So many in a second with 1, 4 and 16 users, and as long as that at 30 and 60 percent.
    fn kind(share: f64, rates: [f64; 3], times: [f64; 2]) -> Kind {
        let levels =
            [1, 4, 16].into_iter().zip(rates).map(|(users, per_second)| Level { users, per_second, idle: 0.0 });
        let open = [0.3, 0.6].into_iter().zip(times);
        let open = open.map(|(part, time)| Open { part, times: (1..=100).map(|at| time * f64::from(at)).collect() });
        Kind {
            share,
            alone: Alone { levels: levels.collect(), open: open.collect() },
            commits: None,
            only_reads: false,
            disturbs: 0.0,
        }
    }

    fn near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 0.01, "{found} is not {expected}");
    }

    #[test]
    fn a_kind_by_itself_does_what_it_did() {
        let mix = [kind(7.0, [100.0, 300.0, 500.0], [1.0, 2.0])];
        near(closed(&mix, 16).per_second, 500.0);
        near(closed(&mix, 4).per_second, 300.0);
        // Half way between 4 and 16 by their logarithms.
        near(closed(&mix, 8).per_second, 400.0);
        near(closed(&mix, 16).mean(&mix, 0), 16.0 / 500.0);
    }

    #[test]
    fn kinds_have_the_time_that_they_need_and_reads_lose_beside_those_that_disturb() {
        // Rates that no number of users changes: 1 ms and 4 ms for one.
        let mut mix = vec![kind(50.0, [1_000.0; 3], [1.0, 2.0]), kind(50.0, [250.0; 3], [1.0, 2.0])];
        let outcome = closed(&mix, 10);
        near(outcome.per_second, 400.0);
        near(outcome.under_way[0], 2.0);
        near(outcome.under_way[1], 8.0);
        near(outcome.mean(&mix, 1) / outcome.mean(&mix, 0), 4.0);
        mix[1].disturbs = 0.5;
        near(closed(&mix, 10).per_second, 400.0);
        // A fifth and four fifths of the time: the next is of the other sort in 32 of 100 cases.
        mix[0].only_reads = true;
        near(closed(&mix, 10).per_second, (1.0 - 0.5 * 0.32) * 400.0);
        // What is committed together disturbs as the worst of it does.
        let commits = Some(Commits { writer: 0, part: 1.0 });
        mix[1].commits = commits;
        mix.push(Kind { commits, disturbs: 1.0, ..kind(0.0, [1.0; 3], [1.0, 2.0]) });
        near(closed(&mix, 10).per_second, (1.0 - 0.32) * 400.0);
        mix[1].only_reads = true;
        near(closed(&mix, 10).per_second, 400.0);
    }

    #[test]
    fn what_only_reads_is_as_fast_as_all_together() {
        let reading = Kind { only_reads: true, ..kind(50.0, [100.0, 1_000.0, 4_000.0], [1.0, 2.0]) };
        let mix = [reading, kind(50.0, [4_000.0; 3], [1.0, 2.0])];
        near(closed(&mix, 16).per_second, 4_000.0);
    }

    #[test]
    fn what_waits_leaves_time_to_others() {
        let idle = |idle| {
            let mut kind = kind(50.0, [1_000.0; 3], [1.0, 2.0]);
            kind.alone.levels.iter_mut().for_each(|level| level.idle = idle);
            kind
        };
        near(closed(&[idle(0.4)], 16).per_second, 1_000.0);
        near(closed(&[idle(0.0), idle(0.0)], 16).per_second, 1_000.0);
        // Half of the time each, of which others fill a quarter of a half of 0.4.
        near(closed(&[idle(0.4), idle(0.4)], 16).per_second, 1_000.0 / 0.95);
    }

    #[test]
    fn few_of_a_kind_are_as_slow_as_few_alone() {
        let mix = [kind(90.0, [1_000.0; 3], [1.0, 2.0]), kind(10.0, [100.0, 1_000.0, 4_000.0], [1.0, 2.0])];
        let outcome = closed(&mix, 16);
        let alone = &mix[1].alone;
        assert!(outcome.under_way[1] < 8.0 && alone.rate(outcome.under_way[1]) < 2_000.0, "{outcome:?}");
        near(outcome.under_way.iter().sum::<f64>(), 16.0);
    }

    #[test]
    fn those_of_one_writer_are_taken_along_together() {
        let rates = [100.0, 400.0, 1_600.0];
        let apart = [kind(50.0, rates, [1.0, 2.0]), kind(50.0, rates, [1.0, 2.0])];
        let with = |part| {
            let commits = Some(Commits { writer: 0, part });
            closed(&apart.clone().map(|kind| Kind { commits, ..kind }), 16).per_second
        };
        // All 16 count for each.
        near(with(1.0), 1_600.0);
        // A quarter of the other 8: 10.
        near(with(0.5), 400.0 + 1_200.0 * (10.0_f64 / 4.0).log(4.0));
        near(with(0.0), closed(&apart, 16).per_second);
        near(with(0.0), 1_000.0);
    }

    #[test]
    fn times_at_random_arrivals_are_those_of_each_kind() {
        let one = kind(1.0, [100.0; 3], [0.01, 0.04]);
        near(open(std::slice::from_ref(&one), 16, 0.6).quantile(0.95), 3.8);
        near(open(std::slice::from_ref(&one), 16, 0.3).quantile(0.95), 0.95);
        // Half way by the logarithm; beyond what was measured it stays.
        near(open(std::slice::from_ref(&one), 16, 0.45).quantile(0.95), 1.9);
        near(open(std::slice::from_ref(&one), 16, 0.9).quantile(0.95), 3.8);
    }

    #[test]
    fn at_random_arrivals_the_machine_and_the_commits_of_others_are_waited_for() {
        // Both as fast, so each has half of the machine.
        let mix = [kind(50.0, [100.0; 3], [0.01, 0.01]), kind(50.0, [100.0; 3], [0.01, 0.01])];
        let alone = open(&mix[..1], 16, 0.6).quantile(0.5);
        near(alone, 0.51);
        near(open(&mix, 16, 0.6).quantile(0.5), alone * (1.0 + 0.6 * 0.5));
        let of = |writers: [usize; 2]| {
            let commits = |writer| Some(Commits { writer, part: 1.0 });
            let [one, other] = mix.clone();
            [Kind { commits: commits(writers[0]), ..one }, Kind { commits: commits(writers[1]), ..other }]
        };
        // 30 in a second, each of which has the disk for 10 ms.
        near(open(&of([0, 1]), 16, 0.6).quantile(0.5), alone * (1.0 + 0.3 + 0.6 * 0.5));
        near(open(&of([0, 0]), 16, 0.6).quantile(0.5), alone);
        // The more are under way, the more share a commit: 8 of each at the knee, where they do 500 in a second, and half of
        // both at half of it, for which the disk has 400 commits in a second.
        let sharing = of([0, 1]).map(|kind| {
            let faster = self::kind(50.0, [100.0, 400.0, 1_600.0], [0.01, 0.01]);
            Kind { alone: faster.alone, ..kind }
        });
        near(open(&sharing, 16, 0.5).quantile(0.5), alone * (1.0 + 250.0 / 400.0 + 0.5 * 0.5));
        // What has half of the load bursts half as much beside others.
        let bursting = [kind(50.0, [100.0; 3], [0.01, 0.04]), kind(50.0, [100.0; 3], [0.01, 0.04])];
        near(open(&bursting, 16, 0.6).quantile(0.5), 1.3 * 2.0 * alone);
        // 10 of 100 take a hundred times as long: the slowest half of them are above p95.
        let one = kind(0.9, [100.0; 3], [0.01, 0.01]);
        let slow = kind(0.1, [100.0; 3], [1.0, 1.0]);
        let p95 = open(&[one, slow], 16, 0.6).quantile(0.95);
        near(p95, 50.0 * (1.0 + 0.6 * 0.9));
    }

    #[test]
    fn nothing_measured_is_nothing_predicted() {
        let kind = Kind { share: 1.0, alone: Alone::default(), commits: None, only_reads: false, disturbs: 0.0 };
        assert!(closed(std::slice::from_ref(&kind), 4).per_second < 1e-6);
        assert!(open(&[kind], 4, 0.5).quantile(0.95) < 1e-6);
    }
}
