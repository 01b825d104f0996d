//! What mixes of operations do and how long they take, predicted from what each operation does alone, and measured. Beside it
//! a backlog: how high it gets and when it is gone, by the queues of `tocsin capacity`.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use tocsin_capacity::{
    mix::{self, Alone, Kind, Level, Open},
    queue::{Times, fluid},
};

use super::{Bench, Measuring};
use crate::{
    bench::{
        context::Context,
        crew::{self, Errand, FEW_READERS, Seen, Station, Stint, World},
        far_end::Nature,
        figure::{Figure, Predicted, Samples, rounded},
        on_time,
        server::processor_seconds,
        wire::Connection,
    },
    examples::stock::SEED,
    failure::{Failure, Outcome},
};

/// Mixes.
pub const ERROR: Bench = Bench {
    name: "plan.error",
    about: "median part by which the predicted throughput of 12 mixes misses the measured, from what single operations do",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(error(context)) },
};

/// What the model of mixes takes from runs of pairs.
pub const PAIRS: Bench = Bench {
    name: "plan.pairs",
    about: "median part by which the predicted throughput of each two of 10 operations misses the measured, beside it that of groups of more, and how much reads lose beside each other operation",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(pairs(context)) },
};

/// A backlog.
pub const BACKLOG: Bench = Bench {
    name: "plan.backlog",
    about: "the larger part by which the predicted peak and end of a backlog miss the measured: too much for 3 minutes, then less",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(backlog(context)) },
};

/// Users who begin again at once: enough to keep the machine busy.
const USERS: usize = 16;
/// Users who wait for what is due.
const IN_WAITING: usize = 64;
/// Of the throughput at the knee: where latencies are looked at.
const BELOW_KNEE: f64 = 0.6;

/// Users of the runs of one operation: fewer together share less.
const LEVELS: [usize; 5] = [1, 2, 4, 8, 16];
/// Parts of the knee at which one operation comes at random.
const PARTS: [f64; 2] = [0.3, BELOW_KNEE];
/// Rounds of a turn; in each, each operation and each mix is measured for a short time.
const ROUNDS: u64 = 10;
const WARMING_MILLIS: u64 = 1_000;
/// All that is compared runs equally long, so that none is warmer than another.
const SETTLING_MILLIS: u64 = 250;
const CLOSED_MILLIS: u64 = 450;
const OPEN_MILLIS: u64 = 500;
/// Parts of the operations of a round, from the quickest to the slowest.
const FRACTIONS: u32 = 200;
/// Rounds of a turn of pairs.
const PAIR_ROUNDS: u64 = 6;
/// A turn takes some twelve minutes, one of pairs eight.
const TURNS_MAX: usize = 4;
/// What a prediction should not miss by more.
const THROUGHPUT_GOAL: f64 = 0.1;
const P95_GOAL: f64 = 0.25;
/// Less than this part of an offered rate is told; random arrivals in a short time are a little more or less.
const REACHED: f64 = 0.9;

/// A mix: its name, and percent of each errand.
type Mix = (&'static str, &'static [(Errand, f64)]);

/// None of them takes part in finding out what an operation costs.
const MIXES: [Mix; 12] = [
    ("stock", &[(Errand::Event, 70.0), (Errand::Stock, 30.0)]),
    ("broadcast", &[(Errand::Event, 85.0), (Errand::Broadcast, 15.0)]),
    ("intake", &[(Errand::Event, 60.0), (Errand::Events, 40.0)]),
    ("directory", &[(Errand::Search, 75.0), (Errand::Modify, 12.0), (Errand::Add, 3.0), (Errand::Bind, 10.0)]),
    ("directory, written", &[(Errand::Search, 40.0), (Errand::Modify, 60.0)]),
    ("exchange", &[(Errand::Trip, 80.0), (Errand::Event, 20.0)]),
    ("sync storm", &[(Errand::Session, 40.0), (Errand::Search, 60.0)]),
    ("sync and intake", &[(Errand::Session, 25.0), (Errand::Event, 75.0)]),
    ("stock and directory", &[(Errand::Stock, 25.0), (Errand::Search, 60.0), (Errand::Modify, 15.0)]),
    ("stock and exchange", &[(Errand::Stock, 30.0), (Errand::Trip, 70.0)]),
    ("exchange and directory", &[(Errand::Trip, 50.0), (Errand::Search, 50.0)]),
    (
        "everything",
        &[
            (Errand::Event, 25.0),
            (Errand::Stock, 10.0),
            (Errand::Search, 35.0),
            (Errand::Modify, 10.0),
            (Errand::Trip, 17.0),
            (Errand::Session, 3.0),
        ],
    ),
];

