//! State machine of one session in SMTP (RFC 5321) or LMTP (RFC 2033), with pipelining (RFC 2920) and mail data by
//! DATA or in chunks (BDAT, RFC 3030).

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
    envelope::{Envelope, ErrorReply},
    serve::ServerSettings,
};

/// Number of bytes read at once.
const READ_BYTES: usize = 32 << 10;
/// Maximum length of a command line, with its line break. The longest is the response of a login (RFC 4954, section
/// 4).
const LINE_BYTES_MAX: usize = 12_288;
/// Maximum number of failed commands in one session.
const ERRORS_MAX: u32 = 100;
/// Maximum number of commands between two mails, without recipients.
const COMMANDS_MAX: u32 = 1_000;
/// Maximum number of failed logins in one session.
const LOGINS_MAX: u32 = 3;
/// Maximum duration of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Expected input.
enum State {
    Command,
    /// The response of the client to AUTH PLAIN.
    Login,
    Data(Data),
    Chunk(BdatReceiver),
    /// Refused data is read and discarded; then this reply is sent.
    Discard(DummyDataReceiver, ErrorReply),
    /// A TLS handshake.
    Handshake,
    /// The session has ended.
    Closed,
}

/// A mail transaction in progress.
struct MailTransaction {
    from: String,
    to: Vec<String>,
}

struct Session<'a> {
    setting: &'a ServerSettings,
    peer: SocketAddr,
    state: State,
    /// The incomplete command line.
    line: Vec<u8>,
    host: Option<String>,
    is_lmtp: bool,
    is_encrypted: bool,
    user: Option<String>,
    mail: Option<MailTransaction>,
    body: Vec<u8>,
    /// Whether the mail data arrives in chunks; then the rest must be in chunks too.
    is_chunked: bool,
    /// Deadline of the current mail transfer.
    deadline: Option<Instant>,
    replies: Vec<u8>,
    errors: u32,
    logins: u32,
    quiet_commands: u32,
    mails: u32,
}

/// Runs a session until the client quits, is idle for too long or disconnects, or the server stops.
pub(crate) async fn run_session(
    stream: TcpStream,
    peer: SocketAddr,
    setting: &ServerSettings,
    stop: &CancellationToken,
) -> io::Result<()> {
    // Replies are small, and clients wait for them.
    stream.set_nodelay(true)?;
    let mut session = Session::new(setting, peer);
    let mut stream: Box<dyn Stream> = Box::new(stream);
    if setting.access.implicit_tls && setting.access.tls.is_some() {
        // The greeting is the first reply after the handshake.
        stream = session.encrypt(stream).await?;
    }
    let mut buffer = vec![0u8; READ_BYTES];
    let mut last_activity = Instant::now();
    loop {
        // Incomplete commands do not extend the idle time; a mail transfer has its own deadline.
        if !session.replies.is_empty() || session.deadline.is_some() {
            last_activity = Instant::now();
        }
        session.flush(&mut stream).await?;
        match session.state {
            State::Closed => return stream.shutdown().await,
            State::Handshake => {
                stream = session.encrypt(stream).await?;
                continue;
            }
            _ => {}
        }
        let idle = last_activity + setting.limits.idle;
        let until = session.deadline.map_or(idle, |deadline| deadline.min(idle));
        let read = tokio::select! {
            biased;
            () = stop.cancelled() => {
                session.end("421 4.3.2 this server is stopping, try again later");
                continue;
            }
            read = timeout_at(until, stream.read(&mut buffer)) => read,
        };
        match read {
            Err(_) => session.end("421 4.4.2 timeout"),
            Ok(read) => match read? {
                0 => return Ok(()),
                length => session.receive(&mut stream, &buffer[..length]).await?,
            },
        }
    }
}

