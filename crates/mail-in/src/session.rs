//! One conversation in SMTP (RFC 5321) or LMTP (RFC 2033): commands that came together are answered together (RFC 2920), a
//! mail comes whole (DATA) or in chunks (RFC 3030).

use std::{io, net::SocketAddr, slice::Iter, time::Duration};

use smtp_proto::{
    AUTH_PLAIN, EXT_8BIT_MIME, EXT_AUTH, EXT_CHUNKING, EXT_ENHANCED_STATUS_CODES, EXT_PIPELINING, EXT_SIZE,
    EXT_SMTP_UTF8, EXT_START_TLS, EhloResponse, Error, MAIL_BODY_BINARYMIME, MailFrom, Request,
    request::receiver::{BdatReceiver, DummyDataReceiver, RequestReceiver},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{
    data::Data,
    envelope::{Envelope, Refusal},
    serve::Setting,
};

/// Bytes read at once.
const READ_BYTES: usize = 32 << 10;
/// Longest line of a command, with its line break. RFC 4954, section 4 has the longest: the answer of a login.
const LINE_BYTES_MAX: usize = 12_288;
/// Most commands of one conversation that fail, before it ends.
const ERRORS_MAX: u32 = 100;
/// Most commands between two mails, beside recipients.
const COMMANDS_MAX: u32 = 1_000;
/// Most logins of one conversation that fail.
const LOGINS_MAX: u32 = 3;
/// How long a handshake of TLS may take.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(30);

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// What the next bytes are.
enum State {
    Command,
    /// The answer of a client to AUTH PLAIN.
    Login,
    Data(Data),
    Chunk(BdatReceiver),
    /// What is not wanted is read and forgotten; then this is said.
    Forget(DummyDataReceiver, Refusal),
    /// A handshake of TLS.
    Handshake,
    /// The conversation is over.
    Over,
}

/// A mail that is announced.
struct Announced {
    from: String,
    to: Vec<String>,
}

struct Session<'a> {
    setting: &'a Setting,
    peer: SocketAddr,
    state: State,
    /// The line of a command that is coming.
    line: Vec<u8>,
    host: Option<String>,
    is_lmtp: bool,
    is_encrypted: bool,
    user: Option<String>,
    mail: Option<Announced>,
    body: Vec<u8>,
    /// Whether chunks of the mail have come; then its rest comes in chunks too.
    is_chunked: bool,
    /// When the mail that is coming must be whole.
    deadline: Option<Instant>,
    replies: Vec<u8>,
    errors: u32,
    logins: u32,
    quiet_commands: u32,
    mails: u32,
}

/// Talks until the other side quits, says nothing for too long, or goes away, or we are to stop.
pub(crate) async fn converse(
    stream: TcpStream,
    peer: SocketAddr,
    setting: &Setting,
    stop: &CancellationToken,
) -> io::Result<()> {
    // Replies are small and waited for.
    stream.set_nodelay(true)?;
    let mut session = Session::new(setting, peer);
    let mut stream: Box<dyn Stream> = Box::new(stream);
    let mut buffer = vec![0u8; READ_BYTES];
    loop {
        session.flush(&mut stream).await?;
        match session.state {
            State::Over => return stream.shutdown().await,
            State::Handshake => {
                stream = session.encrypt(stream).await?;
                continue;
            }
            _ => {}
        }
        let idle = Instant::now() + setting.bounds.idle;
        let until = session.deadline.map_or(idle, |deadline| deadline.min(idle));
        let read = tokio::select! {
            biased;
            () = stop.cancelled() => {
                session.end("421 4.3.2 this server stops, come back later");
                continue;
            }
            read = timeout_at(until, stream.read(&mut buffer)) => read,
        };
        match read {
            Err(_) => session.end("421 4.4.2 it took too long"),
            Ok(read) => match read? {
                0 => return Ok(()),
                length => session.hear(&mut stream, &buffer[..length]).await?,
            },
        }
    }
}

