//! Command `bench vectors`: measures the cost vectors for `tocsin capacity`.

use std::{fs, path::PathBuf};

use tocsin_bench::{Context, Settings, run::Run, vectors};

use crate::{
    failure::{Failure, Outcome},
    signals::Signals,
    terminal::Terminal,
};

/// Arguments of `tocsin bench vectors`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Groups of operations to measure: accept, format, deliver, directory, exchange, sync
    #[arg(value_name = "GROUP")]
    groups: Vec<String>,
    /// Small sizes: a smoke test, not for planning
    #[arg(long, visible_alias = "short")]
    quick: bool,
    /// Output file
    #[arg(long, value_name = "FILE", default_value = "vectors.json")]
    out: PathBuf,
    /// Folder for the servers' data, on the disk to measure
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

impl Args {
    /// Measures and writes the file that `tocsin capacity` reads.
    ///
    /// # Errors
    /// If a group is unknown or cannot be measured.
    pub async fn run(self, terminal: &Terminal) -> Outcome {
        let run = Run::now(if self.quick { "quick: nothing to plan with".to_owned() } else { "full".to_owned() });
        let settings = Settings { quick: self.quick, folder: self.folder, ..Settings::default() };
        let context = Context::new(settings)?.with_display(terminal);
        if cfg!(debug_assertions) {
            context.log("this is a debug build: its costs are meaningless");
        }
        let mut signals = Signals::new()?;
        let measured = tokio::select! {
            measured = vectors::measure(&context, &self.groups, &run) => measured,
            name = signals.next() => Err(Failure::failed(format!("interrupted by {name}; started processes were stopped"))),
        };
        context.progress.end();
        fs::write(&self.out, measured?).map_err(|error| Failure::file("write", &self.out, &error))?;
        Ok(terminal.line(self.out.display())?)
    }
}
