use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use hashbrown::HashMap;
use http::Uri;
use parking_lot::Mutex;
use rustls::{ClientConfig, pki_types::ServerName};
use tocsin_connect::{networks::Networks, tls::Stream};
use tocsin_model::receipt::{Reason, ReasonKind};
use tokio::{
    net::{TcpStream, lookup_host},
    time::Instant,
};
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use super::{
    exchange::{ExchangeError, Http1Connection, ResponseLimits},
    response::Response,
};

/// Most idle connections; further ones are closed at once.
const IDLE_MAX: usize = 1024;
/// Longest URL.
const URL_BYTES_MAX: usize = 4096;

/// Target of a request.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub site: Arc<HttpOrigin>,
    /// Path and query.
    pub path: String,
}

/// An HTTP origin: scheme, host and port.
#[derive(Debug)]
pub(crate) struct HttpOrigin {
    /// The normalised URL up to the path.
    beginning: String,
    /// Key of connections: scheme, host and port.
    pub origin: Arc<str>,
    pub secure: bool,
    pub host: String,
    address: Option<IpAddr>,
    pub port: u16,
    /// Value of `Host`.
    pub authority: String,
}

impl Target {
    /// Parses a device's address. The error says what is wrong with it.
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
        let authority = url[url::Position::BeforeHost..url::Position::AfterPort].to_owned();
        if !authority.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the URL names no usable host".into());
        }
        let path = url[url::Position::BeforePath..url::Position::AfterQuery].to_owned();
        Uri::try_from(&path).map_err(|_| "the URL has no usable path")?;
        let origin = Arc::from(format!("{}://{host}:{port}", url.scheme()));
        let beginning = format!("{}://{authority}", url.scheme());
        let site = HttpOrigin { beginning, origin, secure, host, address, port, authority };
        Ok(Target { site: Arc::new(site), path })
    }

    /// As `parse`, faster if the previous target has the same origin: then only the path is new, and a plain one
    /// needs no parser.
    pub fn parse_after(latest: Option<&Target>, text: &str) -> Result<Target, String> {
        let plain = |latest: &Target| {
            let path = text.strip_prefix(&*latest.site.beginning).filter(|path| is_plain_path(path))?;
            let site = latest.site.clone();
            (text.len() <= URL_BYTES_MAX).then(|| Target { site, path: path.to_owned() })
        };
        latest.and_then(plain).map_or_else(|| Target::parse(text), Ok)
    }
}

/// Whether a URL parser would return this path and query unchanged: letters, digits and separators, and no dot
/// segments.
fn is_plain_path(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_~.?&=".contains(&byte);
    path.starts_with('/') && path.bytes().all(is_plain) && !path.contains("/.")
}

/// Opens connections to checked addresses.
#[async_trait]
pub(crate) trait Dial: Send + Sync {
    /// A new connection.
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

/// Pool of persistent connections.
pub(crate) struct Connections {
    dial: Arc<dyn Dial>,
    trust: Arc<ClientConfig>,
    networks: Networks,
    idle_timeout: Duration,
    limits: ResponseLimits,
    idle: Mutex<Idle>,
}

/// Idle connections by origin.
struct Idle {
    connections: HashMap<Arc<str>, Vec<Connection>>,
    count: usize,
    last_sweep: Instant,
}

impl Idle {
    /// Closes connections that have been idle for too long.
    fn sweep(&mut self, now: Instant, idle_timeout: Duration) {
        self.connections.retain(|_, connections| {
            connections.retain(|connection| now.duration_since(connection.idle_since) < idle_timeout);
            !connections.is_empty()
        });
        (self.count, self.last_sweep) = (self.connections.values().map(Vec::len).sum(), now);
    }
}

struct Connection {
    wire: Http1Connection,
    idle_since: Instant,
}

/// Why there is no response.
pub(crate) enum NoResponse {
    /// Another attempt may succeed.
    Failed(Reason),
    /// The network policy forbids this address.
    Closed(Reason),
}

impl Connections {
    pub fn new(dial: Arc<dyn Dial>, mut trust: ClientConfig, networks: Networks, idle_timeout: Duration) -> Self {
        let idle = Idle { connections: HashMap::new(), count: 0, last_sweep: Instant::now() };
        trust.alpn_protocols = vec![b"http/1.1".to_vec()];
        let (trust, limits, idle) = (Arc::new(trust), ResponseLimits::default(), Mutex::new(idle));
        Connections { dial, trust, networks, idle_timeout, limits, idle }
    }

    /// The same pool with other response limits.
    pub fn with_limits(self, limits: ResponseLimits) -> Self {
        Connections { limits, ..self }
    }

    /// Sends a request and reads the response. The caller bounds the time.
    pub async fn exchange(&self, target: &Target, request: &[u8]) -> Result<Response, NoResponse> {
        while let Some(mut wire) = self.kept(target) {
            if !wire.is_usable() {
                continue;
            }
            match wire.exchange(request).await {
                Ok((response, again)) => return Ok(self.return_to_pool(target, wire, response, again)),
                // No byte of it was sent: the server closed the connection while it was idle.
                Err(ExchangeError::Before) => {}
                Err(ExchangeError::After(what)) => return Err(broken(&what)),
            }
        }
        // A cold path with large state: requests over an open connection need not carry it.
        let mut wire = Box::pin(self.connect(target)).await?;
        match wire.exchange(request).await {
            Ok((response, again)) => Ok(self.return_to_pool(target, wire, response, again)),
            Err(ExchangeError::Before) => Err(broken("the server closed the connection")),
            Err(ExchangeError::After(what)) => Err(broken(&what)),
        }
    }

