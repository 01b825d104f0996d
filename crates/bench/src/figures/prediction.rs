//! Figures `plan.*`: throughput and latency of operation mixes, predicted from each operation alone, compared with
//! measurements; and a backlog: its peak and end, predicted by the queue model of `tocsin capacity`.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use tocsin_capacity::{
    mix::{self, ClosedLoopLevel, MixEntry, OpenLoopRun, SoloMeasurement},
    queue::{Times, fluid},
};

use crate::{
    bench::{Bench, Measuring},
    examples::stock::SEED,
    failure::{Failure, Outcome},
    {
        context::Context,
        figure::{Figure, Prediction, Samples, rounded},
        http_client::Connection,
        mixed_load::{self, DeliveryServer, FEW_SUBSCRIBERS, LoadPhases, MixedLoadResult, MixedServer, Operation},
        precise_timer,
        resource_usage::processor_seconds,
        test_receiver::ReceiverSpeed,
    },
};

/// Prediction error of the mixes.
pub const ERROR: Bench = Bench {
    name: "plan.error",
    about: "median relative error of the predicted throughput of 12 mixes, from measurements of single operations",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(error(context)) },
};

/// Prediction error of pairs, which calibrate the mix model.
pub const PAIRS: Bench = Bench {
    name: "plan.pairs",
    about: "median relative error of the predicted throughput of all pairs of 10 operations; conditions: larger groups, and the loss of reads",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(pairs(context)) },
};

/// Prediction error of a backlog.
pub const BACKLOG: Bench = Bench {
    name: "plan.backlog",
    about: "larger relative error of the predicted peak and end of a backlog: overload for 3 minutes, then less",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(backlog(context)) },
};

/// Closed-loop users: enough to saturate the machine.
const USERS: usize = 16;
/// Users of the open loop, which wait for due operations.
const OPEN_LOOP_USERS: usize = 64;
/// Part of the closed-loop throughput at which latencies are measured.
const BELOW_KNEE: f64 = 0.6;

/// Numbers of users in the runs of single operations: fewer users share less.
const LEVELS: [usize; 5] = [1, 2, 4, 8, 16];
/// Parts of the saturated rate for the open loops of single operations.
const PARTS: [f64; 2] = [0.3, BELOW_KNEE];
/// Rounds per turn; each measures every operation and mix for a short time.
const ROUNDS: u64 = 10;
const WARMING_MILLIS: u64 = 1_000;
/// All compared runs have equal duration, so that none is warmer than another.
const SETTLING_MILLIS: u64 = 250;
const CLOSED_MILLIS: u64 = 450;
const OPEN_MILLIS: u64 = 500;
/// Quantiles of the latencies of a round.
const FRACTIONS: u32 = 200;
/// Rounds per turn of pairs.
const PAIR_ROUNDS: u64 = 6;
/// A turn takes about twelve minutes, one of pairs eight.
const TURNS_MAX: usize = 4;
/// Goals: maximum prediction errors.
const THROUGHPUT_GOAL: f64 = 0.1;
const P95_GOAL: f64 = 0.25;
/// Smallest part of the offered rate that counts as reached; random arrivals vary over a short time.
const RATE_REACHED_MIN: f64 = 0.9;

/// Mix: name, and percentage of each operation.
type Mix = (&'static str, &'static [(Operation, f64)]);

/// None of the mixes is used to calibrate the model.
const MIXES: [Mix; 12] = [
    ("stock", &[(Operation::Event, 70.0), (Operation::Stock, 30.0)]),
    ("broadcast", &[(Operation::Event, 85.0), (Operation::Broadcast, 15.0)]),
    ("intake", &[(Operation::Event, 60.0), (Operation::Events, 40.0)]),
    (
        "directory",
        &[(Operation::Search, 75.0), (Operation::Modify, 12.0), (Operation::Add, 3.0), (Operation::Bind, 10.0)],
    ),
    ("directory, written", &[(Operation::Search, 40.0), (Operation::Modify, 60.0)]),
    ("exchange", &[(Operation::Trip, 80.0), (Operation::Event, 20.0)]),
    ("sync storm", &[(Operation::Session, 40.0), (Operation::Search, 60.0)]),
    ("sync and intake", &[(Operation::Session, 25.0), (Operation::Event, 75.0)]),
    ("stock and directory", &[(Operation::Stock, 25.0), (Operation::Search, 60.0), (Operation::Modify, 15.0)]),
    ("stock and exchange", &[(Operation::Stock, 30.0), (Operation::Trip, 70.0)]),
    ("exchange and directory", &[(Operation::Trip, 50.0), (Operation::Search, 50.0)]),
    (
        "everything",
        &[
            (Operation::Event, 25.0),
            (Operation::Stock, 10.0),
            (Operation::Search, 35.0),
            (Operation::Modify, 10.0),
            (Operation::Trip, 17.0),
            (Operation::Session, 3.0),
        ],
    ),
];

