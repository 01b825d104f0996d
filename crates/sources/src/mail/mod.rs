//! Mail source: an SMTP and LMTP server. A mail is acknowledged to its sender after its event or message is stored.
//!
//! A sender without a response sends the mail again; so does one whose mail was stored shortly before a crash. For
//! de-duplication, a hash of each accepted mail is remembered for some days: of its `Message-ID`, date, recipients and
//! body. A known mail is acknowledged and discarded.

mod heads; // repairs non-standard headers
mod options; // the options of an operator
mod parts; // MIME structure: texts and attachments
mod read; // a mail as an item
mod accepted_mails; // accepted mails, for de-duplication

#[cfg(test)]
mod tests;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use accepted_mails::AcceptedMails;
use async_trait::async_trait;
pub use options::{Automatic, Body, MailOptions};
use serde_json::Value;
use tocsin_connect::{Clock, options::read, tls};
use tocsin_mail_in::{Access, Envelope, ErrorReply, Handler, Login, Patterns, Server, ServerLimits};
use tocsin_model::{
    definition::secrets::SecretShape, event::EventPacker, field::Row, mailbox, mark::Mark, time::Timestamp,
    trace_context::TraceContext,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{
    description::{KindDescription, LocationDescription, Opened, SourceResource, check_of, not_allowed_of, schema_of},
    items::Item,
    mapping::Mapping,
    source::{
        BATCH_BYTES_MAX, BATCH_EVENTS_MAX, Message, OpenSource, RejectedItem, SourceBatch, SourceError, SourceOutput,
        SourceSettings,
    },
};

/// Time limit for storing a mail, before the sender gets a temporary failure. RFC 5321 requires senders to wait for ten
/// minutes.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit for ending conversations when the source stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// More hops indicate a mail loop.
const HOPS_MAX: usize = 50;

/// A mail as an item in JSON, for fuzz targets.
pub(crate) fn item_json(envelope: &Envelope, bytes: &[u8]) -> String {
    Value::Object(read::read(envelope, bytes).item).to_string()
}

/// Its row in the table of kinds.
pub(crate) static KIND: KindDescription = KindDescription {
    name: "mail",
    summary: "mail received by SMTP or LMTP",
    schema: schema_of::<MailOptions>,
    needs: &[SourceResource::ListenAddresses, SourceResource::ReadableFiles],
    secrets: &[("password", SecretShape::Whole)],
    location: Some(LocationDescription { event_options: &["fields", "item_bytes_max"] }),
    check: check_of::<MailOptions>,
    not_allowed: not_allowed_of::<MailOptions>,
    open,
};

fn open(setting: SourceSettings, marks: Vec<Mark>) -> Opened {
    let options: MailOptions = read(&setting.options, "")?;
    let address = options.address(&setting.context).map_err(|problem| vec![problem])?;
    let tls = match (&options.certificate_file, &options.key_file) {
        (Some(certificate), Some(key)) => {
            Some(tls::server_config(&setting.context.files, certificate, key).map_err(|problem| vec![problem])?)
        }
        _ => None,
    };
    let login = options.username.clone().zip(options.password.clone());
    let login = login.map(|(user, password)| Login { user, password });
    let access = Access { tls, require_tls: options.require_tls, login, ..Access::default() };
    Ok(Box::new(Mailbox {
        remembered: AcceptedMails::read(&marks, options.remember_days)?,
        running: None,
        unanswered: Vec::new(),
        address,
        access,
        setting,
        options,
    }))
}

/// A mail source.
struct Mailbox {
    setting: SourceSettings,
    options: MailOptions,
    address: SocketAddr,
    access: Access,
    remembered: AcceptedMails,
    running: Option<RunningServer>,
    /// Conversations that wait for the acceptance of the last batch, each with its response.
    unanswered: Vec<(oneshot::Sender<Answer>, Answer)>,
}

struct RunningServer {
    server: Server,
    incoming: mpsc::Receiver<IncomingMail>,
}

type Answer = Result<(), ErrorReply>;

/// A received mail, and the channel to its conversation.
struct IncomingMail {
    at: Timestamp,
    prepared: PreparedMail,
    answer: oneshot::Sender<Answer>,
}

/// The shared state of conversations.
struct MailHandler {
    reader: Arc<MailReader>,
    recipients: Patterns,
    clock: Arc<dyn Clock>,
    incoming: mpsc::Sender<IncomingMail>,
}

/// The parser settings.
struct MailReader {
    output: MailOutput,
    automatic: Automatic,
}

/// The output for a mail.
enum MailOutput {
    /// An event, whose item has at most this many bytes.
    Event(Mapping, usize),
    /// A message, of at most this many bytes.
    Message(Body, usize),
}

/// A parsed mail whose sender waits.
struct PreparedMail {
    key: Option<String>,
    content: Result<MailContent, RejectedItem>,
    bytes: usize,
}

/// The output of a mail.
enum MailContent {
    Event(Row, Option<TraceContext>),
    Message(Message),
}

impl MailReader {
    /// Parses a mail; `None`: it is discarded.
    fn prepare(&self, envelope: &Envelope, bytes: Vec<u8>) -> Result<Option<PreparedMail>, ErrorReply> {
        let mail = read::read(envelope, &bytes);
        if mail.hops > HOPS_MAX {
            return Err(ErrorReply::new(554, "5.4.6", "mail loop: this mail passed through too many servers"));
        }
        match self.automatic {
            Automatic::Refuse if mail.is_automatic => {
                let text = "automatic mail is not accepted here";
                return Err(ErrorReply::new(550, "5.7.1", text));
            }
            Automatic::Drop if mail.is_automatic => return Ok(None),
            _ => {}
        }
        let item = Value::Object(mail.item);
        let (content, bytes) = match &self.output {
            MailOutput::Event(mapping, bytes_max) => {
                let bytes = item.to_string().len();
                check_length(bytes, *bytes_max)?;
                let header = |name: &str| item["headers"][name].as_str();
                let trace = header("traceparent").and_then(|parent| TraceContext::read(parent, header("tracestate")));
                let item = Item::Texts(item);
                let row = mapping.row(&item).map_err(|problems| RejectedItem::new(&problems, item.shown()));
                (row.map(|row| MailContent::Event(row, trace)), bytes)
            }
            MailOutput::Message(body, bytes_max) => {
                let message = raw_message(&item, *body, bytes);
                check_length(message.body.len(), *bytes_max)?;
                let bytes = message.body.len();
                (Ok(MailContent::Message(message)), bytes)
            }
        };
        Ok(Some(PreparedMail { key: mail.key, content, bytes }))
    }
}

fn check_length(bytes: usize, most: usize) -> Result<(), ErrorReply> {
    if bytes <= most {
        return Ok(());
    }
    let text = format!("the texts of this mail are too long: at most {most} bytes; attach what is longer");
    Err(ErrorReply::new(552, "5.3.4", text))
}

/// A message from a mail: with its headers, and with envelope data in headers that the sender cannot forge.
fn raw_message(item: &Value, body: Body, mail: Vec<u8>) -> Message {
    let text = |name: &str| item[name].as_str().unwrap_or_default().to_owned();
    let recipients = item["recipients"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut headers = vec![
        ("mail-sender".to_owned(), text("sender")),
        ("mail-recipients".to_owned(), recipients.collect::<Vec<_>>().join(", ")),
        ("mail-client".to_owned(), text("client")),
        ("mail-automatic".to_owned(), item["automatic"].to_string()),
    ];
    headers.extend(item["user"].as_str().map(|user| ("mail-user".to_owned(), user.to_owned())));
    let own = item["headers"].as_object().into_iter().flatten();
    // Content headers describe the parts of the mail, not the body of the message.
    let own = own.filter(|(name, _)| !name.starts_with("mail-") && !name.starts_with("content-"));
    headers.extend(own.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))));
    let (content_type, body) = match body {
        Body::Mail => ("message/rfc822", mail.into()),
        Body::Json => ("application/json", item.to_string().into()),
    };
    Message { content_type: content_type.to_owned(), headers, body }
}

