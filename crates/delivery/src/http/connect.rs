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
use tocsin_model::receipt::{Reason, ReasonKind};
use tokio::{
    net::{TcpStream, lookup_host},
    time::Instant,
};
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use super::{
    classify::Response,
    exchange::{Broken, Keeping, Wire},
};
use crate::{networks::Networks, tls::Stream};

/// Idle connections kept in all; more are closed at once.
const IDLE_MAX: usize = 1024;
/// A URL longer than this is none.
const URL_BYTES_MAX: usize = 4096;

/// Where a request goes.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub site: Arc<Site>,
    /// Path and query.
    pub path: String,
}

/// A far side.
#[derive(Debug)]
pub(crate) struct Site {
    /// How an address begins that leads here: all before the path, as a parser of URLs writes it.
    beginning: String,
    /// Scheme, host and port: what a connection is good for.
    pub origin: Arc<str>,
    pub secure: bool,
    pub host: String,
    address: Option<IpAddr>,
    pub port: u16,
    /// The value of `Host`.
    pub authority: String,
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
        let authority = url[url::Position::BeforeHost..url::Position::AfterPort].to_owned();
        if !authority.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the URL names no usable host".into());
        }
        let path = url[url::Position::BeforePath..url::Position::AfterQuery].to_owned();
        Uri::try_from(&path).map_err(|_| "the URL has no usable path")?;
        let origin = Arc::from(format!("{}://{host}:{port}", url.scheme()));
        let beginning = format!("{}://{authority}", url.scheme());
        let site = Site { beginning, origin, secure, host, address, port, authority };
        Ok(Target { site: Arc::new(site), path })
    }

    /// The same, where the target before may well be at the same far side: then only the path is new, and one of plain
    /// characters needs no parser.
    pub fn parse_after(latest: Option<&Target>, text: &str) -> Result<Target, String> {
        let plain = |latest: &Target| {
            let path = text.strip_prefix(&*latest.site.beginning).filter(|path| is_plain_path(path))?;
            let site = latest.site.clone();
            (text.len() <= URL_BYTES_MAX).then(|| Target { site, path: path.to_owned() })
        };
        latest.and_then(plain).map_or_else(|| Target::parse(text), Ok)
    }
}

/// Whether a parser of URLs would give this path and query back as they are: letters, digits and what separates them, and no
/// segment of dots.
fn is_plain_path(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_~.?&=".contains(&byte);
    path.starts_with('/') && path.bytes().all(is_plain) && !path.contains("/.")
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
    keeping: Keeping,
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

struct Connection {
    wire: Wire,
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
        let (trust, keeping, idle) = (Arc::new(trust), Keeping::default(), Mutex::new(idle));
        Connections { dial, trust, networks, idle_timeout, keeping, idle }
    }

    /// The same, with so much kept of each response.
    pub fn keeping(self, keeping: Keeping) -> Self {
        Connections { keeping, ..self }
    }

    /// Sends a request and reads the response. The caller bounds the time.
    pub async fn exchange(&self, target: &Target, request: &[u8]) -> Result<Response, NoResponse> {
        while let Some(mut wire) = self.kept(target) {
            if !wire.is_usable() {
                continue;
            }
            match wire.exchange(request).await {
                Ok((response, again)) => return Ok(self.keep(target, wire, response, again)),
                // Nothing of it has left: the far side closed the connection while it was idle.
                Err(Broken::Before) => {}
                Err(Broken::After(what)) => return Err(broken(&what)),
            }
        }
        // Seldom, and large beside the rest: requests over a kept connection need not carry it.
        let mut wire = Box::pin(self.connect(target)).await?;
        match wire.exchange(request).await {
            Ok((response, again)) => Ok(self.keep(target, wire, response, again)),
            Err(Broken::Before) => Err(broken("the far side closed the connection")),
            Err(Broken::After(what)) => Err(broken(&what)),
        }
    }

    /// The addresses of the target that we talk to.
    pub async fn addresses(&self, target: &Target) -> Result<Vec<SocketAddr>, NoResponse> {
        let found: Vec<SocketAddr> = match target.site.address {
            Some(address) => vec![SocketAddr::new(address, target.site.port)],
            None => lookup_host((target.site.host.as_str(), target.site.port))
                .await
                .map_err(|error| {
                    trouble(ReasonKind::Connection, format!("{} is not found: {error}", target.site.host))
                })?
                .collect(),
        };
        let mut refusal = None;
        let judged: Vec<SocketAddr> = found
            .into_iter()
            .filter(|found| match self.networks.judge(&target.site.host, found.ip()) {
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
                    target.site.host
                );
                Err(NoResponse::Closed(Reason::new(ReasonKind::Address, text)))
            }
            (true, None) => Err(trouble(ReasonKind::Connection, format!("{} has no address", target.site.host))),
        }
    }

    async fn connect(&self, target: &Target) -> Result<Wire, NoResponse> {
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

    async fn shake_hands(&self, target: &Target, stream: Box<dyn Stream>) -> Result<Wire, NoResponse> {
        if !target.site.secure {
            return Ok(Wire::new(stream, self.keeping));
        }
        let failed = |error: &dyn std::fmt::Display| {
            trouble(ReasonKind::Tls, format!("no encrypted connection to {}: {error}", target.site.host))
        };
        let name = ServerName::try_from(target.site.host.clone()).map_err(|error| failed(&error))?;
        let stream =
            TlsConnector::from(self.trust.clone()).connect(name, stream).await.map_err(|error| failed(&error))?;
        Ok(Wire::new(Box::new(stream), self.keeping))
    }

    fn kept(&self, target: &Target) -> Option<Wire> {
        let mut idle = self.idle.lock();
        // The one used last is the one most likely to live; those below it are older.
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

    fn keep(&self, target: &Target, wire: Wire, response: Response, again: bool) -> Response {
        if again {
            let now = Instant::now();
            let mut idle = self.idle.lock();
            if now.duration_since(idle.swept) >= self.idle_timeout {
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

    /// Closes what has been idle for too long.
    pub fn sweep(&self) {
        self.idle.lock().sweep(Instant::now(), self.idle_timeout);
    }
}

fn trouble(kind: ReasonKind, text: String) -> NoResponse {
    NoResponse::Trouble(Reason::new(kind, text))
}

fn broken(what: &str) -> NoResponse {
    trouble(ReasonKind::Connection, format!("no response: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path that needs no parser is what the parser would have made of it.
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
