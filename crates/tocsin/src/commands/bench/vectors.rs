//! Measures what operations cost, for `tocsin capacity`.

use std::{fs, path::PathBuf};

use crate::{
    bench::{Context, Settings, results::Run, vectors},
    commands::serve::Signals,
    failure::{Failure, Outcome},
    terminal::Terminal,
};

/// Arguments of `tocsin bench vectors`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Measure these groups of operations only: accept, format, deliver, directory, exchange, sync
    #[arg(value_name = "GROUP")]
    groups: Vec<String>,
    /// Small sizes: shows that everything works, and is nothing to plan with
    #[arg(long, visible_alias = "short")]
    quick: bool,
    /// The file to write
    #[arg(long, value_name = "FILE", default_value = "vectors.json")]
    out: PathBuf,
    /// Where the servers' data lie while they are measured, since the disk matters
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

impl Args {
    /// Measures, and writes the file that `tocsin capacity` reads.
    ///
    /// # Errors
    /// A group is unknown or could not be measured.
    pub async fn run(self, terminal: &Terminal) -> Outcome {
        let run = Run::now(if self.quick { "quick: nothing to plan with".to_owned() } else { "full".to_owned() });
        let settings = Settings { quick: self.quick, folder: self.folder, ..Settings::default() };
        let context = Context::new(settings)?.shown_on(terminal);
        if cfg!(debug_assertions) {
            context.tell("this is a debug build: its costs mean nothing");
        }
        let mut signals = Signals::new()?;
        let measured = tokio::select! {
            measured = vectors::measure(&context, &self.groups, &run) => measured,
            name = signals.next() => Err(Failure::failed(format!("interrupted by {name}; what was started has been stopped"))),
        };
        context.progress.end();
        fs::write(&self.out, measured?).map_err(|error| Failure::file("write", &self.out, &error))?;
        Ok(terminal.line(self.out.display())?)
    }
}
