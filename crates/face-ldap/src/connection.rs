//! LDAP connection: reads requests, runs them, and writes responses.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use tocsin_directory::{
    access::{Grants, is_below},
    ldap_error::{Code, LdapError},
};
use tocsin_pace::rate_limit::network;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use crate::{
    ber,
    certificate::Certificate,
    message::{self, Message, MessageError, Request, notice_of_disconnection, tag},
    oids::{CANCEL, MODIFY_PASSWORD},
    operations,
    paged_searches::PagedSearches,
    rate_limits::Admission,
    running_requests::RunningRequests,
    server::{BoundKey, Server, TlsStart},
    session::{RequestResult, ResponseChannel, Session, StartedRequest},
};

/// Response parts that may wait to be written; producers of more wait.
const PORTIONS_MAX: usize = 4;
/// Bytes read at a time.
const READ_BYTES: usize = 8 << 10;
/// Pending output above which no further request is processed.
const OUTPUT_BYTES: usize = 256 << 10;
/// Interval of checks for slow clients.
const LOOKED_AT: Duration = Duration::from_secs(1);

/// Next state of a stream.
enum Next {
    Nothing,
    /// The same connection, over TLS.
    Tls,
}

/// A running request.
struct RunningRequest {
    channel: ResponseChannel,
    /// Whether it is a search, which can be cancelled with a result.
    is_search: bool,
    /// Number of the cancel request.
    cancelled_by: Option<u32>,
    /// Whether it changes the entry of this bind, or an ancestor.
    is_own_change: bool,
    /// Length of its message if it is no search: the filter of a search has a bound of its own.
    bytes: usize,
}

/// A notice of disconnection that is sent with the next message of the client or after a pause: some clients discard a
/// response that the notice follows at once.
#[derive(Clone, Copy)]
struct LaterEnd {
    why: &'static str,
    since: Instant,
}

struct Connection {
    server: Arc<Server>,
    session: Session,
    input: BytesMut,
    output: Vec<u8>,
    running: RunningRequests,
    /// Channels of running requests, by message id.
    channels: HashMap<u32, RunningRequest>,
    /// Bytes of the running requests.
    bytes_under_way: usize,
    /// Whether the next message waits until requests under way have ended.
    is_full: bool,
    /// A channel for reuse by the next request.
    spare: Option<ResponseChannel>,
    portions: mpsc::Receiver<Vec<u8>>,
    portions_in: mpsc::Sender<Vec<u8>>,
    /// The bind in progress, which is answered before the next request is read.
    alone: Option<u32>,
    /// Whether rights are renewed only after the running requests: they change the entry of this bind, and the client
    /// receives their responses.
    renewal_pending: bool,
    /// The notice of disconnection that is due: a change of the client ended its own bind.
    later_end: Option<LaterEnd>,
    ends: bool,
    starts_tls: bool,
    /// Time of the last byte, and of the first byte of an incomplete message.
    last_received: Instant,
    incomplete_since: Option<Instant>,
}

/// Serves a client until the connection ends.
pub(crate) async fn run(server: Arc<Server>, stream: TcpStream, opening: TlsStart, peer: SocketAddr) {
    let (portions_in, portions) = mpsc::channel(PORTIONS_MAX);
    let mut connection = Connection {
        server,
        session: Session {
            requester: Arc::default(),
            key: None,
            address: network(peer.ip()),
            identity: None,
            is_secure: false,
            certificate: None,
            grants: Grants::default(),
            pages: PagedSearches::default(),
        },
        input: BytesMut::new(),
        output: Vec::new(),
        running: RunningRequests::default(),
        channels: HashMap::new(),
        bytes_under_way: 0,
        is_full: false,
        spare: None,
        portions,
        portions_in,
        alone: None,
        renewal_pending: false,
        later_end: None,
        ends: false,
        starts_tls: false,
        last_received: Instant::now(),
        incomplete_since: None,
    };
    if let Err(error) = connection.serve_all(stream, opening).await {
        tracing::debug!(%error, %peer, "an LDAP connection failed");
    }
}

