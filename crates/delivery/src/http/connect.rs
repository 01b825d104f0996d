use std::{
    collections::HashMap,
    future::{Future, poll_fn},
    io,
    net::{IpAddr, SocketAddr},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderValue, Request, Uri};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::{ClientConfig, pki_types::ServerName};
use tocsin_model::receipt::{Reason, ReasonKind};
use tokio::{
    net::{TcpStream, lookup_host},
    time::Instant,
};
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use super::classify::Response;
use crate::{networks::Networks, tls::Stream};

/// A response is read up to this; what is longer is cut, and its connection given up.
const RESPONSE_BYTES_MAX: usize = 64 * 1024;
/// Idle connections kept in all; more are closed at once.
const IDLE_MAX: usize = 1024;
/// A URL longer than this is none.
const URL_BYTES_MAX: usize = 4096;

/// Where a request goes.
#[derive(Debug)]
pub(crate) struct Target {
    /// The address as it was given.
    pub text: String,
    /// Scheme, host and port: what a connection is good for.
    pub origin: Arc<str>,
    pub secure: bool,
    pub host: String,
    address: Option<IpAddr>,
    pub port: u16,
    /// Path and query.
    pub path: Uri,
    /// The value of `Host`.
    pub authority: HeaderValue,
}

impl Target {
    /// Reads a device's address. The error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Target, String> {
        if text.len() > URL_BYTES_MAX {
            return Err(format!("the URL is longer than {URL_BYTES_MAX} bytes"));
        }
        let url = Url::parse(text).map_err(|error| format!("`{}` is not a URL: {error}", text.escape_debug()))?;
        let secure = match url.scheme() {
            "https" => true,
            "http" => false,
            other => return Err(format!("a URL starts with `https://` or `http://`, not with `{other}:`")),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err("the URL holds a user name or a password".into());
        }
        let (host, address) = match url.host() {
            Some(Host::Domain(name)) => (name.to_owned(), None),
            Some(Host::Ipv4(address)) => (address.to_string(), Some(IpAddr::V4(address))),
            Some(Host::Ipv6(address)) => (address.to_string(), Some(IpAddr::V6(address))),
            None => return Err("the URL names no host".into()),
        };
        let port = url.port_or_known_default().unwrap_or(if secure { 443 } else { 80 });
        if port == 0 {
            return Err("the URL names port 0".into());
        }
        let authority = &url[url::Position::BeforeHost..url::Position::AfterPort];
        let authority = HeaderValue::try_from(authority).map_err(|_| "the URL names no usable host")?;
        let path = &url[url::Position::BeforePath..url::Position::AfterQuery];
        let path = Uri::try_from(path).map_err(|_| "the URL has no usable path")?;
        let origin = Arc::from(format!("{}://{host}:{port}", url.scheme()));
        Ok(Target { text: text.to_owned(), origin, secure, host, address, port, path, authority })
    }
}

/// Opens connections to judged addresses.
#[async_trait]
pub(crate) trait Dial: Send + Sync {
    /// A fresh connection.
    async fn dial(&self, address: SocketAddr) -> io::Result<Box<dyn Stream>>;
}

/// Connections over TCP.
pub(crate) struct TcpDial;

#[async_trait]
impl Dial for TcpDial {
    async fn dial(&self, address: SocketAddr) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}

/// Makes connections and keeps them.
pub(crate) struct Connections {
    dial: Arc<dyn Dial>,
    trust: Arc<ClientConfig>,
    networks: Networks,
    idle_timeout: Duration,
    idle: Mutex<Idle>,
}

/// Connections that wait for their next request, by origin.
struct Idle {
    connections: HashMap<Arc<str>, Vec<Connection>>,
    count: usize,
    swept: Instant,
}

impl Idle {
    /// Closes what has been idle for too long.
    fn sweep(&mut self, now: Instant, idle_timeout: Duration) {
        self.connections.retain(|_, connections| {
            connections.retain(|connection| now.duration_since(connection.idle_since) < idle_timeout);
            !connections.is_empty()
        });
        (self.count, self.swept) = (self.connections.values().map(Vec::len).sum(), now);
    }
}

