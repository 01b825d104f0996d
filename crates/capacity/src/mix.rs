//! Many kinds of operations at once: they share processors, and commits that each take along whoever waits for them.
//!
//! What a kind is, is found out from it alone: from one user, and from many. What a mix of kinds does follows by
//! simulation with a fixed seed, so nothing is learned from the mixes themselves.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BinaryHeap, VecDeque},
};

use crate::queue::Times;

/// So long a processor stays with one before others have their turn.
const SLICE: f64 = 2e-4;
/// Operations of one simulation, of which the first tenth finds everything too empty.
const OPERATIONS: usize = 12_000;
/// Steps in which a number is sought.
const STEPS: usize = 14;
/// Quantiles that are kept of what an operation waited when it was alone.
const KEPT: usize = 100;
const SEED: u64 = 20_261_122;

/// What was measured of an operation that ran alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Alone {
    /// How long one took while there was one user, in seconds.
    pub times: Vec<f64>,
    /// Seconds on processors that one took then.
    pub processor: f64,
    /// Users of the run with many.
    pub users: usize,
    /// How many they did in a second.
    pub per_second: f64,
    /// Seconds on processors that one took then.
    pub processor_of_many: f64,
    /// How long they took when they came at random, if that was measured.
    pub open: Option<Open>,
}

/// A run in which operations came at random times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Open {
    /// How many in a second.
    pub rate: f64,
    /// The time that 95 of 100 stayed below, in seconds.
    pub p95: f64,
}

/// An operation as it is simulated.
#[derive(Debug, Clone, PartialEq)]
pub struct Kind {
    /// Seconds on processors.
    pub work: f64,
    /// In how many parts it is done at the same time.
    pub width: usize,
    /// Whose commits it waits for, if it is durable: a number for each writer.
    pub writer: Option<usize>,
    /// Seconds on a processor of a commit, however many it takes along.
    pub commit_work: f64,
    /// What one waits for others than processors: quantiles, in order, in seconds.
    pub pauses: Vec<f64>,
    /// How much longer or shorter that is where there are many.
    pub crowded: f64,
    /// How much longer one takes at random arrivals than follows from all that: what the system's own scheduling adds, a
    /// disk that pauses now and then, and whoever else is on the machine.
    pub stretch: f64,
}

/// What a mix comes to.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Operations in a second.
    pub per_second: f64,
    /// How long they took, in seconds.
    pub times: Times,
    /// The mean of that for each kind, in the order of the mix; 0 where there was none.
    pub means: Vec<f64>,
    /// How many a commit took along, in the mean.
    pub together: f64,
    /// Part of the processors that was at work.
    pub busy: f64,
}

/// Where the operations of a mix come from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// So many users, each of whom begins the next as soon as one is done.
    Closed {
        /// How many.
        users: usize,
    },
    /// So many in a second, at random times, however long they take.
    Open {
        /// In a second.
        rate: f64,
    },
}

impl Kind {
    /// From what was measured of it alone, on a machine of so many processors.
    pub fn of(alone: &Alone, writer: Option<usize>, cores: usize) -> Kind {
        let mut kind = Kind::of_loops(alone, writer, cores);
        if let Some(Open { rate, p95 }) = alone.open {
            let simulated = simulate(&[(1.0, kind.clone())], cores, Arrivals::Open { rate }).times.quantile(0.95);
            kind.stretch = (p95 / simulated.max(1e-9)).clamp(1.0 / STRETCH_MAX, STRETCH_MAX);
        }
        kind
    }