/// What one errand does alone, round by round.
#[derive(Default)]
struct Single {
    rates: [Samples; LEVELS.len()],
    /// Processors that were busy.
    busy: [Samples; LEVELS.len()],
    open: [Opened; PARTS.len()],
}

/// What the rounds of an open loop gave.
#[derive(Default)]
struct Opened {
    /// How long operations took, round by round.
    rounds: Vec<Times>,
    /// What was done of what was offered.
    reached: Samples,
}

/// What a mix does, round by round.
#[derive(Default)]
struct Together {
    rates: Samples,
    open: Opened,
    /// Seconds that all of each errand took in the closed loop, and how many there were.
    by_errand: Vec<(f64, u64)>,
}

async fn error(context: &Context) -> Outcome<Figure> {
    let mut world = World::start(context, context.size(50_000, 500), IN_WAITING).await?;
    let mut singles: [Single; Errand::ALL.len()] = Default::default();
    let mut mixes: [Together; MIXES.len()] = Default::default();
    warm_up(context, &mut world).await?;
    let mut chance = fastrand::Rng::with_seed(SEED);
    for _ in context.turns().take(TURNS_MAX) {
        // What is compared is measured in parts that alternate: a machine that others use as well has fast and slow times. In
        // another order each time, since what ran just before leaves work behind: rows to fold, caches, pages to write.
        for _ in 0..context.size(ROUNDS, 1) {
            for part in shuffled(Errand::ALL.len() + MIXES.len(), &mut chance) {
                match part.checked_sub(Errand::ALL.len()) {
                    None => singles[part].measure(context, &mut world, Errand::ALL[part]).await?,
                    Some(mix) => mixes[mix].measure(context, &mut world, MIXES[mix].1).await?,
                }
            }
        }
    }
    let alone = Single::all_alone(singles);
    let (mut rates, mut p95, mut apart) = (Vec::new(), Vec::new(), Vec::new());
    let mut predictions = Vec::new();
    for (together, (name, mix)) in mixes.into_iter().zip(MIXES) {
        let of = mix.iter().map(|(errand, share)| format!("{share} {}", errand.word())).collect::<Vec<_>>().join(", ");
        let kinds: Vec<Kind> = mix.iter().map(|(errand, share)| kind(&alone, *errand, *share)).collect();
        let outcome = mix::closed(&kinds, USERS);
        let measured = together.rates.midmean();
        let part = BELOW_KNEE * measured / outcome.per_second.max(1e-9);
        let times = [mix::open(&kinds, USERS, part), together.open.times()].map(|times| times.quantile(0.95));
        let reached = together.open.reached.median();
        if reached < REACHED {
            context.tell(format_args!(
                "   {name}: of the offered rate only {:.0} % were reached: its p95 is that of a load that waits",
                reached * 100.0
            ));
        }
        let both = [
            Predicted::new(format!("{name}: {of}"), "operations/s", (outcome.per_second, measured)),
            Predicted::new(format!("{name}: p95"), "ms", (times[0] * 1e3, times[1] * 1e3)),
        ];
        rates.push((outcome.per_second / measured.max(1e-9) - 1.0).abs());
        p95.push((times[0] / times[1].max(1e-9) - 1.0).abs());
        apart.extend(together.rates.halves_apart());
        context.tell(format_args!("   {name}: {}", told(mix, &kinds, &outcome, &together.by_errand)));
        predictions.extend(both);
    }
    let within = |errors: &[f64], most: f64| errors.iter().filter(|error| **error <= most).count();
    let (within_rates, within_p95) = (within(&rates, THROUGHPUT_GOAL), within(&p95, P95_GOAL));
    let [rates, p95, apart] = [rates, p95, apart].map(|errors| errors.into_iter().collect::<Samples>());
    let mut figure = Figure::new("of the measured throughput", rates.clone())
        .under(format!("{} mixes of {} operations, none of which was used to fit", MIXES.len(), Errand::ALL.len()))
        .under(format!(
            "throughput of {USERS} users in a closed loop: largest error {}, {} mixes within {}",
            percent(rates.high()),
            within_rates,
            percent(THROUGHPUT_GOAL)
        ))
        .under(noise(&apart))
        .under(format!(
            "p95 in an open loop with random arrivals at {} % of that: median error {}, largest {}, {} mixes within {}",
            BELOW_KNEE * 100.0,
            percent(p95.median()),
            percent(p95.high()),
            within_p95,
            percent(P95_GOAL)
        ))
        .under(format!(
            "each operation alone with {LEVELS:?} users and at random arrivals, in {ROUNDS} rounds a turn that alternate with the mixes; load and server share the cores"
        ));
    figure.predictions = predictions;
    Ok(figure)
}

