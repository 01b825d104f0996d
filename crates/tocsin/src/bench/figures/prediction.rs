//! What mixes of operations do and how long they take, predicted from what each operation does alone, and measured: the
//! error of the model that `tocsin capacity` stands on. Beside it a backlog: how high it gets and when it is gone.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use tocsin_capacity::{
    mix::{self, Alone, Arrivals, Kind, Open, simulate},
    queue::fluid,
};

use super::{Bench, Measuring};
use crate::{
    bench::{
        context::Context,
        crew::{self, Errand, FEW_READERS, Seen, Station, User, World},
        far_end::Nature,
        figure::{Figure, Predicted, Samples, rounded},
        on_time,
        wire::Connection,
    },
    failure::{Failure, Outcome},
};

/// Mixes.
pub const ERROR: Bench = Bench {
    name: "plan.error",
    about: "median part by which the predicted throughput of 12 mixes misses the measured, from vectors of single operations",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(error(context)) },
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

/// A turn takes some three minutes.
const TURNS_MAX: usize = 3;
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

/// What was predicted and measured of a mix, turn by turn.
#[derive(Default)]
struct Both {
    rates: (Samples, Samples),
    p95: (Samples, Samples),
}

async fn error(context: &Context) -> Outcome<Figure> {
    let mut world = World::start(context, context.size(50_000, 500), IN_WAITING).await?;
    let mut mixes: Vec<Both> = MIXES.iter().map(|_| Both::default()).collect();
    // Warms up: connections, caches, files.
    for errand in Errand::ALL {
        alone(context, &mut world, errand).await?;
    }
    for _ in context.turns().take(TURNS_MAX) {
        for (both, (name, mix)) in mixes.iter_mut().zip(MIXES) {
            measure(context, &mut world, mix, both).await?;
            context.tell(format_args!("   {}", told(name, both)));
        }
    }
    let percent = |value: f64| format!("{:+.1} %", value * 100.0);
    let rates: Samples = mixes.iter().map(|both| missed(&both.rates).abs()).collect();
    let p95: Samples = mixes.iter().map(|both| missed(&both.p95).abs()).collect();
    let mut figure = Figure::new("of the measured throughput", rates.clone())
        .under(format!("{} mixes of {} operations, none of which was used to fit", MIXES.len(), Errand::ALL.len()))
        .under(format!("throughput of {USERS} users in a closed loop: largest error {}", percent(rates.high())))
        .under(format!(
            "p95 in an open loop with random arrivals at {} % of that: median error {}, largest {}",
            BELOW_KNEE * 100.0,
            percent(p95.median()),
            percent(p95.high())
        ))
        .under("vectors of each operation alone, one user, 16, and random arrivals, measured just before the mix; load and server share the cores");
    for (both, (name, mix)) in mixes.iter().zip(MIXES) {
        let of = mix.iter().map(|(errand, share)| format!("{share} {}", errand.word())).collect::<Vec<_>>().join(", ");
        figure.predictions.push(Predicted::new(format!("{name}: {of}"), "operations/s", median(&both.rates)));
        let (predicted, measured) = median(&both.p95);
        figure.predictions.push(Predicted::new(format!("{name}: p95"), "ms", (predicted * 1e3, measured * 1e3)));
    }
    Ok(figure)
}

fn median(pair: &(Samples, Samples)) -> (f64, f64) {
    (pair.0.median(), pair.1.median())
}

/// By which part the prediction misses. Each turn is compared with its own vectors, as machines have fast and slow phases.
fn missed((predicted, measured): &(Samples, Samples)) -> f64 {
    predicted.ratios(measured).median() - 1.0
}

fn told(name: &str, both: &Both) -> String {
    let ((rate, rate_measured), (p95, p95_measured)) = (median(&both.rates), median(&both.p95));
    format!(
        "{name}: {}/s predicted, {}/s measured ({:+.1} %); p95 {} ms predicted, {} ms measured ({:+.1} %)",
        rounded(rate, 4),
        rounded(rate_measured, 4),
        missed(&both.rates) * 100.0,
        rounded(p95 * 1e3, 3),
        rounded(p95_measured * 1e3, 3),
        missed(&both.p95) * 100.0
    )
}

