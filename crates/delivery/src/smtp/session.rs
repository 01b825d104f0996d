use std::{borrow::Cow, io, net::IpAddr, time::Duration};

use async_trait::async_trait;
use bytes::{Buf, BytesMut};
use rustls::pki_types::ServerName;
use tocsin_connect::tls::{Stream, handshake_hint};
use tocsin_model::receipt::{Reason, ReasonKind};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};
use tokio_rustls::TlsConnector;

use super::{
    auth::authenticate,
    classify::{EnvelopeResult, Reply, classify_envelope},
    options::{SmtpOptions, TlsMode},
    servers::Server,
};

/// Longest reply.
const REPLY_BYTES_MAX: usize = 64 * 1024;

/// Opens connections.
#[async_trait]
pub(super) trait Dial: Send + Sync {
    /// A new connection to a server, and its local address if it has one.
    async fn dial(&self, host: &str, port: u16) -> io::Result<(Box<dyn Stream>, Option<IpAddr>)>;
}

/// Connections over TCP.
pub(super) struct TcpDial;

#[async_trait]
impl Dial for TcpDial {
    async fn dial(&self, host: &str, port: u16) -> io::Result<(Box<dyn Stream>, Option<IpAddr>)> {
        let stream = TcpStream::connect((host, port)).await?;
        // Without it (TCP_NODELAY) the last segment of a mail waits for the delayed acknowledgement of the one
        // before.
        stream.set_nodelay(true)?;
        let local = stream.local_addr().ok().map(|address| address.ip());
        Ok((Box::new(stream), local))
    }
}

/// The extensions that the server offers: RFC 5321, 4.1.1.1.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Extensions {
    pub pipelining: bool,
    pub smtputf8: bool,
    pub eight_bit: bool,
    /// The size limit, if SIZE is offered; 0 is no limit.
    pub size: Option<u64>,
    starttls: bool,
    /// Mechanisms of AUTH, in capitals.
    pub auth: Vec<String>,
}

impl Extensions {
    fn parse(reply: &str) -> Self {
        let mut extensions = Extensions::default();
        // The first line is the greeting.
        for line in reply.lines().skip(1) {
            let mut words = line.split_ascii_whitespace();
            let Some(keyword) = words.next() else { continue };
            match keyword.to_ascii_uppercase().as_str() {
                "PIPELINING" => extensions.pipelining = true,
                "SMTPUTF8" => extensions.smtputf8 = true,
                "8BITMIME" => extensions.eight_bit = true,
                "SIZE" => extensions.size = Some(words.next().and_then(|size| size.parse().ok()).unwrap_or(0)),
                "STARTTLS" => extensions.starttls = true,
                "AUTH" => extensions.auth.extend(words.map(str::to_ascii_uppercase)),
                // The pre-standard form `AUTH=`; further mechanisms follow it.
                old if old.starts_with("AUTH=") => {
                    extensions.auth.push(old["AUTH=".len()..].to_owned());
                    extensions.auth.extend(words.map(str::to_ascii_uppercase));
                }
                _ => {}
            }
        }
        extensions
    }
}

/// Commands of a mail before its content, in wire form.
pub(super) struct Envelope {
    commands: Vec<u8>,
    recipients: usize,
}

/// An SMTP session.
pub(super) struct Session {
    stream: Box<dyn Stream>,
    unread: BytesMut,
    pub extensions: Extensions,
    /// Number of mails begun.
    pub mails: u32,
    /// Recipients that the server accepts for one mail, as far as known from its replies.
    pub recipients_max: usize,
    reply_timeout: Duration,
    greeting: String,
    pub encrypted: bool,
}

