//! Commands `backup` and `restore`: consistent snapshot of the data folder, and its restoration.

use std::{
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use serde_json::json;
use tocsin_store::{
    error::StoreError,
    records::{ApplicationStore, Installation, RecordCounts},
    sqlite::backup::{self, FILES, Manifest},
};

use crate::{
    client::Client,
    commands::doctor::{self, Level},
    configuration::{self, Configuration, ConfigurationArgs},
    failure::{Failure, Outcome},
    local_change, platform,
    terminal::{Terminal, counted, printable, size},
};

/// Arguments of `tocsin backup`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder to create; with --remote, its name among the backups of the server
    to: PathBuf,
    /// Create the backup on the server, in folder `backups` of its data folder
    #[arg(long)]
    remote: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Takes the snapshot, with or without a running server.
    ///
    /// # Errors
    /// If the folder exists, the disk is full, or the copy fails verification.
    pub async fn run(
        self,
        terminal: &Terminal,
        configuration: &ConfigurationArgs,
        client: impl FnOnce() -> Outcome<Client>,
    ) -> Outcome {
        if self.remote {
            let body = json!({"name": self.to.to_string_lossy()});
            let taken = client()?.post("/v1/backups", &body).await?;
            if self.json {
                return Ok(terminal.json(&taken)?);
            }
            let folder = printable(taken["folder"].as_str().unwrap_or_default()).into_owned();
            return Ok(terminal.line(format_args!("backed up to {folder} on the server"))?);
        }
        let configuration = configuration::load(configuration, &[])?.configuration;
        let (folder, reserve) = (configuration.data.folder, configuration.journal.disk_reserve.0);
        check_place(&folder, &self.to)?;
        let to = self.to.clone();
        let version = env!("CARGO_PKG_VERSION");
        let taking =
            tokio::task::spawn_blocking(move || backup::back_up(&folder, &to, version, local_change::now(), reserve));
        let taken = taking.await.map_err(|error| Failure::failed("the backup task panicked").because(&error))?;
        let manifest = taken.map_err(|error| failed("back up", &error))?;
        if self.json {
            return Ok(terminal.json(&manifest)?);
        }
        show(terminal, &format!("backed up to {}", self.to.display()), &manifest)
    }
}

/// Arguments of `tocsin restore`.
#[derive(Debug, clap::Args)]
pub struct Restore {
    /// Backup folder
    #[arg(required_unless_present = "drill")]
    from: Option<PathBuf>,
    /// Move existing databases into a subfolder of the data folder
    #[arg(long)]
    replace: bool,
    /// Only verify that the backup is complete and its version is supported
    #[arg(long, conflicts_with = "replace")]
    check: bool,
    /// Restore into a temporary folder, examine it as `tocsin doctor` does, and remove it; without FROM a backup is
    /// taken first
    #[arg(long, conflicts_with_all = ["replace", "check"])]
    drill: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Restore {
    /// Restores the backup into the data folder, which no server may use.
    ///
    /// # Errors
    /// If the backup is damaged or of a newer version, databases exist already, or a server uses the folder.
    pub async fn run(self, terminal: &Terminal, configuration: &ConfigurationArgs) -> Outcome {
        let configuration = configuration::load(configuration, &[])?.configuration;
        let folder = configuration.data.folder.clone();
        let Restore { from, replace, check, drill, json } = self;
        if drill {
            return self::drill(terminal, from, configuration, json).await;
        }
        let from = from.expect("clap requires it without --drill");
        check_place(&folder, &from)?;
        let work = tokio::task::spawn_blocking(move || {
            let verified = backup::verify(&from).map_err(|error| failed("use this backup", &error))?;
            if check {
                return Ok(verified.manifest);
            }
            let _lock = platform::lock_folder(&folder)?;
            if replace {
                move_databases(&folder)?;
            }
            verified.put(&folder).map_err(|error| failed("restore", &error))
        });
        let manifest = work.await.map_err(|error| Failure::failed("the restore task panicked").because(&error))??;
        if json {
            return Ok(terminal.json(&manifest)?);
        }
        let done = if check {
            "the backup is complete"
        } else {
            "restored; `tocsin doctor` examines it, `tocsin serve` starts from it"
        };
        show(terminal, done, &manifest)
    }
}

/// Refuses a backup inside the data folder, except where `--remote` creates it.
fn check_place(folder: &Path, place: &Path) -> Outcome {
    if backup::is_in_data_folder(folder, place) {
        let (place, folder) = (place.display(), folder.display());
        let what = format!("{place} is inside the data folder {folder}; use a folder outside of it, or in `backups`");
        return Err(Failure::usage(what));
    }
    Ok(())
}

/// Temporary folder of a drill, removed on drop.
struct DrillFolder(PathBuf);

impl DrillFolder {
    /// Uses the system's temporary folder, so that a drill does not fill the data disk.
    fn new() -> Outcome<DrillFolder> {
        let folder = std::env::temp_dir().join(format!("tocsin-drill-{}", fastrand::u64(..)));
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|error| Failure::file("make the folder", &folder, &error))?;
        Ok(DrillFolder(folder))
    }
}

