//! Checks of the data folder: space, inodes, fsync latency, integrity of the stores.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    time::{Duration, Instant},
};

use rusqlite::{Connection, OpenFlags};
use tocsin_store::sqlite::backup::{FILES, missing_partition};

use super::Finding;
use crate::{
    configuration::Configuration,
    first_key, platform,
    terminal::{duration, size, thousands},
};

/// Number of measured syncs, enough for a p99, and the time limit.
const SYNCS: usize = 200;
const SYNC_TIME_MAX: Duration = Duration::from_secs(5);

/// p99 above which every acceptance is slow.
const SYNC_SLOW: Duration = Duration::from_millis(20);

/// Examines the data folder. Blocks.
pub(super) fn examine(configuration: &Configuration) -> Vec<Finding> {
    let folder = &configuration.data.folder;
    let mode = match fs::metadata(folder) {
        Ok(data) if data.is_dir() => data.permissions().mode(),
        Ok(_) => {
            return vec![Finding::fail(
                "data folder",
                format!("{} is not a folder", folder.display()),
                "specify a folder with --data",
            )];
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return vec![Finding::warn(
                "data folder",
                format!("{} does not exist", folder.display()),
                "`tocsin init` or `tocsin serve` creates it",
            )];
        }
        Err(error) => {
            return vec![Finding::fail(
                "data folder",
                format!("{}: {error}", folder.display()),
                "grant this user read access",
            )];
        }
    };
    let mut findings = vec![if mode & 0o077 == 0 {
        Finding::ok("data folder", folder.display().to_string())
    } else {
        Finding::warn(
            "data folder",
            format!("others can read {}", folder.display()),
            format!("chmod 700 {}", folder.display()),
        )
    }];
    if let Ok(data) = fs::metadata(first_key::path(folder))
        && data.mode() & 0o077 != 0
    {
        let file = first_key::path(folder);
        findings.push(Finding::fail(
            "admin key",
            format!("others can read {}", file.display()),
            format!("chmod 600 {}, and create a new key", file.display()),
        ));
    }
    findings.extend(space(folder, configuration.journal.disk_reserve.0));
    findings.extend(syncs(folder));
    match platform::lock_folder(folder) {
        Ok(_lock) => findings.extend(stores(folder)),
        Err(_) => findings.push(Finding::ok(
            "stores",
            "in use by a running server; integrity is checked only while the server is stopped",
        )),
    }
    findings
}

/// Checks the databases of an unused folder for integrity.
pub(super) fn stores(folder: &Path) -> Vec<Finding> {
    // Tracking data are not part of backups.
    let all = FILES.iter().chain(&["tracking.db"]);
    let mut findings: Vec<Finding> = all.filter_map(|name| integrity(&folder.join(name))).collect();
    // An unreadable folder was already reported.
    let gone = missing_partition(folder).ok().flatten();
    findings.extend(gone.map(|name| {
        let text = "is missing; it contains a part of the messages of exchanges";
        Finding::fail(name, text, "restore a backup; the server does not start without it")
    }));
    findings
}

fn space(folder: &Path, reserve: u64) -> Vec<Finding> {
    let stat = match rustix::fs::statvfs(folder) {
        Ok(stat) => stat,
        Err(error) => {
            return vec![Finding::warn("disk space", format!("cannot be determined: {error}"), "check with df")];
        }
    };
    let (free, all) = (stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize);
    let text = format!("{} free of {}", size(free), size(all));
    let advice =
        format!("free disk space: below {} (journal.disk_reserve) the server refuses events with 503", size(reserve));
    let mut findings = vec![if free < reserve {
        Finding::fail("disk space", text, advice)
    } else if free < reserve.saturating_mul(4) {
        Finding::warn("disk space", text, advice)
    } else {
        Finding::ok("disk space", text)
    }];
    // File systems without a fixed number of inodes report 0.
    if stat.f_files > 0 {
        let text = format!("{} free of {}", thousands(stat.f_favail), thousands(stat.f_files));
        findings.push(if stat.f_favail < 1_000 {
            Finding::fail("inodes", text, "remove files: the file channel and the stores need new ones")
        } else {
            Finding::ok("inodes", text)
        });
    }
    findings
}