impl Connection {
    async fn serve_all(&mut self, mut stream: TcpStream, opening: TlsStart) -> std::io::Result<()> {
        if opening == TlsStart::Plain && matches!(self.serve(&mut stream).await?, Next::Nothing) {
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
        (self.session.is_secure, self.last_received) = (true, Instant::now());
        self.serve(&mut stream).await.map(|_| ())
    }

    async fn serve<S: AsyncRead + AsyncWrite + Unpin>(&mut self, stream: &mut S) -> std::io::Result<Next> {
        let mut timeout_check = tokio::time::interval(LOOKED_AT);
        let stopping = self.server.stopping.clone();
        let mut stopped = std::pin::pin!(stopping.cancelled());
        loop {
            if self.renewal_pending && self.running.is_empty() {
                self.renewal_pending = false;
                if let Some(why) = self.renew().await {
                    self.later_end = Some(LaterEnd { why, since: Instant::now() });
                }
            }
            if self.session.is_stale() && !self.renewal_pending && self.later_end.is_none() {
                self.renew_or_end().await;
            }
            if let Some(LaterEnd { why, since }) = self.later_end
                && (!self.input.is_empty() || since.elapsed() > LOOKED_AT)
            {
                self.end(Code::StrongerAuthRequired, why);
            }
            let is_more = !self.renewal_pending && self.later_end.is_none() && self.take_messages();
            if !self.output.is_empty() {
                let written = tokio::time::timeout(self.server.options.patience, stream.write_all(&self.output)).await;
                written.map_err(|_| std::io::Error::other("the client does not read"))??;
                // Releases the buffer of a large response, which would otherwise live as long as the connection.
                if self.output.capacity() > 256 << 10 { self.output = Vec::new() } else { self.output.clear() }
            }
            if self.ends {
                return stream.shutdown().await.map(|()| Next::Nothing);
            }
            if std::mem::take(&mut self.starts_tls) {
                // Plaintext sent before the TLS handshake must not be processed as if it were protected.
                self.input.clear();
                return Ok(Next::Tls);
            }
            if is_more {
                continue;
            }
            // A read fills the spare capacity.
            if self.input.capacity() - self.input.len() < READ_BYTES / 4 {
                self.input.reserve(READ_BYTES);
            }
            tokio::select! {
                biased;
                // Takes precedence over writing results that were computed under the former rights.
                () = self.session.changed(), if !self.renewal_pending && self.later_end.is_none() => self.renew_or_end().await,
                (id, done) = self.running.next() => self.finish(id, done),
                Some(portion) = self.portions.recv() => self.output.extend_from_slice(&portion),
                read = stream.read_buf(&mut self.input), if self.alone.is_none() && !self.renewal_pending && !self.is_full => {
                    if read? == 0 {
                        return Ok(Next::Nothing);
                    }
                    self.last_received = Instant::now();
                }
                _ = timeout_check.tick() => {
                    self.check_timeouts();
                    // The system clock may have been set, and keys expire by it.
                    if self.session.key.is_some() {
                        self.renew_or_end().await;
                    }
                }
                () = &mut stopped => self.end(Code::Unavailable, "the server is stopping"),
            }
        }
    }

    /// Ends the connection if its bind is no longer valid, and applies changed rights.
    async fn renew_or_end(&mut self) {
        if let Some(why) = self.renew().await {
            self.end(Code::StrongerAuthRequired, why);
        }
    }

    /// Applies changed rights. Returns why the bind is no longer valid; then no further request may be processed.
    async fn renew(&mut self) -> Option<&'static str> {
        if let Some(key) = &mut self.session.key {
            let is_valid = key.is_still_valid(&*self.server.operators);
            return (!is_valid)
                .then_some("the key of this bind was removed, has expired or lost its scope; bind again");
        }
        if !self.running.is_empty() && self.channels.values().all(|running| running.is_own_change) {
            self.renewal_pending = true;
            return None;
        }
        match self.server.directory.renewed(&self.session.requester).await {
            Ok(Some(requester)) if requester == *self.session.requester => {}
            Ok(Some(requester)) => {
                let before = &self.session.requester;
                let loses =
                    requester.key != before.key || before.groups.iter().any(|group| !requester.groups.contains(group));
                if loses && !self.running.is_empty() {
                    // Running requests use the former rights.
                    return Some("the name or the groups of this bind changed; bind again");
                }
                self.session.requester = Arc::new(requester);
                (self.session.grants, self.session.pages) = (Grants::default(), PagedSearches::default());
            }
            Ok(None) => {
                return Some("the entry of this bind is gone, disabled or locked, or has another password; bind again");
            }
            Err(refusal) => {
                tracing::warn!(%refusal, "cannot check whether a bind is still valid; the connection is closed");
                self.end(Code::Unavailable, "the server cannot check whether this bind is still valid; bind again");
            }
        }
        None
    }

