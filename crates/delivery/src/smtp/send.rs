use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use rustls::ClientConfig;
use tocsin_model::receipt::{Disposition, Reason, ReasonKind};
use tokio::time::{Instant, sleep_until, timeout};

use super::{
    classify::{ClearUp, Stage, Verdict, classify},
    message::{Letterhead, Mailbox, is_address},
    options::SmtpOptions,
    session::{Dial, Envelope, Extensions, Session},
};
use crate::queue::{FarSide, Pending, Queue};

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

/// A mail that is ready for the wire.
struct Letter {
    pending: Pending,
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
        let (mut session, mut held): (Option<Session>, Option<Pending>) = (None, None);
        loop {
            let pending = match (held.take(), session.is_some()) {
                (Some(pending), _) => Some(pending),
                (None, false) => self.queue.pop().await,
                (None, true) => match timeout(self.options.idle_timeout.0, self.queue.pop()).await {
                    Ok(pending) => pending,
                    Err(_) => {
                        if let Some(session) = session.take() {
                            session.quit().await;
                        }
                        continue;
                    }
                },
            };
            let Some(pending) = pending else { break };
            let open = match session.take() {
                Some(open) => open,
                None => match self.connect(pending.queued + self.options.patience.0).await {
                    Ok(open) => open,
                    Err((reason, pause)) => {
                        pending.answer(Disposition::Deferred { reason, retry_after: Some(pause) }).await;
                        continue;
                    }
                },
            };
            session = self.converse(open, pending, &mut held).await;
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
    /// a mail that deserves another session.
    async fn converse(&self, mut session: Session, first: Pending, held: &mut Option<Pending>) -> Option<Session> {
        let mut letter = self.prepare(first, &session.extensions).await;
        let (mut out, mut sent_ahead) = (Vec::with_capacity(4096), false);
        while let Some(Letter { mut pending, envelope, content }) = letter.take() {
            if !sent_ahead {
                session.mails += 1;
            }
            let verdict = match session.envelope(&envelope, sent_ahead).await {
                Ok(Verdict::Closing(reason)) | Err(reason) => {
                    hold_or_defer(pending, reason, held).await;
                    return None;
                }
                Ok(verdict) => verdict,
            };
            out.clear();
            match verdict {
                Verdict::Not(disposition, ClearUp::Hangup) => {
                    pending.answer(disposition).await;
                    return None;
                }
                Verdict::Not(_, ClearUp::Reset) => out.extend_from_slice(b"RSET\r\n"),
                Verdict::Not(_, ClearUp::Dot) => out.extend_from_slice(b".\r\n"),
                _ => out.extend_from_slice(&content),
            }
            let next = match session.extensions.pipelining && session.mails < self.options.messages_per_session {
                true => self.next_letter(&session.extensions).await,
                false => None,
            };
            if let Some(next) = &next {
                next.envelope.write(&mut out);
                session.mails += 1;
            }
            pending.sent();
            let written = session.write(&out).await;
            let (stays, disposition) = match (written, verdict) {
                (Ok(()), Verdict::Not(disposition, _)) => {
                    let reply = session.reply(self.options.reply_timeout.0).await;
                    (
                        reply.is_ok_and(|reply| reply.positive() || (reply.code >= 500 && out.starts_with(b"."))),
                        disposition,
                    )
                }
                (Err(_), Verdict::Not(disposition, _)) => (false, disposition),
                // The reply to the content is lost: the mail may have been taken. It will come again under the same id.
                (Err(reason), _) => (false, Disposition::Deferred { reason, retry_after: None }),
                (Ok(()), _) => match session.reply(self.options.content_timeout.0).await {
                    Ok(reply) => (!reply.closing(), classify(Stage::Content, &reply)),
                    Err(reason) => (false, Disposition::Deferred { reason, retry_after: None }),
                },
            };
            pending.answer(disposition).await;
            if !stays {
                if let Some(next) = next {
                    let reason = Reason::new(ReasonKind::Connection, "the session broke before the mail was sent");
                    hold_or_defer(next.pending, reason, held).await;
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
    async fn next_letter(&self, extensions: &Extensions) -> Option<Letter> {
        while let Some(pending) = self.queue.try_pop() {
            if let Some(letter) = self.prepare(pending, extensions).await {
                return Some(letter);
            }
        }
        None
    }

    /// Makes a mail ready for the wire; answers it if that cannot be.
    async fn prepare(&self, pending: Pending, extensions: &Extensions) -> Option<Letter> {
        match self.write_letter(&pending, extensions) {
            Ok((envelope, content)) => Some(Letter { pending, envelope, content }),
            Err(reason) => {
                pending.answer(Disposition::Refused { reason }).await;
                None
            }
        }
    }

    fn write_letter(&self, pending: &Pending, extensions: &Extensions) -> Result<(Envelope, Vec<u8>), Reason> {
        let outgoing = &pending.outgoing;
        if pending.expired() {
            return Err(Reason::new(ReasonKind::Expired, "its time was over before it was sent"));
        }
        if !is_address(&outgoing.address) {
            return Err(Reason::new(
                ReasonKind::Address,
                format!("`{}` is not a mail address", outgoing.address.escape_debug()),
            ));
        }
        let from = &self.letterhead.from.address;
        let wide = !outgoing.address.is_ascii() || !from.is_ascii();
        if wide && !extensions.smtputf8 {
            return Err(Reason::new(
                ReasonKind::Address,
                "the address needs SMTPUTF8, which the server does not offer",
            ));
        }
        let mut content = Vec::with_capacity(2048);
        self.letterhead.write(outgoing, &mut content);
        let mut mail = format!("MAIL FROM:<{from}>");
        if let Some(limit) = extensions.size {
            if limit > 0 && content.len() as u64 > limit {
                let text = format!("the mail has {} bytes, the server takes {limit}", content.len());
                return Err(Reason::new(ReasonKind::Format, text));
            }
            mail.push_str(" SIZE=");
            mail.push_str(&content.len().to_string());
        }
        if wide {
            mail.push_str(" BODY=8BITMIME SMTPUTF8");
        }
        mail.push_str("\r\n");
        Ok((Envelope { mail, recipient: format!("RCPT TO:<{}>\r\n", outgoing.address) }, content))
    }
}

/// What was not sent when its session broke gets one fresh session: servers end sessions whenever they like.
async fn hold_or_defer(mut pending: Pending, reason: Reason, held: &mut Option<Pending>) {
    pending.breaks += 1;
    if pending.breaks == 1 {
        *held = Some(pending);
    } else {
        pending.answer(Disposition::Deferred { reason, retry_after: None }).await;
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
