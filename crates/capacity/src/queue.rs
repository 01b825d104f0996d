//! Queueing models: backlogs as a fluid, and waiting times of individual jobs by simulation.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

/// A time step of a station, in seconds of its own work.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Step {
    /// Arrivals per second.
    pub arrived: f64,
    /// Departures per second; at most 1.
    pub departed: f64,
    /// The backlog at the end, in seconds of work.
    pub backlog: f64,
}

/// Fluid model of a station with a capacity of one second of work per second, load `load` in each step, initially
/// empty. Arrivals are spread evenly over a step.
pub fn fluid(load: impl IntoIterator<Item = f64>, step_seconds: f64) -> Vec<Step> {
    let mut backlog = 0.0_f64;
    load.into_iter()
        .map(|arrived| {
            let before = backlog;
            backlog = (before + (arrived - 1.0) * step_seconds).max(0.0);
            Step { arrived, departed: arrived - (backlog - before) / step_seconds, backlog }
        })
        .collect()
}

/// A class of jobs at a station.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Job {
    /// Arrivals per second (Poisson process).
    pub rate: f64,
    /// Service time, in seconds.
    pub service: f64,
}

/// Times spent at a station in seconds, sorted.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Times(Vec<f64>);

impl Times {
    /// The quantile at a fraction.
    pub fn quantile(&self, fraction: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get((fraction * last as f64).round() as usize).copied().unwrap_or_default()
    }

    /// The mean.
    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }
}

impl FromIterator<f64> for Times {
    fn from_iter<I: IntoIterator<Item = f64>>(times: I) -> Self {
        let mut times: Vec<f64> = times.into_iter().collect();
        times.sort_by(f64::total_cmp);
        Times(times)
    }
}

/// The time at which a server becomes free; reversed order, for a min-heap.
#[derive(PartialEq)]
struct FreeServer(f64);

impl Eq for FreeServer {}

impl PartialOrd for FreeServer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for FreeServer {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Simulates `count` jobs of these classes, served in FIFO order. Returns their times in the system including service,
/// without the first tenth (warm-up).
pub fn response_times(jobs: &[Job], servers: usize, count: usize, seed: u64) -> Times {
    let rate: f64 = jobs.iter().map(|job| job.rate).sum();
    if rate <= 0.0 {
        return Times::default();
    }
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut free: BinaryHeap<Reverse<FreeServer>> = (0..servers.max(1)).map(|_| Reverse(FreeServer(0.0))).collect();
    let mut now = 0.0;
    let mut stays = Vec::with_capacity(count);
    for _ in 0..count {
        // One minus it, since the logarithm of zero is undefined.
        now -= (1.0 - chance.f64()).ln() / rate;
        let service = pick(jobs, chance.f64() * rate);
        let Some(Reverse(FreeServer(at))) = free.pop() else { break };
        let done = at.max(now) + service;
        free.push(Reverse(FreeServer(done)));
        stays.push(done - now);
    }
    stays.into_iter().skip(count / 10).collect()
}

fn pick(jobs: &[Job], mut at: f64) -> f64 {
    for job in jobs {
        at -= job.rate;
        if at < 0.0 {
            return job.service;
        }
    }
    jobs.last().map_or(0.0, |job| job.service)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seed of this run; `SEED=…` repeats one.
    fn seed() -> u64 {
        std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_122)
    }

    #[test]
    fn waits_of_one_server_match_the_closed_form() {
        // Pollaczek-Khinchine: the mean wait of M/D/1 is ρ·s / (2·(1−ρ)).
        for (utilisation, service) in [(0.2, 0.01), (0.5, 1.0), (0.7, 0.003), (0.85, 20.0)] {
            let job = Job { rate: utilisation / service, service };
            let measured = response_times(&[job], 1, 400_000, seed()).mean() - service;
            let expected = utilisation * service / (2.0 * (1.0 - utilisation));
            let error = (measured / expected - 1.0).abs();
            assert!(error < 0.08, "SEED={}: at {utilisation} {measured} is not {expected}", seed());
        }
    }

    #[test]
    fn jobs_of_two_classes_wait_for_each_other() {
        // M/G/1: λ·E[s²] / (2·(1−ρ)).
        let jobs = [Job { rate: 40.0, service: 0.01 }, Job { rate: 1.0, service: 0.2 }];
        let busy: f64 = jobs.iter().map(|job| job.rate * job.service).sum();
        let squares: f64 = jobs.iter().map(|job| job.rate * job.service * job.service).sum();
        let expected = squares / (2.0 * (1.0 - busy)) + busy / 41.0;
        let measured = response_times(&jobs, 1, 400_000, seed()).mean();
        assert!((measured / expected - 1.0).abs() < 0.08, "SEED={}: {measured} is not {expected}", seed());
    }

    #[test]
    fn more_servers_at_the_same_load_shorten_waits() {
        let wait = |servers: usize| {
            let job = Job { rate: 0.8 * servers as f64, service: 1.0 };
            response_times(&[job], servers, 50_000, seed()).mean() - 1.0
        };
        let waits = [1, 2, 4, 16].map(wait);
        assert!(waits.is_sorted_by(|longer, shorter| longer > shorter), "SEED={}: {waits:?}", seed());
    }

    #[test]
    fn the_fluid_model_conserves_work() {
        let mut chance = fastrand::Rng::with_seed(seed());
        for _ in 0..200 {
            let load: Vec<f64> = (0..500).map(|_| chance.f64() * 2.2).collect();
            let steps = fluid(load.iter().copied(), 60.0);
            let (came, went): (f64, f64) =
                steps.iter().fold((0.0, 0.0), |(came, went), step| (came + step.arrived, went + step.departed));
            let left = steps.last().expect("steps").backlog;
            assert!(((came - went) * 60.0 - left).abs() < 1e-6, "SEED={}", seed());
            assert!(steps.iter().all(|step| step.departed <= 1.0 + 1e-9 && step.backlog >= 0.0), "SEED={}", seed());
        }
    }

    #[test]
    fn a_constant_overload_gives_a_triangular_backlog() {
        // Three times the capacity for 30 minutes, then nothing: 60 minutes of work, done after 60 more.
        let load = (0..180).map(|minute| if minute < 30 { 3.0 } else { 0.0 });
        let steps = fluid(load, 60.0);
        assert_eq!(steps[29].backlog, 3_600.0);
        assert_eq!((steps[88].backlog, steps[89].backlog), (60.0, 0.0));
    }
}