    /// Ends the connection with a notice of disconnection (RFC 4511, 4.4.1); the first reason is sent.
    fn end(&mut self, code: Code, why: &str) {
        if self.ends {
            return;
        }
        notice_of_disconnection(&mut self.output, code, why);
        self.ends = true;
    }

    fn check_timeouts(&mut self) {
        let options = &self.server.options;
        if self.incomplete_since.is_some_and(|since| since.elapsed() > options.patience) {
            self.end(Code::ProtocolError, "an incomplete message timed out");
        } else if self.running.is_empty() && self.last_received.elapsed() > options.idle_timeout {
            self.end(Code::Unavailable, "the connection was idle for too long");
        }
    }

    /// Processes the complete messages in the buffer until much output is pending. Returns whether more may remain.
    fn take_messages(&mut self) -> bool {
        while !self.ends && self.alone.is_none() && !self.starts_tls {
            if self.output.len() > OUTPUT_BYTES || self.session.is_stale() {
                return true;
            }
            let options = &self.server.options;
            let most = if self.session.requester.is_known() {
                options.message_bytes_max
            } else {
                options.anonymous_message_bytes_max
            };
            match ber::first_length(&self.input, most) {
                Ok(Some(length)) => {
                    let is_full = self.bytes_under_way > 0 && self.bytes_under_way + length > most;
                    self.is_full = is_full;
                    if is_full {
                        return false;
                    }
                    let frame = self.input.split_to(length);
                    self.incomplete_since = None;
                    self.take(&frame);
                }
                Ok(None) => {
                    if !self.input.is_empty() {
                        self.incomplete_since.get_or_insert_with(Instant::now);
                    }
                    return false;
                }
                Err(ber::DecodeError(why)) => self.end(Code::ProtocolError, why),
            }
        }
        false
    }

    pub(crate) fn take(&mut self, frame: &[u8]) {
        match message::read(frame) {
            Ok(message) => self.begin(message, frame.len()),
            Err(MessageError::Request(id, tag, code, why)) => {
                message::answer(&mut self.output, id, tag, code, "", why, &Default::default());
            }
            Err(MessageError::DecodeError(why)) => self.end(Code::ProtocolError, why),
        }
    }

    fn begin(&mut self, message: Message, bytes: usize) {
        let id = message.id;
        if let Request::Abandon(other) = message.request {
            return self.abandon_request(other);
        }
        if let Request::Extended { oid, value } = &message.request
            && oid == CANCEL
        {
            return self.cancel(id, operations::cancelled(value.as_deref()));
        }
        let is_search = matches!(message.request, Request::Search(_));
        let is_own_change = self.changes_own_entry(&message.request);
        if self.channels.contains_key(&id) {
            return self.end(Code::ProtocolError, "a message id is used by two requests at the same time");
        }
        if self.running.len() >= self.server.options.pending_max && !matches!(message.request, Request::Unbind) {
            let busy = LdapError::new(Code::Busy, "too many requests of this connection are in progress");
            return operations::refuse(&mut self.output, &message, &busy);
        }
        match self.admission(&message.request) {
            Admission::Admitted => {}
            Admission::Busy(limit) => {
                let (per_second, burst) = (limit.per_second, limit.burst);
                let caller = match &self.session.identity {
                    Some(_) => "this identity",
                    None => "this address, without a bind or with wrong passwords,",
                };
                let text =
                    format!("{caller} sent more than {per_second} requests a second, {burst} at once: send fewer");
                return operations::refuse(&mut self.output, &message, &LdapError::new(Code::Busy, text));
            }
            Admission::Excessive => {
                return self.end(Code::Busy, "the client sends far more requests than its limit; connect later");
            }
        }
        let fresh = || ResponseChannel { abandoned: CancellationToken::new(), portions: self.portions_in.clone() };
        let channel = self.spare.take().unwrap_or_else(fresh);
        match operations::begin(&self.server, &mut self.session, message, &channel, &mut self.output) {
            StartedRequest::Answered => self.spare = Some(channel),
            StartedRequest::Ends => self.ends = true,
            // Running requests would answer on the plaintext stream.
            StartedRequest::StartsTls if self.running.is_empty() => self.starts_tls = true,
            StartedRequest::StartsTls => {
                self.end(Code::OperationsError, "requests were in progress when StartTLS was requested")
            }
            begun @ (StartedRequest::Runs(_) | StartedRequest::RunsAlone(_)) => {
                if matches!(begun, StartedRequest::RunsAlone(_)) {
                    self.alone = Some(id);
                }
                let (StartedRequest::Runs(future) | StartedRequest::RunsAlone(future)) = begun else { return };
                let bytes = if is_search { 0 } else { bytes };
                self.bytes_under_way += bytes;
                self.channels
                    .insert(id, RunningRequest { channel, is_search, cancelled_by: None, is_own_change, bytes });
                self.running.push(id, future);
            }
        }
    }

