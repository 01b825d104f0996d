//! Mails that come in by SMTP or LMTP. Their senders hear that they are taken when their events or messages are accepted.
//!
//! Whoever hears nothing sends the mail again, and so does everybody whose mail was accepted shortly before a crash. So of
//! each accepted mail a hash is remembered for some days: of its `Message-ID`, its date, its recipients and its body. One
//! that is known is said to be taken, and nothing comes of it.

mod heads; // headers, put right before they are read
mod options; // what an operator may set
mod parts; // what a mail is made of
mod read; // a mail as an item
mod remembered; // which mails were accepted

#[cfg(test)]
mod tests;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
pub use options::{Automatic, Body, MailOptions};
use remembered::Remembered;
use serde_json::Value;
use tocsin_delivery::{Clock, options::read, tls};
use tocsin_mail_in::{Access, Bounds, Envelope, Handler, Login, Patterns, Refusal as MailRefusal, Server};
use tocsin_model::{
    event::EventPacker, field::Row, mailbox, mark::Mark, problem::Problem, time::Timestamp, trace_context::TraceContext,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{
    items::Item,
    mapping::Mapping,
    source::{Gives, Message, OpenSource, PORTION_BYTES_MAX, PORTION_EVENTS_MAX, Portion, Refusal, Setting, Trouble},
};

/// How long a sender waits for acceptance before it is asked to come back. RFC 5321 has senders wait for ten minutes.
const ANSWER_PATIENCE: Duration = Duration::from_secs(120);
/// How long conversations have to end when the source does.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);
/// A mail that went through more servers runs in a circle.
const HOPS_MAX: usize = 50;

/// A mail as an item in JSON, for fuzz targets.
pub(crate) fn item_json(envelope: &Envelope, bytes: &[u8]) -> String {
    Value::Object(read::read(envelope, bytes).item).to_string()
}

pub(crate) fn open(setting: Setting, marks: Vec<Mark>) -> Result<Box<dyn OpenSource>, Vec<Problem>> {
    let options: MailOptions = read(&setting.options, "")?;
    let address = options.address(&setting.context).map_err(|problem| vec![problem])?;
    let tls = match (&options.certificate_file, &options.key_file) {
        (Some(certificate), Some(key)) => {
            Some(tls::prove(&setting.context.files, certificate, key).map_err(|problem| vec![problem])?)
        }
        _ => None,
    };
    let login = options.username.clone().zip(options.password.clone());
    let login = login.map(|(user, password)| Login { user, password });
    let access = Access { tls, require_tls: options.require_tls, login };
    Ok(Box::new(Mailbox {
        remembered: Remembered::read(&marks, options.remember_days),
        running: None,
        held: Vec::new(),
        address,
        access,
        setting,
        options,
    }))
}

/// A place where mail comes in.
struct Mailbox {
    setting: Setting,
    options: MailOptions,
    address: SocketAddr,
    access: Access,
    remembered: Remembered,
    running: Option<Running>,
    /// Whoever waits to hear that the last portion is accepted, each with what they will hear.
    held: Vec<(oneshot::Sender<Answer>, Answer)>,
}

struct Running {
    server: Server,
    arrivals: mpsc::Receiver<Arrival>,
}

type Answer = Result<(), MailRefusal>;

/// A mail that has come, and whoever waits for what becomes of it.
struct Arrival {
    at: Timestamp,
    prepared: Prepared,
    answer: oneshot::Sender<Answer>,
}

/// What conversations share.
struct Door {
    reader: Arc<Reader>,
    recipients: Patterns,
    clock: Arc<dyn Clock>,
    arrivals: mpsc::Sender<Arrival>,
}

/// How mails are read.
struct Reader {
    makes: Makes,
    automatic: Automatic,
}

/// What they make of a mail.
enum Makes {
    /// An event, whose item has at most so many bytes.
    Event(Mapping, usize),
    /// A message, of at most so many bytes.
    Message(Body, usize),
}

/// What is made of a mail while its sender waits.
struct Prepared {
    key: Option<String>,
    made: Result<Made, Refusal>,
    bytes: usize,
}

/// What a mail became.
enum Made {
    Event(Row, Option<TraceContext>),
    Message(Message),
}

impl Reader {
    /// Reads a mail; `None`: nothing is to come of it.
    fn prepare(&self, envelope: &Envelope, bytes: Vec<u8>) -> Result<Option<Prepared>, MailRefusal> {
        let mail = read::read(envelope, &bytes);
        if mail.hops > HOPS_MAX {
            return Err(MailRefusal::new(554, "5.4.6", "this mail runs in a circle: it went through too many servers"));
        }
        match self.automatic {
            Automatic::Refuse if mail.is_automatic => {
                let text = "mail that machines send by themselves is not taken here";
                return Err(MailRefusal::new(550, "5.7.1", text));
            }
            Automatic::Drop if mail.is_automatic => return Ok(None),
            _ => {}
        }
        let item = Value::Object(mail.item);
        let (made, bytes) = match &self.makes {
            Makes::Event(mapping, bytes_max) => {
                let bytes = item.to_string().len();
                check_length(bytes, *bytes_max)?;
                let header = |name: &str| item["headers"][name].as_str();
                let trace = header("traceparent").and_then(|parent| TraceContext::read(parent, header("tracestate")));
                let item = Item::Texts(item);
                let row = mapping.row(&item).map_err(|problems| Refusal::new(&problems, item.shown()));
                (row.map(|row| Made::Event(row, trace)), bytes)
            }
            Makes::Message(body, bytes_max) => {
                let message = as_it_is(&item, *body, bytes);
                check_length(message.body.len(), *bytes_max)?;
                let bytes = message.body.len();
                (Ok(Made::Message(message)), bytes)
            }
        };
        Ok(Some(Prepared { key: mail.key, made, bytes }))
    }
}

fn check_length(bytes: usize, most: usize) -> Result<(), MailRefusal> {
    if bytes <= most {
        return Ok(());
    }
    let text = format!("the texts of this mail are too long: at most {most} bytes; attach what is longer");
    Err(MailRefusal::new(552, "5.3.4", text))
}

/// A mail as a message: with its headers, and with what its envelope said, which no header can pretend to be.
fn as_it_is(item: &Value, body: Body, mail: Vec<u8>) -> Message {
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
    // What they say of the body they say of the mail's parts.
    let own = own.filter(|(name, _)| !name.starts_with("mail-") && !name.starts_with("content-"));
    headers.extend(own.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))));
    let (content_type, body) = match body {
        Body::Mail => ("message/rfc822", mail.into()),
        Body::Json => ("application/json", item.to_string().into()),
    };
    Message { content_type: content_type.to_owned(), headers, body }
}