    /// What closed loops say of it.
    fn of_loops(alone: &Alone, writer: Option<usize>, cores: usize) -> Kind {
        let mut times = alone.times.clone();
        times.sort_by(f64::total_cmp);
        let kept: Vec<f64> = match times.len() {
            0 => Vec::new(),
            count => (0..KEPT.min(count)).map(|at| times[(at * 2 + 1) * count / (2 * KEPT.min(count))]).collect(),
        };
        let median = kept.get(kept.len() / 2).copied().unwrap_or_default();
        // What takes less time than processors work on it is done by several of them.
        let width = (alone.processor / median.max(1e-9)).ceil().clamp(1.0, cores as f64) as usize;
        let kind = |work: f64, commit_work: f64, crowded: f64| {
            let busy = work / width as f64 + commit_work;
            let pauses = kept.iter().map(|time| (time - busy).max(0.0)).collect();
            Kind { work, width, writer, commit_work, pauses, crowded, stretch: 1.0 }
        };
        let rate =
            |kind: &Kind| simulate(&[(1.0, kind.clone())], cores, Arrivals::Closed { users: alone.users }).per_second;
        let (mut work, mut commit_work) = (alone.processor_of_many, 0.0);
        if writer.is_some() && alone.processor > alone.processor_of_many {
            // A commit costs the same for one as for many; how many go together depends on what it costs.
            let mut together = alone.users as f64 / 2.0;
            for _ in 0..3 {
                let part = (alone.processor - alone.processor_of_many) / (1.0 - 1.0 / together.max(1.5));
                commit_work = part.min(alone.processor);
                work = (alone.processor_of_many - commit_work / together.max(1.5)).max(alone.processor_of_many * 0.05);
                let arrivals = Arrivals::Closed { users: alone.users };
                together = simulate(&[(1.0, kind(work, commit_work, 1.0))], cores, arrivals).together;
            }
        }
        // With no pause at all, is it fast enough? Else its work is more than the processors' clocks tell.
        if rate(&kind(work, commit_work, 0.0)) < alone.per_second || kept.is_empty() {
            return kind(work, commit_work, 0.0);
        }
        if rate(&kind(work, commit_work, CROWDED_MAX)) > alone.per_second {
            let factor =
                sought(1.0, 8.0, |factor| rate(&kind(work * factor, commit_work * factor, 1.0)) > alone.per_second);
            return kind(work * factor, commit_work * factor, 1.0);
        }
        let crowded = sought(0.0, CROWDED_MAX, |crowded| rate(&kind(work, commit_work, crowded)) > alone.per_second);
        kind(work, commit_work, crowded)
    }
}

/// The most by which pauses may be longer where there are many.
const CROWDED_MAX: f64 = 4.0;
/// The most by which operations may take longer than is simulated: beyond that, something else was measured.
const STRETCH_MAX: f64 = 20.0;

/// Where something ends that holds below and not above.
fn sought(mut below: f64, mut above: f64, holds: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..STEPS {
        let middle = f64::midpoint(below, above);
        if holds(middle) {
            below = middle;
        } else {
            above = middle;
        }
    }
    f64::midpoint(below, above)
}

/// What these kinds do together, each with its share of the operations.
pub fn simulate(mix: &[(f64, Kind)], cores: usize, arrivals: Arrivals) -> Outcome {
    let writers = mix.iter().filter_map(|(_, kind)| kind.writer).max().map_or(0, |most| most + 1);
    let mut machine = Machine {
        mix,
        shares: mix.iter().map(|(share, _)| share).sum(),
        chance: fastrand::Rng::with_seed(SEED),
        stretched: matches!(arrivals, Arrivals::Open { .. }),
        now: 0.0,
        events: BinaryHeap::new(),
        numbers: 0,
        cores: cores.max(1),
        free: cores.max(1),
        waiting: VecDeque::new(),
        operations: Vec::new(),
        writers: vec![Writer::default(); writers],
        done: Vec::new(),
        worked: 0.0,
        commits: 0,
        committed: 0,
    };
    machine.run(arrivals)
}

/// Something that happens at a time.
#[derive(Debug, Clone, PartialEq)]
enum Event {
    Comes,
    SliceOver(Task),
    PauseOver(usize),
    Committed(usize),
}

#[derive(Debug, Clone, PartialEq)]
struct At(f64, u64, Event);

impl Eq for At {}

