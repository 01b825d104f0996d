//! Writes the directory as LDIF, and does what an LDIF file says. Both work on the data folder itself, without a server:
//! with one, LDAP clients do the same.

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
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Does what a file says: entries, and changes of them; those that are there already stay as they are
    Import {
        /// The file; `-` is standard input
        file: PathBuf,
    },
    /// Writes all entries, containers first; passwords are left out
    Export {
        /// The file; without one, standard output
        file: Option<PathBuf>,
    },
}

impl Args {
    /// Does it, on a data folder that no server uses.
    ///
    /// # Errors
    /// A server runs on the folder; the file cannot be read or written; records were refused.
    pub async fn run(self, terminal: &Terminal, args: &ConfigurationArgs) -> Outcome {
        let configuration = configuration::load(args, &[])?.configuration;
        let _lock = platform::lock_folder(&configuration.data.folder)?;
        let directory = platform::open_directory(&configuration).await?;
        match self.what {
            What::Import { file } => import(terminal, &directory, file).await,
            What::Export { file } => export(terminal, &directory, file).await,
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
        done.map_err(|error| Failure::failed(format!("{} cannot be read on", file.display())).because(&error))?;
    let Imported { done, present, refused, untold } = imported;
    for (line, dn, why) in &refused {
        terminal.line(format_args!("line {line}: {}: {}", printable(dn), printable(why)))?;
    }
    let rate = done as f64 / started.elapsed().as_secs_f64().max(0.001);
    let (done, present) = (thousands(done), thousands(present));
    terminal.line(format_args!("{done} records done, {rate:.0} a second; {present} entries were there already"))?;
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
    let count = written.map_err(|refusal| Failure::failed("the directory could not be written").because(&refusal))?;
    match file {
        Some(file) => Ok(terminal.line(format_args!("{} entries in {}", thousands(count), file.display()))?),
        None => Ok(()),
    }
}