fn percent(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

/// How far the machine differs from itself.
fn noise(apart: &Samples) -> String {
    match apart.len() {
        0 => "one round: how much of it is the machine's is not known".to_owned(),
        _ => format!(
            "measured in every other round and in those between, a mix differs by {} in the median",
            percent(apart.median())
        ),
    }
}

/// The numbers below `count` in any order.
fn shuffled(count: usize, chance: &mut fastrand::Rng) -> Vec<usize> {
    let mut all: Vec<usize> = (0..count).collect();
    chance.shuffle(&mut all);
    all
}

/// Connections, caches, files. Gives what each errand does in a second.
async fn warm_up(context: &Context, world: &mut World) -> Outcome<Vec<f64>> {
    let mut rates = Vec::new();
    for errand in Errand::ALL {
        rates.push(closed(context, world, &[(errand, 1.0)], USERS, WARMING_MILLIS).await?.0.per_second);
    }
    Ok(rates)
}

/// More of them together; none is a mix above.
const GROUPS: [&[Errand]; 13] = {
    use Errand::{Add, Bind, Broadcast, Event, Events, Modify, Search, Session, Stock, Trip};
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
        &Errand::ALL,
    ]
};

/// Errands that have as much time each.
struct Group {
    mix: Vec<(Errand, f64)>,
    rates: Samples,
}

impl Group {
    fn is_pair(&self) -> bool {
        self.mix.len() == 2
    }
}

async fn pairs(context: &Context) -> Outcome<Figure> {
    let mut world = World::start(context, context.size(50_000, 500), IN_WAITING).await?;
    let rates = warm_up(context, &mut world).await?;
    let share = |errand: &Errand| (*errand, rates[place(*errand)]);
    let pairs = Errand::ALL.into_iter().enumerate();
    let pairs = pairs.flat_map(|(at, errand)| Errand::ALL[..at].iter().map(move |before| [*before, errand]));
    let of = |errands: &[Errand]| Group { mix: errands.iter().map(share).collect(), rates: Samples::default() };
    let mut groups: Vec<Group> = pairs.map(|pair| of(&pair)).chain(GROUPS.iter().map(|errands| of(errands))).collect();
    let mut singles: [Single; Errand::ALL.len()] = Default::default();
    let mut chance = fastrand::Rng::with_seed(SEED);
    for _ in context.turns().take(TURNS_MAX) {
        for _ in 0..context.size(PAIR_ROUNDS, 1) {
            for part in shuffled(Errand::ALL.len() + groups.len(), &mut chance) {
                let Some(at) = part.checked_sub(Errand::ALL.len()) else {
                    singles[part].measure_levels(context, &mut world, Errand::ALL[part]).await?;
                    continue;
                };
                let group = &mut groups[at];
                let (seen, _) = closed(context, &mut world, &group.mix, USERS, CLOSED_MILLIS).await?;
                group.rates.push(seen.per_second);
            }
        }
    }
    let alone = Single::all_alone(singles);
    let (mut pair_errors, mut group_errors) = (Samples::default(), Samples::default());
    let mut losses: [Samples; Errand::ALL.len()] = Default::default();
    let mut predictions = Vec::new();
    for group in &groups {
        let kinds: Vec<Kind> = group.mix.iter().map(|(errand, share)| kind(&alone, *errand, *share)).collect();
        let (predicted, measured) = (mix::closed(&kinds, USERS).per_second, group.rates.midmean().max(1e-9));
        let errors = if group.is_pair() { &mut pair_errors } else { &mut group_errors };
        errors.push((predicted / measured - 1.0).abs());
        let lost = if group.is_pair() { lost(&kinds, measured) } else { None };
        for (errand, _) in group.mix.iter().filter(|(errand, _)| !errand.only_reads()) {
            losses[place(*errand)].extend(lost);
        }
        let what: Vec<&str> = group.mix.iter().map(|(errand, _)| errand.word()).collect();
        predictions.push(Predicted::new(what.join(" and "), "operations/s", (predicted, measured)));
    }
    let lost = Errand::ALL.into_iter().zip(&losses).filter(|(errand, _)| !errand.only_reads());
    let lost =
        lost.map(|(errand, lost)| format!("{} {} ({})", errand.word(), rounded(lost.median(), 2), errand.disturbs()));
    let lost = lost.collect::<Vec<_>>().join(", ");
    let apart: Samples = groups.iter().filter_map(|group| group.rates.halves_apart()).collect();
    let mut figure = Figure::new("of the measured throughput", pair_errors)
        .under(format!(
            "each two of {} operations, with half of the time each; {USERS} users in a closed loop",
            Errand::ALL.len()
        ))
        .under(format!(
            "{} groups of 3 to {} with as much time each: median error {}, largest {}",
            GROUPS.len(),
            Errand::ALL.len(),
            percent(group_errors.median()),
            percent(group_errors.high())
        ))
        .under(format!("reads lose by these runs (and in the model) beside {lost}"))
        .under(noise(&apart))
        .under("in rounds that alternate; load and server share the cores");
    figure.predictions = predictions;
    Ok(figure)
}

