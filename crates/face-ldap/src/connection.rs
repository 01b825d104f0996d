//! One client: reads messages, does what they ask, writes the answers.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use futures_util::future::BoxFuture;
use tocsin_directory::{
    access::{Asker, Grants},
    refusal::{Code, Refusal},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use crate::{
    ber,
    certificate::Certificate,
    message::{self, Message, Request, Unreadable, farewell, tag},
    operations::{self, Pages},
    serve::{BoundKey, Opening, Server},
    under_way::UnderWay,
};

/// Portions of answers that may wait to be written; who makes more waits.
const PORTIONS_MAX: usize = 4;
/// Bytes that are read at a time.
const READ_BYTES: usize = 8 << 10;
/// With so much to write, nothing more is taken before it is written.
const OUTPUT_BYTES: usize = 256 << 10;
/// How often it is looked whether a client is too slow.
const LOOKED_AT: Duration = Duration::from_secs(1);

/// Who a connection speaks for, and what was worked out of what they may do.
pub(crate) struct Session {
    pub(crate) asker: Arc<Asker>,
    /// The key by which it is bound, if it is bound by one.
    pub(crate) key: Option<BoundKey>,
    /// Whether nobody else can read along.
    pub(crate) is_secure: bool,
    /// Who the client is by its certificate, if it gave one.
    pub(crate) certificate: Option<Arc<Certificate>>,
    pub(crate) grants: Grants,
    /// Searches that wait for their next page.
    pub(crate) pages: Pages,
}

impl Session {
    /// Whether what it is bound by may have ended since it was last looked at.
    fn is_stale(&self) -> bool {
        match &self.key {
            Some(key) => key.is_stale(),
            None => self.asker.standing.as_ref().is_some_and(|standing| standing.is_stale()),
        }
    }

    /// Waits until that is so.
    async fn changed(&mut self) {
        match (&mut self.key, &self.asker.standing) {
            (Some(key), _) => key.changed().await,
            (None, Some(standing)) => standing.changed().await,
            (None, None) => std::future::pending().await,
        }
    }
}

/// What a request came to.
pub(crate) enum Done {
    /// An answer.
    Answer(Vec<u8>),
    /// Nothing is said: it was given up.
    Silent,
    /// A client said who it is, perhaps by a key; the answer.
    Bound(Box<(Asker, Option<BoundKey>)>, Vec<u8>),
    /// A client changed the password that it had to change; the answer.
    Freed(Vec<u8>),
    /// An answer, and a search that goes on with the next page.
    Page(Vec<u8>, operations::Waiting),
}

/// What a request under way is told and tells.
#[derive(Clone)]
pub(crate) struct Line {
    /// Whether nobody waits for it any more.
    pub(crate) given_up: CancellationToken,
    portions: mpsc::Sender<Vec<u8>>,
}

impl Line {
    /// Writes a portion of an answer; false if nobody reads it any more.
    pub(crate) async fn write(&self, portion: Vec<u8>) -> bool {
        self.portions.send(portion).await.is_ok()
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.is_cancelled()
    }
}

/// What comes of a message at once.
pub(crate) enum Begun {
    /// It was answered.
    Answered,
    /// It is under way.
    Runs(BoxFuture<'static, Done>),
    /// It is under way, and nothing else is read until it is done.
    RunsAlone(BoxFuture<'static, Done>),
    /// TLS begins after what is said so far.
    StartsTls,
    /// The client goes.
    Ends,
}

/// What comes after a stream.
enum Next {
    Nothing,
    /// The same, within TLS.
    Tls,
}

/// A request under way.
struct Running {
    line: Line,
    /// Whether it can be given up with an answer.
    is_search: bool,
    /// The number of the request that gives it up.
    cancelled_by: Option<u32>,
}

struct Connection {
    server: Arc<Server>,
    session: Session,
    input: BytesMut,
    output: Vec<u8>,
    running: UnderWay,
    /// Requests under way by their numbers.
    lines: HashMap<u32, Running>,
    /// The line of a request that is over, for the next one.
    spare: Option<Line>,
    portions: mpsc::Receiver<Vec<u8>>,
    portions_in: mpsc::Sender<Vec<u8>>,
    /// The request that is answered before another is taken: a bind.
    alone: Option<u32>,
    ends: bool,
    starts_tls: bool,
    /// When the last byte came, and when the first of a message that is not whole.
    heard: Instant,
    half_since: Option<Instant>,
}

/// Serves a client until it goes, or must.
pub(crate) async fn run(server: Arc<Server>, stream: TcpStream, opening: Opening, peer: SocketAddr) {
    let (portions_in, portions) = mpsc::channel(PORTIONS_MAX);
    let mut connection = Connection {
        server,
        session: Session {
            asker: Arc::default(),
            key: None,
            is_secure: false,
            certificate: None,
            grants: Grants::default(),
            pages: Pages::default(),
        },
        input: BytesMut::new(),
        output: Vec::new(),
        running: UnderWay::default(),
        lines: HashMap::new(),
        spare: None,
        portions,
        portions_in,
        alone: None,
        ends: false,
        starts_tls: false,
        heard: Instant::now(),
        half_since: None,
    };
    if let Err(error) = connection.serve_all(stream, opening).await {
        tracing::debug!(%error, %peer, "an LDAP connection broke off");
    }
}

impl Connection {
    async fn serve_all(&mut self, mut stream: TcpStream, opening: Opening) -> std::io::Result<()> {
        if opening == Opening::Plain && matches!(self.serve(&mut stream).await?, Next::Nothing) {
            return Ok(());
        }
        let options = &self.server.options;
        let tls = options.tls.clone().ok_or_else(|| std::io::Error::other("there is no certificate"))?;
        let accepting = tokio_rustls::TlsAcceptor::from(tls).accept(stream);
        let accepted = tokio::time::timeout(options.patience, accepting).await;
        let mut stream = accepted.map_err(|_| std::io::Error::other("TLS took too long"))??;
        let chain = stream.get_ref().1.peer_certificates();
        let schema = self.server.directory.schema();
        let read = chain.and_then(|chain| Certificate::read(chain.first()?, &schema));
        self.session.certificate = read.map(Arc::new);
        (self.session.is_secure, self.heard) = (true, Instant::now());
        self.serve(&mut stream).await.map(|_| ())
    }

    async fn serve<S: AsyncRead + AsyncWrite + Unpin>(&mut self, stream: &mut S) -> std::io::Result<Next> {
        let mut look = tokio::time::interval(LOOKED_AT);
        let stopping = self.server.stopping.clone();
        let mut stopped = std::pin::pin!(stopping.cancelled());
        loop {
            if self.session.is_stale() {
                self.renew().await;
            }
            let is_more = self.take_messages();
            if !self.output.is_empty() {
                let written = tokio::time::timeout(self.server.options.patience, stream.write_all(&self.output)).await;
                written.map_err(|_| std::io::Error::other("the client does not read"))??;
                // A large answer should not keep its room for as long as the client stays.
                if self.output.capacity() > 256 << 10 { self.output = Vec::new() } else { self.output.clear() }
            }
            if self.ends {
                return stream.shutdown().await.map(|()| Next::Nothing);
            }
            if std::mem::take(&mut self.starts_tls) {
                // What was sent before TLS must not count as if it had been sent within.
                self.input.clear();
                return Ok(Next::Tls);
            }
            if is_more {
                continue;
            }
            // A read takes what there is room for.
            if self.input.capacity() - self.input.len() < READ_BYTES / 4 {
                self.input.reserve(READ_BYTES);
            }
            tokio::select! {
                biased;
                // Before anything that was found by the rights of before is written.
                () = self.session.changed() => self.renew().await,
                (id, done) = self.running.next() => self.finish(id, done),
                Some(portion) = self.portions.recv() => self.output.extend_from_slice(&portion),
                read = stream.read_buf(&mut self.input), if self.alone.is_none() => {
                    if read? == 0 {
                        return Ok(Next::Nothing);
                    }
                    self.heard = Instant::now();
                }
                _ = look.tick() => {
                    self.look();
                    // The clock of the system may have been set, by which keys end.
                    if self.session.key.is_some() {
                        self.renew().await;
                    }
                }
                () = &mut stopped => self.end(Code::Unavailable, "the server stops"),
            }
        }
    }

    /// Ends the connection if what it is bound by has ended, and takes over other rights.
    async fn renew(&mut self) {
        if let Some(key) = &mut self.session.key {
            if !key.holds(&*self.server.operators) {
                self.end(
                    Code::StrongerAuthRequired,
                    "the key of this bind was removed, has expired or lost its scope; bind anew",
                );
            }
            return;
        }
        match self.server.directory.renewed(&self.session.asker).await {
            Ok(Some(asker)) if asker == *self.session.asker => {}
            Ok(Some(asker)) => {
                let before = &self.session.asker;
                let loses = asker.key != before.key || before.groups.iter().any(|group| !asker.groups.contains(group));
                if loses && !self.running.is_empty() {
                    // Requests under way use the former rights.
                    return self
                        .end(Code::StrongerAuthRequired, "the name or the groups of this bind changed; bind anew");
                }
                self.session.asker = Arc::new(asker);
                (self.session.grants, self.session.pages) = (Grants::default(), Pages::default());
            }
            Ok(None) => {
                let why = "the entry of this bind is gone, disabled or locked, or has another password; bind anew";
                self.end(Code::StrongerAuthRequired, why);
            }
            Err(refusal) => {
                tracing::warn!(%refusal, "cannot check whether a bind still holds; its connection ends");
                self.end(Code::Unavailable, "the server cannot check whether this bind still holds; bind anew");
            }
        }
    }

    /// Ends the connection with a notice of disconnection (RFC 4511, 4.4.1); the first reason counts.
    fn end(&mut self, code: Code, why: &str) {
        if self.ends {
            return;
        }
        farewell(&mut self.output, code, why);
        self.ends = true;
    }

    fn look(&mut self) {
        let options = &self.server.options;
        if self.half_since.is_some_and(|since| since.elapsed() > options.patience) {
            self.end(Code::ProtocolError, "half a message took too long");
        } else if self.running.is_empty() && self.heard.elapsed() > options.idle_timeout {
            self.end(Code::Unavailable, "the connection was idle for too long");
        }
    }

    /// Takes the whole messages of what was read, until there is much to write. Gives whether there may be more.
    fn take_messages(&mut self) -> bool {
        while !self.ends && self.alone.is_none() && !self.starts_tls {
            if self.output.len() > OUTPUT_BYTES || self.session.is_stale() {
                return true;
            }
            let options = &self.server.options;
            let most = if self.session.asker.is_known() {
                options.message_bytes_max
            } else {
                options.anonymous_message_bytes_max
            };
            match ber::first_length(&self.input, most) {
                Ok(Some(length)) => {
                    let frame = self.input.split_to(length);
                    self.half_since = None;
                    self.take(&frame);
                }
                Ok(None) => {
                    if !self.input.is_empty() {
                        self.half_since.get_or_insert_with(Instant::now);
                    }
                    return false;
                }
                Err(ber::Garbled(why)) => self.end(Code::ProtocolError, why),
            }
        }
        false
    }

    fn take(&mut self, frame: &[u8]) {
        match message::read(frame) {
            Ok(message) => self.begin(message),
            Err(Unreadable::Request(id, tag, code, why)) => {
                message::answer(&mut self.output, id, tag, code, "", why, &Default::default());
            }
            Err(Unreadable::Garbled(why)) => self.end(Code::ProtocolError, why),
        }
    }

    fn begin(&mut self, message: Message) {
        let id = message.id;
        if let Request::Abandon(other) = message.request {
            return self.give_up(other);
        }
        if let Request::Extended { oid, value } = &message.request
            && oid == operations::CANCEL
        {
            return self.cancel(id, operations::cancelled(value.as_deref()));
        }
        let is_search = matches!(message.request, Request::Search(_));
        if self.lines.contains_key(&id) {
            return self.end(Code::ProtocolError, "two requests of the same number");
        }
        if self.running.len() >= self.server.options.pending_max && !matches!(message.request, Request::Unbind) {
            let busy = Refusal::new(Code::Busy, "too many requests of this connection are under way");
            return operations::refuse(&mut self.output, &message, &busy);
        }
        let fresh = || Line { given_up: CancellationToken::new(), portions: self.portions_in.clone() };
        let line = self.spare.take().unwrap_or_else(fresh);
        match operations::begin(&self.server, &mut self.session, message, &line, &mut self.output) {
            Begun::Answered => self.spare = Some(line),
            Begun::Ends => self.ends = true,
            // Requests under way would answer on the old stream.
            Begun::StartsTls if self.running.is_empty() => self.starts_tls = true,
            Begun::StartsTls => self.end(Code::OperationsError, "requests were under way when TLS was to begin"),
            begun @ (Begun::Runs(_) | Begun::RunsAlone(_)) => {
                if matches!(begun, Begun::RunsAlone(_)) {
                    self.alone = Some(id);
                }
                let (Begun::Runs(future) | Begun::RunsAlone(future)) = begun else { return };
                self.lines.insert(id, Running { line, is_search, cancelled_by: None });
                self.running.push(id, future);
            }
        }
    }

    fn give_up(&mut self, id: u32) {
        if let Some(running) = self.lines.get(&id) {
            running.line.given_up.cancel();
        }
    }

    /// Gives a request up, and says so to both: RFC 3909.
    fn cancel(&mut self, id: u32, other: Option<u32>) {
        let code = match other.and_then(|other| self.lines.get_mut(&other)) {
            _ if other.is_none() => Code::ProtocolError,
            None => Code::NoSuchOperation,
            Some(running) if !running.is_search || running.cancelled_by.is_some() => Code::CannotCancel,
            Some(running) => {
                running.cancelled_by = Some(id);
                return self.give_up(other.unwrap_or_default());
            }
        };
        message::answer(&mut self.output, id, tag::EXTENDED, code, "", "", &Default::default());
    }

    fn finish(&mut self, id: u32, done: Done) {
        // What it wrote before stands before its end.
        while let Ok(portion) = self.portions.try_recv() {
            self.output.extend_from_slice(&portion);
        }
        let running = self.lines.remove(&id);
        let given_up = running.as_ref().is_some_and(|running| running.line.is_given_up());
        if self.alone == Some(id) {
            self.alone = None;
        }
        if let Some(Running { cancelled_by: Some(by), .. }) = &running {
            message::answer(&mut self.output, id, tag::SEARCH_DONE, Code::Canceled, "", "", &Default::default());
            message::answer(&mut self.output, *by, tag::EXTENDED, Code::Success, "", "", &Default::default());
            return;
        }
        self.spare = running.map(|running| running.line).filter(|_| !given_up);
        match done {
            Done::Silent => {}
            Done::Answer(_) | Done::Page(..) if given_up => {}
            Done::Answer(answer) => self.output.extend_from_slice(&answer),
            Done::Page(answer, waiting) => {
                self.output.extend_from_slice(&answer);
                self.session.pages.put(waiting);
            }
            Done::Freed(answer) => {
                Arc::make_mut(&mut self.session.asker).must_change = false;
                self.output.extend_from_slice(&answer);
            }
            Done::Bound(bound, answer) => {
                let (asker, key) = *bound;
                (self.session.asker, self.session.key) = (Arc::new(asker), key);
                (self.session.grants, self.session.pages) = (Grants::default(), Pages::default());
                self.output.extend_from_slice(&answer);
            }
        }
    }
}
