//! Figures `sync.*` of the merge replication article: a sweep over devices and reconciler pools in closed loops, where
//! cells differ in one parameter only; also broken connections and conflicting edits.

use std::{
    fmt::Write,
    time::{Duration, Instant},
};

use futures_util::future::try_join_all;

use super::sync::{Device, HALVES, Session, SessionSize, SyncServer};
use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        context::Context,
        figure::{Figure, Samples, rounded},
        resource_usage::{processor_seconds, written_bytes},
    },
};

/// Sweep over devices and pools.
pub const SWEEP: Bench = Bench {
    name: "sync.sweep",
    about: "rows/s of the best cell: 100 to 1,200 devices in closed loops, pools of 20 to 1 and the adaptive one",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(sweep(context)) },
};

/// Small pool under load.
pub const FEW: Bench = Bench {
    name: "sync.pools.few",
    about: "rows/s of 800 devices in closed loops with a pool of 5; peer: a pool of 20, alternating",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(pools(context, [5, 20])) },
};

/// Pool of twenty under load.
pub const TWENTY: Bench = Bench {
    name: "sync.pools.twenty",
    about: "rows/s of 800 devices in closed loops with a pool of 20; peer: a pool of 40, alternating",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(pools(context, [20, 40])) },
};

/// Longest session of 300 devices, as published.
pub const LOOP_300: Bench = Bench {
    name: "sync.loop300",
    about: "seconds of the longest session of 300 devices in closed loops with the adaptive pool",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(measure_closed_loop(context, 300)) },
};

/// Longest session of 800 devices.
pub const LOOP_800: Bench = Bench {
    name: "sync.loop800",
    about: "seconds of the longest session of 800 devices in closed loops with the adaptive pool",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(measure_closed_loop(context, 800)) },
};

/// Broken connections.
pub const BROKEN: Bench = Bench {
    name: "sync.broken_links",
    about: "seconds until the last of 200 devices is done whose connections break after every fourth response; each edit counts once",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(broken(context)) },
};

/// Conflicting edits.
pub const CONFLICTS: Bench = Bench {
    name: "sync.conflicts",
    about: "rows/s where half of 200 devices edit the same 600 rows; conditions: none, a tenth, and all",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(conflicts(context)) },
};

/// Published runs: devices, total pool, longest, mean.
const PUBLISHED: [(usize, &str, &str, &str); 6] = [
    (100, "20", "58.7 s", "15.8 s"),
    (200, "20", "3.1 min", "56.05 s"),
    (300, "20", "8.4 min", "2.1 min"),
    (600, "20", "40.3 min", "not reported"),
    (800, "2 x 10", "37.9 min", "15.6 min"),
    (1_200, "3 x 10", "17 min", "6 min 38 s"),
];

/// Content of a session.
const SESSIONS: &str = "600 edits up and 600 rows down in a session of 116-byte rows, clients on the same machine";

/// Adaptive pool.
const AUTO: usize = 0;

/// Result of one cell.
struct SweepCell {
    devices: usize,
    pool: usize,
    /// Seconds of each session, sorted.
    seconds: Vec<f64>,
    rows_per_second: f64,
    /// Percent of one processor.
    server_processor: f64,
    clients_processor: f64,
    memory_megabytes: f64,
    wire_megabytes_per_second: f64,
    disk_megabytes_per_second: f64,
    elapsed: f64,
}

impl SweepCell {
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

