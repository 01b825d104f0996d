//! The sweep over devices and pools that the post on merge replication asked for: each device begins again at once, and only one
//! thing differs between two cells. Beside it links that break, and devices that edit the same rows.

use std::{
    fmt::Write,
    time::{Duration, Instant},
};

use futures_util::future::try_join_all;

use super::{
    Bench, Measuring,
    sync::{Device, Errand, Field, HALVES, Session},
};
use crate::{
    bench::{
        context::Context,
        figure::{Figure, Samples, rounded},
        server::{processor_seconds, written_bytes},
    },
    failure::{Failure, Outcome},
};

/// Devices times pools.
pub const SWEEP: Bench = Bench {
    name: "sync.sweep",
    about: "rows/s of the best cell: 100 to 1,200 devices that begin again at once, by pools of 20 to 1 and the one that finds its size",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(sweep(context)) },
};

/// Fewer places, where all are busy.
pub const FEW: Bench = Bench {
    name: "sync.pools.few",
    about: "rows/s of 800 devices that begin again at once, by a pool of 5; beside it by one of 20, turn by turn",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(pools(context, [5, 20])) },
};

/// No more than twenty, where all are busy.
pub const TWENTY: Bench = Bench {
    name: "sync.pools.twenty",
    about: "rows/s of 800 devices that begin again at once, by a pool of 20; beside it by one of 40, turn by turn",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(pools(context, [20, 40])) },
};

/// As many as the post tells the longest session of.
pub const LOOP_300: Bench = Bench {
    name: "sync.loop300",
    about: "seconds of the longest session where 300 devices begin again at once, by the pool that finds its size",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(looped(context, 300)) },
};

/// More of them.
pub const LOOP_800: Bench = Bench {
    name: "sync.loop800",
    about: "seconds of the longest session where 800 devices begin again at once, by the pool that finds its size",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(looped(context, 800)) },
};

/// Links that break.
pub const BROKEN: Bench = Bench {
    name: "sync.broken_links",
    about: "seconds until the slowest of 200 devices is done whose links break after every fourth answer; each edit counts once",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(broken(context)) },
};

/// Devices that edit the same rows.
pub const CONFLICTS: Bench = Bench {
    name: "sync.conflicts",
    about: "rows/s where a half of 200 devices edits the same 600 rows; beside it with none, a tenth, and all",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(conflicts(context)) },
};

/// What the post says of its runs: devices, pool in all, longest, mean.
const PUBLISHED: [(usize, &str, &str, &str); 6] = [
    (100, "20", "58.7 s", "15.8 s"),
    (200, "20", "3.1 min", "56.05 s"),
    (300, "20", "8.4 min", "2.1 min"),
    (600, "20", "40.3 min", "not told"),
    (800, "2 x 10", "37.9 min", "15.6 min"),
    (1_200, "3 x 10", "17 min", "6 min 38 s"),
];

/// What each session carries, and from where.
const SESSIONS: &str = "600 edits up and 600 rows down in a session of 116-byte rows, clients on the same machine";

/// The pool that finds its size by itself.
const AUTO: usize = 0;

/// What one cell came to.
struct Cell {
    devices: usize,
    pool: usize,
    /// Seconds of each session, ascending.
    seconds: Vec<f64>,
    rows_per_second: f64,
    /// Of one processor, in percent.
    server_processor: f64,
    clients_processor: f64,
    memory_megabytes: f64,
    wire_megabytes_per_second: f64,
    disk_megabytes_per_second: f64,
    elapsed: f64,
}

impl Cell {
    fn at(&self, share: f64) -> f64 {
        let last = self.seconds.len().saturating_sub(1);
        self.seconds.get((share * last as f64).round() as usize).copied().unwrap_or_default()
    }

    fn mean(&self) -> f64 {
        self.seconds.iter().sum::<f64>() / self.seconds.len().max(1) as f64
    }

    fn pool_name(&self) -> String {
        pool_name(self.pool)
    }