#[async_trait]
impl Handler for Door {
    fn judge(&self, recipient: &str) -> Result<(), MailRefusal> {
        match self.recipients.matches(&mailbox::comparable(recipient)) {
            true => Ok(()),
            false => Err(MailRefusal::new(550, "5.1.1", "nobody takes mail for this address here; mind its spelling")),
        }
    }

    async fn take(&self, envelope: Envelope, mail: Vec<u8>) -> Result<(), MailRefusal> {
        let later = |text| Err(MailRefusal::new(451, "4.3.0", text));
        let reader = self.reader.clone();
        // Reading takes its time, and whatever a mail does to its reader is only this mail's trouble.
        let prepared = match tokio::task::spawn_blocking(move || reader.prepare(&envelope, mail)).await {
            Ok(prepared) => prepared,
            Err(error) => {
                tracing::error!(%error, "a mail could not be read");
                return later("this mail could not be read; tell the administrator");
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
        let (answer, heard) = oneshot::channel();
        let arrival = Arrival { at: self.clock.now(), prepared, answer };
        let answered = timeout(ANSWER_PATIENCE, async {
            self.arrivals.send(arrival).await.ok()?;
            heard.await.ok()
        });
        match answered.await {
            Ok(Some(answer)) => answer,
            Ok(None) => {
                count("deferred");
                later("this source ends or is in trouble; send it again later")
            }
            Err(_) => {
                count("deferred");
                later("it could not be accepted in time; send it again later")
            }
        }
    }
}

fn count(result: &'static str) {
    metrics::counter!("source_mails_total", "result" => result).increment(1);
}

impl Mailbox {
    /// The patterns of recipients in the form in which mailboxes are compared.
    fn patterns(&self) -> Vec<String> {
        self.options.recipients.iter().map(|pattern| mailbox::comparable_pattern(pattern)).collect()
    }

    async fn arrivals(&mut self) -> Result<&mut mpsc::Receiver<Arrival>, Trouble> {
        if self.running.is_none() {
            let (sender, arrivals) = mpsc::channel(self.options.connections_max);
            let makes = match &self.setting.gives {
                Gives::Events(fields) => {
                    let paths = Mapping::or_names(fields, &self.options.fields);
                    Makes::Event(Mapping::new(fields, &paths), self.options.item_bytes_max)
                }
                Gives::Messages { bytes_max } => Makes::Message(self.options.body, *bytes_max),
            };
            // What would be longer than its port takes need not come whole to be refused.
            let mail_bytes_max = match makes {
                Makes::Message(Body::Mail, bytes_max) => self.options.mail_bytes_max.min(bytes_max),
                _ => self.options.mail_bytes_max,
            };
            let reader = Reader { makes, automatic: self.options.automatic };
            let door = Door {
                reader: Arc::new(reader),
                recipients: Patterns::new(&self.patterns()),
                clock: self.setting.context.clock.clone(),
                arrivals: sender,
            };
            let setting = tocsin_mail_in::Setting {
                host: self.options.host_name.clone(),
                access: self.access.clone(),
                bounds: Bounds {
                    connections_max: self.options.connections_max,
                    connections_per_address_max: self.options.connections_max.div_ceil(2),
                    mail_bytes_max,
                    recipients_max: self.options.recipients_max,
                    idle: self.options.idle_timeout.0,
                    ..Bounds::default()
                },
                handler: Arc::new(door),
            };
            let server = Server::start(self.address, setting).await;
            let server = server.map_err(|error| Trouble::new(format!("cannot listen at {}", self.address), error))?;
            self.running = Some(Running { server, arrivals });
        }
        Ok(&mut self.running.as_mut().expect("it runs").arrivals)
    }

    fn portion(&mut self, arrivals: Vec<Arrival>, waiting: usize) -> Portion {
        let now = self.setting.context.clock.now();
        let mut packer = EventPacker::new(self.setting.gives.fields());
        let mut portion = Portion { waiting: Some(waiting as u64), ..Portion::default() };
        portion.since = arrivals.iter().map(|arrival| arrival.at).min();
        portion.received_at = portion.since;
        for Arrival { prepared: Prepared { key, made, .. }, answer, .. } in arrivals {
            let is_known = key.as_ref().is_some_and(|key| self.remembered.knows(key));
            let said = match made {
                _ if is_known => {
                    count("repeated");
                    Ok(())
                }
                Ok(made) => {
                    match made {
                        Made::Event(row, trace) => packer.push_traced(&row, trace.as_ref()),
                        Made::Message(message) => portion.messages.push(message),
                    }
                    if let Some(key) = key {
                        self.remembered.remember(key, now, &mut portion.marks);
                    }
                    count("taken");
                    Ok(())
                }
                Err(refusal) => {
                    count("refused");
                    let text = format!("this mail is no event: {}", refusal.reason);
                    portion.refused.push(refusal);
                    Err(MailRefusal::new(554, "5.6.0", text))
                }
            };
            self.held.push((answer, said));
        }
        portion.events = packer.finish();
        portion
    }
}

#[async_trait]
impl OpenSource for Mailbox {
    async fn next(&mut self) -> Result<Portion, Trouble> {
        let arrivals = self.arrivals().await?;
        loop {
            let Some(first) = arrivals.recv().await else { return Err(Trouble::of("the server for mail has ended")) };
            let mut taken = vec![first];
            let mut bytes = taken[0].prepared.bytes;
            while taken.len() < PORTION_EVENTS_MAX && bytes < PORTION_BYTES_MAX {
                let Ok(arrival) = arrivals.try_recv() else { break };
                bytes += arrival.prepared.bytes;
                taken.push(arrival);
            }
            // Whoever does not wait any more was told to send it again.
            taken.retain(|arrival| !arrival.answer.is_closed());
            if !taken.is_empty() {
                let waiting = arrivals.len();
                return Ok(self.portion(taken, waiting));
            }
        }
    }

    async fn accepted(&mut self) -> Result<(), Trouble> {
        for (answer, said) in std::mem::take(&mut self.held) {
            // Whoever has gone away sends it again, and it is known then.
            let _ = answer.send(said);
        }
        Ok(())
    }

    async fn close(&mut self) {
        if let Some(Running { server, arrivals }) = self.running.take() {
            // Whoever waits hears that it is for later.
            drop(arrivals);
            self.held.clear();
            server.close(CLOSE_PATIENCE).await;
        }
    }
}
