//! DNS resolver: MX, TXT, A, AAAA and PTR records, with their TTL.
//!
//! An answer says which records exist, that the name has none of the type, or that the name does not exist. A lookup
//! that got no answer is an error, so a failure is never taken for an absent record. The resolver keeps no cache and
//! does not read `/etc/hosts`: callers cache answers by their TTL.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use hickory_resolver::{
    TokioResolver,
    config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig},
    net::{DnsError, NetError, runtime::TokioRuntimeProvider},
    proto::{
        op::ResponseCode,
        rr::{Name, RData, Record, RecordType},
    },
};
use psl::Psl as _;

/// Number of records that an answer may have; further ones are dropped.
const RECORDS_MAX: usize = 256;

/// A DNS resolver. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Resolver {
    inner: TokioResolver,
    timeout: Duration,
}

/// The answer of a name server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer<T> {
    /// The records, at least one, in the order of the answer. An alias (CNAME) is followed.
    Records {
        /// The records.
        records: Vec<T>,
        /// The time for which they may be cached: the smallest TTL.
        ttl: Duration,
    },
    /// The name exists, but has no record of the type (NODATA, RFC 2308).
    NoRecord {
        /// The time for which the absence may be cached; zero if the server did not say.
        ttl: Duration,
    },
    /// The name does not exist (NXDOMAIN).
    NoSuchName {
        /// The time for which the absence may be cached; zero if the server did not say.
        ttl: Duration,
    },
}

/// A lookup got no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// The server answered with an error code, such as SERVFAIL or REFUSED.
    #[error("the name server answered {0}")]
    ServerFailure(String),
    /// No answer within the time limit.
    #[error("the name server did not answer in time")]
    Timeout,
    /// The server was not reached, or its answer was not well-formed.
    #[error("the lookup failed: {0}")]
    Unreachable(String),
    /// The text is not a domain name: a label of more than 63 bytes, more than 253 bytes, or characters without an
    /// encoding.
    #[error("`{0}` is not a domain name")]
    InvalidName(String),
}

/// The system has no usable resolver configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the resolver configuration of the system is unusable: {0}")]
pub struct ResolverError(pub String);

/// An MX record (RFC 5321, section 5.1).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mx {
    /// Preference: the smallest is the best.
    pub preference: u16,
    /// Host name in lower case, without a final dot; empty for the root.
    pub exchange: String,
}

impl Mx {
    /// Whether the record says that the domain accepts no mail (null MX, RFC 7505).
    pub fn is_null(&self) -> bool {
        self.exchange.is_empty()
    }
}

impl<T> Answer<T> {
    /// The records; none if there is no record or no such name.
    pub fn records(&self) -> &[T] {
        match self {
            Answer::Records { records, .. } => records,
            Answer::NoRecord { .. } | Answer::NoSuchName { .. } => &[],
        }
    }

    /// The records; none if there is no record or no such name.
    pub fn into_records(self) -> Vec<T> {
        match self {
            Answer::Records { records, .. } => records,
            Answer::NoRecord { .. } | Answer::NoSuchName { .. } => Vec::new(),
        }
    }

    /// The time for which the answer may be cached.
    pub fn ttl(&self) -> Duration {
        match self {
            Answer::Records { ttl, .. } | Answer::NoRecord { ttl } | Answer::NoSuchName { ttl } => *ttl,
        }
    }
}

impl Resolver {
    /// The resolver of the system: the name servers of `/etc/resolv.conf`. Search domains are not used.
    ///
    /// A lookup ends within `timeout`, with its repetition over another server or over TCP.
    ///
    /// # Errors
    /// If the configuration of the system cannot be read or names no server.
    pub fn system(timeout: Duration) -> Result<Self, ResolverError> {
        let (config, _) = hickory_resolver::system_conf::read_system_conf().map_err(unusable)?;
        Resolver::build(config, timeout)
    }

    /// A resolver that queries one name server, over UDP and, for truncated answers, TCP.
    ///
    /// # Errors
    /// If the resolver cannot be set up.
    pub fn of_server(server: SocketAddr, timeout: Duration) -> Result<Self, ResolverError> {
        let mut udp = ConnectionConfig::udp();
        udp.port = server.port();
        let mut tcp = ConnectionConfig::tcp();
        tcp.port = server.port();
        let servers = vec![NameServerConfig::new(server.ip(), true, vec![udp, tcp])];
        Resolver::build(ResolverConfig::from_name_servers(servers), timeout)
    }

    fn build(config: ResolverConfig, timeout: Duration) -> Result<Self, ResolverError> {
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        let options = builder.options_mut();
        options.timeout = timeout / 2;
        options.attempts = 1;
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        options.edns0 = true;
        Ok(Resolver { inner: builder.build().map_err(unusable)?, timeout })
    }