    /// A row of the table: ours, and what was published for so many devices.
    fn row(&self) -> String {
        let told = PUBLISHED.iter().find(|(devices, ..)| *devices == self.devices);
        let theirs = told.map_or("-".to_owned(), |(_, pool, high, mean)| format!("{high} / {mean} (pool {pool})"));
        let seconds = |seconds: f64| format!("{} s", rounded(seconds, 3));
        format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {theirs} |",
            self.devices,
            self.pool_name(),
            seconds(self.at(1.0)),
            seconds(self.at(0.0)),
            seconds(self.mean()),
            seconds(self.at(0.5)),
            seconds(self.at(0.95)),
            rounded(self.seconds.len() as f64 * 3_600.0 / self.elapsed, 4),
            rounded(self.rows_per_second, 4),
            rounded(self.server_processor, 3),
            rounded(self.clients_processor, 3),
            rounded(self.memory_megabytes, 3),
            rounded(self.wire_megabytes_per_second, 3),
            rounded(self.disk_megabytes_per_second, 3),
        )
    }
}

const HEADS: &str = "| devices | pool | high | low | mean | p50 | p95 | syncs/h | rows/s | server CPU % | clients CPU % | memory MB | wire MB/s | disk MB/s | published: high / mean |\n\
                     |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

/// Turns in which the pool that finds its size and the best of the others are compared.
const DUEL_TURNS: usize = 3;

/// A server whose pool has so many places, and the devices of its own.
async fn field_of(context: &Context, pool: usize, devices: usize) -> Outcome<Field> {
    context.tell(format_args!("   {devices} devices for pool {}", pool_name(pool)));
    let places = pool.max(1).to_string();
    let fixed = [("TOCSIN_SYNC_RECONCILES", places.as_str()), ("TOCSIN_SYNC_RECONCILES_SIZING", "fixed")];
    let variables = if pool == AUTO { &[][..] } else { &fixed[..] };
    Field::prepare_with(context, devices, HALVES, variables).await
}

/// How long sessions are by the pool that finds its size.
async fn looped(context: &Context, devices: usize) -> Outcome<Figure> {
    let devices = context.size(devices, 8);
    let lasts = Duration::from_secs(context.size(8, 1));
    let mut field = field_of(context, AUTO, devices).await?;
    let (mut longest, mut means, mut rates) = (Samples::default(), Samples::default(), Samples::default());
    for _ in context.turns() {
        let cell = closed_loop(&mut field, devices, AUTO, lasts).await?;
        longest.push(cell.at(1.0));
        means.push(cell.mean());
        rates.push(cell.rows_per_second);
    }
    Ok(Figure::new("s", longest)
        .under(format!("{devices} devices, the last session of each begins within {} s", lasts.as_secs()))
        .under(format!("mean session {} s, {} rows/s", rounded(means.median(), 3), rounded(rates.median(), 4)))
        .under(SESSIONS))
}

/// Two pools, by turns.
async fn pools(context: &Context, sizes: [usize; 2]) -> Outcome<Figure> {
    let devices = context.size(800, 8);
    let lasts = Duration::from_secs(context.size(8, 1));
    let mut sides = Vec::new();
    for pool in sizes {
        let field = field_of(context, pool, devices).await?;
        sides.push((pool, field, Samples::default(), Samples::default()));
    }
    for turn in context.turns() {
        for at in [turn % 2, (turn + 1) % 2] {
            let (pool, field, rates, means) = &mut sides[at];
            let cell = closed_loop(field, devices, *pool, lasts).await?;
            rates.push(cell.rows_per_second);
            means.push(cell.mean());
        }
    }
    let told = sides.iter().map(|(pool, _, _, means)| format!("{pool}: {} s", rounded(means.median(), 3)));
    let told = format!("mean session with a pool of {}", told.collect::<Vec<_>>().join(", "));
    let [(pool, _, ours, _), (other, _, peer, _)] = &sides[..] else { unreachable!("there are two") };
    Ok(Figure::new("rows/s", ours.clone())
        .beside(&format!("a pool of {other}"), peer.clone())
        .under(format!(
            "{devices} devices, a pool of {pool}, {} s a turn, clients on the same machine",
            lasts.as_secs()
        ))
        .under(told))
}