/// A mail in whose text a CR or an LF stands alone.
/// Replies to these pieces of a client's bytes, without a socket.
pub(crate) async fn replies_to(setting: &Setting, peer: SocketAddr, pieces: &[&[u8]]) -> Vec<u8> {
    // More than all replies: commands, mistakes and mails of a session are bounded.
    const REPLIES_BYTES_MAX: usize = 16 << 20;
    const FAILED: &str = "a stream in memory takes all replies";
    let mut session = Session::new(setting, peer);
    let (near, mut far) = tokio::io::duplex(REPLIES_BYTES_MAX);
    let mut stream: Box<dyn Stream> = Box::new(near);
    session.flush(&mut stream).await.expect(FAILED);
    for piece in pieces {
        if !matches!(session.state, State::Over) {
            session.hear(&mut stream, piece).await.expect(FAILED);
            session.flush(&mut stream).await.expect(FAILED);
        }
    }
    drop(stream);
    let mut replies = Vec::new();
    far.read_to_end(&mut replies).await.expect(FAILED);
    replies
}

fn bare_break() -> Refusal {
    Refusal::new(554, "5.6.0", "a bare CR or LF is in the mail: lines end with CR LF (RFC 5321, 2.3.8)")
}

/// A command in which one does.
fn bare_break_in_command() -> Refusal {
    Refusal::new(521, "5.5.2", "a bare CR or LF is in a command: lines end with CR LF (RFC 5321, 2.3.8)")
}

