//! Command `mailbox`: receives mail and shows it on a web page, without a server.

use std::net::SocketAddr;

use tocsin_model::plural::plural;

use crate::{
    failure::Outcome,
    mailbox::{Mailbox, MailboxOptions},
    signals::Signals,
    terminal::{Terminal, thousands},
};

/// Arguments of `tocsin mailbox`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// SMTP address; if it is in use, the next free port
    #[arg(long, default_value = "127.0.0.1:2525")]
    smtp: SocketAddr,
    /// Address of the web page; if it is in use, the next free port
    #[arg(long, default_value = "127.0.0.1:8025")]
    page: SocketAddr,
    /// Number of newest mails to keep
    #[arg(long, default_value_t = 500)]
    keep: usize,
}

impl Args {
    /// Runs until a signal arrives.
    ///
    /// # Errors
    /// If no port is free.
    pub async fn run(self, terminal: &Terminal) -> Outcome {
        let options = MailboxOptions { smtp: self.smtp, page: self.page, keep: self.keep, ..MailboxOptions::default() };
        let mut stop = Signals::new()?;
        let mailbox = Mailbox::start(options).await?;
        terminal.line(format_args!(
            "SMTP at {}, web page at http://{}/",
            mailbox.smtp_address(),
            mailbox.page_address()
        ))?;
        stop.next().await;
        let count = mailbox.counts().mails;
        terminal.line(format_args!("{} {} received", thousands(count), plural(count, "mail", "mails")))?;
        Ok(())
    }
}
