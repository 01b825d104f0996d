use std::{collections::VecDeque, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use tocsin_model::{
    content::{JsonUse, PartsUsed},
    problem::Problem,
    receipt::{Disposition, Reason, ReasonKind},
};
use tokio::time::{Instant, timeout};

use super::{
    classify::{ClearUp, Fate, Next, Stage, classify},
    dkim::DkimKey,
    message::{Addressee, Letterhead, Mailbox, is_mailbox, on_wire},
    options::SmtpOptions,
    servers::{Servers, Tenure},
    session::{Dial, Envelope, Extensions, Session},
};
use crate::{
    files::Files,
    pending::Pending,
    queue::{Queue, take_first},
    running::FarSide,
    signet::{Returned, Signet},
};

/// What the sessions of a channel share.
pub(super) struct Courier {
    options: SmtpOptions,
    letterhead: Letterhead,
    /// The address for what comes back, as it stands on the wire.
    return_path: String,
    signet: Arc<Signet>,
    servers: Arc<Servers>,
    dial: Arc<dyn Dial>,
    queue: Arc<Queue>,
}

/// A session, and which server it is with.
struct Open {
    session: Session,
    tenure: Tenure,
    /// Whether it has answered a mail.
    fruitful: bool,
}

/// A mail that is ready for the wire, to one recipient or several.
struct Letter {
    recipients: Pending,
    envelope: Envelope,
    content: Vec<u8>,
}

impl Courier {
    /// The options must be free of problems.
    ///
    /// # Errors
    /// Keys that cannot be used; paths are relative.
    pub fn new(
        options: SmtpOptions,
        files: &Files,
        signet: Arc<Signet>,
        servers: Servers,
        dial: Arc<dyn Dial>,
        queue: Arc<Queue>,
    ) -> Result<Courier, Vec<Problem>> {
        let from = options.from.as_deref().and_then(Mailbox::parse).expect("checked options have a sender").on_wire();
        let keys = options.dkim.iter().enumerate();
        let keys = keys.map(|(at, key)| DkimKey::open(key, from.domain(), &format!("dkim[{at}]"), files));
        let (keys, problems): (Vec<_>, Vec<_>) = keys.partition(Result::is_ok);
        if !problems.is_empty() {
            return Err(problems.into_iter().filter_map(Result::err).collect());
        }
        let keys: Vec<DkimKey> = keys.into_iter().filter_map(Result::ok).collect();
        for key in &keys {
            let (name, text) = key.record();
            tracing::info!(name, text, "mails are signed, which can be verified while this TXT record stands in DNS");
        }
        let return_path = on_wire(options.return_path.as_deref().unwrap_or(&from.address)).into_owned();
        let letterhead = Letterhead {
            from,
            reply_to: options.reply_to.as_deref().and_then(Mailbox::parse).map(Mailbox::on_wire),
            headers: options.headers.clone(),
            precedence: options.precedence,
            list_id: options.list_id,
            list_unsubscribe: options.list_unsubscribe,
            trace_header: options.trace_header,
            keys,
            latest: Mutex::default(),
        };
        Ok(Courier { options, letterhead, return_path, signet, servers: Arc::new(servers), dial, queue })
    }

    /// One session after the other, until the queue is closed.
    pub async fn run(self: Arc<Self>) {
        let (mut session, mut held): (Option<Open>, _) = (None, VecDeque::new());
        let limit = self.options.recipients_max as usize;
        loop {
            if session.as_ref().is_some_and(|open: &Open| self.servers.is_stand_in(open.tenure.at))
                && let Some(open) = session.take()
            {
                open.session.quit().await;
            }
            if session.is_none() && held.is_empty() && self.servers.others_work() && !self.queue.is_closed() {
                self.servers.vacancy().await;
                continue;
            }
            let recipients = match (take_first(&mut held, limit), session.is_some()) {
                (Some(recipients), _) => Some(recipients),
                (_, false) => self.queue.pop_multicast(limit).await,
                (_, true) => match timeout(self.options.idle_timeout.0, self.queue.pop_multicast(limit)).await {
                    Ok(recipients) => recipients,
                    Err(_) => {
                        if let Some(open) = session.take() {
                            open.session.quit().await;
                        }
                        continue;
                    }
                },
            };
            let Some(recipients) = recipients else { break };
            let open = match session.take() {
                Some(open) => open,
                None => match self.connect(recipients.queued() + self.options.patience.0).await {
                    Ok(open) => open,
                    // A server may allow fewer sessions than we would have: the others send what this one took.
                    Err(_) if self.servers.others_work() => {
                        self.queue.put_back([recipients]);
                        self.queue.put_back(held.drain(..));
                        continue;
                    }
                    Err((reason, pause)) => {
                        recipients.answer(Disposition::Deferred { reason, retry_after: Some(pause) }).await;
                        continue;
                    }
                },
            };
            session = self.converse(open, recipients, &mut held).await;
        }
        if let Some(open) = session {
            open.session.quit().await;
        }
    }

    /// A session, as soon as a server lets us in. At the deadline: why none does, and how long it may take.
    async fn connect(&self, deadline: Instant) -> Result<Open, (Reason, Duration)> {
        loop {
            let entry = self.servers.enter(deadline).await?;
            match Session::open(&self.options, entry.server(), &*self.dial).await {
                Ok(session) => return Ok(Open { session, tenure: entry.opened(), fruitful: false }),
                Err(reason) => {
                    entry.failed(&reason);
                    if self.servers.others_work() {
                        return Err((reason, Duration::ZERO));
                    }
                }
            }
        }
    }

    /// An address that nobody has counts as bounced only if the channel wants it.
    fn told(&self, disposition: Disposition) -> Disposition {
        match disposition {
            Disposition::Refused { reason } if reason.kind == ReasonKind::Bounced && !self.options.suppress_unknown => {
                Disposition::Refused { reason: Reason { kind: ReasonKind::Answer, ..reason } }
            }
            disposition => disposition,
        }
    }

    /// A session broke. One that never answered a mail tells something about its server.
    async fn broken(&self, open: Open, recipients: Option<Pending>, reason: &Reason, held: &mut VecDeque<Pending>) {
        if !open.fruitful {
            self.servers.fruitless(open.tenure.at, reason);
        }
        if let Some(recipients) = recipients {
            hold_or_defer(recipients, reason, held).await;
        }
    }

    /// Delivers `first`, and with it whatever else is waiting. Gives the session back if it is still good, and in `held`
    /// those that deserve another mail or session.
    async fn converse(&self, mut open: Open, first: Pending, held: &mut VecDeque<Pending>) -> Option<Open> {
        let mut letter = self.prepare(first, &open.session.extensions).await;
        let mut sent_ahead = false;
        while let Some(Letter { recipients, envelope, content }) = letter.take() {
            if !sent_ahead {
                open.session.mails += 1;
            }
            let ruling = match open.session.envelope(&envelope, sent_ahead).await {
                Ok(ruling) => ruling,
                Err(reason) => {
                    self.broken(open, Some(recipients), &reason, held).await;
                    return None;
                }
            };
            let (mut taken, later) = match ruling.recipients {
                None => (Some(recipients), None),
                Some(fates) => self.part(recipients, fates).await,
            };
            if let Next::Closing(reason) = &ruling.next {
                self.broken(open, later, reason, held).await;
                return None;
            }
            if !open.fruitful {
                self.servers.fruitful(open.tenure.at);
                open.fruitful = true;
            }
            let session = &mut open.session;
            if let Some(later) = later {
                session.recipients_max = taken.as_ref().map_or(0, Pending::count);
                held.push_back(later);
            }
            let mut out = match &ruling.next {
                Next::ClearUp(ClearUp::Hangup) | Next::Closing(_) => return None,
                Next::ClearUp(ClearUp::Reset) => b"RSET\r\n".to_vec(),
                Next::ClearUp(ClearUp::Dot) => b".\r\n".to_vec(),
                Next::Content => content,
            };
            let stays = session.mails < self.options.messages_per_session && !self.servers.is_stand_in(open.tenure.at);
            let next = match session.extensions.pipelining && stays {
                true => self.next_letter(session, held).await,
                false => None,
            };
            if let Some(next) = &next {
                out.extend_from_slice(next.envelope.commands());
                session.mails += 1;
            }
            if let Some(taken) = &mut taken {
                taken.sent();
            }
            let written = session.write(&out).await;
            let (told, stays) = match (written, ruling.next) {
                (Ok(()), Next::Content) => match session.reply(self.options.content_timeout.0).await {
                    Ok(reply) => (Some(classify(Stage::Content, &reply)), !reply.closing()),
                    // The reply to the content is lost: the mail may have been taken. It will come again under the same
                    // id.
                    Err(reason) => (Some(Disposition::Deferred { reason, retry_after: None }), false),
                },
                (Err(reason), _) => (Some(Disposition::Deferred { reason, retry_after: None }), false),
                (Ok(()), _) => {
                    let reply = session.reply(self.options.reply_timeout.0).await;
                    (None, reply.is_ok_and(|reply| reply.positive() || (reply.code >= 500 && out.starts_with(b"."))))
                }
            };
            if let (Some(taken), Some(disposition)) = (taken, told) {
                taken.answer(disposition).await;
            }
            if !stays {
                if let Some(next) = next {
                    let reason = Reason::new(ReasonKind::Connection, "the session broke before the mail was sent");
                    hold_or_defer(next.recipients, &reason, held).await;
                }
                return None;
            }
            sent_ahead = next.is_some();
            letter = next;
        }
        if open.session.mails >= self.options.messages_per_session {
            open.session.quit().await;
            return None;
        }
        Some(open)
    }

    /// Parts the recipients of a mail by what its envelope came to: those for whom the content is, and those who deserve
    /// another mail. The others are answered.
    async fn part(&self, recipients: Pending, fates: Vec<Fate>) -> (Option<Pending>, Option<Pending>) {
        let (mut taken, mut later) = (Vec::new(), Vec::new());
        for (recipient, fate) in recipients.into_each().into_iter().zip(fates) {
            match fate {
                Fate::Taken => taken.push(recipient),
                Fate::Later => later.push(recipient),
                Fate::Over(disposition) => recipient.answer(self.told(disposition)).await,
            }
        }
        (Pending::together(taken), Pending::together(later))
    }

    /// The next mail that can be sent, if one is waiting.
    async fn next_letter(&self, session: &mut Session, held: &mut VecDeque<Pending>) -> Option<Letter> {
        let limit = session.recipients_max.min(self.options.recipients_max as usize);
        loop {
            let recipients = take_first(held, limit).or_else(|| self.queue.try_pop_multicast(limit))?;
            if let Some(letter) = self.prepare(recipients, &session.extensions).await {
                return Some(letter);
            }
        }
    }

    /// Makes a mail ready for the wire; answers those recipients for whom that cannot be.
    async fn prepare(&self, mut recipients: Pending, extensions: &Extensions) -> Option<Letter> {
        if let Some(reason) = recipients.too_late() {
            recipients.answer(Disposition::Refused { reason }).await;
            return None;
        }
        if recipients.outgoing.addresses().any(|address| self.judge(address, extensions).is_some()) {
            let mut ready = Vec::new();
            for recipient in recipients.into_each() {
                match self.judge(&recipient.outgoing.address, extensions) {
                    None => ready.push(recipient),
                    Some(reason) => recipient.answer(Disposition::Refused { reason }).await,
                }
            }
            recipients = Pending::together(ready)?;
        }
        match self.write_letter(&recipients, extensions) {
            Ok((envelope, content)) => Some(Letter { recipients, envelope, content }),
            Err(reason) => {
                recipients.answer(Disposition::Refused { reason }).await;
                None
            }
        }
    }

    /// Why nothing can be sent to this address, if so.
    fn judge(&self, address: &str, extensions: &Extensions) -> Option<Reason> {
        if !is_mailbox(address) {
            return Some(Reason::new(
                ReasonKind::Address,
                format!("`{}` is not a mail address", address.escape_debug()),
            ));
        }
        let ours = self.return_path.is_ascii() && self.letterhead.from.address.is_ascii();
        let is_ascii = ours && on_wire(address).is_ascii();
        if !extensions.smtputf8 && !is_ascii {
            return Some(Reason::new(
                ReasonKind::Address,
                "the address needs SMTPUTF8, which the server does not offer",
            ));
        }
        None
    }

    /// The mail to its recipients; or why the server will not take it.
    fn write_letter(&self, recipients: &Pending, extensions: &Extensions) -> Result<(Envelope, Vec<u8>), Reason> {
        let first = &recipients.outgoing;
        let mut content = Vec::with_capacity(2048);
        let addresses = || first.addresses().map(on_wire);
        let is_multicast = first.count() > 1;
        let alone = on_wire(&first.address);
        let to = (!is_multicast).then(|| Addressee { address: &alone, unsubscribe: first.unsubscribe.as_deref() });
        self.letterhead.write(&first.message, to, &mut content);
        let mut from = match (self.options.return_path_signed, is_multicast) {
            (false, _) => format!("<{}>", self.return_path),
            (true, false) => self.signed_return_path(Returned::Notification(first.id)),
            (true, true) => self.signed_return_path(Returned::Multicast(first.id.batch)),
        };
        if let Some(limit) = extensions.size {
            if limit > 0 && content.len() as u64 > limit {
                let text = format!("the mail has {} bytes, the server takes {limit}", content.len());
                return Err(Reason::new(ReasonKind::Format, text));
            }
            from.push_str(" SIZE=");
            from.push_str(&content.len().to_string());
        }
        // Content is in 7 bits, which no server on its way needs to change, and no signature breaks; only such an address
        // makes header fields wide.
        let ours = from.is_ascii() && self.letterhead.from.address.is_ascii();
        if !ours || !addresses().all(|address| address.is_ascii()) {
            from.push_str(if extensions.eight_bit { " BODY=8BITMIME SMTPUTF8" } else { " SMTPUTF8" });
        }
        Ok((Envelope::new(&from, first.count(), addresses()), content))
    }

    fn signed_return_path(&self, returned: Returned) -> String {
        format!("<{}>", self.signet.return_address(&self.return_path, returned))
    }
}

/// What was not sent when its session broke gets one fresh session: servers end sessions whenever they like.
async fn hold_or_defer(mut recipients: Pending, reason: &Reason, held: &mut VecDeque<Pending>) {
    recipients.breaks += 1;
    if recipients.breaks == 1 {
        held.push_back(recipients);
    } else {
        recipients.answer(Disposition::Deferred { reason: reason.clone(), retry_after: None }).await;
    }
}

#[async_trait]
impl FarSide for Courier {
    async fn probe(&self) -> Result<String, Reason> {
        let (mut texts, mut last) = (Vec::new(), None);
        for server in self.servers.all() {
            match Session::open(&self.options, server, &*self.dial).await {
                Ok(session) => {
                    texts.push(session.describe());
                    session.quit().await;
                }
                Err(reason) => {
                    texts.push(reason.text.clone());
                    last = Some(reason);
                }
            }
        }
        // A channel works as long as one of its servers does.
        match last {
            Some(reason) if texts.len() == 1 => Err(reason),
            Some(reason) if self.servers.down().is_some() => Err(Reason { text: texts.join("; "), ..reason }),
            _ => Ok(texts.join("; ")),
        }
    }

    fn down(&self) -> Option<Reason> {
        self.servers.down()
    }

    fn parts_used(&self) -> PartsUsed {
        PartsUsed { json: JsonUse::InTheirPlace, sms: false, ..PartsUsed::ALL }
    }

    fn takes_multicasts(&self) -> bool {
        true
    }
}