impl PartialOrd for At {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for At {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

/// Work for one processor.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Task {
    of: Of,
    left: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Of {
    Operation(usize),
    Commit(usize),
}

struct Operation {
    kind: usize,
    came: f64,
    parts: usize,
}

/// An operation that is done: when, how long it took, and which kind it was.
#[derive(Debug, Clone, Copy)]
struct Finished {
    at: f64,
    took: f64,
    kind: usize,
}

/// A commit at a time; whoever comes meanwhile goes with the next.
#[derive(Debug, Clone, Default)]
struct Writer {
    is_busy: bool,
    waiting: Vec<usize>,
    carried: Vec<usize>,
}

struct Machine<'a> {
    mix: &'a [(f64, Kind)],
    shares: f64,
    chance: fastrand::Rng,
    /// Whether operations take as much longer as their kinds say.
    stretched: bool,
    now: f64,
    events: BinaryHeap<Reverse<At>>,
    numbers: u64,
    cores: usize,
    free: usize,
    waiting: VecDeque<Task>,
    operations: Vec<Operation>,
    writers: Vec<Writer>,
    /// Each that is done.
    done: Vec<Finished>,
    /// Seconds of processors.
    worked: f64,
    commits: u64,
    committed: u64,
}

impl Machine<'_> {
    fn run(&mut self, arrivals: Arrivals) -> Outcome {
        match arrivals {
            Arrivals::Closed { users } => (0..users).for_each(|_| self.begin()),
            Arrivals::Open { .. } => self.at(0.0, Event::Comes),
        }
        while self.done.len() < OPERATIONS {
            let Some(Reverse(At(time, _, event))) = self.events.pop() else { break };
            self.now = time;
            let before = self.done.len();
            match event {
                Event::Comes => {
                    self.begin();
                    if let Arrivals::Open { rate } = arrivals {
                        // One minus it, since the logarithm of zero is nowhere.
                        let after = -(1.0 - self.chance.f64()).ln() / rate.max(1e-9);
                        self.at(after, Event::Comes);
                    }
                }
                Event::SliceOver(task) => self.slice_over(task),
                Event::PauseOver(operation) => self.finish(operation),
                Event::Committed(writer) => self.committed(writer),
            }
            if matches!(arrivals, Arrivals::Closed { .. }) {
                (before..self.done.len()).for_each(|_| self.begin());
            }
        }
        self.outcome()
    }

    fn outcome(&self) -> Outcome {
        let counted = &self.done[self.done.len() / 10..];
        let (begin, end) = match (counted.first(), counted.last()) {
            (Some(first), Some(last)) => (first.at, last.at),
            _ => (0.0, 0.0),
        };
        let mut sums = vec![(0.0, 0_u32); self.mix.len()];
        for done in counted {
            let (sum, count) = &mut sums[done.kind];
            (*sum, *count) = (*sum + done.took, *count + 1);
        }
        Outcome {
            per_second: counted.len().saturating_sub(1) as f64 / (end - begin).max(1e-9),
            times: counted.iter().map(|done| done.took).collect(),
            means: sums.into_iter().map(|(sum, count)| sum / f64::from(count.max(1))).collect(),
            together: self.committed as f64 / self.commits.max(1) as f64,
            busy: self.worked / (self.now * self.cores as f64).max(1e-9),
        }
    }

    fn at(&mut self, after: f64, event: Event) {
        self.numbers += 1;
        self.events.push(Reverse(At(self.now + after, self.numbers, event)));
    }

    fn begin(&mut self) {
        let mut at = self.chance.f64() * self.shares;
        let kind = self.mix.iter().position(|(share, _)| {
            at -= share;
            at < 0.0
        });
        let kind = kind.unwrap_or(self.mix.len() - 1);
        let (work, width) = (self.mix[kind].1.work, self.mix[kind].1.width.max(1));
        self.operations.push(Operation { kind, came: self.now, parts: width });
        let of = Of::Operation(self.operations.len() - 1);
        (0..width).for_each(|_| self.process(Task { of, left: work / width as f64 }));
    }

    /// Gives it a processor, or has it wait for one.
    fn process(&mut self, task: Task) {
        if self.free == 0 {
            self.waiting.push_back(task);
            return;
        }
        self.free -= 1;
        self.worked += task.left.min(SLICE);
        self.at(task.left.min(SLICE), Event::SliceOver(Task { left: task.left - SLICE, ..task }));
    }

