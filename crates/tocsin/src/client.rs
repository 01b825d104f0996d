//! Connection of a command to a server: flags, variables and the key of this machine.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use clap::Args;
pub use tocsin_command_line::client::*;

use crate::{
    configuration::{self, ConfigurationArgs},
    failure::{Failure, Outcome, read_text_file},
    first_key,
    terminal::printable,
};

/// Connection flags: server, API key.
#[derive(Debug, Clone, Default, Args)]
pub struct ConnectionArgs {
    /// URL of the server
    #[arg(long, global = true, env = "TOCSIN_SERVER", value_name = "URL", default_value = DEFAULT_SERVER, help_heading = "Server")]
    pub server: String,
    /// API key
    #[arg(
        long,
        global = true,
        env = "TOCSIN_KEY",
        value_name = "KEY",
        hide_env_values = true,
        help_heading = "Server"
    )]
    pub key: Option<String>,
    /// File with the API key [default for a server on this machine: admin.key in the data folder]
    #[arg(long, global = true, env = "TOCSIN_KEY_FILE", value_name = "FILE", help_heading = "Server")]
    pub key_file: Option<PathBuf>,
}

impl ConnectionArgs {
    /// Creates a client with the key given by flags, or with the key in the data folder.
    ///
    /// # Errors
    /// If the URL is invalid, or the key file cannot be read.
    pub fn client(&self, configuration: &ConfigurationArgs) -> Outcome<Client> {
        let server = self.server.trim_end_matches('/').to_owned();
        let url =
            reqwest::Url::parse(&server).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let Some(url) = url else {
            return Err(Failure::usage(format!(
                "the server must be a URL such as {DEFAULT_SERVER}; found `{}`",
                printable(&server)
            )));
        };
        let mut key_search = None;
        let key = match (&self.key, &self.key_file) {
            (Some(key), _) => Some(key.trim().to_owned()),
            (None, Some(path)) => Some(read_text_file("read the key from", path)?.trim().to_owned()),
            // The machine's own admin key is never sent to another machine.
            (None, None) if is_loopback(&url) => match configuration::load(configuration, &[]) {
                Ok(layered) => match local_key(&layered.configuration.data.folder) {
                    Ok(key) => Some(key),
                    Err(result) => {
                        key_search = Some(result);
                        None
                    }
                },
                Err(_) => None,
            },
            (None, None) => None,
        };
        if key.as_ref().is_some_and(|key| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(Failure::usage("the API key contains invalid characters such as spaces; copy it again"));
        }
        let client = Client::new(server, key)?;
        Ok(match key_search {
            Some(result) => client.with_key_search(result),
            None => client,
        })
    }
}

/// Reads the key of this machine. The error names the file that was searched.
fn local_key(data_folder: &Path) -> Result<String, String> {
    let path = first_key::path(data_folder);
    // A relative path alone does not show that the command runs in another folder.
    let shown = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
    match fs::read_to_string(&path) {
        Ok(key) => Ok(key.trim().to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(format!("looked for {}", shown.display())),
        Err(error) => Err(format!("cannot read {}: {error}", shown.display())),
    }
}

fn is_loopback(url: &reqwest::Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_local_key_is_named_with_its_absolute_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = first_key::path(folder.path());
        assert_eq!(local_key(folder.path()), Err(format!("looked for {}", path.display())));
        assert!(local_key(Path::new("nowhere")).is_err_and(|result| result.starts_with("looked for /")));
        fs::create_dir(&path).expect("made");
        assert!(local_key(folder.path()).is_err_and(|result| result.starts_with("cannot read")));
        fs::remove_dir(&path).expect("removed");
        fs::write(&path, "tocsin_a_b\n").expect("written");
        assert_eq!(local_key(folder.path()), Ok("tocsin_a_b".to_owned()));
    }

    #[test]
    fn the_local_key_is_only_sent_to_loopback_addresses() {
        let loopback = |url: &str| is_loopback(&reqwest::Url::parse(url).expect("a URL"));
        assert!(loopback("http://127.0.0.1:8480") && loopback("http://localhost:1") && loopback("http://[::1]:8480"));
        assert!(!loopback("http://127.0.0.1.example.org") && !loopback("https://localhost.example.org"));
    }
}