/// What part of its speed the machine lost because one of both only reads, if so; see [`Kind::disturbs`].
fn lost(kinds: &[Kind], measured: f64) -> Option<f64> {
    let undisturbed: Vec<Kind> = kinds.iter().map(|kind| Kind { disturbs: 0.0, ..kind.clone() }).collect();
    let outcome = mix::closed(&undisturbed, USERS);
    let is_one = kinds.iter().filter(|kind| kind.only_reads).count() == 1;
    // How often an operation follows one of the other kind.
    let changes = 2.0 * outcome.under_way.iter().map(|count| count / USERS as f64).product::<f64>();
    is_one.then(|| (1.0 - measured / outcome.per_second.max(1e-9)) / changes.max(1e-9))
}

/// So many milliseconds, and before them a little: users just came, and what they ask for was not asked for lately.
fn stint(context: &Context, millis: u64) -> Stint {
    let (settles, lasts) = (context.size(SETTLING_MILLIS, 20), context.size(millis, 60));
    Stint { settles: Duration::from_millis(settles), lasts: Duration::from_millis(lasts) }
}

/// A closed loop for so many milliseconds. Gives what was seen, and how many processors were busy with it.
async fn closed(
    context: &Context,
    world: &mut World,
    mix: &[(Errand, f64)],
    users: usize,
    millis: u64,
) -> Outcome<(Seen, f64)> {
    let (errands, shares): (Vec<Errand>, Vec<f64>) = mix.iter().copied().unzip();
    let users = world.users(&errands, users).await?;
    let server = world.server.pid();
    let processors = || processor_seconds(server) + processor_seconds(std::process::id());
    let (begun, before) = (Instant::now(), processors());
    let (seen, users) = crew::closed(users, &shares, stint(context, millis)).await?;
    let busy = (processors() - before) / begun.elapsed().as_secs_f64();
    world.dismiss(users);
    Ok((seen, busy))
}

impl Opened {
    /// How long operations take in the middle half of the rounds, for every part of them: a machine that stops once for a moment
    /// would otherwise decide over the slowest of all.
    fn times(&self) -> Times {
        let fractions = (0..FRACTIONS).map(|at| (f64::from(at) + 0.5) / f64::from(FRACTIONS));
        fractions.map(|of| self.rounds.iter().map(|times| times.quantile(of)).collect::<Samples>().midmean()).collect()
    }

    /// An open loop at so many in a second, for so many milliseconds.
    async fn measure(
        &mut self,
        context: &Context,
        world: &mut World,
        mix: &[(Errand, f64)],
        rate: f64,
        millis: u64,
    ) -> Outcome {
        let (errands, shares): (Vec<Errand>, Vec<f64>) = mix.iter().copied().unzip();
        let users = world.users(&errands, IN_WAITING).await?;
        let (seen, users) = crew::open(users, &shares, rate, stint(context, millis)).await?;
        world.dismiss(users);
        self.rounds.push(seen.times.into_iter().collect());
        self.reached.push(seen.per_second / rate.max(1e-9));
        Ok(())
    }
}

impl Single {
    /// In closed loops. Gives what most users do.
    async fn measure_levels(&mut self, context: &Context, world: &mut World, errand: Errand) -> Outcome<f64> {
        let mut knee = 0.0;
        for (at, users) in LEVELS.into_iter().enumerate() {
            let (seen, busy) = closed(context, world, &[(errand, 1.0)], users, CLOSED_MILLIS).await?;
            knee = seen.per_second;
            self.rates[at].push(knee);
            self.busy[at].push(busy);
        }
        Ok(knee)
    }