/// Runs a session with these pieces of client bytes, without a socket. Returns the replies.
pub(crate) async fn replies_to(setting: &ServerSettings, peer: SocketAddr, pieces: &[&[u8]]) -> Vec<u8> {
    // More than all replies: commands, errors and mails of a session are limited.
    const REPLIES_BYTES_MAX: usize = 16 << 20;
    const FAILED: &str = "a stream in memory takes all replies";
    let mut session = Session::new(setting, peer);
    let (near, mut far) = tokio::io::duplex(REPLIES_BYTES_MAX);
    let mut stream: Box<dyn Stream> = Box::new(near);
    session.flush(&mut stream).await.expect(FAILED);
    for piece in pieces {
        if !matches!(session.state, State::Closed) {
            session.receive(&mut stream, piece).await.expect(FAILED);
            session.flush(&mut stream).await.expect(FAILED);
        }
    }
    drop(stream);
    let mut replies = Vec::new();
    far.read_to_end(&mut replies).await.expect(FAILED);
    replies
}

/// The reply to a mail that contains a CR or an LF alone.
fn bare_break() -> ErrorReply {
    ErrorReply::new(554, "5.6.0", "the mail contains a bare CR or LF: lines end with CR LF (RFC 5321, 2.3.8)")
}

/// The reply to a command that contains a CR or an LF alone.
fn bare_break_in_command() -> ErrorReply {
    ErrorReply::new(521, "5.5.2", "the command contains a bare CR or LF: lines end with CR LF (RFC 5321, 2.3.8)")
}