/// Measurements of one operation alone, by round.
#[derive(Default)]
struct OperationSamples {
    rates: [Samples; LEVELS.len()],
    /// Busy processors.
    busy: [Samples; LEVELS.len()],
    open: [OpenLoopSamples; PARTS.len()],
}

/// Results of the rounds of an open loop.
#[derive(Default)]
struct OpenLoopSamples {
    /// Latencies by round.
    rounds: Vec<Times>,
    /// Completed part of the offered rate.
    reached: Samples,
}

/// Measurements of a mix, by round.
#[derive(Default)]
struct MixSamples {
    rates: Samples,
    open: OpenLoopSamples,
    /// Sum of seconds and count of each operation in the closed loop.
    by_operation: Vec<(f64, u64)>,
}

async fn error(context: &Context) -> Outcome<Figure> {
    let mut mixed = MixedServer::start(context, context.size(50_000, 500), OPEN_LOOP_USERS).await?;
    let mut singles: [OperationSamples; Operation::ALL.len()] = Default::default();
    let mut mixes: [MixSamples; MIXES.len()] = Default::default();
    warm_up(context, &mut mixed).await?;
    let mut chance = fastrand::Rng::with_seed(SEED);
    for _ in context.turns().take(TURNS_MAX) {
        // Compared runs alternate in short parts, because a shared machine has fast and slow times. The order changes
        // each time, because each run leaves work behind: rows to fold, caches, dirty pages.
        for _ in 0..context.size(ROUNDS, 1) {
            for part in shuffled(Operation::ALL.len() + MIXES.len(), &mut chance) {
                match part.checked_sub(Operation::ALL.len()) {
                    None => singles[part].measure(context, &mut mixed, Operation::ALL[part]).await?,
                    Some(mix) => mixes[mix].measure(context, &mut mixed, MIXES[mix].1).await?,
                }
            }
        }
    }
    let alone = OperationSamples::all_alone(singles);
    let (mut rates, mut p95, mut apart) = (Vec::new(), Vec::new(), Vec::new());
    let mut predictions = Vec::new();
    for (together, (name, mix)) in mixes.into_iter().zip(MIXES) {
        let of =
            mix.iter().map(|(operation, share)| format!("{share} {}", operation.word())).collect::<Vec<_>>().join(", ");
        let kinds: Vec<MixEntry> = mix.iter().map(|(operation, share)| kind(&alone, *operation, *share)).collect();
        let outcome = mix::closed(&kinds, USERS);
        let measured = together.rates.midmean();
        let part = BELOW_KNEE * measured / outcome.per_second.max(1e-9);
        let times = [mix::open(&kinds, USERS, part), together.open.times()].map(|times| times.quantile(0.95));
        let reached = together.open.reached.median();
        if reached < RATE_REACHED_MIN {
            context.log(format_args!(
                "   {name}: only {:.0} % of the offered rate were reached: the p95 includes queueing of the load",
                reached * 100.0
            ));
        }
        let both = [
            Prediction::new(format!("{name}: {of}"), "operations/s", (outcome.per_second, measured)),
            Prediction::new(format!("{name}: p95"), "ms", (times[0] * 1e3, times[1] * 1e3)),
        ];
        rates.push((outcome.per_second / measured.max(1e-9) - 1.0).abs());
        p95.push((times[0] / times[1].max(1e-9) - 1.0).abs());
        apart.extend(together.rates.halves_apart());
        context.log(format_args!("   {name}: {}", means(mix, &kinds, &outcome, &together.by_operation)));
        predictions.extend(both);
    }
    let within = |errors: &[f64], most: f64| errors.iter().filter(|error| **error <= most).count();
    let (within_rates, within_p95) = (within(&rates, THROUGHPUT_GOAL), within(&p95, P95_GOAL));
    let [rates, p95, apart] = [rates, p95, apart].map(|errors| errors.into_iter().collect::<Samples>());
    let mut figure = Figure::new("of the measured throughput", rates.clone())
        .with_condition(format!("{} mixes of {} operations, none of which was used for calibration", MIXES.len(), Operation::ALL.len()))
        .with_condition(format!(
            "throughput of {USERS} users in a closed loop: largest error {}, {} mixes within {}",
            percent(rates.high()),
            within_rates,
            percent(THROUGHPUT_GOAL)
        ))
        .with_condition(noise(&apart))
        .with_condition(format!(
            "p95 in an open loop with random arrivals at {} % of that: median error {}, largest {}, {} mixes within {}",
            BELOW_KNEE * 100.0,
            percent(p95.median()),
            percent(p95.high()),
            within_p95,
            percent(P95_GOAL)
        ))
        .with_condition(format!(
            "each operation alone with {LEVELS:?} users and with random arrivals, in {ROUNDS} rounds per turn that alternate with the mixes; load and server share the cores"
        ));
    figure.predictions = predictions;
    Ok(figure)
}

