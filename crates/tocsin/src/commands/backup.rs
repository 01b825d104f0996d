//! Copies the data folder as of one moment, and puts a copy back.

use std::path::{Path, PathBuf};

use serde_json::json;
use tocsin_store::{
    error::StoreError,
    sqlite::backup::{self, FILES, Manifest},
};

use crate::{
    client::Client,
    configuration::{self, ConfigurationArgs},
    failure::{Failure, Outcome},
    platform,
    terminal::{Terminal, printable, size},
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
    from: PathBuf,
    /// Moves the databases that are there into a folder of their own beside them
    #[arg(long)]
    replace: bool,
    /// Only makes sure that the backup is whole, and of a version that this one can read
    #[arg(long, conflicts_with = "replace")]
    check: bool,
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
        let folder = configuration::load(configuration, &[])?.configuration.data.folder;
        let Restore { from, replace, check, json } = self;
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

        let (args, configuration) = wrapped::<Restore>(&place.path().join("new"), &[copy_text, "--check"]);
        args.run(&terminal, &configuration).await.expect("whole");
        assert!(!place.path().join("new").join("records.db").exists());
        std::fs::write(copy.join("records.db"), "something else").expect("written");
        let (args, configuration) = wrapped::<Restore>(&place.path().join("new"), &[copy_text]);
        let error = args.run(&terminal, &configuration).await.expect_err("it is damaged");
        assert!(error.to_string().contains("use another backup"), "{error}");
    }
}