impl Session {
    /// Connects to a server, starts TLS and authenticates.
    pub async fn open(options: &SmtpOptions, server: &Server, dial: &dyn Dial) -> Result<Session, Reason> {
        let limit = options.connect_timeout.0;
        let (stream, local) = match timeout(limit, dial.dial(&server.host, server.port)).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => {
                let text = format!("no connection to {}: {error}", server.host_port());
                return Err(Reason::new(ReasonKind::Connection, text));
            }
            Err(_) => {
                let text = format!("no connection to {} within {}", server.host_port(), options.connect_timeout);
                return Err(Reason::new(ReasonKind::Timeout, text));
            }
        };
        let mut session = Session {
            stream,
            unread: BytesMut::with_capacity(4096),
            extensions: Extensions::default(),
            mails: 0,
            recipients_max: usize::MAX,
            reply_timeout: options.reply_timeout.0,
            greeting: String::new(),
            encrypted: false,
        };
        if server.tls == TlsMode::Implicit {
            session = session.encrypt(options, server).await?;
        }
        let greeting = session.reply(session.reply_timeout).await?;
        if greeting.code != 220 {
            return Err(greeting.reason("the server does not greet us"));
        }
        session.greeting = greeting.text;
        let name = options.ehlo.clone().unwrap_or_else(|| literal(local));
        session.ehlo(&name).await?;
        if matches!(server.tls, TlsMode::IfOffered | TlsMode::Required) {
            session = session.start_tls(options, server, &name).await?;
        }
        session.extensions.pipelining &= options.pipelining;
        if let Some(credentials) = &server.credentials {
            authenticate(&mut session, credentials, options.allow_plain_auth).await?;
        }
        Ok(session)
    }

    async fn ehlo(&mut self, name: &str) -> Result<(), Reason> {
        let mut reply = self.command(&format!("EHLO {name}\r\n")).await?;
        if matches!(reply.code, 500 | 502 | 504) {
            reply = self.command(&format!("HELO {name}\r\n")).await?;
            reply.text.clear();
        }
        if !reply.positive() {
            return Err(reply.reason("the server does not welcome us"));
        }
        self.extensions = Extensions::parse(&reply.text);
        Ok(())
    }

    async fn start_tls(mut self, options: &SmtpOptions, server: &Server, name: &str) -> Result<Session, Reason> {
        if !self.extensions.starttls {
            return match server.tls {
                TlsMode::Required => {
                    Err(Reason::new(ReasonKind::Tls, "the server does not offer STARTTLS, and `tls: required` is set"))
                }
                _ => Ok(self),
            };
        }
        let reply = self.command("STARTTLS\r\n").await?;
        if reply.code != 220 {
            return Err(Reason::new(ReasonKind::Tls, format!("STARTTLS: {} {}", reply.code, reply.text)));
        }
        // Bytes received before the TLS handshake are discarded: they are not authenticated (CVE-2011-0411).
        if !self.unread.is_empty() {
            return Err(Reason::new(ReasonKind::Tls, "the server sent more than its reply to STARTTLS"));
        }
        let mut session = self.encrypt(options, server).await?;
        session.ehlo(name).await?;
        Ok(session)
    }

    async fn encrypt(self, options: &SmtpOptions, server: &Server) -> Result<Session, Reason> {
        let host = &server.host;
        let failed = |text: String| Reason::new(ReasonKind::Tls, text);
        let name = ServerName::try_from(host.clone()).map_err(|error| failed(format!("{host}: {error}")))?;
        let handshake = TlsConnector::from(server.trust.clone()).connect(name, self.stream);
        match timeout(options.connect_timeout.0, handshake).await {
            Ok(Ok(stream)) => Ok(Session { stream: Box::new(stream), encrypted: true, ..self }),
            Ok(Err(error)) => Err(failed(format!(
                "no encrypted connection to {host}: {error}; {}",
                handshake_hint(&error.to_string())
            ))),
            Err(_) => Err(failed(format!("no encrypted connection to {host} within {}", options.connect_timeout))),
        }
    }

    /// Whether the server offers this mechanism of AUTH, written in capitals.
    pub fn offers_auth(&self, mechanism: &str) -> bool {
        self.extensions.auth.iter().any(|offered| offered == mechanism)
    }

    /// Reads the replies to an envelope; sends it first, unless it was sent ahead.
    pub async fn envelope(&mut self, envelope: &Envelope, sent_ahead: bool) -> Result<EnvelopeResult, Reason> {
        let count = envelope.recipients;
        let mut replies = Vec::with_capacity(count);
        if sent_ahead || self.extensions.pipelining {
            if !sent_ahead {
                self.write(envelope.commands()).await?;
            }
            let mail = self.verdict().await?;
            while !mail.closing() && replies.len() < count && !replies.last().is_some_and(Reply::closing) {
                replies.push(self.verdict().await?);
            }
            let closing = mail.closing() || replies.last().is_some_and(Reply::closing);
            let data = if closing { None } else { Some(self.reply(self.reply_timeout).await?) };
            return Ok(classify_envelope(&mail, &replies, count, data.as_ref()));
        }
        let mut commands = envelope.commands.split_inclusive(|byte| *byte == b'\n');
        let mut next = || commands.next().expect("MAIL, a RCPT for each recipient, and DATA");
        let mail = self.command(next()).await?;
        if mail.positive() {
            for _ in 0..count {
                replies.push(self.command(next()).await?);
                if replies.last().is_some_and(Reply::closing) {
                    break;
                }
            }
        }
        let go = replies.iter().any(Reply::positive) && !replies.last().is_some_and(Reply::closing);
        let data = if go { Some(self.command(next()).await?) } else { None };
        Ok(classify_envelope(&mail, &replies, count, data.as_ref()))
    }

    /// The next reply; the text of a simple positive reply is dropped, because it is not used.
    async fn verdict(&mut self) -> Result<Reply, Reason> {
        match take_positive_reply(&mut self.unread) {
            Some(yes) => Ok(yes),
            None => self.reply(self.reply_timeout).await,
        }
    }

    pub async fn command(&mut self, command: impl AsRef<[u8]>) -> Result<Reply, Reason> {
        self.write(command.as_ref()).await?;
        self.reply(self.reply_timeout).await
    }

    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Reason> {
        let write = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        match timeout(self.reply_timeout, write).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(broken(&error)),
            Err(_) => Err(Reason::new(ReasonKind::Timeout, "the server stopped reading")),
        }
    }

    /// The next reply, complete within the time.
    pub async fn reply(&mut self, within: Duration) -> Result<Reply, Reason> {
        let mut deadline = None;
        loop {
            if let Some(reply) = take_reply(&mut self.unread)? {
                return Ok(reply);
            }
            if self.unread.len() >= REPLY_BYTES_MAX {
                return Err(endless());
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + within);
            match timeout_at(deadline, self.stream.read_buf(&mut self.unread)).await {
                Ok(Ok(0)) => return Err(Reason::new(ReasonKind::Connection, "the server closed the connection")),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(broken(&error)),
                Err(_) => {
                    return Err(Reason::new(
                        ReasonKind::Timeout,
                        format!("no reply within {} s", within.as_secs_f32()),
                    ));
                }
            }
        }
    }

    /// Sends QUIT, without waiting for the reply.
    pub async fn quit(mut self) {
        let goodbye = async {
            if self.write(b"QUIT\r\n").await.is_ok() {
                let _ = self.reply(self.reply_timeout).await;
            }
        };
        let _ = timeout(Duration::from_secs(2), goodbye).await;
    }

    /// A sentence about the server.
    pub fn describe(&self) -> String {
        let encrypted = if self.encrypted { "encrypted" } else { "not encrypted" };
        let pipelining = if self.extensions.pipelining { "pipelining" } else { "no pipelining" };
        format!("{} ({encrypted}, {pipelining})", self.greeting)
    }
}

