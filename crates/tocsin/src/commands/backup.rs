//! Copies the data folder as of one moment, and puts a copy back.

use std::{
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use serde_json::json;
use tocsin_store::{
    error::StoreError,
    records::Records,
    sqlite::backup::{self, FILES, Manifest},
};

use crate::{
    client::Client,
    commands::doctor::{self, Level},
    configuration::{self, Configuration, ConfigurationArgs},
    failure::{Failure, Outcome},
    platform,
    terminal::{Terminal, printable, size, thousands},
};

/// Arguments of `tocsin backup`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The folder to make; with --remote, its name among the backups of the server
    to: PathBuf,
    /// Has the server make it, in the folder `backups` of its data folder
    #[arg(long)]
    remote: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Takes the copy, whether a server uses the data folder or not.
    ///
    /// # Errors
    /// It exists already, there is no room, or what was copied is not whole.
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
        let folder = configuration::load(configuration, &[])?.configuration.data.folder;
        let to = self.to.clone();
        let version = env!("CARGO_PKG_VERSION");
        let taking = tokio::task::spawn_blocking(move || backup::back_up(&folder, &to, version, platform::now()));
        let taken = taking.await.map_err(|error| Failure::failed("taking the backup broke").because(&error))?;
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
    /// The backup
    #[arg(required_unless_present = "drill")]
    from: Option<PathBuf>,
    /// Moves the databases that are there into a folder of their own beside them
    #[arg(long)]
    replace: bool,
    /// Only makes sure that the backup is whole, and of a version that this one can read
    #[arg(long, conflicts_with = "replace")]
    check: bool,
    /// Restores it into a folder of its own, examines that as `tocsin doctor` does, and removes it; without FROM a backup is
    /// taken for it
    #[arg(long, conflicts_with_all = ["replace", "check"])]
    drill: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

impl Restore {
    /// Puts the copy into the data folder, which no server may use.
    ///
    /// # Errors
    /// The backup is damaged or of a newer version; there are databases already; a server uses the folder.
    pub async fn run(self, terminal: &Terminal, configuration: &ConfigurationArgs) -> Outcome {
        let configuration = configuration::load(configuration, &[])?.configuration;
        let folder = configuration.data.folder.clone();
        let Restore { from, replace, check, drill, json } = self;
        if drill {
            return rehearse(terminal, from, configuration, json).await;
        }
        let from = from.expect("without a drill it must be given");
        let work = tokio::task::spawn_blocking(move || {
            let verified = backup::verify(&from).map_err(|error| failed("use this backup", &error))?;
            if check {
                return Ok(verified.manifest);
            }
            let _lock = platform::lock_folder(&folder)?;
            if replace {
                move_away(&folder)?;
            }
            verified.put(&folder).map_err(|error| failed("restore", &error))
        });
        let manifest = work.await.map_err(|error| Failure::failed("restoring broke").because(&error))??;
        if json {
            return Ok(terminal.json(&manifest)?);
        }
        let done = if check {
            "the backup is whole"
        } else {
            "restored; `tocsin doctor` examines it, `tocsin serve` goes on from it"
        };
        show(terminal, done, &manifest)
    }
}

/// A folder for a drill, removed when the value ends.
struct Rehearsal(PathBuf);

impl Rehearsal {
    /// Among the temporary files of the machine, so that a drill does not fill the disk of the data folder.
    fn new() -> Outcome<Rehearsal> {
        let folder = std::env::temp_dir().join(format!("tocsin-drill-{}", fastrand::u64(..)));
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|error| Failure::file("make the folder", &folder, &error))?;
        Ok(Rehearsal(folder))
    }
}