    async fn measure(&mut self, context: &Context, world: &mut World, errand: Errand) -> Outcome {
        let mix = [(errand, 1.0)];
        let knee = self.measure_levels(context, world, errand).await?;
        for (open, part) in self.open.iter_mut().zip(PARTS) {
            open.measure(context, world, &mix, knee * part, OPEN_MILLIS).await?;
        }
        Ok(())
    }

    /// What each errand does alone.
    fn all_alone(singles: [Single; Errand::ALL.len()]) -> Vec<Alone> {
        let waiting = Errand::ALL.into_iter().zip(&singles).filter(|(errand, _)| !errand.only_reads());
        let busiest = waiting.flat_map(|(_, single)| &single.busy).map(Samples::midmean).fold(0.0, f64::max);
        singles.into_iter().map(|single| single.alone(busiest)).collect()
    }

    /// `busiest`: processors that are busy at most.
    fn alone(self, busiest: f64) -> Alone {
        let level = |((users, rates), busy): ((usize, &Samples), &Samples)| {
            // Where the system does not tell, none is known to be idle.
            let idle = if busiest > 0.0 { (1.0 - busy.midmean() / busiest).max(0.0) } else { 0.0 };
            Level { users, per_second: rates.midmean(), idle }
        };
        let levels = LEVELS.into_iter().zip(&self.rates).zip(&self.busy).map(level).collect();
        let open = PARTS.into_iter().zip(self.open).map(|(part, open)| Open { part, times: open.times() }).collect();
        Alone { levels, open }
    }
}

impl Together {
    async fn measure(&mut self, context: &Context, world: &mut World, mix: &[(Errand, f64)]) -> Outcome {
        let (seen, _) = closed(context, world, mix, USERS, CLOSED_MILLIS).await?;
        self.rates.push(seen.per_second);
        self.by_errand.resize(mix.len(), (0.0, 0));
        for (all, (sum, count)) in self.by_errand.iter_mut().zip(&seen.by_errand) {
            *all = (all.0 + sum, all.1 + count);
        }
        self.open.measure(context, world, mix, seen.per_second * BELOW_KNEE, OPEN_MILLIS).await
    }
}

/// Where it stands among all.
fn place(errand: Errand) -> usize {
    Errand::ALL.iter().position(|known| *known == errand).expect("all errands are among all")
}

fn kind(alone: &[Alone], errand: Errand, share: f64) -> Kind {
    Kind {
        share,
        alone: alone[place(errand)].clone(),
        commits: errand.commits(),
        only_reads: errand.only_reads(),
        disturbs: errand.disturbs(),
    }
}

/// Where the model misses: how long each operation took in the closed loop.
fn told(mix: &[(Errand, f64)], kinds: &[Kind], predicted: &mix::Outcome, measured: &[(f64, u64)]) -> String {
    let millis = |seconds: f64| rounded(seconds * 1e3, 3);
    let each = mix.iter().zip(measured).enumerate().map(|(at, ((errand, _), (sum, count)))| {
        let mean = predicted.mean(kinds, at);
        format!("{} {} ms predicted, {} measured", errand.word(), millis(mean), millis(sum / (*count).max(1) as f64))
    });
    format!("in the mean {}", each.collect::<Vec<_>>().join("; "))
}

/// Places of a far end, and how long it takes for one: what bounds the deliveries.
const PLACES: usize = 16;
const ANSWER_MILLIS: u64 = 5;
/// Of what can be delivered: what comes in while there is too much, and afterwards.
const TOO_MUCH: f64 = 1.5;
const LESS: f64 = 0.5;
/// Connections that publish.
const PUBLISHERS: usize = 4;

/// How much waited at which time, in seconds after the beginning.
type Curve = Vec<(f64, f64)>;