impl Envelope {
    /// Builds MAIL (the sender with its parameters), RCPT for `count` recipients, and DATA; addresses are in wire
    /// form.
    pub fn new<'a>(from: &str, count: usize, recipients: impl Iterator<Item = Cow<'a, str>>) -> Envelope {
        let mut commands = Vec::with_capacity(128 + 48 * count);
        commands.extend_from_slice(b"MAIL FROM:");
        commands.extend_from_slice(from.as_bytes());
        for recipient in recipients {
            commands.extend_from_slice(b"\r\nRCPT TO:<");
            commands.extend_from_slice(recipient.as_bytes());
            commands.push(b'>');
        }
        commands.extend_from_slice(b"\r\nDATA\r\n");
        Envelope { commands, recipients: count }
    }

    /// Its commands as one group (RFC 2920, 3.1).
    pub fn commands(&self) -> &[u8] {
        &self.commands
    }
}

fn endless() -> Reason {
    Reason::new(ReasonKind::Connection, "the server's reply has no end")
}

fn broken(error: &io::Error) -> Reason {
    Reason::new(ReasonKind::Connection, format!("the connection broke: {error}"))
}

/// EHLO argument of a client without a name, an address literal: RFC 5321, 4.1.3.
fn literal(local: Option<IpAddr>) -> String {
    match local {
        Some(IpAddr::V4(address)) => format!("[{address}]"),
        Some(IpAddr::V6(address)) => format!("[IPv6:{address}]"),
        None => "localhost".into(),
    }
}