#[async_trait]
impl Handler for MailHandler {
    fn check_recipient(&self, recipient: &str) -> Result<(), ErrorReply> {
        match self.recipients.matches(&mailbox::comparable(recipient)) {
            true => Ok(()),
            false => Err(ErrorReply::new(550, "5.1.1", "this address does not accept mail; check its spelling")),
        }
    }

    async fn accept(&self, envelope: Envelope, mail: Vec<u8>) -> Result<(), ErrorReply> {
        let later = |text| Err(ErrorReply::new(451, "4.3.0", text));
        let reader = self.reader.clone();
        // Parsing takes time, and a crash of the parser must affect only this mail.
        let prepared = match tokio::task::spawn_blocking(move || reader.prepare(&envelope, mail)).await {
            Ok(prepared) => prepared,
            Err(error) => {
                tracing::error!(%error, "a mail could not be read");
                return later("this mail could not be parsed; inform the administrator");
            }
        };
        let prepared = match prepared {
            Ok(Some(prepared)) => prepared,
            Ok(None) => {
                count("dropped");
                return Ok(());
            }
            Err(refusal) => {
                count("refused");
                return Err(refusal);
            }
        };
        let (answer, receiver) = oneshot::channel();
        let incoming_mail = IncomingMail { at: self.clock.now(), prepared, answer };
        let answered = timeout(RESPONSE_TIMEOUT, async {
            self.incoming.send(incoming_mail).await.ok()?;
            receiver.await.ok()
        });
        match answered.await {
            Ok(Some(answer)) => answer,
            Ok(None) => {
                count("deferred");
                later("this source is stopping or failing; send it again later")
            }
            Err(_) => {
                count("deferred");
                later("it could not be accepted in time; send it again later")
            }
        }
    }
}

fn count(result: &'static str) {
    metrics::counter!("tocsin_source_mails_total", "result" => result).increment(1);
}