/// Each pool is a server of its own, and all of them are there all the time: what is compared is measured one after the other,
/// since machines have fast and slow phases. Which pool is best is found out first; by how much is measured anew, so that the
/// luck that made it the best does not count.
async fn sweep(context: &Context) -> Outcome<Figure> {
    let counts: &[usize] = if context.quick { &[4, 8] } else { &[100, 200, 300, 400, 500, 600, 700, 800, 1_200] };
    let pools: &[usize] = if context.quick { &[2, AUTO] } else { &[20, 10, 7, 5, 3, 2, 1, AUTO] };
    let lasts = Duration::from_secs(context.size(8, 1));
    let most = counts.iter().copied().max().unwrap_or_default();
    let mut fields = Vec::new();
    for pool in pools {
        fields.push((*pool, field_of(context, *pool, most).await?));
    }
    let (mut cells, mut duels) = (Vec::new(), Vec::new());
    for devices in counts {
        let first = cells.len();
        for (pool, field) in &mut fields {
            let cell = closed_loop(field, *devices, *pool, lasts).await?;
            context.tell(format_args!(
                "   {devices} devices, pool {}: {} rows/s",
                cell.pool_name(),
                rounded(cell.rows_per_second, 4)
            ));
            cells.push(cell);
        }
        let fixed = cells[first..].iter().filter(|cell| cell.pool != AUTO);
        if let Some(best) = fixed.max_by(|one, other| one.rows_per_second.total_cmp(&other.rows_per_second)) {
            let duel = duel(&mut fields, *devices, best.pool, lasts).await?;
            context.tell(format_args!("   {duel}"));
            duels.push(duel);
        }
    }
    let mut table = format!("{HEADS}\n");
    for cell in &cells {
        let _ = writeln!(table, "{}", cell.row());
    }
    context.tell(&table);
    let ours: Samples = cells.iter().map(|cell| cell.rows_per_second).reduce(f64::max).into_iter().collect();
    let mut figure = Figure::new("rows/s", ours).under(format!("{} s for each cell", lasts.as_secs())).under(SESSIONS);
    for duel in duels {
        figure = figure.under(duel);
    }
    for cell in &cells {
        figure = figure.under(format!(
            "{} devices, pool {}: longest {} s, mean {} s, p95 {} s, {} rows/s",
            cell.devices,
            cell.pool_name(),
            rounded(cell.at(1.0), 3),
            rounded(cell.mean(), 3),
            rounded(cell.at(0.95), 3),
            rounded(cell.rows_per_second, 4)
        ));
    }
    Ok(figure)
}

fn pool_name(pool: usize) -> String {
    if pool == AUTO { "auto".to_owned() } else { pool.to_string() }
}

/// The pool that finds its size and this one, by turns. Gives what came of it in words.
async fn duel(fields: &mut [(usize, Field)], devices: usize, best: usize, lasts: Duration) -> Outcome<String> {
    let (mut auto, mut fixed) = (Samples::default(), Samples::default());
    for turn in 0..DUEL_TURNS {
        // Whoever begins finds the machine as the other left it: they take turns at that too.
        let order = if turn % 2 == 0 { [AUTO, best] } else { [best, AUTO] };
        for pool in order {
            let Some((_, field)) = fields.iter_mut().find(|(other, _)| *other == pool) else { continue };
            let rate = closed_loop(field, devices, pool, lasts).await?.rows_per_second;
            if pool == AUTO { auto.push(rate) } else { fixed.push(rate) }
        }
    }
    let percent = auto.ratios(&fixed).median() * 100.0;
    Ok(format!(
        "{devices} devices: auto {} % of the best fixed pool ({best}), the median of {DUEL_TURNS} turns of their own",
        rounded(percent, 3)
    ))
}

