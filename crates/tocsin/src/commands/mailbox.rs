//! Receives mail and shows it on a page, without a server beside it.

use std::net::SocketAddr;

use crate::{
    commands::serve::Signals,
    failure::Outcome,
    mailbox::{Mailbox, MailboxOptions},
    terminal::{Terminal, thousands},
};

/// Arguments of `tocsin mailbox`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where mail is taken in; the next free port if it is busy
    #[arg(long, default_value = "127.0.0.1:2525")]
    smtp: SocketAddr,
    /// Where the page is; the next free port if it is busy
    #[arg(long, default_value = "127.0.0.1:8025")]
    page: SocketAddr,
    /// How many of the newest mails are kept
    #[arg(long, default_value_t = 500)]
    keep: usize,
}

impl Args {
    /// Runs until it is told to stop.
    ///
    /// # Errors
    /// No port is free.
    pub async fn run(self, terminal: &Terminal) -> Outcome {
        let options = MailboxOptions { smtp: self.smtp, page: self.page, keep: self.keep, ..MailboxOptions::default() };
        let mut stop = Signals::new()?;
        let mailbox = Mailbox::start(options).await?;
        terminal.line(format_args!(
            "mail to {}, read at http://{}/",
            mailbox.smtp_address(),
            mailbox.page_address()
        ))?;
        stop.next().await;
        terminal.line(format_args!("{} mails came", thousands(mailbox.counts().mails)))?;
        Ok(())
    }
}