impl Mailbox {
    /// The patterns of recipients in normalized form.
    fn patterns(&self) -> Vec<String> {
        self.options.recipients.iter().map(|pattern| mailbox::comparable_pattern(pattern)).collect()
    }

    async fn incoming(&mut self) -> Result<&mut mpsc::Receiver<IncomingMail>, SourceError> {
        if self.running.is_none() {
            let (sender, incoming) = mpsc::channel(self.options.connections_max);
            let output = match &self.setting.output {
                SourceOutput::Events(fields) => {
                    let paths = Mapping::or_names(fields, &self.options.fields);
                    MailOutput::Event(Mapping::new(fields, &paths), self.options.item_bytes_max)
                }
                SourceOutput::Messages { bytes_max } => MailOutput::Message(self.options.body, *bytes_max),
            };
            // A mail above the port's limit is rejected before it is received completely.
            let mail_bytes_max = match output {
                MailOutput::Message(Body::Mail, bytes_max) => self.options.mail_bytes_max.min(bytes_max),
                _ => self.options.mail_bytes_max,
            };
            let reader = MailReader { output, automatic: self.options.automatic };
            let handler = MailHandler {
                reader: Arc::new(reader),
                recipients: Patterns::new(&self.patterns()),
                clock: self.setting.context.clock.clone(),
                incoming: sender,
            };
            let setting = tocsin_mail_in::ServerSettings {
                host: self.options.host_name.clone(),
                access: self.access.clone(),
                limits: ServerLimits {
                    connections_max: self.options.connections_max,
                    connections_per_address_max: self.options.connections_max.div_ceil(2),
                    mail_bytes_max,
                    recipients_max: self.options.recipients_max,
                    idle: self.options.idle_timeout.0,
                    ..ServerLimits::default()
                },
                handler: Arc::new(handler),
            };
            let server = Server::start(self.address, setting).await;
            let server =
                server.map_err(|error| SourceError::new(format!("cannot listen at {}", self.address), error))?;
            self.running = Some(RunningServer { server, incoming });
        }
        Ok(&mut self.running.as_mut().expect("it runs").incoming)
    }

    fn batch(&mut self, incoming: Vec<IncomingMail>, waiting: usize) -> SourceBatch {
        let now = self.setting.context.clock.now();
        let mut packer = EventPacker::new(self.setting.output.fields());
        let mut batch = SourceBatch { waiting: Some(waiting as u64), ..SourceBatch::default() };
        batch.since = incoming.iter().map(|incoming_mail| incoming_mail.at).min();
        batch.received_at = batch.since;
        for IncomingMail { prepared: PreparedMail { key, content, .. }, answer, .. } in incoming {
            let is_known = key.as_ref().is_some_and(|key| self.remembered.knows(key));
            let said = match content {
                _ if is_known => {
                    count("repeated");
                    Ok(())
                }
                Ok(content) => {
                    match content {
                        MailContent::Event(row, trace) => packer.push_traced(&row, trace.as_ref()),
                        MailContent::Message(message) => batch.messages.push(message),
                    }
                    if let Some(key) = key {
                        self.remembered.remember(key, now, &mut batch.marks);
                    }
                    count("taken");
                    Ok(())
                }
                Err(refusal) => {
                    count("refused");
                    let text = format!("this mail is no event: {}", refusal.reason);
                    batch.refused.push(refusal);
                    Err(ErrorReply::new(554, "5.6.0", text))
                }
            };
            self.unanswered.push((answer, said));
        }
        batch.events = packer.finish();
        batch
    }
}

#[async_trait]
impl OpenSource for Mailbox {
    async fn next(&mut self) -> Result<SourceBatch, SourceError> {
        let incoming = self.incoming().await?;
        loop {
            let Some(first) = incoming.recv().await else {
                return Err(SourceError::of("the server for mail has ended"));
            };
            let mut taken = vec![first];
            let mut bytes = taken[0].prepared.bytes;
            while taken.len() < BATCH_EVENTS_MAX && bytes < BATCH_BYTES_MAX {
                let Ok(incoming_mail) = incoming.try_recv() else { break };
                bytes += incoming_mail.prepared.bytes;
                taken.push(incoming_mail);
            }
            // Conversations that timed out have asked their senders to send the mail again.
            taken.retain(|incoming_mail| !incoming_mail.answer.is_closed());
            if !taken.is_empty() {
                let waiting = incoming.len();
                return Ok(self.batch(taken, waiting));
            }
        }
    }

    async fn accepted(&mut self) -> Result<(), SourceError> {
        for (answer, said) in std::mem::take(&mut self.unanswered) {
            // A disconnected sender sends the mail again, which is then known.
            let _ = answer.send(said);
        }
        Ok(())
    }

    async fn close(&mut self) {
        if let Some(RunningServer { server, incoming }) = self.running.take() {
            // Waiting conversations respond with a temporary failure.
            drop(incoming);
            self.unanswered.clear();
            server.close(CLOSE_TIMEOUT).await;
        }
    }
}