impl<'a> Session<'a> {
    fn new(setting: &'a ServerSettings, peer: SocketAddr) -> Session<'a> {
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
        session.reply(&format!("220 {} ESMTP Tocsin", setting.host));
        session
    }

    /// Processes received bytes, and adds the replies.
    async fn receive(&mut self, stream: &mut Box<dyn Stream>, bytes: &[u8]) -> io::Result<()> {
        let mut bytes = bytes.iter();
        // A chunk may be empty, and is then complete before its first byte.
        while !bytes.as_slice().is_empty() || matches!(self.state, State::Chunk(_)) {
            match &mut self.state {
                State::Command | State::Login => {
                    let Some(line) = self.take_line(&mut bytes) else { continue };
                    match std::mem::replace(&mut self.state, State::Command) {
                        State::Login => {
                            let answer = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
                            self.log_in(&answer);
                        }
                        _ => self.receive_command(&line),
                    }
                }
                State::Data(data) => {
                    if data.take(&mut bytes, &mut self.body) {
                        let error = match (data.is_too_long, data.has_bare_break) {
                            (true, _) => Some(self.too_large()),
                            (false, true) => Some(bare_break()),
                            (false, false) => None,
                        };
                        self.state = State::Command;
                        self.complete(stream, error).await?;
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
                        false => self.reply("250 2.0.0 chunk received"),
                    }
                }
                State::Discard(rest, refusal) => {
                    if rest.ingest(&mut bytes) {
                        let refusal = refusal.clone();
                        self.state = State::Command;
                        self.refuse(&refusal);
                    }
                }
                // Bytes received before a handshake, without protection, must not be used after it.
                State::Handshake => {
                    self.replies.clear();
                    self.end("501 5.5.1 STARTTLS must be the last command before its reply");
                }
                State::Closed => break,
            }
        }
        Ok(())
    }

    /// Takes a complete line that ends with CR LF. A CR or an LF alone does not end a line (RFC 5321, section 2.3.8):
    /// text that was data for a previous server must not become a command here, so the session ends.
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
                // The following bytes may be the middle of something else.
                self.line.clear();
                self.end("421 4.7.0 the line is too long");
                return None;
            }
        }
        None
    }

    fn receive_command(&mut self, line: &[u8]) {
        self.quiet_commands += 1;
        if self.quiet_commands > COMMANDS_MAX {
            return self.end("421 4.7.0 too many commands without a mail");
        }
        match RequestReceiver::default().ingest(&mut line.iter()) {
            Ok(request) => {
                let request = request.into_owned();
                self.answer(request);
            }
            // The line is not a complete command.
            Err(Error::NeedsMoreData { .. }) => self.reply_error("500 5.5.2 the command is not complete"),
            Err(Error::UnknownCommand) => self.reply_error("500 5.5.1 unknown command"),
            Err(Error::InvalidSenderAddress) => self.reply_error("501 5.1.7 the sender is not an address"),
            Err(Error::InvalidRecipientAddress) => self.reply_error("501 5.1.3 the recipient is not an address"),
            Err(Error::SyntaxError { syntax }) => self.reply_error(&format!("501 5.5.4 expected: {syntax}")),
            Err(Error::InvalidParameter { .. }) => self.reply_error("501 5.5.4 a parameter is invalid"),
            Err(Error::UnsupportedParameter { .. }) => self.reply_error("555 5.5.4 a parameter is not supported"),
            // The following bytes may be the middle of something else.
            Err(_) => self.end("421 4.7.0 the line is too long"),
        }
    }

    fn answer(&mut self, request: Request<String>) {
        match request {
            Request::Ehlo { host } => self.greet(host, false),
            Request::Lhlo { host } => self.greet(host, true),
            Request::Helo { host } => {
                self.reset_transaction();
                (self.host, self.is_lmtp) = (Some(host), false);
                self.reply(&format!("250 {}", self.setting.host));
            }
            Request::StartTls => match self.setting.access.tls {
                _ if self.is_encrypted => self.reply_error("503 5.5.1 the connection is already encrypted"),
                None => self.reply_error("502 5.5.1 this server has no certificate"),
                Some(_) => {
                    self.reply("220 2.0.0 ready for TLS");
                    self.state = State::Handshake;
                }
            },
            Request::Auth { mechanism, initial_response } => self.begin_login(mechanism, &initial_response),
            Request::Mail { from } => match self.may_send(&from) {
                Ok(()) => {
                    self.mail = Some(MailTransaction { from: from.address, to: Vec::new() });
                    self.reply("250 2.1.0 ok");
                }
                Err(refusal) => self.refuse(&refusal),
            },
            Request::Rcpt { to } => match self.check_recipient(&to.address) {
                Ok(()) => {
                    self.mail.as_mut().expect("it was checked").to.push(to.address);
                    self.quiet_commands -= 1;
                    self.reply("250 2.1.5 ok");
                }
                // Too many recipients for one mail are not an error: the client sends them another mail.
                Err(refusal) if refusal.code == 452 => self.reply(&refusal.to_string()),
                Err(refusal) => self.refuse(&refusal),
            },
            Request::Data => match self.may_send_data() {
                Ok(()) if self.is_chunked => self.reply_error("503 5.5.1 the mail has chunks: use BDAT"),
                Ok(()) => {
                    self.state = State::Data(Data::new(self.setting.limits.mail_bytes_max));
                    self.deadline = Some(Instant::now() + self.setting.limits.mail_timeout);
                    self.reply("354 send the mail, end with CR LF . CR LF");
                }
                Err(refusal) => self.refuse(&refusal),
            },
            Request::Bdat { chunk_size, is_last } => {
                let room = self.setting.limits.mail_bytes_max.saturating_sub(self.body.len());
                let checked = self.may_send_data().and_then(|()| match chunk_size <= room {
                    true => Ok(()),
                    false => Err(self.too_large()),
                });
                if let Err(refusal) = checked {
                    self.reset_transaction();
                    // The client sends the chunk even if it is refused.
                    return match chunk_size {
                        0 => self.refuse(&refusal),
                        size => self.state = State::Discard(DummyDataReceiver::new_bdat(size), refusal),
                    };
                }
                self.is_chunked = true;
                let deadline = Instant::now() + self.setting.limits.mail_timeout;
                self.deadline.get_or_insert(deadline);
                self.state = State::Chunk(BdatReceiver::new(chunk_size, is_last));
            }
            Request::Rset => {
                self.reset_transaction();
                self.reply("250 2.0.0 reset");
            }
            Request::Noop { .. } => self.reply("250 2.0.0 ok"),
            Request::Vrfy { .. } => self.reply("252 2.5.0 cannot verify, send the mail"),
            Request::Help { .. } => self.reply("214 2.0.0 see RFC 5321"),
            Request::Quit => self.end("221 2.0.0 bye"),
            _ => self.reply_error("502 5.5.1 command not implemented"),
        }
    }

    fn greet(&mut self, host: String, is_lmtp: bool) {
        self.reset_transaction();
        (self.host, self.is_lmtp) = (Some(host), is_lmtp);
        let mut hello = EhloResponse::new(&self.setting.host);
        hello.capabilities =
            EXT_PIPELINING | EXT_8BIT_MIME | EXT_SMTP_UTF8 | EXT_SIZE | EXT_ENHANCED_STATUS_CODES | EXT_CHUNKING;
        hello.size = self.setting.limits.mail_bytes_max;
        if self.setting.access.tls.is_some() && !self.is_encrypted {
            hello.capabilities |= EXT_START_TLS;
        }
        if self.setting.access.login.is_some() && self.is_encrypted && self.user.is_none() {
            hello.capabilities |= EXT_AUTH;
            hello.auth_mechanisms = AUTH_PLAIN;
        }
        hello.write(&mut self.replies).expect("memory takes every reply");
    }

    /// Whether a mail from this sender can begin.
    fn may_send(&self, from: &MailFrom<String>) -> Result<(), ErrorReply> {
        let limits = &self.setting.limits;
        let refuse = |code, status, text| Err(ErrorReply::new(code, status, text));
        if self.host.is_none() {
            return refuse(503, "5.5.1", "send EHLO or LHLO first");
        }
        if self.mail.is_some() {
            return refuse(503, "5.5.1", "a mail has begun; RSET cancels it");
        }
        if self.setting.access.require_tls && !self.is_encrypted {
            return refuse(530, "5.7.0", "mail is accepted over encrypted connections only: send STARTTLS first");
        }
        if self.setting.access.login.is_some() && self.user.is_none() {
            return match self.is_encrypted {
                true => refuse(530, "5.7.0", "log in with AUTH PLAIN first"),
                false => refuse(530, "5.7.0", "log in first: STARTTLS, then AUTH PLAIN"),
            };
        }
        if from.size > limits.mail_bytes_max {
            return Err(self.too_large());
        }
        if from.flags & MAIL_BODY_BINARYMIME != 0 {
            return refuse(501, "5.5.4", "BODY=BINARYMIME is not supported");
        }
        if self.mails >= limits.mails_max {
            return refuse(451, "4.7.0", "too many mails in this connection; open another one");
        }
        Ok(())
    }

    fn check_recipient(&self, recipient: &str) -> Result<(), ErrorReply> {
        let Some(mail) = &self.mail else { return Err(ErrorReply::new(503, "5.5.1", "send MAIL first")) };
        if mail.to.len() >= self.setting.limits.recipients_max {
            return Err(ErrorReply::new(452, "4.5.3", "too many recipients for one mail; send it to the others next"));
        }
        self.setting.handler.check_recipient(recipient)
    }

    /// Whether mail data can be sent now.
    fn may_send_data(&self) -> Result<(), ErrorReply> {
        match &self.mail {
            None => Err(ErrorReply::new(503, "5.5.1", "send MAIL first")),
            Some(mail) if mail.to.is_empty() => Err(ErrorReply::new(503, "5.5.1", "no recipient was accepted")),
            Some(_) => Ok(()),
        }
    }

    /// Passes the complete mail to the handler, and replies with its result; in LMTP for each recipient.
    async fn complete(&mut self, stream: &mut Box<dyn Stream>, error: Option<ErrorReply>) -> io::Result<()> {
        let mail = self.mail.take().expect("the transaction has begun");
        let body = std::mem::take(&mut self.body);
        self.reset_transaction();
        let answers = if self.is_lmtp { mail.to.len() } else { 1 };
        if let Some(refusal) = error {
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
        // The handler may take long; the client should get the other replies before.
        self.flush(stream).await?;
        let taken = self.setting.handler.accept(envelope, body).await;
        (self.mails, self.quiet_commands) = (self.mails + 1, 0);
        for _ in 0..answers {
            match &taken {
                Ok(()) => self.reply("250 2.0.0 accepted"),
                Err(refusal) => self.refuse(refusal),
            }
        }
        Ok(())
    }

    fn begin_login(&mut self, mechanism: u64, answer: &str) {
        let offered = self.setting.access.login.is_some();
        match (offered, self.is_encrypted, self.user.is_some()) {
            (false, ..) => self.reply_error("502 5.5.1 no login is required"),
            (_, false, _) => self
                .reply_error("538 5.7.11 send STARTTLS first: passwords are accepted over encrypted connections only"),
            (.., true) => self.reply_error("503 5.5.1 already logged in"),
            _ if self.mail.is_some() => self.reply_error("503 5.5.1 a mail has begun"),
            _ if mechanism != AUTH_PLAIN => self.reply_error("504 5.5.4 only PLAIN is supported"),
            _ if answer.is_empty() => {
                self.state = State::Login;
                self.reply("334 ");
            }
            _ => self.log_in(answer),
        }
    }

    fn log_in(&mut self, answer: &str) {
        let login = self.setting.access.login.as_ref().expect("a login was offered");
        if answer == "*" {
            return self.reply_error("501 5.7.0 login cancelled");
        }
        if login.is_valid(answer) {
            self.user = Some(login.user.clone());
            return self.reply("235 2.7.0 logged in");
        }
        self.logins += 1;
        tracing::warn!(peer = %self.peer, "a login for mail failed");
        match self.logins >= LOGINS_MAX {
            true => self.end("421 4.7.0 too many failed logins"),
            false => self.reply_error("535 5.7.8 user name or password is wrong"),
        }
    }

    /// Encrypts the connection, and resets the session.
    async fn encrypt(&mut self, stream: Box<dyn Stream>) -> io::Result<Box<dyn Stream>> {
        let tls = self.setting.access.tls.clone().expect("a certificate is there");
        let handshake = timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(tls).accept(stream)).await;
        let encrypted = handshake.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        self.reset_transaction();
        (self.host, self.user) = (None, None);
        self.line.clear();
        (self.is_encrypted, self.state) = (true, State::Command);
        Ok(Box::new(encrypted))
    }

    fn too_large(&self) -> ErrorReply {
        let most = self.setting.limits.mail_bytes_max;
        ErrorReply::new(552, "5.3.4", format!("too large: the limit for a mail is {most} bytes"))
    }

    fn reset_transaction(&mut self) {
        (self.mail, self.body, self.is_chunked, self.deadline) = (None, Vec::new(), false, None);
    }

    fn reply(&mut self, reply: &str) {
        self.replies.extend_from_slice(reply.as_bytes());
        self.replies.extend_from_slice(b"\r\n");
    }

    fn refuse(&mut self, refusal: &ErrorReply) {
        self.reply_error(&refusal.to_string());
    }

    /// Replies with an error; the session ends after too many.
    fn reply_error(&mut self, reply: &str) {
        self.reply(reply);
        self.errors += 1;
        if self.errors > ERRORS_MAX {
            self.end("421 4.7.0 too many errors");
        }
    }

    fn end(&mut self, reply: &str) {
        self.reply(reply);
        self.state = State::Closed;
    }

    async fn flush(&mut self, stream: &mut Box<dyn Stream>) -> io::Result<()> {
        if self.replies.is_empty() {
            return Ok(());
        }
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        timeout(self.setting.limits.idle, stream.write_all(&self.replies)).await.map_err(late)??;
        stream.flush().await?;
        self.replies.clear();
        Ok(())
    }
}