    /// The mail exchangers of a domain, best first.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn mx(&self, domain: &str) -> Result<Answer<Mx>, LookupError> {
        let answer = self.lookup(domain, RecordType::MX, |data| match data {
            RData::MX(mx) => Some(Mx { preference: mx.preference, exchange: host_name(&mx.exchange) }),
            _ => None,
        });
        Ok(match answer.await? {
            Answer::Records { mut records, ttl } => {
                records.sort();
                Answer::Records { records, ttl }
            }
            other => other,
        })
    }

    /// The texts of a name: each record with its strings joined (RFC 7208, section 3.3). Bytes that are not UTF-8
    /// become U+FFFD.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn txt(&self, name: &str) -> Result<Answer<String>, LookupError> {
        let answer = self.lookup(name, RecordType::TXT, |data| match data {
            RData::TXT(txt) => Some(String::from_utf8_lossy(&txt.txt_data.concat()).into_owned()),
            _ => None,
        });
        answer.await
    }

    /// The IPv4 addresses of a host.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn a(&self, host: &str) -> Result<Answer<Ipv4Addr>, LookupError> {
        let answer = self.lookup(host, RecordType::A, |data| match data {
            RData::A(address) => Some(address.0),
            _ => None,
        });
        answer.await
    }

    /// The IPv6 addresses of a host.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn aaaa(&self, host: &str) -> Result<Answer<Ipv6Addr>, LookupError> {
        let answer = self.lookup(host, RecordType::AAAA, |data| match data {
            RData::AAAA(address) => Some(address.0),
            _ => None,
        });
        answer.await
    }

    /// The addresses of a host, those of IPv4 first.
    ///
    /// # Errors
    /// If either lookup has no answer.
    pub async fn addresses(&self, host: &str) -> Result<Answer<IpAddr>, LookupError> {
        let (v4, v6) = tokio::join!(self.a(host), self.aaaa(host));
        let (v4, v6) = (v4?, v6?);
        let ttl = match (v4.records().is_empty(), v6.records().is_empty()) {
            (false, true) => v4.ttl(),
            (true, false) => v6.ttl(),
            _ => v4.ttl().min(v6.ttl()),
        };
        let no_such_name = matches!((&v4, &v6), (Answer::NoSuchName { .. }, Answer::NoSuchName { .. }));
        let v4 = v4.into_records().into_iter().map(IpAddr::V4);
        let records: Vec<IpAddr> = v4.chain(v6.into_records().into_iter().map(IpAddr::V6)).collect();
        Ok(match records.is_empty() {
            false => Answer::Records { records, ttl },
            true if no_such_name => Answer::NoSuchName { ttl },
            true => Answer::NoRecord { ttl },
        })
    }

    /// The names of an address by reverse lookup (PTR), in lower case, without a final dot.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn ptr(&self, address: IpAddr) -> Result<Answer<String>, LookupError> {
        let answer = self.query(Name::from(address), RecordType::PTR, |data| match data {
            RData::PTR(name) => Some(host_name(&name.0)),
            _ => None,
        });
        answer.await
    }

    async fn lookup<T>(
        &self,
        name: &str,
        kind: RecordType,
        record: impl Fn(&RData) -> Option<T>,
    ) -> Result<Answer<T>, LookupError> {
        self.query(parsed(name)?, kind, record).await
    }

    async fn query<T>(
        &self,
        mut name: Name,
        kind: RecordType,
        record: impl Fn(&RData) -> Option<T>,
    ) -> Result<Answer<T>, LookupError> {
        // Without it the search domains of the system are tried.
        name.set_fqdn(true);
        let found = tokio::time::timeout(self.timeout, self.inner.lookup(name, kind)).await;
        match found.map_err(|_| LookupError::Timeout)? {
            Ok(found) => Ok(answer(found.answers(), record)),
            Err(error) => absent(error),
        }
    }
}

/// The records of an answer section. Aliases on the way count for the TTL.
fn answer<T>(section: &[Record], record: impl Fn(&RData) -> Option<T>) -> Answer<T> {
    let ttl = section.iter().map(|record| record.ttl).min().unwrap_or_default();
    let ttl = Duration::from_secs(ttl.into());
    let records: Vec<T> = section.iter().filter_map(|found| record(&found.data)).take(RECORDS_MAX).collect();
    if records.is_empty() { Answer::NoRecord { ttl } } else { Answer::Records { records, ttl } }
}