    fn slice_over(&mut self, task: Task) {
        self.free += 1;
        if task.left > 0.0 {
            self.waiting.push_back(task);
        }
        if let Some(next) = self.waiting.pop_front() {
            self.process(next);
        }
        if task.left > 0.0 {
            return;
        }
        match task.of {
            Of::Operation(number) => {
                self.operations[number].parts -= 1;
                if self.operations[number].parts == 0 {
                    self.worked(number);
                }
            }
            Of::Commit(writer) => {
                let kind = self.writers[writer].carried.first().map_or(0, |first| self.operations[*first].kind);
                let pause = self.pause(kind, self.writers[writer].carried.len() > 1);
                self.at(pause, Event::Committed(writer));
            }
        }
    }

    /// Its own work is done.
    fn worked(&mut self, number: usize) {
        let kind = self.operations[number].kind;
        match self.mix[kind].1.writer {
            Some(writer) => {
                self.writers[writer].waiting.push(number);
                self.commit(writer);
            }
            None => {
                let pause = self.pause(kind, self.waiting.len() + self.free == 0);
                self.at(pause, Event::PauseOver(number));
            }
        }
    }

    fn commit(&mut self, writer: usize) {
        if self.writers[writer].is_busy || self.writers[writer].waiting.is_empty() {
            return;
        }
        let carried = std::mem::take(&mut self.writers[writer].waiting);
        let work =
            carried.iter().map(|number| self.mix[self.operations[*number].kind].1.commit_work).fold(0.0, f64::max);
        self.commits += 1;
        self.committed += carried.len() as u64;
        self.writers[writer].carried = carried;
        self.writers[writer].is_busy = true;
        self.process(Task { of: Of::Commit(writer), left: work });
    }

    fn committed(&mut self, writer: usize) {
        self.writers[writer].is_busy = false;
        for number in std::mem::take(&mut self.writers[writer].carried) {
            self.finish(number);
        }
        self.commit(writer);
    }

    fn pause(&mut self, kind: usize, is_crowded: bool) -> f64 {
        let kind = &self.mix[kind].1;
        if kind.pauses.is_empty() {
            return 0.0;
        }
        let drawn = kind.pauses[self.chance.usize(..kind.pauses.len())];
        if is_crowded { drawn * kind.crowded } else { drawn }
    }

    fn finish(&mut self, number: usize) {
        let Operation { kind, came, .. } = self.operations[number];
        let stretch = if self.stretched { self.mix[kind].1.stretch } else { 1.0 };
        self.done.push(Finished { at: self.now, took: (self.now - came) * stretch, kind });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(work: f64, writer: Option<usize>, commit_work: f64, pause: f64) -> Kind {
        let pauses = (0..20).map(|at| pause * (0.8 + 0.02 * f64::from(at))).collect();
        Kind { work, width: 1, writer, commit_work, pauses, crowded: 1.0, stretch: 1.0 }
    }

    /// What measuring it alone would give.
    fn alone(kind: &Kind, users: usize) -> Alone {
        let run = |users| simulate(&[(1.0, kind.clone())], 2, Arrivals::Closed { users });
        let (one, many) = (run(1), run(users));
        let processor = |outcome: &Outcome| match kind.writer {
            Some(_) => kind.work + kind.commit_work / outcome.together,
            None => kind.work,
        };
        Alone {
            times: (0..200).map(|at| one.times.quantile(f64::from(at) / 199.0)).collect(),
            processor: processor(&one),
            users,
            per_second: many.per_second,
            processor_of_many: processor(&many),
            open: None,
        }
    }

    #[test]
    fn a_machine_that_is_slower_at_random_arrivals_is_known_by_one_run_of_each_operation() {
        let mut kinds = [kind(3e-4, None, 0.0, 5e-5), kind(1e-4, Some(0), 2e-4, 8e-4)];
        (kinds[0].stretch, kinds[1].stretch) = (3.0, 2.0);
        let learned = kinds.each_ref().map(|kind| {
            let alone = alone(kind, 16);
            let rate = alone.per_second * 0.6;
            let seen = simulate(&[(1.0, kind.clone())], 2, Arrivals::Open { rate });
            let open = Some(Open { rate, p95: seen.times.quantile(0.95) });
            Kind::of(&Alone { open, ..alone }, kind.writer, 2)
        });
        for shares in [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]] {
            let mix = |kinds: &[Kind]| shares.into_iter().zip(kinds.iter().cloned()).collect::<Vec<_>>();
            let rate = simulate(&mix(&kinds), 2, Arrivals::Closed { users: 16 }).per_second * 0.6;
            let p95 = |kinds: &[Kind]| simulate(&mix(kinds), 2, Arrivals::Open { rate }).times.quantile(0.95);
            let (truth, found) = (p95(&kinds), p95(&learned));
            assert!((found / truth - 1.0).abs() < 0.15, "{shares:?}: p95 {found} is not {truth}");
        }
    }