    /// The permitted addresses of the target.
    pub async fn addresses(&self, target: &Target) -> Result<Vec<SocketAddr>, NoResponse> {
        let found: Vec<SocketAddr> = match target.site.address {
            Some(address) => vec![SocketAddr::new(address, target.site.port)],
            None => lookup_host((target.site.host.as_str(), target.site.port))
                .await
                .map_err(|error| {
                    no_response(ReasonKind::Connection, format!("{} is not found: {error}", target.site.host))
                })?
                .collect(),
        };
        let mut refusal = None;
        let allowed: Vec<SocketAddr> = found
            .into_iter()
            .filter(|found| match self.networks.check_address(&target.site.host, found.ip()) {
                Ok(()) => true,
                Err(what) => {
                    refusal = Some((found.ip(), what));
                    false
                }
            })
            .collect();
        match (allowed.is_empty(), refusal) {
            (false, _) => Ok(allowed),
            (true, Some((address, what))) => {
                let text = format!(
                    "{} leads to {address}, {what}; `allow_networks` or `allow_hosts` can open it",
                    target.site.host
                );
                Err(NoResponse::Closed(Reason::new(ReasonKind::Address, text)))
            }
            (true, None) => Err(no_response(ReasonKind::Connection, format!("{} has no address", target.site.host))),
        }
    }

    async fn connect(&self, target: &Target) -> Result<Http1Connection, NoResponse> {
        let mut last = None;
        for address in self.addresses(target).await? {
            match self.dial.dial(address).await {
                Ok(stream) => return self.shake_hands(target, stream).await,
                Err(error) => last = Some((address, error)),
            }
        }
        let (address, error) = last.expect("there is at least one address, and none could be reached");
        Err(no_response(ReasonKind::Connection, format!("no connection to {address}: {error}")))
    }

    async fn shake_hands(&self, target: &Target, stream: Box<dyn Stream>) -> Result<Http1Connection, NoResponse> {
        if !target.site.secure {
            return Ok(Http1Connection::new(stream, self.limits));
        }
        let failed = |error: &dyn std::fmt::Display| {
            no_response(ReasonKind::Tls, format!("no encrypted connection to {}: {error}", target.site.host))
        };
        let name = ServerName::try_from(target.site.host.clone()).map_err(|error| failed(&error))?;
        let stream =
            TlsConnector::from(self.trust.clone()).connect(name, stream).await.map_err(|error| failed(&error))?;
        Ok(Http1Connection::new(Box::new(stream), self.limits))
    }

    fn kept(&self, target: &Target) -> Option<Http1Connection> {
        let mut idle = self.idle.lock();
        // The most recently used connection is the most likely to be alive; those below it are older.
        let connection = idle.connections.get_mut(&target.site.origin)?.pop()?;
        idle.count -= 1;
        if connection.idle_since.elapsed() < self.idle_timeout {
            return Some(connection.wire);
        }
        if let Some(older) = idle.connections.remove(&target.site.origin) {
            idle.count -= older.len();
        }
        None
    }

    fn return_to_pool(&self, target: &Target, wire: Http1Connection, response: Response, again: bool) -> Response {
        if again {
            let now = Instant::now();
            let mut idle = self.idle.lock();
            if now.duration_since(idle.last_sweep) >= self.idle_timeout {
                idle.sweep(now, self.idle_timeout);
            }
            if idle.count < IDLE_MAX {
                idle.count += 1;
                let connection = Connection { wire, idle_since: now };
                match idle.connections.get_mut(&target.site.origin) {
                    Some(others) => others.push(connection),
                    None => drop(idle.connections.insert(target.site.origin.clone(), vec![connection])),
                }
            }
        }
        response
    }

    /// Closes connections that have been idle for too long.
    pub fn sweep(&self) {
        self.idle.lock().sweep(Instant::now(), self.idle_timeout);
    }
}

fn no_response(kind: ReasonKind, text: String) -> NoResponse {
    NoResponse::Failed(Reason::new(kind, text))
}

fn broken(what: &str) -> NoResponse {
    no_response(ReasonKind::Connection, format!("no response: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plain path equals the result of the URL parser.
    #[test]
    fn the_next_address_leads_where_a_parser_says() {
        let latest = Target::parse("http://10.0.0.1:8080/hook/r1").expect("a URL");
        for text in [
            "http://10.0.0.1:8080/hook/r2",
            "http://10.0.0.1:8080//hook/r_2-~.x?a=b&c=.",
            "http://10.0.0.1:8080/a/../b/.",
            "http://10.0.0.1:8080/a/%2e%2e/b",
            "http://10.0.0.1:8080/a\\b",
            "http://10.0.0.1:8080/a b",
            "http://10.0.0.1:8080/a#b",
            "http://10.0.0.1:8080",
            "http://10.0.0.1:80801/hook",
            "http://10.0.0.1:8080@example.org/hook",
            "http://10.0.0.2:8080/hook",
            "http:/10.0.0.2:8080/hook",
            "https://10.0.0.1:8080/hook",
            "http://10.0.0.1:8080.example.org/hook",
            "not a URL",
        ] {
            let shown = |target: Result<Target, String>| {
                target.map(|target| (target.site.origin.clone(), target.site.authority.clone(), target.path))
            };
            assert_eq!(shown(Target::parse_after(Some(&latest), text)), shown(Target::parse(text)), "{text}");
        }
        let next = Target::parse_after(Some(&latest), "http://10.0.0.1:8080/hook/r2").expect("a URL");
        assert!(Arc::ptr_eq(&next.site, &latest.site), "it was not parsed");
        let long = format!("http://10.0.0.1:8080/{}", "a".repeat(URL_BYTES_MAX));
        assert!(Target::parse_after(Some(&latest), &long).is_err());
    }
}