    /// Row of the table: measured, and published for the same number of devices.
    fn row(&self) -> String {
        let published = PUBLISHED.iter().find(|(devices, ..)| *devices == self.devices);
        let theirs = published.map_or("-".to_owned(), |(_, pool, high, mean)| format!("{high} / {mean} (pool {pool})"));
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

/// Turns in which the adaptive pool and the best fixed one are compared.
const COMPARISON_TURNS: usize = 3;

/// Starts a server with a pool of this size, and its devices.
async fn start_server(context: &Context, pool: usize, devices: usize) -> Outcome<SyncServer> {
    context.log(format_args!("   {devices} devices for pool {}", pool_name(pool)));
    let size = pool.max(1).to_string();
    let fixed = [("TOCSIN_SYNC_RECONCILES", size.as_str()), ("TOCSIN_SYNC_RECONCILES_SIZING", "fixed")];
    let variables = if pool == AUTO { &[][..] } else { &fixed[..] };
    SyncServer::prepare_with(context, devices, HALVES, variables).await
}

/// Session durations with the adaptive pool.
async fn measure_closed_loop(context: &Context, devices: usize) -> Outcome<Figure> {
    let devices = context.size(devices, 8);
    let lasts = Duration::from_secs(context.size(8, 1));
    let mut field = start_server(context, AUTO, devices).await?;
    let (mut longest, mut means, mut rates) = (Samples::default(), Samples::default(), Samples::default());
    for _ in context.turns() {
        let cell = closed_loop(&mut field, devices, AUTO, lasts).await?;
        longest.push(cell.at(1.0));
        means.push(cell.mean());
        rates.push(cell.rows_per_second);
    }
    Ok(Figure::new("s", longest)
        .with_condition(format!("{devices} devices, each starts its last session within {} s", lasts.as_secs()))
        .with_condition(format!("mean session {} s, {} rows/s", rounded(means.median(), 3), rounded(rates.median(), 4)))
        .with_condition(SESSIONS))
}

/// Compares two pools in alternating turns.
async fn pools(context: &Context, sizes: [usize; 2]) -> Outcome<Figure> {
    let devices = context.size(800, 8);
    let lasts = Duration::from_secs(context.size(8, 1));
    let mut sides = Vec::new();
    for pool in sizes {
        let field = start_server(context, pool, devices).await?;
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
    let means = sides.iter().map(|(pool, _, _, means)| format!("{pool}: {} s", rounded(means.median(), 3)));
    let means = format!("mean session with a pool of {}", means.collect::<Vec<_>>().join(", "));
    let [(pool, _, ours, _), (other, _, peer, _)] = &sides[..] else { unreachable!("there are two") };
    Ok(Figure::new("rows/s", ours.clone())
        .with_peer(&format!("a pool of {other}"), peer.clone())
        .with_condition(format!(
            "{devices} devices, a pool of {pool}, {} s a turn, clients on the same machine",
            lasts.as_secs()
        ))
        .with_condition(means))
}

/// Every pool has its own server, and all run for the whole time: compared cells are measured one after the other,
/// because machines have fast and slow phases. The best pool is chosen by the sweep; its lead is measured again, so
/// that luck in the sweep does not count.
async fn sweep(context: &Context) -> Outcome<Figure> {
    let counts: &[usize] = if context.quick { &[4, 8] } else { &[100, 200, 300, 400, 500, 600, 700, 800, 1_200] };
    let pools: &[usize] = if context.quick { &[2, AUTO] } else { &[20, 10, 7, 5, 3, 2, 1, AUTO] };
    let lasts = Duration::from_secs(context.size(8, 1));
    let most = counts.iter().copied().max().unwrap_or_default();
    let mut fields = Vec::new();
    for pool in pools {
        fields.push((*pool, start_server(context, *pool, most).await?));
    }
    let (mut cells, mut comparisons) = (Vec::new(), Vec::new());
    for devices in counts {
        let first = cells.len();
        for (pool, field) in &mut fields {
            let cell = closed_loop(field, *devices, *pool, lasts).await?;
            context.log(format_args!(
                "   {devices} devices, pool {}: {} rows/s",
                cell.pool_name(),
                rounded(cell.rows_per_second, 4)
            ));
            cells.push(cell);
        }
        let fixed = cells[first..].iter().filter(|cell| cell.pool != AUTO);
        if let Some(best) = fixed.max_by(|one, other| one.rows_per_second.total_cmp(&other.rows_per_second)) {
            let comparison = compare_with(&mut fields, *devices, best.pool, lasts).await?;
            context.log(format_args!("   {comparison}"));
            comparisons.push(comparison);
        }
    }
    let mut table = format!("{HEADS}\n");
    for cell in &cells {
        let _ = writeln!(table, "{}", cell.row());
    }
    context.log(&table);
    let ours: Samples = cells.iter().map(|cell| cell.rows_per_second).reduce(f64::max).into_iter().collect();
    let mut figure =
        Figure::new("rows/s", ours).with_condition(format!("{} s per cell", lasts.as_secs())).with_condition(SESSIONS);
    for comparison in comparisons {
        figure = figure.with_condition(comparison);
    }
    for cell in &cells {
        figure = figure.with_condition(format!(
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

/// Compares the adaptive pool with this one in alternating turns. Returns a summary.
async fn compare_with(
    fields: &mut [(usize, SyncServer)],
    devices: usize,
    best: usize,
    lasts: Duration,
) -> Outcome<String> {
    let (mut auto, mut fixed) = (Samples::default(), Samples::default());
    for turn in 0..COMPARISON_TURNS {
        // The order alternates, because each run starts in the state that the previous one left.
        let order = if turn % 2 == 0 { [AUTO, best] } else { [best, AUTO] };
        for pool in order {
            let Some((_, field)) = fields.iter_mut().find(|(other, _)| *other == pool) else { continue };
            let rate = closed_loop(field, devices, pool, lasts).await?.rows_per_second;
            if pool == AUTO { auto.push(rate) } else { fixed.push(rate) }
        }
    }
    let percent = auto.ratios(&fixed).median() * 100.0;
    Ok(format!(
        "{devices} devices: auto {} % of the best fixed pool ({best}), the median of {COMPARISON_TURNS} separate turns",
        rounded(percent, 3)
    ))
}

/// Closed loop: each device starts its next session at once, until the time is over.
async fn closed_loop(field: &mut SyncServer, count: usize, pool: usize, lasts: Duration) -> Outcome<SweepCell> {
    let pid = field.server.pid();
    let before = (processor_seconds(pid), processor_seconds(std::process::id()), written_bytes(pid));
    let started = Instant::now();
    let again = |device| again_until(device, started, lasts);
    let sessions = try_join_all(field.devices[..count].iter_mut().map(again)).await?;
    let elapsed = started.elapsed().as_secs_f64();
    let sessions: Vec<Session> = sessions.into_iter().flatten().collect();
    let mut seconds: Vec<f64> = sessions.iter().map(|session| session.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    let SessionSize { up, .. } = HALVES;
    let rows = sessions.iter().map(|session| session.received + up).sum::<usize>() as f64;
    let wire = wire_bytes(field).await? * sessions.len() as f64;
    Ok(SweepCell {
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

/// Number of connection failures.
async fn count_failures(device: &mut Device, rounds: usize) -> Outcome<usize> {
    let mut breaks = 0;
    for _ in 0..rounds {
        breaks += device.round(0.25).await?.failures;
    }
    Ok(breaks)
}

/// Mean compressed bytes of the newest sessions.
async fn wire_bytes(field: &SyncServer) -> Outcome<f64> {
    let history = field.server.client().get("/v1/sync/history", &[("limit", "100")]).await?;
    let sessions = history["items"].as_array().cloned().unwrap_or_default();
    let of = |name: &str| sessions.iter().filter_map(|session| session[name].as_f64()).sum::<f64>();
    Ok((of("bytes_up") + of("bytes_down")) / sessions.len().max(1) as f64)
}

async fn broken(context: &Context) -> Outcome<Figure> {
    let count = context.size(200, 4);
    let rounds = 3;
    let mut field = SyncServer::prepare(context, count, HALVES).await?;
    let (mut ours, mut conditions) = (Samples::default(), Vec::new());
    for _ in context.turns() {
        let started = Instant::now();
        let all = field.devices.iter_mut().map(|device| count_failures(device, rounds));
        let breaks = try_join_all(all).await?.into_iter().sum::<usize>();
        ours.push(started.elapsed().as_secs_f64());
        if breaks == 0 {
            return Err(Failure::failed("no connection broke; expected one per four responses"));
        }
        conditions.push(format!("{breaks} connections broke"));
    }
    let there = field.server.client().get("/v1/sync/status", &[]).await?["rows"].as_u64().unwrap_or_default();
    let expected = (count * HALVES.up) as u64;
    if there != expected {
        return Err(Failure::failed(format!("{there} rows are stored; expected {expected}")));
    }
    Ok(Figure::new("s", ours)
        .with_condition(format!("{count} devices, {rounds} sessions each, {} edits a session", HALVES.up))
        .with_condition(conditions.join("; "))
        .with_condition("no duplicate or missing rows"))
}

async fn conflicts(context: &Context) -> Outcome<Figure> {
    let count = context.size(200, 4);
    let (mut ours, mut conditions) = (Samples::default(), Vec::new());
    for percent in [0, 10, 50, 100] {
        let mut field = SyncServer::prepare(context, count, HALVES).await?;
        let meeting = count * percent / 100;
        for device in &mut field.devices[..meeting] {
            device.edit_shared();
        }
        // Creates the rows; the devices do not know of each other.
        try_join_all(field.devices.iter_mut().map(|device| device.round(0.0))).await?;
        let mut samples = Samples::default();
        let (mut met, mut turns) = (0, 0);
        for _ in context.turns() {
            turns += 1;
            let started = Instant::now();
            let sessions = try_join_all(field.devices.iter_mut().map(|device| device.round(0.0))).await?;
            met += sessions.iter().map(|session| session.conflicts).sum::<usize>();
            let rows = sessions.iter().map(|session| session.received + HALVES.up).sum::<usize>();
            samples.push(rows as f64 / started.elapsed().as_secs_f64());
        }
        // Each overwrites rows that the others wrote, without having seen them.
        let (least, most) = (meeting.saturating_sub(1) * HALVES.up * turns, meeting * HALVES.up * turns);
        if !(least..=most).contains(&met) {
            return Err(Failure::failed(format!(
                "{meeting} of {count} devices edit the same rows, and {met} edits conflicted; expected {least} to {most}"
            )));
        }
        conditions.push(format!(
            "{percent} % of the devices edit the same rows: {} rows/s, {met} conflicts",
            rounded(samples.median(), 4)
        ));
        if percent == 50 {
            ours = samples;
        }
    }
    conditions.insert(0, format!("{count} devices, one session each in a turn"));
    Ok(Figure::new("rows/s", ours).with_condition(conditions.join("; ")))
}