impl Drop for Rehearsal {
    fn drop(&mut self) {
        // What cannot be removed is left to whoever made it so.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Restores a backup beside everything, or one that is taken for it, and opens what came of it as a server would.
async fn rehearse(terminal: &Terminal, from: Option<PathBuf>, configuration: Configuration, json: bool) -> Outcome {
    let place = Rehearsal::new()?;
    let (folder, data) = (configuration.data.folder.clone(), place.0.join("data"));
    let (copy, restored) = (place.0.join("backup"), data.clone());
    let work = tokio::task::spawn_blocking(move || {
        let version = env!("CARGO_PKG_VERSION");
        let from = match from {
            Some(from) => from,
            None => {
                let taken = backup::back_up(&folder, &copy, version, platform::now());
                taken.map_err(|error| failed("back up", &error))?;
                copy
            }
        };
        let verified = backup::verify(&from).map_err(|error| failed("use this backup", &error))?;
        let manifest = verified.put(&restored).map_err(|error| failed("restore", &error))?;
        Ok::<_, Failure>((manifest, doctor::stores(&restored)))
    });
    let (manifest, findings) = work.await.map_err(|error| Failure::failed("the drill broke").because(&error))??;
    if let Some(broken) = findings.iter().find(|finding| finding.level == Level::Fail) {
        let what = format!("the drill failed: {} is damaged: {}; use another backup", broken.what, broken.text);
        return Err(Failure::failed(what));
    }
    // With the keys of this configuration, and the schema brought forward.
    let mut configuration = configuration;
    configuration.data.folder = data;
    let records = platform::open_records(&configuration).await?;
    let counts = records.counts();
    let applications = records.applications().await;
    let applications = applications.map_err(|error| Failure::failed("the drill failed").because(&error))?.len();
    drop(records);
    if json {
        let (subscribers, subscriptions) = (counts.subscribers, counts.subscriptions);
        let counts = json!({"applications": applications, "subscribers": subscribers, "subscriptions": subscriptions});
        return Ok(terminal.json(&json!({"ok": true, "manifest": manifest, "restored": counts}))?);
    }
    show(terminal, "the drill went well: restored, examined, opened, and removed again", &manifest)?;
    doctor::show(terminal, &findings)?;
    let (subscribers, subscriptions) = (thousands(counts.subscribers), thousands(counts.subscriptions));
    let found = format!("{applications} applications, {subscribers} subscribers, {subscriptions} subscriptions");
    Ok(terminal.line(found)?)
}

/// What is there stays there, under another name.
fn move_away(folder: &Path) -> Outcome {
    let there: Vec<String> = FILES
        .iter()
        .flat_map(|name| ["", "-wal", "-shm"].map(|ending| format!("{name}{ending}")))
        .filter(|name| folder.join(name).exists())
        .collect();
    if there.is_empty() {
        return Ok(());
    }
    let away = folder.join(format!("replaced-{}", platform::now().0 / 1_000_000));
    std::fs::create_dir(&away).map_err(|error| Failure::file("make", &away, &error))?;
    for name in there {
        let from = folder.join(&name);
        std::fs::rename(&from, away.join(&name)).map_err(|error| Failure::file("move", &from, &error))?;
    }
    Ok(())
}

fn failed(what: &str, error: &StoreError) -> Failure {
    let advice = match error {
        StoreError::Taken(_) if what == "restore" => "; --replace moves away what is there",
        StoreError::Taken(_) => "; name another folder",
        StoreError::Damaged(_) => "; use another backup",
        StoreError::Missing(_) => "; name a folder that `tocsin backup` made",
        StoreError::Full(_) => "; make room",
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

    /// Makes a data folder, as the server does.
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
        struct Wrapped<T: clap::Args> {
            #[command(flatten)]
            args: T,
            #[command(flatten)]
            configuration: ConfigurationArgs,
        }
        let data = folder.to_str().expect("a path");
        let Wrapped { args, configuration } =
            <Wrapped<T> as clap::Parser>::parse_from([&["backup"], args, &["--data", data]].concat());
        (args, configuration)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_drill_works_from_end_to_end() {
        let place = tempfile::tempdir().expect("a folder");
        let (folder, copy) = (place.path().join("data"), place.path().join("copy"));
        data(&folder).await;
        let copy_text = copy.to_str().expect("a path");
        let (terminal, captured) = Terminal::captured();
        let (args, configuration) = wrapped::<Args>(&folder, &[copy_text]);
        let none = || Err(Failure::failed("no server is needed"));
        args.run(&terminal, &configuration, none).await.expect("taken");
        assert!(captured.text().contains("records.db"), "{}", captured.text());

        let (args, configuration) = wrapped::<Restore>(&folder, &[copy_text]);
        let there = args.run(&terminal, &configuration).await.expect_err("there are databases");
        assert!(there.to_string().contains("--replace"), "{there}");
        let (args, configuration) = wrapped::<Restore>(&folder, &[copy_text, "--replace"]);
        args.run(&terminal, &configuration).await.expect("restored");
        data(&folder).await;

        // With a backup that is there, and with one of its own; both leave nothing behind.
        for arguments in [&[copy_text, "--drill"][..], &["--drill"]] {
            let (args, configuration) = wrapped::<Restore>(&folder, arguments);
            args.run(&terminal, &configuration).await.expect("it goes well");
            let text = captured.text();
            assert!(text.contains("the drill went well") && text.contains("0 subscribers"), "{text}");
            assert!(text.contains("sync.db: ") && text.contains("intact"), "{text}");
        }
        let (args, configuration) = wrapped::<Restore>(&place.path().join("new"), &[copy_text, "--check"]);
        args.run(&terminal, &configuration).await.expect("whole");
        assert!(!place.path().join("new").join("records.db").exists());
        std::fs::write(copy.join("records.db"), "something else").expect("written");
        let (args, configuration) = wrapped::<Restore>(&place.path().join("new"), &[copy_text]);
        let error = args.run(&terminal, &configuration).await.expect_err("it is damaged");
        assert!(error.to_string().contains("use another backup"), "{error}");
        let (args, configuration) = wrapped::<Restore>(&folder, &[copy_text, "--drill"]);
        let error = args.run(&terminal, &configuration).await.expect_err("it is damaged");
        assert!(error.to_string().contains("use another backup"), "{error}");
    }
}