/// A connection with its side of the protocol, which runs only while a request is on it.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    protocol: Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>,
    ended: bool,
    idle_since: Instant,
}

/// Why there is no response.
pub(crate) enum NoResponse {
    /// Another attempt may succeed.
    Trouble(Reason),
    /// We do not talk to this address.
    Closed(Reason),
}

impl Connections {
    pub fn new(dial: Arc<dyn Dial>, mut trust: ClientConfig, networks: Networks, idle_timeout: Duration) -> Self {
        let idle = Idle { connections: HashMap::new(), count: 0, swept: Instant::now() };
        trust.alpn_protocols = vec![b"http/1.1".to_vec()];
        Connections { dial, trust: Arc::new(trust), networks, idle_timeout, idle: Mutex::new(idle) }
    }

    /// Sends a request and reads the response. The caller bounds the time.
    pub async fn exchange(
        &self,
        target: &Target,
        request: impl Fn() -> Request<Full<Bytes>>,
    ) -> Result<Response, NoResponse> {
        while let Some(mut connection) = self.kept(target) {
            if !connection.usable().await {
                continue;
            }
            match connection.exchange(request()).await {
                Ok((response, again)) => return Ok(self.keep(target, connection, response, again)),
                // Nothing of it has left: the far side closed the connection while it was idle.
                Err(error) if error.is_canceled() => {}
                Err(error) => return Err(NoResponse::Trouble(broken(&error))),
            }
        }
        let mut connection = self.connect(target).await?;
        match connection.exchange(request()).await {
            Ok((response, again)) => Ok(self.keep(target, connection, response, again)),
            Err(error) => Err(NoResponse::Trouble(broken(&error))),
        }
    }

    /// The addresses of the target that we talk to.
    pub async fn addresses(&self, target: &Target) -> Result<Vec<SocketAddr>, NoResponse> {
        let found: Vec<SocketAddr> = match target.address {
            Some(address) => vec![SocketAddr::new(address, target.port)],
            None => lookup_host((target.host.as_str(), target.port))
                .await
                .map_err(|error| trouble(ReasonKind::Connection, format!("{} is not found: {error}", target.host)))?
                .collect(),
        };
        let mut refusal = None;
        let judged: Vec<SocketAddr> = found
            .into_iter()
            .filter(|found| match self.networks.judge(&target.host, found.ip()) {
                Ok(()) => true,
                Err(what) => {
                    refusal = Some((found.ip(), what));
                    false
                }
            })
            .collect();
        match (judged.is_empty(), refusal) {
            (false, _) => Ok(judged),
            (true, Some((address, what))) => {
                let text = format!(
                    "{} leads to {address}, {what}; `allow_networks` or `allow_hosts` can open it",
                    target.host
                );
                Err(NoResponse::Closed(Reason::new(ReasonKind::Address, text)))
            }
            (true, None) => Err(trouble(ReasonKind::Connection, format!("{} has no address", target.host))),
        }
    }

    async fn connect(&self, target: &Target) -> Result<Connection, NoResponse> {
        let mut last = None;
        for address in self.addresses(target).await? {
            match self.dial.dial(address).await {
                Ok(stream) => return self.shake_hands(target, stream).await,
                Err(error) => last = Some((address, error)),
            }
        }
        let (address, error) = last.expect("there is at least one address, and none could be reached");
        Err(trouble(ReasonKind::Connection, format!("no connection to {address}: {error}")))
    }

    async fn shake_hands(&self, target: &Target, stream: Box<dyn Stream>) -> Result<Connection, NoResponse> {
        if !target.secure {
            return Connection::new(stream).await;
        }
        let failed = |error: &dyn std::fmt::Display| {
            trouble(ReasonKind::Tls, format!("no encrypted connection to {}: {error}", target.host))
        };
        let name = ServerName::try_from(target.host.clone()).map_err(|error| failed(&error))?;
        let stream =
            TlsConnector::from(self.trust.clone()).connect(name, stream).await.map_err(|error| failed(&error))?;
        Connection::new(stream).await
    }

