//! Makes the data folder, a commented configuration file and the first key.

use std::{fs, io::Write};

use crate::{
    configuration::{self, ConfigurationArgs},
    failure::{Failure, Outcome},
    first_key, platform,
    terminal::{Colour, Terminal},
};

/// Arguments of `tocsin init`.
#[derive(Debug, clap::Args)]
pub struct Args {}

impl Args {
    /// Makes what is missing; what is there stays as it is.
    ///
    /// # Errors
    /// The folder or the stores cannot be made, or a server runs on them.
    pub async fn run(self, terminal: &Terminal, args: &ConfigurationArgs) -> Outcome {
        let configuration = configuration::load(args, &[])?.configuration;
        let folder = &configuration.data.folder;
        let _lock = platform::lock_folder(folder)?;
        let file = args.config.clone().unwrap_or_else(|| folder.join("tocsin.toml"));
        match fs::OpenOptions::new().write(true).create_new(true).open(&file) {
            Ok(mut new) => {
                new.write_all(configuration::commented_file().as_bytes())
                    .map_err(|error| Failure::file("write", &file, &error))?;
                terminal.line(format_args!("wrote {} with every setting and its meaning", file.display()))?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                terminal.line(format_args!("{} exists and stays as it is", file.display()))?;
            }
            Err(error) => return Err(Failure::file("write", &file, &error)),
        }
        let records = platform::open_records(&configuration).await?;
        match first_key::ensure(&*records, folder, platform::now()).await? {
            Some(key) => show_first_key(terminal, folder, &key)?,
            None => terminal.line("the installation has keys; `tocsin keys create` makes more")?,
        }
        terminal.line(format_args!("next: tocsin serve --data {}", folder.display()))?;
        Ok(())
    }
}

/// Prints the first key, which is shown this once.
///
/// # Errors
/// The output does not take it.
pub fn show_first_key(terminal: &Terminal, folder: &std::path::Path, key: &str) -> std::io::Result<()> {
    terminal
        .line(format_args!("the first admin key, shown this once:\n\n    {}\n", terminal.paint(Colour::Bold, key)))?;
    terminal.line(format_args!(
        "it also lies in {} (mode 0600), where the commands of this machine find it; delete the file if you keep the key elsewhere",
        first_key::path(folder).display()
    ))
}