/// Measures the latency of a store commit: write 8 KiB, fdatasync.
fn syncs(folder: &Path) -> Vec<Finding> {
    let path = folder.join(format!(".doctor-{}", std::process::id()));
    let measured = measure(&path);
    let _ = fs::remove_file(&path);
    let mut times = match measured {
        Ok(times) => times,
        Err(error) => {
            return vec![Finding::fail(
                "fsync",
                format!("cannot write: {error}"),
                "grant this user write access to the data folder, and free disk space",
            )];
        }
    };
    let (p50, p99) = (percentile(&mut times, 50), percentile(&mut times, 99));
    let text = format!("8 KiB in {} (p50), {} (p99) of {}", duration(p50), duration(p99), times.len());
    vec![if p99 > SYNC_SLOW {
        Finding::warn(
            "fsync",
            text,
            "every acceptance waits for a sync; use a disk with power-loss protection, or a less busy one",
        )
    } else {
        Finding::ok("fsync", text)
    }]
}

fn measure(path: &Path) -> io::Result<Vec<Duration>> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).open(path)?;
    let block = [0x5au8; 8 << 10];
    let start = Instant::now();
    let mut times = Vec::with_capacity(SYNCS);
    while times.len() < SYNCS && (times.is_empty() || start.elapsed() < SYNC_TIME_MAX) {
        let before = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        times.push(before.elapsed());
    }
    Ok(times)
}

/// Nearest-rank percentile.
fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent).div_ceil(100).max(1) - 1]
}

/// Runs `PRAGMA quick_check` on an unused store; `None` if it does not exist.
fn integrity(path: &Path) -> Option<Finding> {
    let data = fs::metadata(path).ok()?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let check = || -> rusqlite::Result<Vec<String>> {
        let database = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let mut statement = database.prepare("PRAGMA quick_check(10)")?;
        statement.query_map([], |row| row.get(0))?.collect()
    };
    let advice = "do not start the server; restore a backup. Keep the damaged files: records can often be recovered with `sqlite3 FILE .recover`";
    Some(match check() {
        Ok(lines) if lines == ["ok"] => Finding::ok(&name, format!("{}, intact", size(data.len()))),
        Ok(lines) => Finding::fail(&name, lines.join("; "), advice),
        Err(error) => Finding::fail(&name, error.to_string(), advice),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Level;

    fn levels(findings: &[Finding]) -> Vec<(&str, Level)> {
        findings.iter().map(|finding| (finding.what.as_str(), finding.level)).collect()
    }

    #[test]
    fn percentiles_use_the_nearest_rank() {
        let mut times: Vec<Duration> = (1..=200).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&mut times, 50), Duration::from_millis(100));
        assert_eq!(percentile(&mut times, 99), Duration::from_millis(198));
        assert_eq!(percentile(&mut [Duration::from_millis(7)], 99), Duration::from_millis(7));
    }

    #[test]
    fn a_folder_is_examined() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        let mut configuration = Configuration::default();
        configuration.data.folder = data.clone();
        assert_eq!(levels(&examine(&configuration)), [("data folder", Level::Warn)]);
        fs::create_dir(&data).expect("made");
        fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).expect("set");
        fs::write(first_key::path(&data), "tocsin_a_b").expect("written");
        fs::set_permissions(first_key::path(&data), fs::Permissions::from_mode(0o644)).expect("set");
        fs::write(data.join("journal.db"), vec![b'x'; 8192]).expect("written");
        Connection::open(data.join("records.db")).expect("opened").execute_batch("create table t (a)").expect("made");
        let of_two = "create table layout (partitions); insert into layout values (2)";
        Connection::open(data.join("spool.db")).expect("opened").execute_batch(of_two).expect("made");
        let findings = examine(&configuration);
        let levels = levels(&findings);
        for expected in [
            ("spool.db", Level::Ok),
            ("spool-1.db", Level::Fail),
            ("data folder", Level::Warn),
            ("admin key", Level::Fail),
            ("records.db", Level::Ok),
            ("journal.db", Level::Fail),
        ] {
            assert!(levels.contains(&expected), "{expected:?} in {findings:?}");
        }
        assert!(findings.iter().any(|finding| finding.what == "fsync"), "{findings:?}");
        assert!(
            !fs::read_dir(&data).expect("a folder").any(|entry| entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .starts_with(".doctor"))
        );
    }

    #[test]
    fn stores_in_use_are_not_checked() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut configuration = Configuration::default();
        configuration.data.folder = folder.path().to_owned();
        let _lock = platform::lock_folder(folder.path()).expect("free");
        assert!(examine(&configuration).iter().any(|finding| finding.what == "stores"));
    }
}
