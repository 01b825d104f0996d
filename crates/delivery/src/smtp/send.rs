use std::{collections::VecDeque, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use rustls::ClientConfig;
use tocsin_model::receipt::{Disposition, Reason, ReasonKind};
use tokio::time::{Instant, sleep_until, timeout};

use super::{
    classify::{ClearUp, Fate, Next, Stage, classify},
    message::{Letterhead, Mailbox, is_address},
    options::SmtpOptions,
    session::{Dial, Envelope, Extensions, Session},
};
use crate::queue::{FarSide, Pending, Queue, same_message};

const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Wrong credentials do not become right by trying, and too many tries lock accounts.
const AUTHENTICATION_PAUSE_MIN: Duration = Duration::from_secs(30);

/// What the sessions of a channel share.
pub(super) struct Courier {
    options: SmtpOptions,
    letterhead: Letterhead,
    trust: Arc<ClientConfig>,
    dial: Arc<dyn Dial>,
    queue: Arc<Queue>,
    gate: Mutex<Gate>,
}

/// Whether the server lets us in at all.
#[derive(Default)]
struct Gate {
    failures: u32,
    closed: Option<(Instant, Reason)>,
}

/// A mail that is ready for the wire, to one recipient or several.
struct Letter {
    recipients: Vec<Pending>,
    envelope: Envelope,
    content: Vec<u8>,
}

impl Courier {
    /// The options must be free of problems.
    pub fn new(options: SmtpOptions, trust: Arc<ClientConfig>, dial: Arc<dyn Dial>, queue: Arc<Queue>) -> Self {
        let letterhead = Letterhead {
            from: options.from.as_deref().and_then(Mailbox::parse).expect("checked options have a sender"),
            reply_to: options.reply_to.as_deref().and_then(Mailbox::parse),
            headers: options.headers.clone(),
        };
        Courier { options, letterhead, trust, dial, queue, gate: Mutex::default() }
    }

    /// One session after the other, until the queue is closed.
    pub async fn run(self: Arc<Self>) {
        let (mut session, mut held): (Option<Session>, _) = (None, VecDeque::new());
        let limit = self.options.recipients_max as usize;
        loop {
            let recipients = match (take_held(&mut held, limit), session.is_some()) {
                (recipients, _) if !recipients.is_empty() => Some(recipients),
                (_, false) => self.queue.pop_multicast(limit).await,
                (_, true) => match timeout(self.options.idle_timeout.0, self.queue.pop_multicast(limit)).await {
                    Ok(recipients) => recipients,
                    Err(_) => {
                        if let Some(session) = session.take() {
                            session.quit().await;
                        }
                        continue;
                    }
                },
            };
            let Some(recipients) = recipients else { break };
            let open = match session.take() {
                Some(open) => open,
                None => match self.connect(recipients[0].queued + self.options.patience.0).await {
                    Ok(open) => open,
                    Err((reason, pause)) => {
                        answer_all(recipients, &Disposition::Deferred { reason, retry_after: Some(pause) }).await;
                        continue;
                    }
                },
            };
            session = self.converse(open, recipients, &mut held).await;
        }
        if let Some(session) = session {
            session.quit().await;
        }
    }

    /// A session, as soon as the server lets us in. At the deadline: why it does not, and how long it may take.
    async fn connect(&self, deadline: Instant) -> Result<Session, (Reason, Duration)> {
        loop {
            let closed = self.gate.lock().closed.clone();
            let now = Instant::now();
            if let Some((until, reason)) = closed
                && until > now
            {
                if deadline <= until {
                    sleep_until(deadline).await;
                    return Err((reason, until.duration_since(Instant::now().min(until))));
                }
                sleep_until(until).await;
            }
            let started = Instant::now();
            match Session::open(&self.options, &self.trust, &*self.dial).await {
                Ok(session) => {
                    *self.gate.lock() = Gate::default();
                    return Ok(session);
                }
                Err(reason) => self.shut_out(reason, started),
            }
        }
    }

    /// Closes the gate for a while, longer each time. Sessions that failed together count once.
    fn shut_out(&self, reason: Reason, started: Instant) {
        let mut gate = self.gate.lock();
        if gate.closed.as_ref().is_some_and(|(until, _)| *until > started) {
            return;
        }
        let first = if reason.kind == ReasonKind::Authentication { AUTHENTICATION_PAUSE_MIN } else { PAUSE_MIN };
        let pause =
            first.saturating_mul(1 << gate.failures.min(10)).min(PAUSE_MAX).mul_f64(0.8 + 0.4 * fastrand::f64());
        gate.failures += 1;
        tracing::warn!(reason = %reason.text, pause_ms = pause.as_millis() as u64, "the mail server does not let us in");
        gate.closed = Some((Instant::now() + pause, reason));
    }

    /// Delivers `first`, and with it whatever else is waiting. Gives the session back if it is still good, and in `held`
    /// those that deserve another mail or session.
    async fn converse(
        &self,
        mut session: Session,
        first: Vec<Pending>,
        held: &mut VecDeque<Pending>,
    ) -> Option<Session> {
        let mut letter = self.prepare(first, &session.extensions).await;
        let (mut out, mut sent_ahead) = (Vec::with_capacity(4096), false);
        while let Some(Letter { recipients, envelope, content }) = letter.take() {
            if !sent_ahead {
                session.mails += 1;
            }
            let ruling = match session.envelope(&envelope, sent_ahead).await {
                Ok(ruling) => ruling,
                Err(reason) => {
                    hold_or_defer(recipients, &reason, held).await;
                    return None;
                }
            };
            let (mut taken, mut later) = (Vec::with_capacity(recipients.len()), Vec::new());
            for (recipient, fate) in recipients.into_iter().zip(ruling.recipients) {
                match fate {
                    Fate::Taken => taken.push(recipient),
                    Fate::Later => later.push(recipient),
                    Fate::Over(disposition) => recipient.answer(disposition).await,
                }
            }
            if let Next::Closing(reason) = &ruling.next {
                hold_or_defer(later, reason, held).await;
                return None;
            }
            if !later.is_empty() {
                session.recipients_max = taken.len();
                held.extend(later);
            }
            out.clear();
            match &ruling.next {
                Next::ClearUp(ClearUp::Hangup) | Next::Closing(_) => return None,
                Next::ClearUp(ClearUp::Reset) => out.extend_from_slice(b"RSET\r\n"),
                Next::ClearUp(ClearUp::Dot) => out.extend_from_slice(b".\r\n"),
                Next::Content => out.extend_from_slice(&content),
            }
            let next = match session.extensions.pipelining && session.mails < self.options.messages_per_session {
                true => self.next_letter(&mut session, held).await,
                false => None,
            };
            if let Some(next) = &next {
                next.envelope.write(&mut out);
                session.mails += 1;
            }
            taken.iter_mut().for_each(Pending::sent);
            let written = session.write(&out).await;
            let stays = match (written, ruling.next) {
                (Ok(()), Next::Content) => match session.reply(self.options.content_timeout.0).await {
                    Ok(reply) => {
                        answer_all(taken, &classify(Stage::Content, &reply)).await;
                        !reply.closing()
                    }
                    // The reply to the content is lost: the mail may have been taken. It will come again under the same
                    // id.
                    Err(reason) => {
                        answer_all(taken, &Disposition::Deferred { reason, retry_after: None }).await;
                        false
                    }
                },
                (Err(reason), _) => {
                    answer_all(taken, &Disposition::Deferred { reason, retry_after: None }).await;
                    false
                }
                (Ok(()), _) => {
                    let reply = session.reply(self.options.reply_timeout.0).await;
                    reply.is_ok_and(|reply| reply.positive() || (reply.code >= 500 && out.starts_with(b".")))
                }
            };
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
        if session.mails >= self.options.messages_per_session {
            session.quit().await;
            return None;
        }
        Some(session)
    }

    /// The next mail that can be sent, if one is waiting.
    async fn next_letter(&self, session: &mut Session, held: &mut VecDeque<Pending>) -> Option<Letter> {
        let limit = session.recipients_max.min(self.options.recipients_max as usize);
        loop {
            let mut recipients = take_held(held, limit);
            if recipients.is_empty() {
                recipients = self.queue.try_pop_multicast(limit);
            }
            if recipients.is_empty() {
                return None;
            }
            if let Some(letter) = self.prepare(recipients, &session.extensions).await {
                return Some(letter);
            }
        }
    }

    /// Makes a mail ready for the wire; answers those recipients for whom that cannot be.
    async fn prepare(&self, recipients: Vec<Pending>, extensions: &Extensions) -> Option<Letter> {
        let mut ready = Vec::with_capacity(recipients.len());
        for recipient in recipients {
            match self.judge(&recipient, extensions) {
                None => ready.push(recipient),
                Some(reason) => recipient.answer(Disposition::Refused { reason }).await,
            }
        }
        let written = self.write_letter(&ready, extensions)?;
        match written {
            Ok((envelope, content)) => Some(Letter { recipients: ready, envelope, content }),
            Err(reason) => {
                answer_all(ready, &Disposition::Refused { reason }).await;
                None
            }
        }
    }

    /// Why nothing can be sent to this recipient, if so.
    fn judge(&self, pending: &Pending, extensions: &Extensions) -> Option<Reason> {
        let address = &pending.outgoing.address;
        if pending.expired() {
            return Some(Reason::new(ReasonKind::Expired, "its time was over before it was sent"));
        }
        if !is_address(address) {
            return Some(Reason::new(
                ReasonKind::Address,
                format!("`{}` is not a mail address", address.escape_debug()),
            ));
        }
        if !extensions.smtputf8 && !(address.is_ascii() && self.letterhead.from.address.is_ascii()) {
            return Some(Reason::new(
                ReasonKind::Address,
                "the address needs SMTPUTF8, which the server does not offer",
            ));
        }
        None
    }

    /// The mail to some recipients, if there are any; or why the server will not take it.
    fn write_letter(
        &self,
        recipients: &[Pending],
        extensions: &Extensions,
    ) -> Option<Result<(Envelope, Vec<u8>), Reason>> {
        let first = &recipients.first()?.outgoing;
        let mut content = Vec::with_capacity(2048);
        let to = Some(first.address.as_str()).filter(|_| recipients.len() == 1);
        self.letterhead.write(&first.message, to, &mut content);
        let mut from = format!("<{}>", self.letterhead.from.address);
        if let Some(limit) = extensions.size {
            if limit > 0 && content.len() as u64 > limit {
                let text = format!("the mail has {} bytes, the server takes {limit}", content.len());
                return Some(Err(Reason::new(ReasonKind::Format, text)));
            }
            from.push_str(" SIZE=");
            from.push_str(&content.len().to_string());
        }
        let addresses: Vec<String> = recipients.iter().map(|one| one.outgoing.address.clone()).collect();
        if !from.is_ascii() || !addresses.iter().all(|address| address.is_ascii()) {
            from.push_str(" BODY=8BITMIME SMTPUTF8");
        }
        Some(Ok((Envelope { from, recipients: addresses }, content)))
    }
}

/// The first of those that wait for another mail or session, and those behind it that are the same multicast.
fn take_held(held: &mut VecDeque<Pending>, limit: usize) -> Vec<Pending> {
    let count = same_message(held.iter(), limit);
    held.drain(..count).collect()
}

async fn answer_all(recipients: Vec<Pending>, disposition: &Disposition) {
    for recipient in recipients {
        recipient.answer(disposition.clone()).await;
    }
}

/// What was not sent when its session broke gets one fresh session: servers end sessions whenever they like.
async fn hold_or_defer(recipients: Vec<Pending>, reason: &Reason, held: &mut VecDeque<Pending>) {
    for mut recipient in recipients {
        recipient.breaks += 1;
        if recipient.breaks == 1 {
            held.push_back(recipient);
        } else {
            recipient.answer(Disposition::Deferred { reason: reason.clone(), retry_after: None }).await;
        }
    }
}

#[async_trait]
impl FarSide for Courier {
    async fn probe(&self) -> Result<String, Reason> {
        let session = Session::open(&self.options, &self.trust, &*self.dial).await?;
        let text = session.describe();
        session.quit().await;
        Ok(text)
    }

    fn down(&self) -> Option<Reason> {
        self.gate.lock().closed.as_ref().map(|(_, reason)| reason.clone())
    }
}
