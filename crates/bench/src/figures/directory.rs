//! Figures `ldap.*`: the directory for an ordinary user with access rules; peer: slapd.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        child_process::{reserve_port, run},
        context::{Context, Scratch},
        figure::{Figure, Samples, rounded},
        ldap_client::{EntryRange, LdapLoadResult, LdapOperation, closed_loop, entry_exists},
        ldap_fixture::{SUFFIX, USER, write_groups},
        resource_usage::{CostMeter, processor_seconds},
        server::{Server, megabytes, memory},
        slapd::{Slapd, slapadd, write_people},
    },
};

/// Searches by name.
pub const BASE: Bench = Bench {
    name: "ldap.base",
    about: "searches/s by name, 200,000 entries of 20 attributes, 64 connections, ordinary user; peer: slapd",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(measure(context, LdapOperation::Base)) },
};

/// Searches by an indexed attribute.
pub const EQUALITY: Bench = Bench {
    name: "ldap.equality",
    about: "searches/s of the tree by cn; peer: slapd",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(measure(context, LdapOperation::Equality)) },
};

/// Modifications that add a value.
pub const MODIFY_ADD: Bench = Bench {
    name: "ldap.modify_add",
    about: "durable modifications/s that add a value; peer: slapd, as durable",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(measure(context, LdapOperation::ModifyAdd)) },
};

/// Modifications that replace a value.
pub const MODIFY_REPLACE: Bench = Bench {
    name: "ldap.modify_replace",
    about: "durable modifications/s that replace a value; peer: slapd, as durable",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(measure(context, LdapOperation::ModifyReplace)) },
};

/// Adds.
pub const ADD: Bench = Bench {
    name: "ldap.add",
    about: "durable entries/s of 20 attributes; peer: slapd, as durable",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(measure(context, LdapOperation::Add)) },
};

/// Mix of operations.
pub const MIX: Bench = Bench {
    name: "ldap.mix",
    about: "operations/s: 75 searches by name, 12 changes, 3 adds, 10 binds of 100; peer: slapd, as durable",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(measure(context, LdapOperation::Mix)) },
};

/// Searches by name with many groups.
pub const GROUPS: Bench = Bench {
    name: "ldap.groups",
    about: "searches/s by name with 100,000 groups of ten; peer: without groups, alternating",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(groups(context)) },
};

/// Searches by name with all processors.
pub const PROCESSORS: Bench = Bench {
    name: "ldap.processors",
    about: "searches/s by name with all processors; peer: the same server bound to one, alternating",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(processors(context)) },
};

/// Searches by name with many clients.
pub const CLIENTS: Bench = Bench {
    name: "ldap.clients",
    about: "searches/s by name at the best number of connections; peer: one connection; all numbers in the conditions",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(clients(context)) },
};

/// Import of a file of entries.
pub const IMPORT: Bench = Bench {
    name: "ldap.import",
    about: "entries/s of an LDIF file of 100,000 people, in an empty directory; peer: slapadd, which checks less and syncs once",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(import(context)) },
};

/// Numbers of groups, in addition to none.
const GROUPS_OF: [u64; 3] = [100, 10_000, 100_000];

/// Number of connections of the papers, and steps around it.
const CONNECTIONS: usize = 64;
const STEPS: [usize; 3] = [1, 16, 200];
const LOADING: Duration = Duration::from_secs(1_800);
const BINDING: Duration = Duration::from_secs(10);

/// Server or peer, with its samples.
struct DirectoryRuns {
    port: u16,
    pid: u32,
    crowd: Arc<EntryRange>,
    rates: Samples,
    p50: Samples,
    p99: Samples,
    searches_p99: Samples,
    micros: Samples,
    steps: Vec<String>,
}

impl DirectoryRuns {
    fn new(port: u16, pid: u32, count: u64) -> DirectoryRuns {
        let rates = Samples::default();
        let empty = Samples::default;
        let (p50, p99, searches_p99, micros) = (empty(), empty(), empty(), empty());
        DirectoryRuns {
            port,
            pid,
            crowd: Arc::new(EntryRange::of(count)),
            rates,
            p50,
            p99,
            searches_p99,
            micros,
            steps: Vec::new(),
        }
    }