impl Drop for DrillFolder {
    fn drop(&mut self) {
        // Files of another user cannot be removed here.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Result of a restore drill.
pub struct Drilled {
    /// Manifest of the backup.
    pub manifest: Manifest,
    /// Examination of the restored databases.
    pub findings: Vec<doctor::Finding>,
    /// Restored records.
    pub counts: RecordCounts,
    /// Restored applications.
    pub applications: u64,
}

/// Restore drill: restores a backup, given or taken, into a temporary folder and opens it as a server would.
///
/// # Errors
/// If the backup cannot be taken, restored or opened, or a restored database is damaged.
pub async fn run_drill(from: Option<PathBuf>, configuration: Configuration) -> Outcome<Drilled> {
    let temporary = DrillFolder::new()?;
    let (folder, data) = (configuration.data.folder.clone(), temporary.0.join("data"));
    let (copy, restored) = (temporary.0.join("backup"), data.clone());
    let reserve = configuration.journal.disk_reserve.0;
    let work = tokio::task::spawn_blocking(move || {
        let version = env!("CARGO_PKG_VERSION");
        let from = match from {
            Some(from) => from,
            None => {
                let taken = backup::back_up(&folder, &copy, version, local_change::now(), reserve);
                taken.map_err(|error| failed("back up", &error))?;
                copy
            }
        };
        let verified = backup::verify(&from).map_err(|error| failed("use this backup", &error))?;
        let manifest = verified.put(&restored).map_err(|error| failed("restore", &error))?;
        Ok::<_, Failure>((manifest, doctor::stores(&restored)))
    });
    let (manifest, findings) =
        work.await.map_err(|error| Failure::failed("the drill task panicked").because(&error))??;
    if let Some(broken) = findings.iter().find(|finding| finding.level == Level::Fail) {
        let what = format!("the drill failed: {} is damaged: {}; use another backup", broken.what, broken.text);
        return Err(Failure::failed(what));
    }
    // Uses the keys of this configuration and migrates the schema.
    let mut configuration = configuration;
    configuration.data.folder = data;
    let records = platform::open_records(&configuration).await?;
    let counts = records.counts();
    let applications = records.applications().await;
    let applications = applications.map_err(|error| Failure::failed("the drill failed").because(&error))?.len() as u64;
    drop(records);
    Ok(Drilled { manifest, findings, counts, applications })
}

/// Runs a restore drill and prints its result.
async fn drill(terminal: &Terminal, from: Option<PathBuf>, configuration: Configuration, json: bool) -> Outcome {
    let Drilled { manifest, findings, counts, applications } = run_drill(from, configuration).await?;
    if json {
        let (subscribers, subscriptions) = (counts.subscribers, counts.subscriptions);
        let counts = json!({"applications": applications, "subscribers": subscribers, "subscriptions": subscriptions});
        return Ok(terminal.json(&json!({"ok": true, "manifest": manifest, "restored": counts}))?);
    }
    show(terminal, "the drill succeeded: restored, examined, opened and removed", &manifest)?;
    doctor::show(terminal, &findings)?;
    Ok(terminal.line(restored_records(applications, counts))?)
}

/// The restored records, as text.
fn restored_records(applications: u64, counts: RecordCounts) -> String {
    [
        counted(applications, "application", "applications"),
        counted(counts.subscribers, "subscriber", "subscribers"),
        counted(counts.subscriptions, "subscription", "subscriptions"),
    ]
    .join(", ")
}

/// Moves existing databases into a subfolder.
fn move_databases(folder: &Path) -> Outcome {
    let there: Vec<String> = FILES
        .iter()
        // Tracked bodies are not part of a backup, and belong to the messages of the old databases.
        .chain(["tracking.db"].iter())
        .flat_map(|name| ["", "-wal", "-shm", "-journal"].map(|ending| format!("{name}{ending}")))
        .filter(|name| folder.join(name).exists())
        .collect();
    if there.is_empty() {
        return Ok(());
    }
    let away = new_folder(folder, &format!("replaced-{}", local_change::now().0 / 1_000_000))?;
    for name in there {
        let from = folder.join(&name);
        std::fs::rename(&from, away.join(&name)).map_err(|error| Failure::file("move", &from, &error))?;
    }
    Ok(())
}

/// Creates a subfolder; if there is one of this name, with the next free number as suffix.
fn new_folder(folder: &Path, name: &str) -> Outcome<PathBuf> {
    let suffixed = (2_u32..).map(|number| format!("{name}-{number}"));
    for name in std::iter::once(name.to_owned()).chain(suffixed) {
        let path = folder.join(name);
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| path.clone()).map_err(|error| Failure::file("make", &path, &error)),
        }
    }
    unreachable!("there is a free number")
}

