//! Mail target of a figure: the external mail server, or a started smtp-sink.

use crate::{context::Context, external_targets::MailServer, failure::Outcome, peers::SmtpSink};

/// Mail target of a figure: external, or a started smtp-sink.
pub struct MailTarget {
    /// Mail server.
    pub server: MailServer,
    /// Name in the conditions.
    pub name: &'static str,
    sink: Option<SmtpSink>,
}

impl MailTarget {
    /// Returns the external server, or starts smtp-sink.
    ///
    /// # Errors
    /// If smtp-sink is missing or does not start.
    pub async fn ready(context: &Context) -> Outcome<Self> {
        if let Some(server) = &context.targets.smtp {
            return Ok(MailTarget { server: server.clone(), name: "the external server", sink: None });
        }
        let sink = SmtpSink::start(context).await?;
        Ok(MailTarget { server: MailServer::here(sink.port), name: "smtp-sink", sink: Some(sink) })
    }

    /// The started sink, if no external server is configured.
    pub fn sink(&self) -> Option<&SmtpSink> {
        self.sink.as_ref()
    }
}