    async fn load(&self, act: LdapOperation, connections: usize, time: Duration) -> Outcome<LdapLoadResult> {
        let load = closed_loop(self.port, act, &self.crowd, connections, time).await?;
        // An added entry must be visible to others.
        let last = self.crowd.new.load(Ordering::Relaxed) - 1;
        match entry_exists(self.port, last).await? {
            true => Ok(load),
            false => Err(Failure::failed(format!("user.{last} was added but is not found"))),
        }
    }

    async fn turn(&mut self, act: LdapOperation, time: Duration) -> Outcome<u64> {
        let before = processor_seconds(self.pid);
        let load = self.load(act, CONNECTIONS, time).await?;
        self.micros.push((processor_seconds(self.pid) - before) * 1e6 / load.count.max(1) as f64);
        self.rates.push(load.per_second);
        self.p50.push(load.p50_ms);
        self.p99.push(load.p99_ms);
        self.searches_p99.push(load.searches_p99_ms);
        Ok(load.count)
    }

    async fn step(&mut self, act: LdapOperation, time: Duration) -> Outcome {
        for connections in STEPS {
            let load = self.load(act, connections, time).await?;
            self.steps.push(format!("{:.0}/s p99 {} ms at {connections}", load.per_second, rounded(load.p99_ms, 3)));
        }
        Ok(())
    }

    /// Summary for the conditions.
    fn summary(&self, name: &str, act: LdapOperation) -> String {
        let searches = match act {
            LdapOperation::Mix => format!(", searches p99 {} ms", rounded(self.searches_p99.median(), 3)),
            _ => String::new(),
        };
        format!(
            "{name}: p50 {} ms, p99 {} ms{searches}, {} µs CPU each, {} MB resident; {}",
            rounded(self.p50.median(), 3),
            rounded(self.p99.median(), 3),
            rounded(self.micros.median(), 3),
            rounded(megabytes(memory(self.pid, "VmRSS:")), 3),
            self.steps.join(", ")
        )
    }
}

async fn measure(context: &Context, act: LdapOperation) -> Outcome<Figure> {
    let count = context.size(200_000, 1_000);
    let time = Duration::from_secs(context.size(5, 1));
    let (_folder, port, server) = serve(context, count).await?;
    let mut ours = DirectoryRuns::new(port, server.pid(), count);
    let slapd = Slapd::start(context, count).await?;
    let mut peer = slapd.as_ref().map(|slapd| DirectoryRuns::new(slapd.port, slapd.pid(), count));
    // Warm-up: connections, caches, files.
    for side in [Some(&mut ours), peer.as_mut()].into_iter().flatten() {
        side.load(LdapOperation::Base, CONNECTIONS, time).await?;
    }
    let mut tally = CostMeter::of(&server);
    for _ in context.turns() {
        tally.begin();
        tally.end(ours.turn(act, time).await? as f64);
        if let Some(peer) = &mut peer {
            let _turn = context.progress.peer_turn("slapd");
            peer.turn(act, time).await?;
        }
    }
    for side in [Some(&mut ours), peer.as_mut()].into_iter().flatten() {
        side.step(act, time).await?;
    }
    let summaries = [Some(ours.summary("ours", act)), peer.as_ref().map(|peer| peer.summary("slapd", act))];
    let mut figure = Figure::new("operations/s", ours.rates)
        .with_peer("slapd", peer.map(|peer| peer.rates).unwrap_or_default())
        .with_cost(tally.counts())
        .with_condition(format!("{count} entries of 20 attributes"))
        .with_condition(format!("{CONNECTIONS} connections, closed loop"))
        .with_condition("an ordinary user under access rules; each change durable before its response");
    for part in summaries.into_iter().flatten() {
        figure = figure.with_condition(part);
    }
    Ok(figure)
}