/// Each device begins again as soon as it is done, until the time is over.
async fn closed_loop(field: &mut Field, count: usize, pool: usize, lasts: Duration) -> Outcome<Cell> {
    let pid = field.server.pid();
    let before = (processor_seconds(pid), processor_seconds(std::process::id()), written_bytes(pid));
    let started = Instant::now();
    let again = |device| again_until(device, started, lasts);
    let sessions = try_join_all(field.devices[..count].iter_mut().map(again)).await?;
    let elapsed = started.elapsed().as_secs_f64();
    let sessions: Vec<Session> = sessions.into_iter().flatten().collect();
    let mut seconds: Vec<f64> = sessions.iter().map(|session| session.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    let Errand { up, .. } = HALVES;
    let rows = sessions.iter().map(|session| session.taken + up).sum::<usize>() as f64;
    let wire = wire_bytes(field).await? * sessions.len() as f64;
    Ok(Cell {
        devices: count,
        pool,
        seconds,
        rows_per_second: rows / elapsed,
        server_processor: (processor_seconds(pid) - before.0) * 100.0 / elapsed,
        clients_processor: (processor_seconds(std::process::id()) - before.1) * 100.0 / elapsed,
        memory_megabytes: field.server.resident_bytes() as f64 / 1e6,
        wire_megabytes_per_second: wire / 1e6 / elapsed,
        disk_megabytes_per_second: written_bytes(pid).saturating_sub(before.2) as f64 / 1e6 / elapsed,
        elapsed,
    })
}

async fn again_until(device: &mut Device, started: Instant, lasts: Duration) -> Outcome<Vec<Session>> {
    let mut sessions = Vec::new();
    while started.elapsed() < lasts {
        sessions.push(device.round(0.0).await?);
    }
    Ok(sessions)
}

/// How often its link broke.
async fn broken_rounds(device: &mut Device, rounds: usize) -> Outcome<usize> {
    let mut breaks = 0;
    for _ in 0..rounds {
        breaks += device.round(0.25).await?.broken;
    }
    Ok(breaks)
}

/// What the newest sessions carried, packed, each.
async fn wire_bytes(field: &Field) -> Outcome<f64> {
    let history = field.server.client().get("/v1/sync/history", &[("limit", "100")]).await?;
    let sessions = history["items"].as_array().cloned().unwrap_or_default();
    let of = |name: &str| sessions.iter().filter_map(|session| session[name].as_f64()).sum::<f64>();
    Ok((of("bytes_up") + of("bytes_down")) / sessions.len().max(1) as f64)
}

async fn broken(context: &Context) -> Outcome<Figure> {
    let count = context.size(200, 4);
    let rounds = 3;
    let mut field = Field::prepare(context, count, HALVES).await?;
    let (mut ours, mut told) = (Samples::default(), Vec::new());
    for _ in context.turns() {
        let started = Instant::now();
        let all = field.devices.iter_mut().map(|device| broken_rounds(device, rounds));
        let breaks = try_join_all(all).await?.into_iter().sum::<usize>();
        ours.push(started.elapsed().as_secs_f64());
        if breaks == 0 {
            return Err(Failure::failed("no link broke, although a quarter of the answers should break one"));
        }
        told.push(format!("{breaks} links broke"));
    }
    let there = field.server.client().get("/v1/sync/status", &[]).await?["rows"].as_u64().unwrap_or_default();
    let expected = (count * HALVES.up) as u64;
    if there != expected {
        return Err(Failure::failed(format!("there are {there} rows, and {expected} were made")));
    }
    Ok(Figure::new("s", ours)
        .under(format!("{count} devices, {rounds} sessions each, {} edits a session", HALVES.up))
        .under(told.join("; "))
        .under("no row twice, none missing"))
}

async fn conflicts(context: &Context) -> Outcome<Figure> {
    let count = context.size(200, 4);
    let (mut ours, mut told) = (Samples::default(), Vec::new());
    for percent in [0, 10, 50, 100] {
        let mut field = Field::prepare(context, count, HALVES).await?;
        let meeting = count * percent / 100;
        for device in &mut field.devices[..meeting] {
            device.meet_others();
        }
        // They make the rows, and know nothing of each other.
        try_join_all(field.devices.iter_mut().map(|device| device.round(0.0))).await?;
        let mut samples = Samples::default();
        let (mut met, mut turns) = (0, 0);
        for _ in context.turns() {
            turns += 1;
            let started = Instant::now();
            let sessions = try_join_all(field.devices.iter_mut().map(|device| device.round(0.0))).await?;
            met += sessions.iter().map(|session| session.met).sum::<usize>();
            let rows = sessions.iter().map(|session| session.taken + HALVES.up).sum::<usize>();
            samples.push(rows as f64 / started.elapsed().as_secs_f64());
        }
        // Each edits what the others of them wrote, and knows nothing of it.
        let (least, most) = (meeting.saturating_sub(1) * HALVES.up * turns, meeting * HALVES.up * turns);
        if !(least..=most).contains(&met) {
            return Err(Failure::failed(format!(
                "{meeting} of {count} devices edit the same rows, and {met} edits met others; {least} to {most} were expected"
            )));
        }
        told.push(format!(
            "{percent} % of the devices edit the same rows: {} rows/s, {met} edits met others",
            rounded(samples.median(), 4)
        ));
        if percent == 50 {
            ours = samples;
        }
    }
    told.insert(0, format!("{count} devices, one session each in a turn"));
    Ok(Figure::new("rows/s", ours).under(told.join("; ")))
}
