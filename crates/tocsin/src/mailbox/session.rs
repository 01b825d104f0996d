//! SMTP session (RFC 5321) with pipelining (RFC 2920): commands received together get one combined reply.

use std::{io, slice::Iter};

use smtp_proto::{
    EXT_8BIT_MIME, EXT_ENHANCED_STATUS_CODES, EXT_PIPELINING, EXT_SIZE, EXT_SMTP_UTF8, EhloResponse, Error, Request,
    request::receiver::{DataReceiver, DummyDataReceiver, RequestReceiver},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::MailboxState;

/// Read buffer size; with the largest mail, the memory limit of a session.
const READ_BYTES: usize = 64 << 10;

/// Maximum recipients of one mail (RFC 5321, section 4.5.3.1.8, requires at least 100).
const RECIPIENTS_MAX: usize = 1_000;

/// Number of invalid commands after which the session ends.
const ERRORS_MAX: u32 = 50;

/// Parser state.
enum State {
    Command,
    Data(DataReceiver),
    /// The mail is too large; the rest is read and discarded.
    Overflow(DummyDataReceiver),
}

struct Session<'a> {
    shared: &'a MailboxState,
    state: State,
    commands: RequestReceiver,
    from: Option<String>,
    to: Vec<String>,
    body: Vec<u8>,
    replies: Vec<u8>,
    errors: u32,
    ended: bool,
}

/// Runs the session until QUIT, the idle timeout or a disconnect.
pub(super) async fn run_session(mut stream: TcpStream, shared: &MailboxState) -> io::Result<()> {
    // Replies are small and the client waits for them.
    stream.set_nodelay(true)?;
    let mut session = Session {
        shared,
        state: State::Command,
        commands: RequestReceiver::default(),
        from: None,
        to: Vec::new(),
        body: Vec::new(),
        replies: b"220 mailbox.localhost ESMTP Tocsin mailbox\r\n".to_vec(),
        errors: 0,
        ended: false,
    };
    let mut buffer = vec![0u8; READ_BYTES];
    loop {
        stream.write_all(&session.replies).await?;
        session.replies.clear();
        if session.ended {
            return stream.shutdown().await;
        }
        let Ok(read) = timeout(shared.options.idle, stream.read(&mut buffer)).await else {
            session.reply("421 4.4.2 idle timeout");
            session.ended = true;
            continue;
        };
        match read? {
            0 => return Ok(()),
            length => session.take(&buffer[..length]),
        }
    }
}

impl Session<'_> {
    /// Processes received bytes; appends the replies.
    fn take(&mut self, bytes: &[u8]) {
        let mut bytes = bytes.iter();
        while !self.ended && !bytes.as_slice().is_empty() {
            match &mut self.state {
                State::Command => self.take_command(&mut bytes),
                State::Data(data) => {
                    let complete = data.ingest(&mut bytes, &mut self.body);
                    if complete && self.body.len() <= self.shared.options.mail_bytes_max {
                        let body = std::mem::take(&mut self.body);
                        let from = self.from.take().unwrap_or_default();
                        self.shared.put(from, std::mem::take(&mut self.to), body);
                        self.reply("250 2.0.0 accepted");
                        self.state = State::Command;
                    } else if complete {
                        self.too_large();
                    } else if self.body.len() > self.shared.options.mail_bytes_max {
                        self.state = State::Overflow(DummyDataReceiver::new_data(data));
                        self.body = Vec::new();
                    }
                }
                State::Overflow(rest) => {
                    if rest.ingest(&mut bytes) {
                        self.too_large();
                    }
                }
            }
        }
    }

    fn take_command(&mut self, bytes: &mut Iter<'_, u8>) {
        let request = match self.commands.ingest(bytes) {
            Ok(request) => request.into_owned(),
            Err(Error::NeedsMoreData { .. }) => return,
            Err(error) => {
                self.errors += 1;
                match error {
                    Error::UnknownCommand => self.reply("500 5.5.1 unknown command"),
                    Error::InvalidSenderAddress => self.reply("501 5.1.7 invalid sender address"),
                    Error::InvalidRecipientAddress => self.reply("501 5.1.3 invalid recipient address"),
                    Error::SyntaxError { .. } | Error::InvalidParameter { .. } => self.reply("501 5.5.4 syntax error"),
                    Error::UnsupportedParameter { .. } => self.reply("555 5.5.4 unsupported parameter"),
                    // The position in the stream is unknown.
                    _ => {
                        self.reply("421 4.7.0 line too long");
                        self.ended = true;
                    }
                }
                if self.errors > ERRORS_MAX {
                    self.reply("421 4.7.0 too many errors");
                    self.ended = true;
                }
                return;
            }
        };
        self.answer(request);
    }

    fn answer(&mut self, request: Request<String>) {
        match request {
            Request::Ehlo { .. } => {
                self.reset();
                let mut hello = EhloResponse::new("mailbox.localhost");
                hello.capabilities =
                    EXT_PIPELINING | EXT_8BIT_MIME | EXT_SMTP_UTF8 | EXT_SIZE | EXT_ENHANCED_STATUS_CODES;
                hello.size = self.shared.options.mail_bytes_max;
                hello.write(&mut self.replies).expect("writing to memory succeeds");
            }
            Request::Helo { .. } => {
                self.reset();
                self.reply("250 mailbox.localhost");
            }
            Request::Mail { .. } if self.from.is_some() => self.reply("503 5.5.1 nested MAIL command"),
            Request::Mail { from } if from.size > self.shared.options.mail_bytes_max => {
                self.reply("552 5.3.4 message too large")
            }
            Request::Mail { from } => {
                self.from = Some(from.address);
                self.reply("250 2.1.0 ok");
            }
            Request::Rcpt { .. } if self.from.is_none() => self.reply("503 5.5.1 MAIL first"),
            Request::Rcpt { .. } if self.to.len() >= RECIPIENTS_MAX => self.reply("452 4.5.3 too many recipients"),
            Request::Rcpt { to } => {
                self.to.push(to.address);
                self.reply("250 2.1.5 ok");
            }
            Request::Data if self.from.is_none() => self.reply("503 5.5.1 MAIL first"),
            Request::Data if self.to.is_empty() => self.reply("554 5.5.1 no valid recipients"),
            Request::Data => {
                self.state = State::Data(DataReceiver::new());
                self.reply("354 end data with a dot");
            }
            Request::Rset => {
                self.reset();
                self.reply("250 2.0.0 reset");
            }
            Request::Noop { .. } => self.reply("250 2.0.0 ok"),
            Request::Vrfy { .. } => self.reply("252 2.5.0 all mail is accepted"),
            Request::Help { .. } => self.reply("214 2.0.0 see RFC 5321"),
            Request::Quit => {
                self.reply("221 2.0.0 bye");
                self.ended = true;
            }
            _ => self.reply("502 5.5.1 not implemented"),
        }
    }

    fn too_large(&mut self) {
        self.reset();
        self.reply("552 5.3.4 message too large");
    }

    fn reset(&mut self) {
        (self.from, self.state) = (None, State::Command);
        self.to.clear();
        self.body = Vec::new();
    }

    fn reply(&mut self, reply: &str) {
        self.replies.extend_from_slice(reply.as_bytes());
        self.replies.extend_from_slice(b"\r\n");
    }
}