/// Takes a positive one-line reply from the front of the buffer, without its text.
fn take_positive_reply(unread: &mut BytesMut) -> Option<Reply> {
    let digits = match unread.first_chunk::<4>()? {
        [b'2', tens @ b'0'..=b'9', ones @ b'0'..=b'9', b' '] => [tens, ones].map(|digit| u16::from(digit - b'0')),
        _ => return None,
    };
    let length = unread.iter().position(|byte| *byte == b'\n')?;
    unread.advance(length + 1);
    Some(Reply { code: 200 + 10 * digits[0] + digits[1], text: String::new() })
}

/// Takes a complete reply from the front of the buffer; `None` if it is not complete. Keeps its line breaks.
fn take_reply(unread: &mut BytesMut) -> Result<Option<Reply>, Reason> {
    let (mut at, mut code, mut text) = (0, None, String::new());
    loop {
        let Some(length) = unread[at..].iter().position(|byte| *byte == b'\n') else { return Ok(None) };
        let line = &unread[at..at + length];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let digits =
            line.get(..3).and_then(|digits| std::str::from_utf8(digits).ok()).and_then(|digits| digits.parse().ok());
        let number: u16 = match digits {
            Some(number) if (200..600).contains(&number) && code.is_none_or(|code| code == number) => number,
            _ => {
                return Err(Reason::new(
                    ReasonKind::Connection,
                    format!("this is not an SMTP reply: {}", String::from_utf8_lossy(line)),
                ));
            }
        };
        code = Some(number);
        let more = line.get(3) == Some(&b'-');
        if !text.is_empty() || at > 0 {
            text.push('\n');
        }
        text.push_str(&String::from_utf8_lossy(line.get(4..).unwrap_or_default()));
        at += length + 1;
        if at > REPLY_BYTES_MAX {
            return Err(endless());
        }
        if !more {
            unread.advance(at);
            return Ok(Some(Reply { code: number, text }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_replies_are_parsed() {
        let mut unread = BytesMut::from(&b"250-a\r\n250-b c\r\n250 d\r\n354 go\r\n25"[..]);
        assert_eq!(take_reply(&mut unread), Ok(Some(Reply { code: 250, text: "a\nb c\nd".into() })));
        assert_eq!(take_reply(&mut unread), Ok(Some(Reply { code: 354, text: "go".into() })));
        assert_eq!(take_reply(&mut unread), Ok(None));
        for wrong in ["hello\n", "250-a\r\n251 b\r\n", "\n", "999 x\n", "25\n", "2x0 a\n"] {
            assert!(take_reply(&mut BytesMut::from(wrong)).is_err(), "{wrong:?}");
        }
        assert_eq!(take_reply(&mut BytesMut::from("250\r\n")), Ok(Some(Reply { code: 250, text: String::new() })));
    }

    #[test]
    fn only_a_plain_yes_is_taken_without_its_words() {
        let mut unread = BytesMut::from(&b"250 2.1.5 ok\r\n251 \n250-a\r\n250 b\r\n"[..]);
        let mut taken = || take_positive_reply(&mut unread).map(|reply| (reply.code, reply.text));
        assert_eq!([taken(), taken(), taken()], [Some((250, String::new())), Some((251, String::new())), None]);
        assert_eq!(take_reply(&mut unread), Ok(Some(Reply { code: 250, text: "a\nb".into() })));
        for other in ["250 2.1.5 o", "250", "250\r\n", "450 4.2.1 busy\r\n", "2x0 a\r\n", "354 go\r\n", ""] {
            let mut unread = BytesMut::from(other);
            assert!(take_positive_reply(&mut unread).is_none() && unread == other, "{other:?}");
        }
    }

    #[test]
    fn extensions_in_any_case() {
        let extensions =
            Extensions::parse("mail.example\nPipelining\nSIZE 1000\nAUTH PLAIN login\nSMTPUTF8\nstarttls\nX-NEW 1");
        let auth = vec!["PLAIN".to_owned(), "LOGIN".to_owned()];
        let expected = Extensions {
            pipelining: true,
            smtputf8: true,
            size: Some(1000),
            starttls: true,
            auth,
            ..Default::default()
        };
        assert_eq!(extensions, expected);
        assert!(
            Extensions::parse("x\n8bitmime\nAUTH=LOGIN PLAIN")
                == Extensions { eight_bit: true, auth: vec!["LOGIN".into(), "PLAIN".into()], ..Default::default() }
        );
        assert_eq!(Extensions::parse("PIPELINING"), Extensions::default());
    }
}
