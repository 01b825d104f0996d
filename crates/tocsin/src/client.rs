//! Connection of a command to a server: flags, variables and the key of this machine.

use std::{fs, path::PathBuf};

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
        let key = match (&self.key, &self.key_file) {
            (Some(key), _) => Some(key.trim().to_owned()),
            (None, Some(path)) => Some(read_text_file("read the key from", path)?.trim().to_owned()),
            // The machine's own admin key is never sent to another machine.
            (None, None) if is_loopback(&url) => configuration::load(configuration, &[])
                .ok()
                .and_then(|layered| fs::read_to_string(first_key::path(&layered.configuration.data.folder)).ok())
                .map(|key| key.trim().to_owned()),
            (None, None) => None,
        };
        if key.as_ref().is_some_and(|key| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(Failure::usage("the API key contains invalid characters such as spaces; copy it again"));
        }
        Client::new(server, key)
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
    fn the_local_key_is_only_sent_to_loopback_addresses() {
        let loopback = |url: &str| is_loopback(&reqwest::Url::parse(url).expect("a URL"));
        assert!(loopback("http://127.0.0.1:8480") && loopback("http://localhost:1") && loopback("http://[::1]:8480"));
        assert!(!loopback("http://127.0.0.1.example.org") && !loopback("https://localhost.example.org"));
    }
}
