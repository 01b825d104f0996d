//! Command `vapid-key`: creates the key pair that signs web push messages.

use serde_json::json;
use tocsin_delivery::webpush::{VapidKey, generate_key};

use crate::{
    failure::{Failure, Outcome},
    terminal::Terminal,
};

/// Arguments of `tocsin vapid-key`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Creates a key pair and prints it as two environment variables. Nothing is stored.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn run(self, terminal: &Terminal) -> Outcome {
        let VapidKey { public, private } = generate_key().map_err(Failure::failed)?;
        if self.json {
            return Ok(terminal.json(&json!({"public_key": public, "private_key": private}))?);
        }
        terminal.line(format_args!("VAPID_PUBLIC_KEY={public}"))?;
        Ok(terminal.line(format_args!("VAPID_PRIVATE_KEY={private}"))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_new() {
        let made = || {
            let (terminal, captured) = Terminal::captured();
            Args { json: false }.run(&terminal).expect("a key");
            captured.text()
        };
        let (one, other) = (made(), made());
        assert_ne!(one, other);
        let lines: Vec<(&str, usize)> =
            one.lines().filter_map(|line| line.split_once('=')).map(|(name, key)| (name, key.len())).collect();
        assert_eq!(lines, [("VAPID_PUBLIC_KEY", 87), ("VAPID_PRIVATE_KEY", 43)]);
    }
}
