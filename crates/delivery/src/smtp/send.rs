use std::{collections::VecDeque, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use tocsin_connect::files::Files;
use tocsin_feedback::return_address::{DeviceTag, Origin, Purpose, Reference, ReturnAddresses, Target};
use tocsin_model::{
    content::{Content, JsonUse, MailField, PartsUsed},
    problem::Problem,
    receipt::{Disposition, Reason, ReasonKind},
};
use tokio::time::{Instant, timeout};

use super::{
    address::{Mailbox, is_address, is_mailbox, on_wire},
    classify::{AbortAction, NextStep, RecipientResult, Stage, classify},
    dkim::DkimKey,
    hold_back::hold_back,
    message::{HeaderTemplate, MailRecipient, ReferenceField},
    options::SmtpOptions,
    pacer::Pacer,
    servers::{ServerLease, Servers},
    session::{Dial, Envelope, Extensions, Session},
};
use crate::{
    channel::Outgoing,
    mail_sender::MailSender,
    pending::PendingDelivery,
    queue::{Queue, Turn, take_first},
    running::ProtocolSender,
    token_signer::TokenSigner,
};

/// State that the sessions of a channel share.
pub(super) struct SmtpSender {
    options: SmtpOptions,
    header_template: HeaderTemplate,
    return_path: ReturnPath,
    /// Whether refusals of the server count as bounces.
    counts_refusals: bool,
    token_signer: Arc<TokenSigner>,
    servers: Arc<Servers>,
    dial: Arc<dyn Dial>,
    queue: Arc<Queue>,
    /// If the channel is paced by mailbox provider.
    pacer: Option<Arc<Pacer>>,
}

/// The envelope sender of mails.
struct ReturnPath {
    /// The same for all mails, in wire form.
    plain: String,
    /// Signed return addresses, one for each mail.
    signed: Option<ReturnAddresses>,
}

impl ReturnPath {
    /// The options must be free of problems.
    fn new(options: &SmtpOptions, from: &str, token_signer: &TokenSigner) -> ReturnPath {
        let plain = on_wire(options.return_path.as_deref().unwrap_or(from)).into_owned();
        let signed = match (&options.return_path, options.return_path_signed) {
            (Some(base), true) => token_signer.return_addresses_at(base).ok(),
            (Some(_), false) => None,
            (None, _) => token_signer.return_addresses().cloned(),
        };
        ReturnPath { plain, signed }
    }

    fn is_ascii(&self) -> bool {
        match &self.signed {
            // Other characters are allowed on the left side only.
            Some(signed) => signed.is_ascii(),
            None => self.plain.is_ascii(),
        }
    }

    fn domain(&self) -> Option<&str> {
        match &self.signed {
            Some(signed) => Some(signed.domain()),
            None => self.plain.rsplit_once('@').map(|(_, domain)| domain),
        }
    }

    /// The sender of a mail.
    fn of(&self, outgoing: &Outgoing) -> String {
        let now = outgoing.message.formatted_at;
        let origin = origin(outgoing);
        let shorter = Origin { reference: Reference::Multicast(outgoing.id.batch), target: Target::Reported, ..origin };
        let issued = self.signed.as_ref().and_then(|signed| {
            // With a long base address and very large numbers, only the batch fits.
            signed.issue(&origin, now).or_else(|_| signed.issue(&shorter, now)).ok()
        });
        issued.unwrap_or_else(|| self.plain.clone())
    }
}

/// The senders of a mail.
struct Senders {
    /// The envelope sender in wire form, if the content gives one; else it is that of the channel.
    return_path: Option<String>,
    /// Whether no address of a sender needs SMTPUTF8.
    is_ascii: bool,
}

impl Senders {
    /// The fields of the content must be free of problems.
    fn of(content: &Content, sender: &SmtpSender) -> Senders {
        let from = content.mail_field(MailField::From).and_then(Mailbox::parse).map(Mailbox::on_wire);
        let is_from_ascii = from.as_ref().unwrap_or(&sender.header_template.from).address.is_ascii();
        let given = content.mail_field(MailField::ReturnPath).map(|text| on_wire(text).into_owned());
        let return_path = given.or_else(|| from.map(|from| from.address));
        let is_return_path_ascii = match &return_path {
            Some(given) => given.is_ascii(),
            None => sender.return_path.is_ascii(),
        };
        Senders { return_path, is_ascii: is_from_ascii && is_return_path_ascii }
    }
}

/// The reason why nothing can be sent to this address, if any.
fn address_problem(address: &str, senders: &Senders, extensions: &Extensions) -> Option<Reason> {
    if !is_mailbox(address) {
        return Some(Reason::new(ReasonKind::Address, format!("`{}` is not a mail address", address.escape_debug())));
    }
    let is_ascii = senders.is_ascii && on_wire(address).is_ascii();
    if !extensions.smtputf8 && !is_ascii {
        return Some(Reason::new(ReasonKind::Address, "the address needs SMTPUTF8, which the server does not offer"));
    }
    None
}

/// The content of the return address of a mail.
fn origin(outgoing: &Outgoing) -> Origin {
    let (reference, target) = match (outgoing.count(), outgoing.subscriber) {
        (1, Some(subscriber)) => {
            (Reference::Notification(outgoing.id), Target::Device(subscriber, DeviceTag::of(&outgoing.address)))
        }
        (1, None) => (Reference::Notification(outgoing.id), Target::Reported),
        _ => (Reference::Multicast(outgoing.id.batch), Target::Reported),
    };
    Origin { purpose: Purpose::Bounce, reference, target }
}

/// A session and its server.
struct OpenSession {
    session: Session,
    lease: ServerLease,
    /// Whether it has completed a mail.
    has_answered: bool,
}

/// A mail in wire form, to one or more recipients.
struct OutgoingMail {
    recipients: PendingDelivery,
    envelope: Envelope,
    content: Vec<u8>,
}

impl SmtpSender {
    /// The options must be free of problems.
    ///
    /// # Errors
    /// Keys that cannot be used; paths are relative.
    pub fn new(
        options: SmtpOptions,
        files: &Files,
        token_signer: Arc<TokenSigner>,
        servers: Servers,
        dial: Arc<dyn Dial>,
        queue: Arc<Queue>,
        pacer: Option<Arc<Pacer>>,
    ) -> Result<SmtpSender, Vec<Problem>> {
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
        let return_path = ReturnPath::new(&options, &from.address, &token_signer);
        let counts_refusals = options.suppress_unknown.unwrap_or(token_signer.return_addresses().is_some());
        let header_template = HeaderTemplate {
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
        Ok(SmtpSender {
            options,
            header_template,
            return_path,
            counts_refusals,
            token_signer,
            servers: Arc::new(servers),
            dial,
            queue,
            pacer,
        })
    }

    /// Runs one session after the other, until the queue is closed.
    pub async fn run(self: Arc<Self>) {
        let (mut session, mut held): (Option<OpenSession>, _) = (None, VecDeque::new());
        let limit = self.options.recipients_max as usize;
        loop {
            if session.as_ref().is_some_and(|open: &OpenSession| self.servers.is_fallback(open.lease.at))
                && let Some(open) = session.take()
            {
                open.session.quit().await;
            }
            if session.is_none() && held.is_empty() && self.servers.others_work() && !self.queue.is_closed() {
                self.servers.free_slot().await;
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
                    // A server may allow fewer sessions than we would open: other sessions send these messages.
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
            session = self.run_transaction(open, recipients, &mut held).await;
        }
        if let Some(open) = session {
            open.session.quit().await;
        }
    }

    /// Opens a session with a server. At the deadline: the failure, and how long it may last.
    async fn connect(&self, deadline: Instant) -> Result<OpenSession, (Reason, Duration)> {
        loop {
            let entry = self.servers.acquire(deadline).await?;
            match Session::open(&self.options, entry.server(), &*self.dial).await {
                Ok(session) => return Ok(OpenSession { session, lease: entry.opened(), has_answered: false }),
                Err(reason) => {
                    entry.failed(&reason);
                    if self.servers.others_work() {
                        return Err((reason, Duration::ZERO));
                    }
                }
            }
        }
    }

    /// The disposition of so many recipients. A refusal counts as a bounce if the channel counts refusals, and if it
    /// names its recipient.
    fn with_suppression(&self, disposition: Disposition, recipients: usize) -> Disposition {
        match disposition {
            Disposition::Refused { reason }
                if matches!(reason.kind, ReasonKind::Bounced | ReasonKind::SoftBounced)
                    && !(self.counts_refusals && recipients == 1) =>
            {
                Disposition::Refused { reason: Reason { kind: ReasonKind::Answer, ..reason } }
            }
            Disposition::Deferred { reason, retry_after }
                if reason.kind == ReasonKind::SoftBounced && !(self.counts_refusals && recipients == 1) =>
            {
                Disposition::Deferred { reason: Reason { kind: ReasonKind::Answer, ..reason }, retry_after }
            }
            disposition => disposition,
        }
    }

    /// Handles a failed session. One that never completed a mail counts against its server.
    async fn broken(
        &self,
        open: OpenSession,
        recipients: Option<PendingDelivery>,
        reason: &Reason,
        held: &mut VecDeque<PendingDelivery>,
    ) {
        if !open.has_answered {
            self.servers.mark_bad(open.lease.at, reason);
        }
        if let Some(recipients) = recipients {
            hold_or_defer(recipients, reason, held).await;
        }
    }

    /// Delivers `first` and everything else that waits. Returns the session if it is still usable; mails that need
    /// another attempt go to `held`.
    async fn run_transaction(
        &self,
        mut open: OpenSession,
        first: PendingDelivery,
        held: &mut VecDeque<PendingDelivery>,
    ) -> Option<OpenSession> {
        let mut mail = self.prepare(first, &open.session.extensions).await;
        let mut sent_ahead = false;
        while let Some(OutgoingMail { recipients, envelope, content }) = mail.take() {
            if let Some(turn) = &recipients.turn {
                turn.promote();
            }
            if !sent_ahead {
                open.session.mails += 1;
            }
            let envelope_result = match open.session.envelope(&envelope, sent_ahead).await {
                Ok(envelope_result) => envelope_result,
                Err(reason) => {
                    self.broken(open, Some(recipients), &reason, held).await;
                    return None;
                }
            };
            let (mut taken, later) = match envelope_result.recipients {
                None => (Some(recipients), None),
                Some(results) => self.part(recipients, results).await,
            };
            if let NextStep::Closing(reason) = &envelope_result.next {
                // The provider ends the session because of its limits; the server works.
                if self.pacer.is_some() && hold_back(&reason.text).is_some() {
                    if let Some(later) = later {
                        later.answer(Disposition::Deferred { reason: reason.clone(), retry_after: None }).await;
                    }
                    return None;
                }
                self.broken(open, later, reason, held).await;
                return None;
            }
            if !open.has_answered {
                self.servers.mark_good(open.lease.at);
                open.has_answered = true;
            }
            let session = &mut open.session;
            if let Some(later) = later {
                session.recipients_max = taken.as_ref().map_or(0, PendingDelivery::count);
                held.push_back(later);
            }
            let mut out = match &envelope_result.next {
                NextStep::Abort(AbortAction::Hangup) | NextStep::Closing(_) => return None,
                NextStep::Abort(AbortAction::Reset) => b"RSET\r\n".to_vec(),
                NextStep::Abort(AbortAction::Dot) => b".\r\n".to_vec(),
                NextStep::Content => content,
            };
            let stays = session.mails < self.options.messages_per_session && !self.servers.is_fallback(open.lease.at);
            let current = taken.as_ref().and_then(|taken| taken.turn.as_deref());
            // A mail that is sent ahead waits for the reply to this one.
            let is_slow = current.is_some_and(Turn::is_slow);
            let next = match session.extensions.pipelining && stays && !is_slow {
                true => self.next_mail(session, held, current).await,
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
            let (disposition, stays) = match (written, envelope_result.next) {
                (Ok(()), NextStep::Content) => match session.reply(self.options.content_timeout.0).await {
                    Ok(reply) => (Some(classify(Stage::Content, &reply)), !reply.closing()),
                    // The reply to the content is lost: the server may have accepted the mail. It is sent again under
                    // the same id.
                    Err(reason) => (Some(Disposition::Deferred { reason, retry_after: None }), false),
                },
                (Err(reason), _) => (Some(Disposition::Deferred { reason, retry_after: None }), false),
                (Ok(()), _) => {
                    let reply = session.reply(self.options.reply_timeout.0).await;
                    (None, reply.is_ok_and(|reply| reply.positive() || (reply.code >= 500 && out.starts_with(b"."))))
                }
            };
            if let (Some(taken), Some(disposition)) = (taken, disposition) {
                let disposition = self.with_suppression(disposition, taken.count());
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
            mail = next;
        }
        if open.session.mails >= self.options.messages_per_session {
            open.session.quit().await;
            return None;
        }
        Some(open)
    }

    /// Splits the recipients of a mail by the result of the envelope: those who get the content, and those who need
    /// another mail. The others are answered.
    async fn part(
        &self,
        recipients: PendingDelivery,
        results: Vec<RecipientResult>,
    ) -> (Option<PendingDelivery>, Option<PendingDelivery>) {
        let (mut taken, mut later) = (Vec::new(), Vec::new());
        for (recipient, result) in recipients.into_each().into_iter().zip(results) {
            match result {
                RecipientResult::Taken => taken.push(recipient),
                RecipientResult::Later => later.push(recipient),
                RecipientResult::Over(disposition) => recipient.answer(self.with_suppression(disposition, 1)).await,
            }
        }
        (PendingDelivery::together(taken), PendingDelivery::together(later))
    }

    /// The next waiting mail that can be sent.
    async fn next_mail(
        &self,
        session: &mut Session,
        held: &mut VecDeque<PendingDelivery>,
        current: Option<&Turn>,
    ) -> Option<OutgoingMail> {
        let limit = session.recipients_max.min(self.options.recipients_max as usize);
        loop {
            let recipients = take_first(held, limit).or_else(|| self.queue.try_pop_multicast(limit, current))?;
            if let Some(mail) = self.prepare(recipients, &session.extensions).await {
                return Some(mail);
            }
        }
    }

    /// Formats a mail for the wire; answers recipients to whom it cannot be sent.
    async fn prepare(&self, mut recipients: PendingDelivery, extensions: &Extensions) -> Option<OutgoingMail> {
        let content = &recipients.outgoing.message.content;
        if let Some(reason) = recipients.too_late().or_else(|| self.field_problem(content)) {
            recipients.answer(Disposition::Refused { reason }).await;
            return None;
        }
        let senders = Senders::of(content, self);
        let problem_of = |address: &str| address_problem(address, &senders, extensions);
        if recipients.outgoing.addresses().any(|address| problem_of(address).is_some()) {
            let mut ready = Vec::new();
            for recipient in recipients.into_each() {
                match problem_of(&recipient.outgoing.address) {
                    None => ready.push(recipient),
                    Some(reason) => recipient.answer(Disposition::Refused { reason }).await,
                }
            }
            recipients = PendingDelivery::together(ready)?;
        }
        match self.write_mail(&recipients, &senders, extensions) {
            Ok((envelope, content)) => Some(OutgoingMail { recipients, envelope, content }),
            Err(reason) => {
                recipients.answer(Disposition::Refused { reason }).await;
                None
            }
        }
    }

    /// The reason why the fields that content gives cannot be sent, if any.
    fn field_problem(&self, content: &Content) -> Option<Reason> {
        if content.mail.is_empty() {
            return None;
        }
        if !self.options.fields_from_content {
            let text = "the content gives fields of the mail, and the channel does not have `fields_from_content`";
            return Some(Reason::new(ReasonKind::Format, text));
        }
        let wrong = |field: MailField, text: &str| {
            let text = format!("`{}` is not a mail address: `{}`", field.name(), text.escape_debug());
            Reason::new(ReasonKind::Format, text)
        };
        let from = content.mail_field(MailField::From).filter(|text| Mailbox::parse(text).is_none());
        let back = content.mail_field(MailField::ReturnPath).filter(|text| !is_address(&on_wire(text)));
        from.map(|text| wrong(MailField::From, text)).or_else(|| back.map(|text| wrong(MailField::ReturnPath, text)))
    }

    /// Formats the mail for its recipients; the error says why the server would not accept it.
    fn write_mail(
        &self,
        recipients: &PendingDelivery,
        senders: &Senders,
        extensions: &Extensions,
    ) -> Result<(Envelope, Vec<u8>), Reason> {
        let first = &recipients.outgoing;
        let mut content = Vec::with_capacity(2048);
        let addresses = || first.addresses().map(on_wire);
        let is_multicast = first.count() > 1;
        let alone = on_wire(&first.address);
        let to = (!is_multicast).then(|| MailRecipient {
            address: &alone,
            unsubscribe: first.unsubscribe.as_deref(),
            unsubscribe_address: self.unsubscribe_address(first),
        });
        let reference = self.reference(first);
        self.header_template.write(&first.message, to, reference.as_ref(), &mut content);
        let return_path = senders.return_path.clone().unwrap_or_else(|| self.return_path.of(first));
        let mut from = format!("<{return_path}>");
        if let Some(limit) = extensions.size {
            if limit > 0 && content.len() as u64 > limit {
                let text = format!("the mail has {} bytes, the server takes {limit}", content.len());
                return Err(Reason::new(ReasonKind::Format, text));
            }
            from.push_str(" SIZE=");
            from.push_str(&content.len().to_string());
        }
        // Content is 7-bit, so that no relay needs to change it and signatures stay valid; only such an address makes
        // header fields UTF-8.
        let ours = from.is_ascii() && senders.is_ascii;
        if !ours || !addresses().all(|address| address.is_ascii()) {
            from.push_str(if extensions.eight_bit { " BODY=8BITMIME SMTPUTF8" } else { " SMTPUTF8" });
        }
        Ok((Envelope::new(&from, first.count(), addresses()), content))
    }

    /// The header field with the signed reference of a mail, for the provider of the channel.
    fn reference(&self, outgoing: &Outgoing) -> Option<ReferenceField> {
        let provider = self.options.feedback.as_ref()?.provider?;
        let text = self.token_signer.reference(&origin(outgoing), outgoing.message.formatted_at)?;
        provider.reference_field(&text)
    }

    /// The address to which any mail of the recipient ends the subscription, if the installation receives feedback.
    fn unsubscribe_address(&self, outgoing: &Outgoing) -> Option<String> {
        let (addresses, subscription) = (self.token_signer.return_addresses()?, outgoing.subscription?);
        let origin = Origin {
            purpose: Purpose::Unsubscribe,
            reference: Reference::Notification(outgoing.id),
            target: Target::Subscription(subscription),
        };
        addresses.issue(&origin, outgoing.message.formatted_at).ok()
    }
}

/// Requeues a mail that was not sent when its session failed, once: servers may end sessions at any time.
async fn hold_or_defer(mut recipients: PendingDelivery, reason: &Reason, held: &mut VecDeque<PendingDelivery>) {
    recipients.breaks += 1;
    if recipients.breaks == 1 {
        held.push_back(recipients);
    } else {
        recipients.answer(Disposition::Deferred { reason: reason.clone(), retry_after: None }).await;
    }
}

#[async_trait]
impl ProtocolSender for SmtpSender {
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

    fn mail_sender(&self) -> Option<MailSender> {
        let from = self.header_template.from.domain();
        Some(MailSender {
            from_domain: from.to_owned(),
            return_domain: self.return_path.domain().unwrap_or(from).to_owned(),
            hosts: self.options.servers().into_iter().map(|server| server.host).collect(),
            ehlo: self.options.ehlo.clone(),
            keys: self.header_template.keys.iter().map(DkimKey::public).collect(),
        })
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

    async fn prepare(&self, outgoing: &[Outgoing]) {
        if let Some(pacer) = &self.pacer {
            pacer.prepare(outgoing).await;
        }
    }

    async fn finish(&self) {
        if let Some(pacer) = &self.pacer {
            pacer.finish().await;
        }
    }
}