fn absent<T>(error: NetError) -> Result<Answer<T>, LookupError> {
    match error {
        NetError::Dns(DnsError::NoRecordsFound(absent)) => {
            // Without an SOA record the absence may not be cached (RFC 2308, section 5).
            let ttl = Duration::from_secs(absent.negative_ttl.unwrap_or_default().into());
            match absent.response_code {
                ResponseCode::NXDomain => Ok(Answer::NoSuchName { ttl }),
                ResponseCode::NoError => Ok(Answer::NoRecord { ttl }),
                code => Err(LookupError::ServerFailure(code_name(code))),
            }
        }
        NetError::Dns(DnsError::ResponseCode(code)) => Err(LookupError::ServerFailure(code_name(code))),
        NetError::Timeout => Err(LookupError::Timeout),
        NetError::Io(error) if error.kind() == std::io::ErrorKind::TimedOut => Err(LookupError::Timeout),
        other => Err(LookupError::Unreachable(other.to_string())),
    }
}

/// The mnemonic of the IANA registry.
fn code_name(code: ResponseCode) -> String {
    match code {
        ResponseCode::ServFail => "SERVFAIL".into(),
        ResponseCode::Refused => "REFUSED".into(),
        ResponseCode::FormErr => "FORMERR".into(),
        ResponseCode::NotImp => "NOTIMP".into(),
        ResponseCode::NotAuth => "NOTAUTH".into(),
        other => format!("RCODE {}", u16::from(other)),
    }
}

fn parsed(name: &str) -> Result<Name, LookupError> {
    let wrong = || LookupError::InvalidName(name.to_owned());
    let bare = name.strip_suffix('.').unwrap_or(name);
    if bare.is_empty() || bare.split('.').any(str::is_empty) {
        return Err(wrong());
    }
    // A label can have any bytes (RFC 2181, section 11), for example in names that SPF macros make.
    let parsed = match bare.is_ascii() {
        true => Name::from_labels(bare.split('.').map(str::as_bytes)),
        false => Name::from_utf8(bare),
    };
    parsed.map_err(|_| wrong())
}

/// The labels in lower case. Unlike the text form of zone files, it has no escapes.
fn host_name(name: &Name) -> String {
    let labels = name.iter().map(|label| String::from_utf8_lossy(label).to_ascii_lowercase());
    labels.collect::<Vec<_>>().join(".")
}

fn unusable(error: NetError) -> ResolverError {
    ResolverError(error.to_string())
}