    /// Counts a request for its identity or address. A bind with a password counts when it fails.
    fn admission(&self, request: &Request) -> Admission {
        let (rates, session) = (&self.server.rates, &self.session);
        match (request, &session.identity) {
            (Request::Unbind, _) => Admission::Admitted,
            (Request::Bind { dn, proof, .. }, _) if !operations::is_anonymous(dn, proof) => {
                rates.of_bind(session.address)
            }
            (Request::Bind { .. }, _) | (_, None) => rates.of_address(session.address),
            // It can also be a password check.
            (Request::Extended { oid, .. }, Some(identity)) if oid == MODIFY_PASSWORD => {
                match rates.of_bind(session.address) {
                    Admission::Admitted => rates.of_identity(identity),
                    refused => refused,
                }
            }
            (_, Some(identity)) => rates.of_identity(identity),
        }
    }

    /// Whether a request changes the entry of this bind, or the name of an ancestor.
    fn changes_own_entry(&self, request: &Request) -> bool {
        let requester = &self.session.requester;
        let (Request::Modify { dn, .. } | Request::Delete { dn } | Request::Rename { dn, .. }) = request else {
            return false;
        };
        if requester.bound_identity.is_none() {
            return false;
        }
        let named = self.server.directory.normal(dn);
        named.is_some_and(|named| {
            named == requester.key || matches!(request, Request::Rename { .. }) && is_below(&requester.key, &named)
        })
    }

    fn abandon_request(&mut self, id: u32) {
        if let Some(running) = self.channels.get(&id) {
            running.channel.abandoned.cancel();
        }
    }

    /// Cancels a request, and answers both (RFC 3909).
    fn cancel(&mut self, id: u32, other: Option<u32>) {
        let code = match other.and_then(|other| self.channels.get_mut(&other)) {
            _ if other.is_none() => Code::ProtocolError,
            None => Code::NoSuchOperation,
            Some(running) if !running.is_search || running.cancelled_by.is_some() => Code::CannotCancel,
            Some(running) => {
                running.cancelled_by = Some(id);
                return self.abandon_request(other.unwrap_or_default());
            }
        };
        message::answer(&mut self.output, id, tag::EXTENDED, code, "", "", &Default::default());
    }

    fn finish(&mut self, id: u32, done: RequestResult) {
        // Parts that it sent before precede its result.
        while let Ok(portion) = self.portions.try_recv() {
            self.output.extend_from_slice(&portion);
        }
        let running = self.channels.remove(&id);
        self.bytes_under_way -= running.as_ref().map_or(0, |running| running.bytes);
        let abandoned = running.as_ref().is_some_and(|running| running.channel.is_abandoned());
        if self.alone == Some(id) {
            self.alone = None;
        }
        if let Some(RunningRequest { cancelled_by: Some(by), .. }) = &running {
            message::answer(&mut self.output, id, tag::SEARCH_DONE, Code::Canceled, "", "", &Default::default());
            message::answer(&mut self.output, *by, tag::EXTENDED, Code::Success, "", "", &Default::default());
            return;
        }
        self.spare = running.map(|running| running.channel).filter(|_| !abandoned);
        match done {
            RequestResult::NoResponse => {}
            RequestResult::Answer(_) | RequestResult::Page(..) if abandoned => {}
            RequestResult::Answer(answer) => self.output.extend_from_slice(&answer),
            RequestResult::Page(answer, waiting) => {
                self.output.extend_from_slice(&answer);
                self.session.pages.put(waiting);
            }
            RequestResult::PasswordChanged(answer) => {
                Arc::make_mut(&mut self.session.requester).must_change = false;
                self.output.extend_from_slice(&answer);
            }
            RequestResult::Bound(bound, answer) => {
                let (requester, key) = *bound;
                let of_entry = || requester.is_known().then(|| requester.key.as_str().into());
                self.session.identity = key.as_ref().map(BoundKey::identity).or_else(of_entry);
                (self.session.requester, self.session.key) = (Arc::new(requester), key);
                (self.session.grants, self.session.pages) = (Grants::default(), PagedSearches::default());
                self.output.extend_from_slice(&answer);
            }
        }
    }
}