fn failed(what: &str, error: &StoreError) -> Failure {
    let advice = match error {
        StoreError::Taken(_) if what == "restore" => "; --replace moves existing databases away",
        StoreError::Taken(_) => "; use another folder",
        StoreError::Damaged(_) => "; use another backup",
        StoreError::Missing(_) => "; use a folder created by `tocsin backup`",
        StoreError::Full(_) => "; free disk space",
        _ => "",
    };
    Failure::failed(format!("cannot {what}{advice}")).because(error)
}

fn show(terminal: &Terminal, done: &str, manifest: &Manifest) -> Outcome {
    terminal.line(done)?;
    terminal.line(format_args!("taken at {} by version {}", manifest.taken_at, manifest.version))?;
    let row = |file: &backup::CopiedFile| vec![file.name.clone(), size(file.bytes), file.schema.to_string()];
    let rows: Vec<Vec<String>> = manifest.files.iter().map(row).collect();
    Ok(terminal.table(&["database", "size", "schema"], &rows)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b5_databases_that_are_moved_twice_in_a_second_are_in_two_folders() {
        let folder = tempfile::tempdir().expect("a folder");
        let names = ["replaced-7", "replaced-7-2", "replaced-7-3"];
        for name in names {
            assert_eq!(new_folder(folder.path(), "replaced-7").expect("made"), folder.path().join(name));
        }
        assert!(new_folder(&folder.path().join("absent"), "replaced-7").is_err());
    }

    #[test]
    fn restored_records_have_the_singular_for_one_thing() {
        let counts = RecordCounts { subscribers: 1, devices: 2, subscriptions: 1_000 };
        assert_eq!(restored_records(1, counts), "1 application, 1 subscriber, 1,000 subscriptions");
    }

    /// Creates a data folder as the server does.
    async fn data(folder: &Path) {
        let mut configuration = configuration::Configuration::default();
        configuration.data.folder = folder.to_owned();
        configuration.http.listen = "127.0.0.1:0".parse().expect("an address");
        configuration.journal.disk_reserve = configuration::Size(0);
        let running = platform::start(configuration).await.expect("it starts");
        running.stop(std::time::Duration::from_secs(10)).await;
    }

    fn wrapped<T: clap::Args>(folder: &Path, args: &[&str]) -> (T, ConfigurationArgs) {
        #[derive(clap::Parser)]
        struct TestCli<T: clap::Args> {
            #[command(flatten)]
            args: T,
            #[command(flatten)]
            configuration: ConfigurationArgs,
        }
        let data = folder.to_str().expect("a path");
        let TestCli { args, configuration } =
            <TestCli<T> as clap::Parser>::parse_from([&["backup"], args, &["--data", data]].concat());
        (args, configuration)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_drill_restores_examines_and_removes_a_backup() {
        let temporary = tempfile::tempdir().expect("a folder");
        let (folder, copy) = (temporary.path().join("data"), temporary.path().join("copy"));
        data(&folder).await;
        let copy_text = copy.to_str().expect("a path");
        let (terminal, captured) = Terminal::captured();
        let (args, configuration) = wrapped::<Args>(&folder, &[copy_text]);
        let none = || Err(Failure::failed("no server is needed"));
        args.run(&terminal, &configuration, none).await.expect("the backup is taken");
        assert!(captured.text().contains("records.db"), "{}", captured.text());

        // No backup is created in the data folder or restored from it, also by a symbolic link.
        std::os::unix::fs::symlink(&folder, temporary.path().join("link")).expect("linked");
        for inside in ["data", "data/sub", "data/new/sub", "data/backups", "data/backups/../sub", "link/sub"] {
            let place = temporary.path().join(inside);
            let place = place.to_str().expect("a path");
            let (args, configuration) = wrapped::<Args>(&folder, &[place]);
            let error = args.run(&terminal, &configuration, none).await.expect_err("it is inside");
            assert!(error.to_string().contains("is inside the data folder"), "{inside}: {error}");
            let (args, configuration) = wrapped::<Restore>(&folder, &[place, "--replace"]);
            let error = args.run(&terminal, &configuration).await.expect_err("it is inside");
            assert!(error.to_string().contains("is inside the data folder"), "{inside}: {error}");
        }
        assert!(folder.join("records.db").exists() && !folder.join("sub").exists());
        assert!(!backup::is_in_data_folder(&folder, &folder.join("backups/monday")));

        let (args, configuration) = wrapped::<Restore>(&folder, &[copy_text]);
        let there = args.run(&terminal, &configuration).await.expect_err("databases exist");
        assert!(there.to_string().contains("--replace"), "{there}");
        std::fs::write(folder.join("tracking.db"), "tracked bodies").expect("written");
        let (args, configuration) = wrapped::<Restore>(&folder, &[copy_text, "--replace"]);
        args.run(&terminal, &configuration).await.expect("restored");
        let entries = std::fs::read_dir(&folder).expect("the folder").map(|entry| entry.expect("an entry").path());
        let is_replaced = |path: &PathBuf| path.is_dir() && path.join("records.db").exists();
        let replaced = entries.into_iter().find(is_replaced).expect("the old databases are kept");
        assert_eq!(std::fs::read_to_string(replaced.join("tracking.db")).expect("it is kept"), "tracked bodies");
        data(&folder).await;

        // With an existing backup, and with one taken for the drill; both leave nothing behind.
        for arguments in [&[copy_text, "--drill"][..], &["--drill"]] {
            let (args, configuration) = wrapped::<Restore>(&folder, arguments);
            args.run(&terminal, &configuration).await.expect("the drill succeeds");
            let text = captured.text();
            assert!(text.contains("the drill succeeded") && text.contains("0 subscribers"), "{text}");
            assert!(text.contains("sync.db: ") && text.contains("intact"), "{text}");
        }
        let (args, configuration) = wrapped::<Restore>(&temporary.path().join("new"), &[copy_text, "--check"]);
        args.run(&terminal, &configuration).await.expect("whole");
        assert!(!temporary.path().join("new").join("records.db").exists());
        std::fs::write(copy.join("records.db"), "something else").expect("written");
        let (args, configuration) = wrapped::<Restore>(&temporary.path().join("new"), &[copy_text]);
        let error = args.run(&terminal, &configuration).await.expect_err("the backup is damaged");
        assert!(error.to_string().contains("use another backup"), "{error}");
        let (args, configuration) = wrapped::<Restore>(&folder, &[copy_text, "--drill"]);
        let error = args.run(&terminal, &configuration).await.expect_err("the backup is damaged");
        assert!(error.to_string().contains("use another backup"), "{error}");
    }
}