/// The organizational domain of a name by the public suffix list: `example.co.uk` of `mx1.mail.example.co.uk`, in
/// lower case and without a final dot. None if the name is itself a public suffix.
///
/// The list has the state of the build. An unknown suffix is one label.
pub fn organizational_domain(name: &str) -> Option<String> {
    let name = name.strip_suffix('.').unwrap_or(name).to_lowercase();
    let domain = psl::List.domain(name.as_bytes())?;
    std::str::from_utf8(domain.as_bytes()).ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tocsin_test_peers::NameServer;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    fn resolver(server: &NameServer) -> Resolver {
        Resolver::of_server(server.address(), TIMEOUT).expect("a resolver")
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[tokio::test]
    async fn each_record_type_is_read_with_its_ttl() {
        let server = NameServer::start(
            r#"
            Example.org 600 MX 20 B.example.org.
            example.org 600 MX 10 a.example.org.
            example.org 120 TXT "v=spf1 " "-all"
            example.org 120 TXT "other"
            a.example.org A 192.0.2.1
            a.example.org 30 AAAA 2001:db8::1
            v6.example.org 40 AAAA 2001:db8::2
            www.example.org 90 CNAME a.example.org.
            null.example.org MX 0 .
            1.2.0.192.in-addr.arpa PTR Mail.Example.org.
            "#,
        );
        let resolver = resolver(&server);
        let mx = |preference, exchange: &str| Mx { preference, exchange: exchange.to_owned() };
        assert_eq!(
            resolver.mx("EXAMPLE.org.").await,
            Ok(Answer::Records { records: vec![mx(10, "a.example.org"), mx(20, "b.example.org")], ttl: seconds(600) })
        );
        let texts = resolver.txt("example.org").await.expect("an answer");
        assert_eq!((texts.records(), texts.ttl()), (&["v=spf1 -all".to_owned(), "other".to_owned()][..], seconds(120)));
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert_eq!(
            resolver.addresses("www.example.org").await,
            Ok(Answer::Records { records: vec![address("192.0.2.1"), address("2001:db8::1")], ttl: seconds(30) })
        );
        assert_eq!(
            resolver.addresses("v6.example.org").await,
            Ok(Answer::Records { records: vec![address("2001:db8::2")], ttl: seconds(40) })
        );
        assert!(resolver.mx("null.example.org").await.expect("an answer").records()[0].is_null());
        let names = resolver.ptr(address("192.0.2.1")).await.expect("an answer");
        assert_eq!(names.into_records(), ["mail.example.org"]);
    }

    #[tokio::test]
    async fn no_record_differs_from_no_such_name() {
        let server = NameServer::start("host.example.org A 192.0.2.1");
        let resolver = resolver(&server);
        let ttl = seconds(60);
        assert_eq!(resolver.mx("host.example.org").await, Ok(Answer::NoRecord { ttl }));
        assert_eq!(resolver.txt("example.org").await, Ok(Answer::NoRecord { ttl }));
        assert_eq!(resolver.aaaa("host.example.org").await, Ok(Answer::NoRecord { ttl }));
        assert_eq!(resolver.mx("absent.example.org").await, Ok(Answer::NoSuchName { ttl }));
        assert_eq!(resolver.addresses("absent.example.org").await, Ok(Answer::NoSuchName { ttl }));
        assert_eq!(resolver.addresses("example.org").await, Ok(Answer::NoRecord { ttl }));
        let reverse = resolver.ptr(IpAddr::from([192, 0, 2, 1])).await;
        assert_eq!(reverse, Ok(Answer::NoSuchName { ttl }));
    }

    #[tokio::test]
    async fn failures_are_errors_by_their_kind() {
        let server = NameServer::start(
            "broken.example.org SERVFAIL
             refused.example.org REFUSED
             half.example.org A 192.0.2.1
             half.example.org SERVFAIL AAAA",
        );
        let resolver = resolver(&server);
        let failed = |code: &str| LookupError::ServerFailure(code.to_owned());
        assert_eq!(resolver.mx("broken.example.org").await, Err(failed("SERVFAIL")));
        assert_eq!(resolver.txt("refused.example.org").await, Err(failed("REFUSED")));
        // One family alone is not the whole answer.
        assert_eq!(resolver.addresses("half.example.org").await, Err(failed("SERVFAIL")));
        for name in ["", ".", "a..b", &"a".repeat(64), &"abc.".repeat(70)] {
            assert_eq!(resolver.mx(name).await, Err(LookupError::InvalidName(name.to_owned())), "{name}");
        }
    }

    #[tokio::test]
    async fn a_silent_server_is_a_timeout_within_the_limit() {
        let server = NameServer::start("silent.example.org SILENT");
        let limit = Duration::from_millis(400);
        let resolver = Resolver::of_server(server.address(), limit).expect("a resolver");
        let begun = Instant::now();
        assert_eq!(resolver.txt("silent.example.org").await, Err(LookupError::Timeout));
        assert!(begun.elapsed() < tocsin_test_peers::wait_timeout(), "{:?}", begun.elapsed());
        assert!(!server.queries().is_empty(), "the server was queried");
    }

    #[tokio::test]
    async fn a_truncated_answer_is_read_over_tcp() {
        let long = "x".repeat(6_000);
        let server = NameServer::start(&format!("example.org TXT \"{long}\""));
        let texts = resolver(&server).txt("example.org").await.expect("an answer");
        assert_eq!(texts.into_records(), [long]);
        let queries = server.queries();
        assert!(queries.len() >= 2, "UDP, then TCP: {queries:?}");
    }

    #[tokio::test]
    async fn an_unreachable_server_is_an_error() {
        let closed = SocketAddr::from(([127, 0, 0, 1], tocsin_test_peers::reserved_port()));
        let resolver = Resolver::of_server(closed, Duration::from_millis(400)).expect("a resolver");
        let error = resolver.mx("example.org").await.expect_err("nothing listens");
        assert!(matches!(error, LookupError::Unreachable(_) | LookupError::Timeout), "{error:?}");
    }

    #[tokio::test]
    async fn answers_are_not_cached() {
        let server = NameServer::start("example.org TXT \"old\"");
        let resolver = resolver(&server);
        assert_eq!(resolver.txt("example.org").await.expect("an answer").records(), ["old"]);
        server.set("example.org TXT \"new\"");
        assert_eq!(resolver.txt("example.org").await.expect("an answer").records(), ["new"]);
    }

    #[tokio::test]
    async fn international_names_are_looked_up_as_a_labels() {
        let server = NameServer::start("xn--bcher-kva.example MX 10 mx.xn--bcher-kva.example.");
        let records = resolver(&server).mx("Bücher.example").await.expect("an answer").into_records();
        assert_eq!(records[0].exchange, "mx.xn--bcher-kva.example");
    }

    #[test]
    fn organizational_domains_follow_the_public_suffix_list() {
        let cases = [
            ("example.org", Some("example.org")),
            ("MX1.mail.Example.co.uk.", Some("example.co.uk")),
            ("co.uk", None),
            ("a.b.test", Some("b.test")),
            ("city.kawasaki.jp", Some("city.kawasaki.jp")),
            ("www.xn--bcher-kva.de", Some("xn--bcher-kva.de")),
            ("org", None),
        ];
        for (name, expected) in cases {
            assert_eq!(organizational_domain(name).as_deref(), expected, "{name}");
        }
    }
}
