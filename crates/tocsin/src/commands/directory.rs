//! Command `directory`: exports and imports the directory as LDIF. It works on the data folder without a server; with a
//! server, LDAP clients do the same.

use std::{
    fs::File,
    io::{BufRead, BufReader, BufWriter, Write},
    path::PathBuf,
    time::Instant,
};

use clap::Subcommand;
use tocsin_directory::{Directory, Imported};

use crate::{
    configuration::{self, ConfigurationArgs},
    failure::{Failure, Outcome},
    platform,
    terminal::{Terminal, printable, thousands},
};

/// Arguments of `tocsin directory`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Import entries and changes from LDIF; existing entries stay
    Import {
        /// LDIF file; `-` is standard input
        file: PathBuf,
    },
    /// Export all entries as LDIF, without passwords
    Export {
        /// Output file; default is standard output
        file: Option<PathBuf>,
    },
}

impl Args {
    /// Runs the command on a data folder that no server uses.
    ///
    /// # Errors
    /// If a server uses the folder, the file cannot be read or written, or records are refused.
    pub async fn run(self, terminal: &Terminal, args: &ConfigurationArgs) -> Outcome {
        let configuration = configuration::load(args, &[])?.configuration;
        let _lock = platform::lock_folder(&configuration.data.folder)?;
        let directory = platform::open_directory(&configuration).await?;
        match self.what {
            Action::Import { file } => import(terminal, &directory, file).await,
            Action::Export { file } => export(terminal, &directory, file).await,
        }
    }
}

async fn import(terminal: &Terminal, directory: &Directory, file: PathBuf) -> Outcome {
    let input: Box<dyn BufRead> = match file.to_str() {
        Some("-") => Box::new(BufReader::new(std::io::stdin())),
        _ => Box::new(BufReader::new(File::open(&file).map_err(|error| Failure::file("read", &file, &error))?)),
    };
    let started = Instant::now();
    let bar = terminal.progress(None, "{spinner} {pos} records");
    let shown = bar.clone();
    let mut progress = move |imported: &Imported| shown.set_position(imported.done);
    let done = directory.import(input, &mut progress).await;
    bar.finish_and_clear();
    let imported =
        done.map_err(|error| Failure::failed(format!("cannot continue reading {}", file.display())).because(&error))?;
    let Imported { done, present, refused, untold } = imported;
    for (line, dn, why) in &refused {
        terminal.line(format_args!("line {line}: {}: {}", printable(dn), printable(why)))?;
    }
    let rate = done as f64 / started.elapsed().as_secs_f64().max(0.001);
    let (done, present) = (thousands(done), thousands(present));
    terminal.line(format_args!("{done} records imported, {rate:.0} per second; {present} entries existed already"))?;
    match refused.len() as u64 + untold {
        0 => Ok(()),
        count => Err(Failure::failed(format!("{} records were refused", thousands(count)))),
    }
}

async fn export(terminal: &Terminal, directory: &Directory, file: Option<PathBuf>) -> Outcome {
    let written = match &file {
        Some(file) => {
            let made = File::create(file).map_err(|error| Failure::file("write", file, &error))?;
            let mut out = BufWriter::new(made);
            let count = directory.export(&mut out).await;
            out.flush().map_err(|error| Failure::file("write", file, &error))?;
            count
        }
        None => {
            let mut out = BufWriter::new(std::io::stdout().lock());
            let count = directory.export(&mut out).await;
            out.flush()?;
            count
        }
    };
    let count = written.map_err(|error| Failure::failed("cannot export the directory").because(&error))?;
    match file {
        Some(file) => Ok(terminal.line(format_args!("{} entries in {}", thousands(count), file.display()))?),
        None => Ok(()),
    }
}