async fn groups(context: &Context) -> Outcome<Figure> {
    let count = context.size(200_000, 1_000);
    let time = Duration::from_secs(context.size(5, 1));
    let (_folder, port, plain) = serve(context, count).await?;
    let mut conditions = Vec::new();
    let mut widest = None;
    for groups in GROUPS_OF {
        let groups = context.size(groups, groups / 100);
        let (_folder, grouped_port, grouped) = serve_with(context, count, groups).await?;
        let mut with = DirectoryRuns::new(grouped_port, grouped.pid(), count);
        let mut without = DirectoryRuns::new(port, plain.pid(), count);
        for side in [&mut with, &mut without] {
            side.load(LdapOperation::Base, CONNECTIONS, time).await?;
        }
        for _ in context.turns() {
            for side in [&mut with, &mut without] {
                side.turn(LdapOperation::Base, time).await?;
            }
        }
        conditions.push(format!(
            "{groups} groups: {:.0}/s, {} of the rate without, p99 {} ms and {} ms without, {} MB and {} MB resident",
            with.rates.median(),
            rounded(with.rates.median() / without.rates.median(), 3),
            rounded(with.p99.median(), 3),
            rounded(without.p99.median(), 3),
            rounded(megabytes(memory(with.pid, "VmRSS:")), 3),
            rounded(megabytes(memory(without.pid, "VmRSS:")), 3),
        ));
        widest = Some((with.rates, without.rates));
    }
    let (with, without) = widest.expect("GROUPS_OF is not empty");
    let mut figure = Figure::new("searches/s", with)
        .with_peer("without groups", without)
        .with_condition(format!("{count} entries of 20 attributes"))
        .with_condition(format!("{CONNECTIONS} connections, closed loop"))
        .with_condition("an ordinary user under access rules, who is in one group of a hundred");
    for part in conditions {
        figure = figure.with_condition(part);
    }
    Ok(figure)
}

async fn processors(context: &Context) -> Outcome<Figure> {
    let count = context.size(200_000, 1_000);
    let time = Duration::from_secs(context.size(5, 1));
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    if all == 1 {
        return Err(Failure::failed("this figure needs at least two processors; found 1"));
    }
    let (_folder, port, server) = serve(context, count).await?;
    let powers = std::iter::successors(Some(1), |number| Some(number * 2));
    let mut sides: Vec<(usize, DirectoryRuns)> = powers
        .take_while(|number| *number < all)
        .chain([all])
        .map(|number| (number, DirectoryRuns::new(port, server.pid(), count)))
        .collect();
    sides[0].1.load(LdapOperation::Base, CONNECTIONS, time).await?;
    for _ in context.turns() {
        for (number, side) in &mut sides {
            bind(server.pid(), *number).await?;
            side.turn(LdapOperation::Base, time).await?;
        }
    }
    let one = sides[0].1.rates.clone();
    let mut conditions = Vec::new();
    for (number, side) in &sides {
        conditions.push(format!(
            "{number}: {:.0}/s, {} times that of one, p99 {} ms, {} µs CPU each",
            side.rates.median(),
            rounded(side.rates.median() / one.median(), 3),
            rounded(side.p99.median(), 3),
            rounded(side.micros.median(), 3),
        ));
    }
    let (_, widest) = sides.pop().expect("there are at least two");
    let mut figure = Figure::new("searches/s", widest.rates)
        .with_peer("bound to one processor", one)
        .with_condition(format!("{count} entries of 20 attributes"))
        .with_condition(format!("{CONNECTIONS} connections, closed loop"))
        .with_condition("load and server share the processors");
    for part in conditions {
        figure = figure.with_condition(part);
    }
    Ok(figure)
}

/// Numbers of connections, up to saturation.
const CLIENTS_OF: [usize; 7] = [1, 2, 4, 8, 16, 64, 200];
/// Relative increase that counts as none.
const SATURATION_GAIN: f64 = 0.05;

async fn clients(context: &Context) -> Outcome<Figure> {
    let count = context.size(200_000, 1_000);
    let time = Duration::from_millis(context.size(5_000, 250));
    let (_folder, port, server) = serve(context, count).await?;
    let side = DirectoryRuns::new(port, server.pid(), count);
    side.load(LdapOperation::Base, CONNECTIONS, time).await?;
    let mut rates = CLIENTS_OF.map(|clients| (clients, Samples::default()));
    for _ in context.turns() {
        for (clients, samples) in &mut rates {
            samples.push(side.load(LdapOperation::Base, *clients, time).await?.per_second);
        }
    }
    let most = rates.iter().map(|(_, samples)| samples.median()).fold(0.0, f64::max);
    let is_knee = |(_, samples): &&(usize, Samples)| samples.median() >= most * (1.0 - SATURATION_GAIN);
    let (knee, ours) = rates.iter().find(is_knee).expect("the maximum is one of them").clone();
    let by_connections: Vec<String> =
        rates.iter().map(|(clients, samples)| format!("{clients}: {:.0}/s", samples.median())).collect();
    let [(_, one), ..] = rates;
    Ok(Figure::new("searches/s", ours)
        .with_peer("one connection", one)
        .with_condition(format!("{count} entries of 20 attributes"))
        .with_condition(format!("{knee} connections, closed loop; load and server share the processors"))
        .with_condition(format!("by connections: {}", by_connections.join(", "))))
}