impl<'a> Session<'a> {
    fn new(setting: &'a Setting, peer: SocketAddr) -> Session<'a> {
        let mut session = Session {
            setting,
            peer,
            state: State::Command,
            line: Vec::new(),
            host: None,
            is_lmtp: false,
            is_encrypted: false,
            user: None,
            mail: None,
            body: Vec::new(),
            is_chunked: false,
            deadline: None,
            replies: Vec::new(),
            errors: 0,
            logins: 0,
            quiet_commands: 0,
            mails: 0,
        };
        session.say(&format!("220 {} ESMTP Tocsin", setting.host));
        session
    }

    /// Takes what came, and leaves the replies to it.
    async fn hear(&mut self, stream: &mut Box<dyn Stream>, bytes: &[u8]) -> io::Result<()> {
        let mut bytes = bytes.iter();
        // A chunk may be empty, so that it is whole before its first byte.
        while !bytes.as_slice().is_empty() || matches!(self.state, State::Chunk(_)) {
            match &mut self.state {
                State::Command | State::Login => {
                    let Some(line) = self.take_line(&mut bytes) else { continue };
                    match std::mem::replace(&mut self.state, State::Command) {
                        State::Login => {
                            let answer = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
                            self.log_in(&answer);
                        }
                        _ => self.hear_command(&line),
                    }
                }
                State::Data(data) => {
                    if data.take(&mut bytes, &mut self.body) {
                        let wrong = match (data.is_too_long, data.has_bare_break) {
                            (true, _) => Some(self.too_large()),
                            (false, true) => Some(bare_break()),
                            (false, false) => None,
                        };
                        self.state = State::Command;
                        self.complete(stream, wrong).await?;
                    }
                }
                State::Chunk(chunk) => {
                    if !chunk.ingest(&mut bytes, &mut self.body) {
                        break;
                    }
                    let is_last = chunk.is_last;
                    self.state = State::Command;
                    match is_last {
                        true => self.complete(stream, None).await?,
                        false => self.say("250 2.0.0 go on"),
                    }
                }
                State::Forget(rest, refusal) => {
                    if rest.ingest(&mut bytes) {
                        let refusal = refusal.clone();
                        self.state = State::Command;
                        self.refuse(&refusal);
                    }
                }
                // What comes before a handshake, without protection, must not count after it.
                State::Handshake => {
                    self.replies.clear();
                    self.end("501 5.5.1 nothing may follow STARTTLS before its answer");
                }
                State::Over => break,
            }
        }
        Ok(())
    }

    /// Takes a whole line, once its CR LF has come. A CR or an LF alone ends no line (RFC 5321, section 2.3.8): what a server
    /// before this one took for text must not become a command here, so the conversation ends.
    fn take_line(&mut self, bytes: &mut Iter<'_, u8>) -> Option<Vec<u8>> {
        for byte in bytes {
            let is_after_cr = self.line.last() == Some(&b'\r');
            if is_after_cr != (*byte == b'\n') {
                self.line.clear();
                self.end(&bare_break_in_command().to_string());
                return None;
            }
            self.line.push(*byte);
            if *byte == b'\n' {
                return Some(std::mem::take(&mut self.line));
            }
            if self.line.len() >= LINE_BYTES_MAX {
                // What follows may be the middle of anything.
                self.line.clear();
                self.end("421 4.7.0 the line is too long");
                return None;
            }
        }
        None
    }

    fn hear_command(&mut self, line: &[u8]) {
        self.quiet_commands += 1;
        if self.quiet_commands > COMMANDS_MAX {
            return self.end("421 4.7.0 too many commands without a mail");
        }
        match RequestReceiver::default().ingest(&mut line.iter()) {
            Ok(request) => {
                let request = request.into_owned();
                self.answer(request);
            }
            // A line that holds no whole command.
            Err(Error::NeedsMoreData { .. }) => self.mistake("500 5.5.2 the command is not complete"),
            Err(Error::UnknownCommand) => self.mistake("500 5.5.1 unknown command"),
            Err(Error::InvalidSenderAddress) => self.mistake("501 5.1.7 the sender is not an address"),
            Err(Error::InvalidRecipientAddress) => self.mistake("501 5.1.3 the recipient is not an address"),
            Err(Error::SyntaxError { syntax }) => self.mistake(&format!("501 5.5.4 it should be: {syntax}")),
            Err(Error::InvalidParameter { .. }) => self.mistake("501 5.5.4 a parameter cannot be understood"),
            Err(Error::UnsupportedParameter { .. }) => self.mistake("555 5.5.4 a parameter is not supported"),
            // What follows may be the middle of anything.
            Err(_) => self.end("421 4.7.0 the line is too long"),
        }
    }

    fn answer(&mut self, request: Request<String>) {
        match request {
            Request::Ehlo { host } => self.greet(host, false),
            Request::Lhlo { host } => self.greet(host, true),
            Request::Helo { host } => {
                self.forget_mail();
                (self.host, self.is_lmtp) = (Some(host), false);
                self.say(&format!("250 {}", self.setting.host));
            }
            Request::StartTls => match self.setting.access.tls {
                _ if self.is_encrypted => self.mistake("503 5.5.1 the connection is encrypted"),
                None => self.mistake("502 5.5.1 this server has no certificate"),
                Some(_) => {
                    self.say("220 2.0.0 begin");
                    self.state = State::Handshake;
                }
            },
            Request::Auth { mechanism, initial_response } => self.begin_login(mechanism, &initial_response),
            Request::Mail { from } => match self.may_send(&from) {
                Ok(()) => {
                    self.mail = Some(Announced { from: from.address, to: Vec::new() });
                    self.say("250 2.1.0 ok");
                }
                Err(refusal) => self.refuse(&refusal),
            },
            Request::Rcpt { to } => match self.judge(&to.address) {
                Ok(()) => {
                    self.mail.as_mut().expect("it was judged").to.push(to.address);
                    self.quiet_commands -= 1;
                    self.say("250 2.1.5 ok");
                }
                // Recipients that are too many for one mail are no mistake: they are told again with the next.
                Err(refusal) if refusal.code == 452 => self.say(&refusal.to_string()),
                Err(refusal) => self.refuse(&refusal),
            },
            Request::Data => match self.may_come() {
                Ok(()) if self.is_chunked => self.mistake("503 5.5.1 the mail comes in chunks: BDAT"),
                Ok(()) => {
                    self.state = State::Data(Data::new(self.setting.bounds.mail_bytes_max));
                    self.deadline = Some(Instant::now() + self.setting.bounds.mail_timeout);
                    self.say("354 go on, end with a dot");
                }
                Err(refusal) => self.refuse(&refusal),
            },
            Request::Bdat { chunk_size, is_last } => {
                let room = self.setting.bounds.mail_bytes_max.saturating_sub(self.body.len());
                let judged = self.may_come().and_then(|()| match chunk_size <= room {
                    true => Ok(()),
                    false => Err(self.too_large()),
                });
                if let Err(refusal) = judged {
                    self.forget_mail();
                    // A chunk comes whether it is wanted or not.
                    return match chunk_size {
                        0 => self.refuse(&refusal),
                        size => self.state = State::Forget(DummyDataReceiver::new_bdat(size), refusal),
                    };
                }
                self.is_chunked = true;
                let deadline = Instant::now() + self.setting.bounds.mail_timeout;
                self.deadline.get_or_insert(deadline);
                self.state = State::Chunk(BdatReceiver::new(chunk_size, is_last));
            }
            Request::Rset => {
                self.forget_mail();
                self.say("250 2.0.0 forgotten");
            }
            Request::Noop { .. } => self.say("250 2.0.0 ok"),
            Request::Vrfy { .. } => self.say("252 2.5.0 send it, and see"),
            Request::Help { .. } => self.say("214 2.0.0 see RFC 5321"),
            Request::Quit => self.end("221 2.0.0 bye"),
            _ => self.mistake("502 5.5.1 not offered here"),
        }
    }

    fn greet(&mut self, host: String, is_lmtp: bool) {
        self.forget_mail();
        (self.host, self.is_lmtp) = (Some(host), is_lmtp);
        let mut hello = EhloResponse::new(&self.setting.host);
        hello.capabilities =
            EXT_PIPELINING | EXT_8BIT_MIME | EXT_SMTP_UTF8 | EXT_SIZE | EXT_ENHANCED_STATUS_CODES | EXT_CHUNKING;
        hello.size = self.setting.bounds.mail_bytes_max;
        if self.setting.access.tls.is_some() && !self.is_encrypted {
            hello.capabilities |= EXT_START_TLS;
        }
        if self.setting.access.login.is_some() && self.is_encrypted && self.user.is_none() {
            hello.capabilities |= EXT_AUTH;
            hello.auth_mechanisms = AUTH_PLAIN;
        }
        hello.write(&mut self.replies).expect("memory takes every reply");
    }

    /// Whether a mail of this sender may be announced.
    fn may_send(&self, from: &MailFrom<String>) -> Result<(), Refusal> {
        let bounds = &self.setting.bounds;
        let refuse = |code, status, text| Err(Refusal::new(code, status, text));
        if self.host.is_none() {
            return refuse(503, "5.5.1", "say EHLO or LHLO first");
        }
        if self.mail.is_some() {
            return refuse(503, "5.5.1", "a mail is under way; RSET ends it");
        }
        if self.setting.access.require_tls && !self.is_encrypted {
            return refuse(530, "5.7.0", "mail is taken over encrypted connections only: say STARTTLS first");
        }
        if self.setting.access.login.is_some() && self.user.is_none() {
            return match self.is_encrypted {
                true => refuse(530, "5.7.0", "log in with AUTH PLAIN first"),
                false => refuse(530, "5.7.0", "log in first: STARTTLS, then AUTH PLAIN"),
            };
        }
        if from.size > bounds.mail_bytes_max {
            return Err(self.too_large());
        }
        if from.flags & MAIL_BODY_BINARYMIME != 0 {
            return refuse(501, "5.5.4", "BODY=BINARYMIME is not offered here");
        }
        if self.mails >= bounds.mails_max {
            return refuse(451, "4.7.0", "enough for one connection; open another one");
        }
        Ok(())
    }

    fn judge(&self, recipient: &str) -> Result<(), Refusal> {
        let Some(mail) = &self.mail else { return Err(Refusal::new(503, "5.5.1", "say MAIL first")) };
        if mail.to.len() >= self.setting.bounds.recipients_max {
            return Err(Refusal::new(452, "4.5.3", "too many recipients for one mail; send it to the others next"));
        }
        self.setting.handler.judge(recipient)
    }

    /// Whether the mail may come now.
    fn may_come(&self) -> Result<(), Refusal> {
        match &self.mail {
            None => Err(Refusal::new(503, "5.5.1", "say MAIL first")),
            Some(mail) if mail.to.is_empty() => Err(Refusal::new(503, "5.5.1", "no recipient was accepted")),
            Some(_) => Ok(()),
        }
    }

    /// Gives the mail that has come to whoever wants it, and says what they say: in LMTP for each recipient.
    async fn complete(&mut self, stream: &mut Box<dyn Stream>, wrong: Option<Refusal>) -> io::Result<()> {
        let mail = self.mail.take().expect("it was announced");
        let body = std::mem::take(&mut self.body);
        self.forget_mail();
        let answers = if self.is_lmtp { mail.to.len() } else { 1 };
        if let Some(refusal) = wrong {
            (0..answers).for_each(|_| self.refuse(&refusal));
            return Ok(());
        }
        let envelope = Envelope {
            from: mail.from,
            to: mail.to,
            peer: self.peer,
            host: self.host.clone().unwrap_or_default(),
            user: self.user.clone(),
            encrypted: self.is_encrypted,
        };
        // Others may take long; whoever waits should have heard the rest by then.
        self.flush(stream).await?;
        let taken = self.setting.handler.take(envelope, body).await;
        (self.mails, self.quiet_commands) = (self.mails + 1, 0);
        for _ in 0..answers {
            match &taken {
                Ok(()) => self.say("250 2.0.0 taken"),
                Err(refusal) => self.refuse(refusal),
            }
        }
        Ok(())
    }

    fn begin_login(&mut self, mechanism: u64, answer: &str) {
        let offered = self.setting.access.login.is_some();
        match (offered, self.is_encrypted, self.user.is_some()) {
            (false, ..) => self.mistake("502 5.5.1 nobody logs in here"),
            (_, false, _) => self.mistake("538 5.7.11 say STARTTLS first: a password is not taken in the clear"),
            (.., true) => self.mistake("503 5.5.1 you have logged in"),
            _ if self.mail.is_some() => self.mistake("503 5.5.1 not while a mail is under way"),
            _ if mechanism != AUTH_PLAIN => self.mistake("504 5.5.4 only PLAIN is offered here"),
            _ if answer.is_empty() => {
                self.state = State::Login;
                self.say("334 ");
            }
            _ => self.log_in(answer),
        }
    }

    fn log_in(&mut self, answer: &str) {
        let login = self.setting.access.login.as_ref().expect("a login was offered");
        if answer == "*" {
            return self.mistake("501 5.7.0 as you wish");
        }
        if login.is_proved(answer) {
            self.user = Some(login.user.clone());
            return self.say("235 2.7.0 welcome");
        }
        self.logins += 1;
        tracing::warn!(peer = %self.peer, "a login for mail failed");
        match self.logins >= LOGINS_MAX {
            true => self.end("421 4.7.0 too many logins failed"),
            false => self.mistake("535 5.7.8 user name or password is wrong"),
        }
    }

    /// Encrypts the connection, and forgets what was said before.
    async fn encrypt(&mut self, stream: Box<dyn Stream>) -> io::Result<Box<dyn Stream>> {
        let tls = self.setting.access.tls.clone().expect("a certificate is there");
        let handshake = timeout(HANDSHAKE_PATIENCE, TlsAcceptor::from(tls).accept(stream)).await;
        let encrypted = handshake.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        self.forget_mail();
        (self.host, self.user) = (None, None);
        self.line.clear();
        (self.is_encrypted, self.state) = (true, State::Command);
        Ok(Box::new(encrypted))
    }

    fn too_large(&self) -> Refusal {
        let most = self.setting.bounds.mail_bytes_max;
        Refusal::new(552, "5.3.4", format!("too large: a mail has at most {most} bytes here"))
    }

    fn forget_mail(&mut self) {
        (self.mail, self.body, self.is_chunked, self.deadline) = (None, Vec::new(), false, None);
    }

    fn say(&mut self, reply: &str) {
        self.replies.extend_from_slice(reply.as_bytes());
        self.replies.extend_from_slice(b"\r\n");
    }

    fn refuse(&mut self, refusal: &Refusal) {
        self.mistake(&refusal.to_string());
    }

    /// Says what is wrong; whoever does only wrong is sent away.
    fn mistake(&mut self, reply: &str) {
        self.say(reply);
        self.errors += 1;
        if self.errors > ERRORS_MAX {
            self.end("421 4.7.0 too many mistakes");
        }
    }

    fn end(&mut self, reply: &str) {
        self.say(reply);
        self.state = State::Over;
    }

    async fn flush(&mut self, stream: &mut Box<dyn Stream>) -> io::Result<()> {
        if self.replies.is_empty() {
            return Ok(());
        }
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        timeout(self.setting.bounds.idle, stream.write_all(&self.replies)).await.map_err(late)??;
        stream.flush().await?;
        self.replies.clear();
        Ok(())
    }
}