/// Each of its operations alone, then all of them together.
async fn measure(context: &Context, world: &mut World, mix: &[(Errand, f64)], both: &mut Both) -> Outcome {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut kinds = Vec::new();
    for (errand, share) in mix {
        let alone = alone(context, world, *errand).await?;
        kinds.push((*share, Kind::of(&alone, errand.writer(), cores)));
    }
    let (errands, shares): (Vec<Errand>, Vec<f64>) = mix.iter().copied().unzip();
    let time = Duration::from_millis(context.size(3_000, 150));
    let users = world.users(&errands, USERS).await?;
    let (before, begun) = (world.processor(), Instant::now());
    let (seen, users) = crew::closed(users, &shares, time).await?;
    let busy = (world.processor() - before) / (begun.elapsed().as_secs_f64() * cores as f64);
    world.dismiss(users);
    let predicted = simulate(&kinds, cores, Arrivals::Closed { users: USERS });
    tell_apart(context, &errands, &seen, &predicted, busy);
    both.rates.0.push(predicted.per_second);
    both.rates.1.push(seen.per_second);

    let rate = seen.per_second * BELOW_KNEE;
    let users = world.users(&errands, IN_WAITING).await?;
    let (seen, users) = crew::open(users, &shares, rate, time * 4 / 3).await?;
    world.dismiss(users);
    both.p95.0.push(simulate(&kinds, cores, Arrivals::Open { rate }).times.quantile(0.95));
    both.p95.1.push(seen.quantile(0.95));
    if seen.per_second < rate * REACHED {
        context.tell(format_args!(
            "   of {rate:.0}/s only {:.0}/s were REACHED: the p95 is that of a load that waits",
            seen.per_second
        ));
    }
    Ok(())
}

/// Where the model misses: how long each operation took in the mix, and how busy processors were.
fn tell_apart(context: &Context, errands: &[Errand], seen: &Seen, predicted: &mix::Outcome, busy: f64) {
    let millis = |seconds: f64| rounded(seconds * 1e3, 3);
    let each = errands.iter().zip(&seen.by_errand).zip(&predicted.means).map(|((errand, (sum, count)), mean)| {
        format!("{} {} ms, {} measured", errand.word(), millis(*mean), millis(sum / (*count).max(1) as f64))
    });
    let each: Vec<String> = each.collect();
    context.tell(format_args!(
        "      in the mean {}; processors busy {:.0} %, {:.0} % measured",
        each.join(", "),
        predicted.busy * 100.0,
        busy * 100.0
    ));
}

/// What one user and what many do of it, and how long it takes where it comes at random.
async fn alone(context: &Context, world: &mut World, errand: Errand) -> Outcome<Alone> {
    let run = async |world: &mut World, users: Vec<User>, time: Duration| {
        let before = world.processor();
        let (seen, users) = crew::closed(users, &[1.0], time).await?;
        let processor = (world.processor() - before) / seen.times.len().max(1) as f64;
        world.dismiss(users);
        Ok::<_, Failure>((seen, processor))
    };
    let users = world.users(&[errand], 1).await?;
    let (one, processor) = run(world, users, Duration::from_millis(context.size(600, 100))).await?;
    let users = world.users(&[errand], USERS).await?;
    let (many, processor_of_many) = run(world, users, Duration::from_millis(context.size(1_500, 100))).await?;
    let rate = many.per_second * BELOW_KNEE;
    let users = world.users(&[errand], IN_WAITING).await?;
    let (seen, users) = crew::open(users, &[1.0], rate, Duration::from_millis(context.size(1_500, 100))).await?;
    world.dismiss(users);
    let open = Some(Open { rate, p95: seen.quantile(0.95) }).filter(|open| seen.per_second >= open.rate * REACHED);
    Ok(Alone { times: one.times, processor, users: USERS, per_second: many.per_second, processor_of_many, open })
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
    let (seen, _) = crew::closed(users, &[1.0], Duration::from_millis(context.size(15_000, 600))).await?;
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