/// Restricts a process to the first `processors` processors.
async fn bind(pid: u32, processors: usize) -> Outcome {
    let mut command = tokio::process::Command::new("taskset");
    command.args(["--all-tasks", "--cpu-list", "--pid"]).arg(format!("0-{}", processors - 1)).arg(pid.to_string());
    run(&mut command, "taskset (of util-linux)", BINDING).await.map(|_| ())
}

async fn import(context: &Context) -> Outcome<Figure> {
    let count = context.size(100_000, 1_000);
    let mut peer = Samples::default();
    let (mut ours, mut sizes) = (Samples::default(), Vec::new());
    for _ in context.turns() {
        let folder = context.folder()?;
        let home = DirectoryFolder::make(folder.path())?;
        let people = folder.path().join("people.ldif");
        write_people(&people, count, false)?;
        let started = Instant::now();
        home.import(context, &people).await?;
        ours.push(count as f64 / started.elapsed().as_secs_f64());
        let bytes = std::fs::metadata(&people).map_err(|error| Failure::file("look at", &people, &error))?.len();
        sizes.push(format!("{} MB", rounded(bytes as f64 / 1e6, 3)));
        peer.extend(slapadd(context, count).await?.map(|seconds| count as f64 / seconds));
    }
    sizes.dedup();
    Ok(Figure::new("entries/s", ours)
        .with_peer("slapadd", peer)
        .with_condition(format!("{count} entries of 20 attributes, {}", sizes.join(", ")))
        .with_condition(
            "by the command, no server runs; ours: schema and indexes kept as by LDAP, every commit synced",
        ))
}

/// Starts a server with this many people.
///
/// # Errors
/// If it does not start, or rejects the entries.
pub async fn serve(context: &Context, count: u64) -> Outcome<(Scratch, u16, Server)> {
    serve_with(context, count, 0).await
}

/// Starts a server with people and groups of them.
async fn serve_with(context: &Context, count: u64, groups: u64) -> Outcome<(Scratch, u16, Server)> {
    let folder = context.folder()?;
    let home = DirectoryFolder::make(folder.path())?;
    let people = folder.path().join("people.ldif");
    write_people(&people, count, false)?;
    if groups > 0 {
        let append = || {
            let mut out = std::io::BufWriter::new(std::fs::OpenOptions::new().append(true).open(&people)?);
            write_groups(&mut out, groups, count)?;
            std::io::Write::flush(&mut out)
        };
        append().map_err(|error| Failure::file("write", &people, &error))?;
    }
    context.log(format_args!("   loading {count} people and {groups} groups"));
    home.import(context, &people).await?;
    let settings = [("TOCSIN_CONFIG", &*home.file.to_string_lossy())];
    let server = Server::start_with(context, folder.path(), &settings).await?;
    let port = home.port;
    Ok((folder, port, server))
}

/// Data folder of a directory with its settings: access rules and listening port.
struct DirectoryFolder<'a> {
    folder: &'a Path,
    file: PathBuf,
    port: u16,
}

impl DirectoryFolder<'_> {
    fn make(folder: &Path) -> Outcome<DirectoryFolder<'_>> {
        let (file, port) = (folder.join("tocsin.toml"), reserve_port()?);
        let text = format!(
            "[ldap]\nlisten = \"127.0.0.1:{port}\"\nsuffix = \"{SUFFIX}\"\ncache = \"1 GiB\"\nconnections_per_address_max = 10000\naccess = [\n  \
             'to attrs=userPassword by dn=\"{USER}\" write by anonymous auth by * none',\n  \
             'to * by dn=\"{USER}\" write by users read by * none',\n]\n"
        );
        std::fs::write(&file, text).map_err(|error| Failure::file("write", &file, &error))?;
        Ok(DirectoryFolder { folder, file, port })
    }

    /// Imports an LDIF file while no server runs.
    async fn import(&self, context: &Context, people: &Path) -> Outcome {
        let mut command = tokio::process::Command::from(Command::new(&context.program));
        command.args(["directory", "import"]).arg(people).current_dir(self.folder).env_clear();
        command
            .env("TOCSIN_CONFIG", &self.file)
            .env("TOCSIN_DATA_FOLDER", self.folder.join("data"))
            .env("HOME", self.folder);
        run(&mut command, "the import", LOADING).await.map(|_| ())
    }
}