    #[test]
    fn users_of_processors_alone_do_what_processors_can() {
        for (cores, users, expected) in [(1, 4, 1_000.0), (2, 16, 2_000.0), (4, 2, 2_000.0)] {
            let found = simulate(&[(1.0, kind(1e-3, None, 0.0, 0.0))], cores, Arrivals::Closed { users });
            assert!((found.per_second / expected - 1.0).abs() < 0.01, "{cores} cores: {}", found.per_second);
        }
    }

    #[test]
    fn an_open_load_comes_at_its_rate_and_waits_more_the_fuller_it_is() {
        let kind = kind(1e-3, None, 0.0, 0.0);
        let p95 = |rate: f64| {
            let found = simulate(&[(1.0, kind.clone())], 2, Arrivals::Open { rate });
            assert!((found.per_second / rate - 1.0).abs() < 0.05, "{} at {rate}", found.per_second);
            found.times.quantile(0.95)
        };
        assert!(p95(400.0) < p95(1_200.0) && p95(1_200.0) < p95(1_800.0));
    }

    #[test]
    fn commits_take_along_whoever_waits() {
        // One at a time would do 1,000 in a second.
        let found = simulate(&[(1.0, kind(1e-6, Some(0), 1e-6, 1e-3))], 2, Arrivals::Closed { users: 64 });
        assert!(found.per_second > 20_000.0 && found.together > 20.0, "{found:?}");
    }

    #[test]
    fn mixes_follow_from_what_each_kind_does_alone() {
        let kinds = [
            kind(3e-4, None, 0.0, 5e-5),
            kind(1e-4, Some(0), 2e-4, 8e-4),
            kind(4e-3, None, 0.0, 2e-3),
            kind(5e-5, Some(1), 1e-4, 3e-4),
        ];
        let learned: Vec<Kind> = kinds.iter().map(|kind| Kind::of(&alone(kind, 16), kind.writer, 2)).collect();
        for shares in [[60.0, 40.0, 0.0, 0.0], [0.0, 50.0, 0.0, 50.0], [70.0, 10.0, 10.0, 10.0], [25.0; 4]] {
            let mix = |kinds: &[Kind]| shares.into_iter().zip(kinds.iter().cloned()).collect::<Vec<_>>();
            let run = |kinds: &[Kind], arrivals| simulate(&mix(kinds), 2, arrivals);
            let truth = run(&kinds, Arrivals::Closed { users: 16 }).per_second;
            let found = run(&learned, Arrivals::Closed { users: 16 }).per_second;
            assert!((found / truth - 1.0).abs() < 0.05, "{shares:?}: {found} is not {truth}");
            let arrivals = Arrivals::Open { rate: truth * 0.6 };
            let [truth, found] = [&kinds[..], &learned].map(|kinds| run(kinds, arrivals).times.quantile(0.95));
            assert!((found / truth - 1.0).abs() < 0.15, "{shares:?}: p95 {found} is not {truth}");
        }
    }
}
