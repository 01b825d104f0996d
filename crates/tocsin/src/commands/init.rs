//! Command `init`: creates the data folder, a commented configuration file and the first key.

use std::{fs, io::Write};

use crate::{
    configuration::{self, ConfigurationArgs},
    failure::{Failure, Outcome},
    first_key, local_change, platform,
    terminal::{Colour, Terminal},
};

/// Arguments of `tocsin init`.
#[derive(Debug, clap::Args)]
pub struct Args {}

impl Args {
    /// Creates missing files; existing ones stay unchanged.
    ///
    /// # Errors
    /// If the folder or the stores cannot be created, or a server uses them.
    pub async fn run(self, terminal: &Terminal, args: &ConfigurationArgs) -> Outcome {
        let configuration = configuration::load(args, &[])?.configuration;
        let folder = &configuration.data.folder;
        let _lock = platform::lock_folder(folder)?;
        let file = args.config.clone().unwrap_or_else(|| folder.join("tocsin.toml"));
        match fs::OpenOptions::new().write(true).create_new(true).open(&file) {
            Ok(mut new) => {
                new.write_all(configuration::commented_file().as_bytes())
                    .map_err(|error| Failure::file("write", &file, &error))?;
                terminal.line(format_args!("wrote {}, which describes every setting", file.display()))?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                terminal.line(format_args!("{} exists and is unchanged", file.display()))?;
            }
            Err(error) => return Err(Failure::file("write", &file, &error)),
        }
        let records = platform::open_records(&configuration).await?;
        match first_key::create_if_needed(&*records, folder, local_change::now()).await? {
            Some(key) => show_first_key(terminal, folder, &key)?,
            None => terminal.line("the installation has keys; `tocsin keys create` creates more")?,
        }
        terminal.line(format_args!("next: tocsin serve --data {}", folder.display()))?;
        Ok(())
    }
}

/// Prints the first key on a terminal, once; otherwise only the path of its file, because pipes end in logs.
///
/// # Errors
/// If the output cannot be written.
pub fn show_first_key(terminal: &Terminal, folder: &std::path::Path, key: &str) -> std::io::Result<()> {
    if terminal.is_interactive() {
        let key = terminal.paint(Colour::Bold, key);
        terminal.line(format_args!("the first admin key, shown this once:\n\n    {key}\n"))?;
    }
    terminal.line(format_args!(
        "the first admin key is in {} (mode 0600), where the commands on this machine read it; delete the file if you store the key elsewhere",
        first_key::path(folder).display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a22_the_first_key_is_not_printed_into_a_pipe() {
        let (terminal, printed) = Terminal::captured();
        show_first_key(&terminal, std::path::Path::new("data"), "tocsin_a_b").expect("printed");
        let printed = printed.text();
        assert!(printed.contains("data/admin.key") && !printed.contains("tocsin_a_b"), "{printed}");
    }
}