    fn kept(&self, target: &Target) -> Option<Connection> {
        let mut idle = self.idle.lock();
        // The one used last is the one most likely to live; those below it are older.
        let connection = idle.connections.get_mut(&target.origin)?.pop()?;
        idle.count -= 1;
        if connection.idle_since.elapsed() < self.idle_timeout {
            return Some(connection);
        }
        if let Some(older) = idle.connections.remove(&target.origin) {
            idle.count -= older.len();
        }
        None
    }

    fn keep(&self, target: &Target, mut connection: Connection, response: Response, again: bool) -> Response {
        if again {
            let now = Instant::now();
            connection.idle_since = now;
            let mut idle = self.idle.lock();
            if now.duration_since(idle.swept) >= self.idle_timeout {
                idle.sweep(now, self.idle_timeout);
            }
            if idle.count < IDLE_MAX {
                idle.count += 1;
                idle.connections.entry(target.origin.clone()).or_default().push(connection);
            }
        }
        response
    }

    /// Closes what has been idle for too long.
    pub fn sweep(&self) {
        self.idle.lock().sweep(Instant::now(), self.idle_timeout);
    }
}

impl Connection {
    async fn new(stream: impl Stream + 'static) -> Result<Connection, NoResponse> {
        let (sender, protocol) = http1::Builder::new()
            .max_buf_size(RESPONSE_BYTES_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| NoResponse::Trouble(broken(&error)))?;
        Ok(Connection { sender, protocol: Box::pin(protocol), ended: false, idle_since: Instant::now() })
    }

    /// Whether the far side has kept it open meanwhile.
    async fn usable(&mut self) -> bool {
        let Connection { sender, protocol, ended, .. } = self;
        drive(protocol, ended, async { sender.ready().await.is_ok() }).await && !*ended
    }

    /// One request, one response; and whether the connection is good for another.
    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<(Response, bool)> {
        let Connection { sender, protocol, ended, .. } = self;
        let exchange = async {
            let response = sender.send_request(request).await?;
            let status = response.status().as_u16();
            let retry_after = response
                .headers()
                .get(http::header::RETRY_AFTER)
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned);
            let (mut body, mut incoming, mut whole) = (Vec::new(), response.into_body(), true);
            while let Some(frame) = incoming.frame().await {
                // The status is the answer; a body that breaks off takes nothing from it.
                let Ok(frame) = frame else {
                    whole = false;
                    break;
                };
                let Some(data) = frame.data_ref() else { continue };
                let room = RESPONSE_BYTES_MAX - body.len();
                body.extend_from_slice(&data[..data.len().min(room)]);
                if data.len() >= room {
                    whole = false;
                    break;
                }
            }
            Ok::<_, hyper::Error>((Response { status, retry_after, body }, whole))
        };
        let (response, whole) = drive(protocol, ended, exchange).await?;
        Ok((response, whole && !*ended))
    }
}

/// Runs a future together with the protocol of its connection, in one task: no request waits for another thread.
async fn drive<T>(
    protocol: &mut Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>,
    ended: &mut bool,
    future: impl Future<Output = T>,
) -> T {
    let mut future = pin!(future);
    poll_fn(|context| {
        if let Poll::Ready(done) = future.as_mut().poll(context) {
            return Poll::Ready(done);
        }
        if !*ended && protocol.as_mut().poll(context).is_ready() {
            *ended = true;
        }
        future.as_mut().poll(context)
    })
    .await
}

fn trouble(kind: ReasonKind, text: String) -> NoResponse {
    NoResponse::Trouble(Reason::new(kind, text))
}

fn broken(error: &hyper::Error) -> Reason {
    let mut text = format!("no response: {error}");
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    Reason::new(ReasonKind::Connection, text)
}