fn percent(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

/// Noise of the machine, as a condition.
fn noise(apart: &Samples) -> String {
    match apart.len() {
        0 => "one round: the noise of the machine is unknown".to_owned(),
        _ => format!("noise of a mix between even and odd rounds: median {}", percent(apart.median())),
    }
}

/// Numbers below `count` in random order.
fn shuffled(count: usize, chance: &mut fastrand::Rng) -> Vec<usize> {
    let mut all: Vec<usize> = (0..count).collect();
    chance.shuffle(&mut all);
    all
}

/// Warms up connections, caches and files. Returns the rate of each operation.
async fn warm_up(context: &Context, mixed: &mut MixedServer) -> Outcome<Vec<f64>> {
    let mut rates = Vec::new();
    for operation in Operation::ALL {
        rates.push(closed(context, mixed, &[(operation, 1.0)], USERS, WARMING_MILLIS).await?.0.per_second);
    }
    Ok(rates)
}

/// Larger groups; none equals a mix above.
const GROUPS: [&[Operation]; 13] = {
    use Operation::{Add, Bind, Broadcast, Event, Events, Modify, Search, Session, Stock, Trip};
    [
        &[Search, Modify, Trip],
        &[Event, Trip, Session],
        &[Stock, Search, Bind],
        &[Events, Add, Search],
        &[Stock, Trip, Session],
        &[Event, Modify, Broadcast],
        &[Event, Stock, Search, Modify, Trip],
        &[Event, Broadcast, Add, Bind, Session],
        &[Events, Stock, Modify, Search, Session],
        &[Event, Events, Trip, Session, Search, Bind],
        &[Stock, Broadcast, Add, Modify, Trip, Session],
        &[Event, Stock, Search, Modify, Bind, Trip, Session],
        &Operation::ALL,
    ]
};

/// Group of operations with equal time shares.
struct Group {
    mix: Vec<(Operation, f64)>,
    rates: Samples,
}

impl Group {
    fn is_pair(&self) -> bool {
        self.mix.len() == 2
    }
}

async fn pairs(context: &Context) -> Outcome<Figure> {
    let mut mixed = MixedServer::start(context, context.size(50_000, 500), OPEN_LOOP_USERS).await?;
    let rates = warm_up(context, &mut mixed).await?;
    let share = |operation: &Operation| (*operation, rates[index_of(*operation)]);
    let pairs = Operation::ALL.into_iter().enumerate();
    let pairs = pairs.flat_map(|(at, operation)| Operation::ALL[..at].iter().map(move |before| [*before, operation]));
    let of =
        |operations: &[Operation]| Group { mix: operations.iter().map(share).collect(), rates: Samples::default() };
    let mut groups: Vec<Group> =
        pairs.map(|pair| of(&pair)).chain(GROUPS.iter().map(|operations| of(operations))).collect();
    let mut singles: [OperationSamples; Operation::ALL.len()] = Default::default();
    let mut chance = fastrand::Rng::with_seed(SEED);
    for _ in context.turns().take(TURNS_MAX) {
        for _ in 0..context.size(PAIR_ROUNDS, 1) {
            for part in shuffled(Operation::ALL.len() + groups.len(), &mut chance) {
                let Some(at) = part.checked_sub(Operation::ALL.len()) else {
                    singles[part].measure_levels(context, &mut mixed, Operation::ALL[part]).await?;
                    continue;
                };
                let group = &mut groups[at];
                let (seen, _) = closed(context, &mut mixed, &group.mix, USERS, CLOSED_MILLIS).await?;
                group.rates.push(seen.per_second);
            }
        }
    }
    let alone = OperationSamples::all_alone(singles);
    let (mut pair_errors, mut group_errors) = (Samples::default(), Samples::default());
    let mut losses: [Samples; Operation::ALL.len()] = Default::default();
    let mut predictions = Vec::new();
    for group in &groups {
        let kinds: Vec<MixEntry> =
            group.mix.iter().map(|(operation, share)| kind(&alone, *operation, *share)).collect();
        let (predicted, measured) = (mix::closed(&kinds, USERS).per_second, group.rates.midmean().max(1e-9));
        let errors = if group.is_pair() { &mut pair_errors } else { &mut group_errors };
        errors.push((predicted / measured - 1.0).abs());
        let lost = if group.is_pair() { lost(&kinds, measured) } else { None };
        for (operation, _) in group.mix.iter().filter(|(operation, _)| !operation.is_read_only()) {
            losses[index_of(*operation)].extend(lost);
        }
        let what: Vec<&str> = group.mix.iter().map(|(operation, _)| operation.word()).collect();
        predictions.push(Prediction::new(what.join(" and "), "operations/s", (predicted, measured)));
    }
    let lost = Operation::ALL.into_iter().zip(&losses).filter(|(operation, _)| !operation.is_read_only());
    let lost = lost.map(|(operation, lost)| {
        format!("{} {} ({})", operation.word(), rounded(lost.median(), 2), operation.write_contention())
    });
    let lost = lost.collect::<Vec<_>>().join(", ");
    let apart: Samples = groups.iter().filter_map(|group| group.rates.halves_apart()).collect();
    let mut figure = Figure::new("of the measured throughput", pair_errors)
        .with_condition(format!(
            "all pairs of {} operations, with half of the time each; {USERS} users in a closed loop",
            Operation::ALL.len()
        ))
        .with_condition(format!(
            "{} groups of 3 to {} with equal time each: median error {}, largest {}",
            GROUPS.len(),
            Operation::ALL.len(),
            percent(group_errors.median()),
            percent(group_errors.high())
        ))
        .with_condition(format!("loss of reads in these runs (and in the model) with {lost}"))
        .with_condition(noise(&apart))
        .with_condition("in rounds that alternate; load and server share the cores");
    figure.predictions = predictions;
    Ok(figure)
}

/// Relative loss of throughput if exactly one of both kinds only reads; see [`MixEntry::disturbs`].
fn lost(kinds: &[MixEntry], measured: f64) -> Option<f64> {
    let undisturbed: Vec<MixEntry> = kinds.iter().map(|kind| MixEntry { disturbs: 0.0, ..kind.clone() }).collect();
    let outcome = mix::closed(&undisturbed, USERS);
    let is_one = kinds.iter().filter(|kind| kind.only_reads).count() == 1;
    // Probability that an operation follows one of the other kind.
    let changes = 2.0 * outcome.in_flight.iter().map(|count| count / USERS as f64).product::<f64>();
    is_one.then(|| (1.0 - measured / outcome.per_second.max(1e-9)) / changes.max(1e-9))
}

/// Phases of a load: measured milliseconds after a short warm-up for new users and cold caches.
fn phases(context: &Context, millis: u64) -> LoadPhases {
    let (settles, lasts) = (context.size(SETTLING_MILLIS, 20), context.size(millis, 60));
    LoadPhases { warm_up: Duration::from_millis(settles), measured: Duration::from_millis(lasts) }
}

/// Closed loop for this many milliseconds. Returns the result and the number of busy processors.
async fn closed(
    context: &Context,
    mixed: &mut MixedServer,
    mix: &[(Operation, f64)],
    users: usize,
    millis: u64,
) -> Outcome<(MixedLoadResult, f64)> {
    let (operations, shares): (Vec<Operation>, Vec<f64>) = mix.iter().copied().unzip();
    let users = mixed.users(&operations, users).await?;
    let server = mixed.server.pid();
    let processors = || processor_seconds(server) + processor_seconds(std::process::id());
    let (begun, before) = (Instant::now(), processors());
    let (seen, users) = mixed_load::closed(users, &shares, phases(context, millis)).await?;
    let busy = (processors() - before) / begun.elapsed().as_secs_f64();
    mixed.release_users(users);
    Ok((seen, busy))
}

impl OpenLoopSamples {
    /// Latency distribution: the interquartile mean over the rounds of each quantile, so that a single stall of the
    /// machine does not dominate.
    fn times(&self) -> Times {
        let fractions = (0..FRACTIONS).map(|at| (f64::from(at) + 0.5) / f64::from(FRACTIONS));
        fractions.map(|of| self.rounds.iter().map(|times| times.quantile(of)).collect::<Samples>().midmean()).collect()
    }

    /// Open loop at `rate` operations per second for this many milliseconds.
    async fn measure(
        &mut self,
        context: &Context,
        mixed: &mut MixedServer,
        mix: &[(Operation, f64)],
        rate: f64,
        millis: u64,
    ) -> Outcome {
        let (operations, shares): (Vec<Operation>, Vec<f64>) = mix.iter().copied().unzip();
        let users = mixed.users(&operations, OPEN_LOOP_USERS).await?;
        let (seen, users) = mixed_load::open(users, &shares, rate, phases(context, millis)).await?;
        mixed.release_users(users);
        self.rounds.push(seen.times.into_iter().collect());
        self.reached.push(seen.per_second / rate.max(1e-9));
        Ok(())
    }
}

impl OperationSamples {
    /// Measures all levels in closed loops. Returns the rate at the highest level.
    async fn measure_levels(
        &mut self,
        context: &Context,
        mixed: &mut MixedServer,
        operation: Operation,
    ) -> Outcome<f64> {
        let mut knee = 0.0;
        for (at, users) in LEVELS.into_iter().enumerate() {
            let (seen, busy) = closed(context, mixed, &[(operation, 1.0)], users, CLOSED_MILLIS).await?;
            knee = seen.per_second;
            self.rates[at].push(knee);
            self.busy[at].push(busy);
        }
        Ok(knee)
    }

    async fn measure(&mut self, context: &Context, mixed: &mut MixedServer, operation: Operation) -> Outcome {
        let mix = [(operation, 1.0)];
        let knee = self.measure_levels(context, mixed, operation).await?;
        for (open, part) in self.open.iter_mut().zip(PARTS) {
            open.measure(context, mixed, &mix, knee * part, OPEN_MILLIS).await?;
        }
        Ok(())
    }

    /// Model parameters of each operation alone.
    fn all_alone(singles: [OperationSamples; Operation::ALL.len()]) -> Vec<SoloMeasurement> {
        let waiting = Operation::ALL.into_iter().zip(&singles).filter(|(operation, _)| !operation.is_read_only());
        let busiest = waiting.flat_map(|(_, single)| &single.busy).map(Samples::midmean).fold(0.0, f64::max);
        singles.into_iter().map(|single| single.alone(busiest)).collect()
    }

    /// `busiest`: highest number of busy processors.
    fn alone(self, busiest: f64) -> SoloMeasurement {
        let level = |((users, rates), busy): ((usize, &Samples), &Samples)| {
            // Where the system does not provide CPU time, assume no idle time.
            let idle = if busiest > 0.0 { (1.0 - busy.midmean() / busiest).max(0.0) } else { 0.0 };
            ClosedLoopLevel { users, per_second: rates.midmean(), idle }
        };
        let levels = LEVELS.into_iter().zip(&self.rates).zip(&self.busy).map(level).collect();
        let open =
            PARTS.into_iter().zip(self.open).map(|(part, open)| OpenLoopRun { part, times: open.times() }).collect();
        SoloMeasurement { levels, open }
    }
}

impl MixSamples {
    async fn measure(&mut self, context: &Context, mixed: &mut MixedServer, mix: &[(Operation, f64)]) -> Outcome {
        let (seen, _) = closed(context, mixed, mix, USERS, CLOSED_MILLIS).await?;
        self.rates.push(seen.per_second);
        self.by_operation.resize(mix.len(), (0.0, 0));
        for (all, (sum, count)) in self.by_operation.iter_mut().zip(&seen.by_operation) {
            *all = (all.0 + sum, all.1 + count);
        }
        self.open.measure(context, mixed, mix, seen.per_second * BELOW_KNEE, OPEN_MILLIS).await
    }
}

/// Index of an operation in [`Operation::ALL`].
fn index_of(operation: Operation) -> usize {
    Operation::ALL.iter().position(|known| *known == operation).expect("ALL is complete")
}

fn kind(alone: &[SoloMeasurement], operation: Operation, share: f64) -> MixEntry {
    MixEntry {
        share,
        alone: alone[index_of(operation)].clone(),
        commits: operation.commits(),
        only_reads: operation.is_read_only(),
        disturbs: operation.write_contention(),
    }
}

/// Predicted and measured mean duration of each operation in the closed loop.
fn means(
    mix: &[(Operation, f64)],
    kinds: &[MixEntry],
    predicted: &mix::MixThroughput,
    measured: &[(f64, u64)],
) -> String {
    let millis = |seconds: f64| rounded(seconds * 1e3, 3);
    let each = mix.iter().zip(measured).enumerate().map(|(at, ((operation, _), (sum, count)))| {
        let mean = predicted.mean(kinds, at);
        format!("{} {} ms predicted, {} measured", operation.word(), millis(mean), millis(sum / (*count).max(1) as f64))
    });
    format!("means: {}", each.collect::<Vec<_>>().join("; "))
}

/// Concurrency and latency of the receiver, which limit the delivery rate.
const SLOTS: usize = 16;
const ANSWER_MILLIS: u64 = 5;
/// Input rates as parts of the delivery capacity: during the overload, and afterwards.
const TOO_MUCH: f64 = 1.5;
const LESS: f64 = 0.5;
/// Publishing connections.
const PUBLISHERS: usize = 4;

/// Backlog over time, in seconds after the start.
type BacklogCurve = Vec<(f64, f64)>;

async fn backlog(context: &Context) -> Outcome<Figure> {
    let nature = |_| ReceiverSpeed { workers: SLOTS, millis: ANSWER_MILLIS };
    let station = DeliveryServer::start(context, nature).await?;
    // Delivery capacity, from a separate run: the cost vector.
    let users = station.users(USERS).await?;
    let (seen, _) = mixed_load::closed(users, &[1.0], phases(context, 15_000)).await?;
    // A run without deliveries would have failed.
    let capacity = (seen.per_second * f64::from(FEW_SUBSCRIBERS)).max(1.0);
    let lasts = Duration::from_millis(context.size(180_000, 1_500));
    let step = lasts.as_secs_f64() / 360.0;
    let most = (lasts.as_secs_f64() / step * 6.0) as usize;
    let load = (0..most).map(|at| if (at as f64 + 0.5) * step < lasts.as_secs_f64() { TOO_MUCH } else { LESS });
    let steps = fluid(load, step);
    let predicted: BacklogCurve =
        steps.iter().enumerate().map(|(at, done)| ((at + 1) as f64 * step, done.backlog * capacity)).collect();

    let measured = station.overload(capacity, lasts).await?;
    let peak = |curve: &BacklogCurve| curve.iter().map(|(_, waiting)| *waiting).fold(0.0, f64::max);
    let peaks = (peak(&predicted), peak(&measured));
    // A few deliveries are always in flight: the backlog counts as gone below a hundredth of its peak.
    let gone = |curve: &BacklogCurve, most: f64| {
        let after = curve.iter().position(|(_, waiting)| *waiting >= most).unwrap_or_default();
        let end = curve[after..].iter().find(|(_, waiting)| *waiting <= most / 100.0);
        end.map_or(f64::INFINITY, |(at, _)| *at - lasts.as_secs_f64())
    };
    let ends = (gone(&predicted, peaks.0), gone(&measured, peaks.1));
    let apart = measured.iter().map(|(at, waiting)| {
        let at_step = ((at / step) as usize).saturating_sub(1).min(predicted.len() - 1);
        (predicted[at_step].1 - waiting).abs() / peaks.1.max(1.0)
    });
    let errors = [peaks, ends].map(|(predicted, measured)| (predicted / measured - 1.0).abs());
    let mut figure = Figure::new("of the measured", [errors[0].max(errors[1])].into_iter().collect())
        .with_condition(format!(
            "{} % of the delivery capacity for {} s, then {} %",
            TOO_MUCH * 100.0,
            lasts.as_secs_f64(),
            LESS * 100.0
        ))
        .with_condition(format!(
            "receiver with {SLOTS} slots and {ANSWER_MILLIS} ms latency, {} notifications/s in a separate run, {FEW_SUBSCRIBERS} for each event",
            rounded(capacity, 4)
        ))
        .with_condition(format!(
            "error of the peak {:.1} %, of its end {:.1} %, of the curve at most {:.1} % of the peak",
            errors[0] * 100.0,
            errors[1] * 100.0,
            apart.fold(0.0, f64::max) * 100.0
        ))
        .with_condition("open loop");
    figure.predictions.push(Prediction::new("backlog: peak".into(), "notifications", peaks));
    figure.predictions.push(Prediction::new("backlog: gone after the peak".into(), "s", ends));
    Ok(figure)
}

impl DeliveryServer {
    /// Publishes an overload for this time, then less until all is delivered. Returns the backlog over time.
    async fn overload(&self, capacity: f64, lasts: Duration) -> Outcome<BacklogCurve> {
        let (begun, before) = (Instant::now(), self.tally.delivered.load(Ordering::Relaxed));
        let each = f64::from(FEW_SUBSCRIBERS);
        let (published, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        // The event number determines its due time: the first ones are due faster.
        let due = |number: u64| {
            let (number, first) = (number as f64 * each, capacity * TOO_MUCH * lasts.as_secs_f64());
            let beyond = (number - first).max(0.0) / (capacity * LESS);
            Duration::from_secs_f64(number.min(first) / (capacity * TOO_MUCH) + beyond)
        };
        let next = AtomicU64::new(0);
        let publisher = |_| async {
            let broke = |error: std::io::Error| Failure::failed("a connection of the load broke").because(&error);
            let mut connection = Connection::open(self.server.port).await.map_err(broke)?;
            while !is_over.load(Ordering::Relaxed) {
                let number = next.fetch_add(1, Ordering::Relaxed);
                precise_timer::until(begun + due(number)).await;
                let request = mixed_load::news(&self.server.key, "few", u64::MAX - number);
                let (status, body) = connection.exchange(&request).await.map_err(broke)?;
                mixed_load::check_status(status, &body)?;
                published.fetch_add(FEW_SUBSCRIBERS.into(), Ordering::Relaxed);
            }
            Ok::<_, Failure>(())
        };
        let watch = async {
            let (mut curve, mut most) = (BacklogCurve::new(), 0.0_f64);
            while begun.elapsed() < lasts * 6 {
                tokio::time::sleep(lasts / 400).await;
                let delivered = self.tally.delivered.load(Ordering::Relaxed) - before;
                let waiting = published.load(Ordering::Relaxed).saturating_sub(delivered) as f64;
                curve.push((begun.elapsed().as_secs_f64(), waiting));
                most = most.max(waiting);
                if begun.elapsed() > lasts && waiting <= most / 100.0 {
                    break;
                }
            }
            is_over.store(true, Ordering::Relaxed);
            Ok(curve)
        };
        let publishing = futures_util::future::try_join_all((0..PUBLISHERS).map(publisher));
        let (curve, _) = futures_util::future::try_join(watch, publishing).await?;
        // Events published too late invalidate the predicted load.
        let came = published.load(Ordering::Relaxed) as f64 / each;
        let wanted = next.load(Ordering::Relaxed).saturating_sub(PUBLISHERS as u64) as f64;
        let end = curve.last().map_or(0.0, |(at, _)| *at);
        let late = end - due(wanted as u64).as_secs_f64();
        if came < 1.0 || late > end * 0.05 + 0.5 {
            return Err(Failure::failed(format!(
                "the load generator was too slow: {came} events were published, the last {late:.1} s late"
            )));
        }
        Ok(curve)
    }
}