async fn backlog(context: &Context) -> Outcome<Figure> {
    let nature = |_| Nature { workers: PLACES, millis: ANSWER_MILLIS };
    let station = Station::start(context, nature).await?;
    // What can be delivered, from a run of its own: the vector.
    let users = station.users(USERS).await?;
    let (seen, _) = crew::closed(users, &[1.0], stint(context, 15_000)).await?;
    // A run in which nothing was told would have ended with an error.
    let capacity = (seen.per_second * f64::from(FEW_READERS)).max(1.0);
    let lasts = Duration::from_millis(context.size(180_000, 1_500));
    let step = lasts.as_secs_f64() / 360.0;
    let most = (lasts.as_secs_f64() / step * 6.0) as usize;
    let load = (0..most).map(|at| if (at as f64 + 0.5) * step < lasts.as_secs_f64() { TOO_MUCH } else { LESS });
    let steps = fluid(load, step);
    let predicted: Curve =
        steps.iter().enumerate().map(|(at, done)| ((at + 1) as f64 * step, done.backlog * capacity)).collect();

    let measured = station.overload(capacity, lasts).await?;
    let peak = |curve: &Curve| curve.iter().map(|(_, waiting)| *waiting).fold(0.0, f64::max);
    let peaks = (peak(&predicted), peak(&measured));
    // Some are always on their way: gone is what is left of a hundredth of the most.
    let gone = |curve: &Curve, most: f64| {
        let after = curve.iter().position(|(_, waiting)| *waiting >= most).unwrap_or_default();
        let end = curve[after..].iter().find(|(_, waiting)| *waiting <= most / 100.0);
        end.map_or(f64::INFINITY, |(at, _)| *at - lasts.as_secs_f64())
    };
    let ends = (gone(&predicted, peaks.0), gone(&measured, peaks.1));
    let apart = measured.iter().map(|(at, waiting)| {
        let place = ((at / step) as usize).saturating_sub(1).min(predicted.len() - 1);
        (predicted[place].1 - waiting).abs() / peaks.1.max(1.0)
    });
    let errors = [peaks, ends].map(|(predicted, measured)| (predicted / measured - 1.0).abs());
    let mut figure = Figure::new("of the measured", [errors[0].max(errors[1])].into_iter().collect())
        .under(format!(
            "{} % of what can be delivered for {} s, then {} %",
            TOO_MUCH * 100.0,
            lasts.as_secs_f64(),
            LESS * 100.0
        ))
        .under(format!(
            "{PLACES} places of a far end that takes {ANSWER_MILLIS} ms, {} notifications/s by a run of their own, {FEW_READERS} for each event",
            rounded(capacity, 4)
        ))
        .under(format!(
            "peak misses by {:.1} %, the time until it is gone by {:.1} %, the curve by at most {:.1} % of the peak",
            errors[0] * 100.0,
            errors[1] * 100.0,
            apart.fold(0.0, f64::max) * 100.0
        ))
        .under("open loop");
    figure.predictions.push(Predicted::new("backlog: peak".into(), "notifications", peaks));
    figure.predictions.push(Predicted::new("backlog: gone after the peak".into(), "s", ends));
    Ok(figure)
}

impl Station {
    /// Brings too much for this time, then less until all is told. Gives what waited.
    async fn overload(&self, capacity: f64, lasts: Duration) -> Outcome<Curve> {
        let (begun, before) = (Instant::now(), self.tally.told.load(Ordering::Relaxed));
        let each = f64::from(FEW_READERS);
        let (published, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        // The number of an event is when it is due: those of the beginning come faster.
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
                on_time::until(begun + due(number)).await;
                let request = crew::news(&self.server.key, "few", u64::MAX - number);
                let (status, body) = connection.exchange(&request).await.map_err(broke)?;
                crew::must_be_fine(status, &body)?;
                published.fetch_add(FEW_READERS.into(), Ordering::Relaxed);
            }
            Ok::<_, Failure>(())
        };
        let watch = async {
            let (mut curve, mut most) = (Curve::new(), 0.0_f64);
            while begun.elapsed() < lasts * 6 {
                tokio::time::sleep(lasts / 400).await;
                let told = self.tally.told.load(Ordering::Relaxed) - before;
                let waiting = published.load(Ordering::Relaxed).saturating_sub(told) as f64;
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
        // What came too late was not the load that was predicted.
        let came = published.load(Ordering::Relaxed) as f64 / each;
        let wanted = next.load(Ordering::Relaxed).saturating_sub(PUBLISHERS as u64) as f64;
        let end = curve.last().map_or(0.0, |(at, _)| *at);
        let late = end - due(wanted as u64).as_secs_f64();
        if came < 1.0 || late > end * 0.05 + 0.5 {
            return Err(Failure::failed(format!(
                "the load could not be kept up: {came} events were published, the last {late:.1} s late"
            )));
        }
        Ok(curve)
    }
}
