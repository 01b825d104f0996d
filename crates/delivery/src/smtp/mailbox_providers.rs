//! Mailbox providers: the operators of mail exchangers. The provider of a domain is the operator of its best mail
//! exchanger (MX): a name of the table, or the organizational domain of the exchanger.

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    sync::{Arc, LazyLock},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tocsin_connect::dns::{Resolver, organizational_domain};
use tokio::time::{Instant, timeout_at};

use super::address::on_wire;

/// Domains whose provider is remembered.
const REMEMBERED: usize = 50_000;
/// Bounds of the time for which an answer is used, whatever its TTL.
const TTL_MIN: Duration = Duration::from_secs(5 * 60);
const TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// A failed lookup is repeated after this time.
const FAILURE_TTL: Duration = Duration::from_secs(60);
/// Lookups at a time.
const CONCURRENCY: usize = 64;
/// Time for all lookups of one call. Domains without an answer by then are providers of their own for a while.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without lookups after the name server answered none in time.
const DOWN_TIME: Duration = Duration::from_secs(30);

/// Grouping of recipients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Grouping {
    /// By the operator of the mail exchangers of their domain, found by a lookup of MX records.
    #[default]
    Provider,
    /// By their domain, without a lookup.
    Domain,
}

/// A provider with a name: domains of its mailboxes, for which no lookup is needed, and domains of its exchangers.
struct KnownProvider {
    name: &'static str,
    domains: &'static [&'static str],
    exchangers: &'static [&'static str],
}

const fn known(
    name: &'static str,
    domains: &'static [&'static str],
    exchangers: &'static [&'static str],
) -> KnownProvider {
    KnownProvider { name, domains, exchangers }
}

/// Operators of many mailboxes, and of filters before them.
static KNOWN: &[KnownProvider] = &[
    known("google", &["gmail.com", "googlemail.com"], &["google.com", "googlemail.com"]),
    known(
        "outlook",
        &[
            "outlook.com",
            "hotmail.com",
            "live.com",
            "msn.com",
            "hotmail.co.uk",
            "hotmail.fr",
            "hotmail.de",
            "hotmail.it",
            "outlook.de",
            "outlook.fr",
            "live.de",
            "live.fr",
            "live.co.uk",
        ],
        &["outlook.com", "mx.microsoft"],
    ),
    known(
        "yahoo",
        &[
            "yahoo.com",
            "ymail.com",
            "rocketmail.com",
            "aol.com",
            "yahoo.co.uk",
            "yahoo.de",
            "yahoo.fr",
            "yahoo.it",
            "yahoo.es",
        ],
        &["yahoodns.net"],
    ),
    known("icloud", &["icloud.com", "me.com", "mac.com"], &["icloud.com"]),
    known(
        "gmx",
        &["gmx.de", "gmx.net", "gmx.at", "gmx.ch", "gmx.com", "web.de", "mail.com"],
        &["gmx.net", "gmx.com", "web.de", "mail.com"],
    ),
    known("t-online", &["t-online.de", "magenta.de"], &["t-online.de", "magenta.de"]),
    known("ionos", &[], &["kundenserver.de", "ionos.com", "ionos.de", "ionos.co.uk", "1and1.com", "perfora.net"]),
    known("strato", &[], &["rzone.de", "strato.de"]),
    known("freenet", &["freenet.de"], &["freenet.de"]),
    known("hetzner", &[], &["your-server.de"]),
    known("orange", &["orange.fr", "wanadoo.fr"], &["orange.fr", "wanadoo.fr"]),
    known("free", &["free.fr"], &["free.fr"]),
    known("laposte", &["laposte.net"], &["laposte.net"]),
    known("sfr", &["sfr.fr", "neuf.fr"], &["sfr.fr"]),
    known("ovh", &[], &["ovh.net", "ovh.ca"]),
    known("gandi", &[], &["gandi.net"]),
    known("infomaniak", &[], &["infomaniak.ch", "infomaniak.com"]),
    known("libero", &["libero.it"], &["libero.it", "italiaonline.it"]),
    known("aruba", &[], &["aruba.it"]),
    known("seznam", &["seznam.cz", "email.cz"], &["seznam.cz"]),
    known("wp", &["wp.pl", "o2.pl"], &["wp.pl", "o2.pl"]),
    known("onet", &["onet.pl"], &["onet.pl"]),
    known("interia", &["interia.pl"], &["interia.pl"]),
    known("comcast", &["comcast.net"], &["comcast.net"]),
    known("charter", &["charter.net"], &["charter.net"]),
    known("rackspace", &[], &["emailsrvr.com"]),
    known("godaddy", &[], &["secureserver.net"]),
    known("namecheap", &[], &["privateemail.com", "registrar-servers.com"]),
    known("hostinger", &[], &["hostinger.com", "titan.email"]),
    known("proton", &["proton.me", "protonmail.com", "pm.me"], &["protonmail.ch"]),
    known("fastmail", &["fastmail.com", "fastmail.fm"], &["messagingengine.com"]),
    known("zoho", &["zoho.com", "zohomail.com"], &["zoho.com", "zoho.eu", "zoho.in"]),
    known("yandex", &["yandex.ru", "yandex.com", "ya.ru"], &["yandex.ru", "yandex.net"]),
    known("mail-ru", &["mail.ru", "inbox.ru", "list.ru", "bk.ru"], &["mail.ru"]),
    known("qq", &["qq.com", "foxmail.com"], &["qq.com"]),
    known("netease", &["163.com", "126.com", "yeah.net"], &["netease.com", "163.com"]),
    known("naver", &["naver.com"], &["naver.com"]),
    known("amazon", &[], &["amazonaws.com"]),
    known("cloudflare", &[], &["cloudflare.net"]),
    known("proofpoint", &[], &["pphosted.com", "ppe-hosted.com"]),
    known("mimecast", &[], &["mimecast.com", "mimecast.co.za"]),
    known("barracuda", &[], &["barracudanetworks.com"]),
    known("cisco", &[], &["iphmx.com"]),
    known("messagelabs", &[], &["messagelabs.com"]),
    known("trendmicro", &[], &["trendmicro.com", "trendmicro.eu"]),
    known("hornetsecurity", &[], &["hornetsecurity.com"]),
    known("sophos", &[], &["sophos.com"]),
    known("retarus", &[], &["retarus.com"]),
];

/// The names of the table.
pub(super) fn known_names() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().map(|known| known.name)
}

/// The provider that operates a mail exchanger.
fn operator(exchanger: &str) -> Arc<str> {
    let is_within = |domain: &&&str| {
        exchanger.strip_suffix(**domain).is_some_and(|before| before.is_empty() || before.ends_with('.'))
    };
    match KNOWN.iter().find(|known| known.exchangers.iter().any(|domain| is_within(&domain))) {
        Some(known) => known.name.into(),
        None => organizational_domain(exchanger).map_or_else(|| exchanger.into(), Arc::from),
    }
}

/// Finds the mail exchangers of domains.
#[async_trait]
pub(super) trait ExchangerLookup: Send + Sync {
    /// The best mail exchanger of a domain, none if it has no MX record or takes no mail, with the time for which that
    /// holds. The error is the reason of an unknown answer.
    async fn best_exchanger(&self, domain: &str) -> Result<(Option<String>, Duration), String>;
}

#[async_trait]
impl ExchangerLookup for Resolver {
    async fn best_exchanger(&self, domain: &str) -> Result<(Option<String>, Duration), String> {
        let answer = self.mx(domain).await.map_err(|error| error.to_string())?;
        let best = answer.records().first().filter(|record| !record.is_null());
        Ok((best.map(|record| record.exchange.clone()), answer.ttl()))
    }
}

/// A resolver for a name server, or that of the system.
pub(super) fn resolver(name_server: Option<SocketAddr>) -> Result<Arc<dyn ExchangerLookup>, String> {
    let resolver = match name_server {
        Some(server) => Resolver::of_server(server, LOOKUP_TIMEOUT),
        None => Resolver::system(LOOKUP_TIMEOUT),
    };
    Ok(Arc::new(resolver.map_err(|error| error.to_string())?))
}

/// The providers of domains, as far as they are known. A domain whose lookup fails is a provider of its own.
pub(super) struct ProviderDirectory {
    grouping: Grouping,
    lookup: Option<Arc<dyn ExchangerLookup>>,
    found: Cache<Box<str>, CachedProvider>,
    /// End of a time without lookups.
    down_until: Mutex<Option<Instant>>,
}

#[derive(Clone)]
struct CachedProvider {
    provider: Arc<str>,
    until: Instant,
}

impl ProviderDirectory {
    pub fn new(grouping: Grouping, lookup: Option<Arc<dyn ExchangerLookup>>) -> ProviderDirectory {
        ProviderDirectory { grouping, lookup, found: Cache::new(REMEMBERED), down_until: Mutex::default() }
    }

    /// The provider of an address as known now, without a lookup.
    pub fn provider(&self, address: &str) -> Arc<str> {
        let domain = domain_of(address);
        if self.grouping == Grouping::Domain {
            return domain.into();
        }
        match without_lookup(&domain) {
            Some(name) => name.into(),
            None => self.found.get(&*domain).map_or_else(|| domain.into(), |found| found.provider),
        }
    }

    /// Looks up the providers of addresses that are not known. Returns when all are known, or in time without them.
    pub async fn find_all<'a>(&self, addresses: impl Iterator<Item = &'a str>) {
        let Some(lookup) = self.lookup.as_ref().filter(|_| self.grouping == Grouping::Provider) else { return };
        let now = Instant::now();
        let is_known = |domain: &str| {
            without_lookup(domain).is_some() || self.found.get(domain).is_some_and(|found| found.until > now)
        };
        let unknown: BTreeSet<String> = addresses.map(domain_of).filter(|domain| !is_known(domain)).collect();
        if unknown.is_empty() || self.down_until.lock().is_some_and(|until| until > now) {
            return;
        }
        let look = |domain: String| async move { (lookup.best_exchanger(&domain).await, domain) };
        let mut answers = std::pin::pin!(stream::iter(unknown.iter().cloned()).map(look).buffer_unordered(CONCURRENCY));
        let (deadline, mut answered) = (now + LOOKUP_TIMEOUT, BTreeSet::new());
        while let Ok(Some((answer, domain))) = timeout_at(deadline, answers.next()).await {
            self.record(&domain, answer);
            answered.insert(domain);
        }
        let left: Vec<&String> = unknown.difference(&answered).collect();
        for domain in &left {
            self.record(domain, Err("no answer in time".to_owned()));
        }
        let count = left.len();
        if count > 0 && answered.is_empty() {
            *self.down_until.lock() = Some(Instant::now() + DOWN_TIME);
            tracing::warn!(domains = count, "no mail exchanger was found in time; the domains are paced one by one");
        }
    }

    fn record(&self, domain: &str, answer: Result<(Option<String>, Duration), String>) {
        let (provider, ttl) = match answer {
            Ok((Some(exchanger), ttl)) => (operator(&exchanger), ttl.clamp(TTL_MIN, TTL_MAX)),
            Ok((None, ttl)) => (domain.into(), ttl.clamp(TTL_MIN, TTL_MAX)),
            Err(reason) => {
                tracing::debug!(domain, %reason, "the mail exchangers of a domain are not known");
                // The last known provider is more likely than another one.
                let before = self.found.get(domain).map(|found| found.provider);
                (before.unwrap_or_else(|| domain.into()), FAILURE_TTL)
            }
        };
        self.found.insert(domain.into(), CachedProvider { provider, until: Instant::now() + ttl });
    }
}

/// The name of the provider that a domain of mailboxes belongs to.
fn without_lookup(domain: &str) -> Option<&'static str> {
    static NAMES: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
        KNOWN.iter().flat_map(|known| known.domains.iter().map(|domain| (*domain, known.name))).collect()
    });
    NAMES.get(domain).copied()
}

/// The domain of an address, as A-labels in lower case.
fn domain_of(address: &str) -> String {
    let wire = on_wire(address);
    let domain = wire.rsplit_once('@').map_or(&*wire, |(_, domain)| domain);
    domain.trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tocsin_connect::dns::Resolver;
    use tocsin_test_peers::NameServer;

    use super::*;

    fn check(exchanger: &str, expected: &str) {
        assert_eq!(&*operator(exchanger), expected, "{exchanger}");
    }

    #[test]
    fn exchangers_belong_to_their_operator() {
        check("aspmx.l.google.com", "google");
        check("alt1.gmail-smtp-in.l.google.com", "google");
        check("example-com.mail.protection.outlook.com", "outlook");
        check("outlook-com.olc.protection.outlook.com", "outlook");
        check("mta5.am0.yahoodns.net", "yahoo");
        check("mx01.mail.icloud.com", "icloud");
        check("mx00.emig.gmx.net", "gmx");
        check("mx-ha03.web.de", "gmx");
        check("mx00.t-online.de", "t-online");
        check("mx00.kundenserver.de", "ionos");
        check("mxa-00176a03.gslb.pphosted.com", "proofpoint");
        check("mx1.example.co.uk", "example.co.uk");
        check("mail.small.example", "small.example");
        // Only whole labels count.
        check("mx.notgoogle.com", "notgoogle.com");
        check("localhost", "localhost");
    }

    #[test]
    fn names_and_domains_of_the_table_are_unique() {
        let mut seen = BTreeMap::new();
        for known in KNOWN {
            assert!(seen.insert(known.name, known.name).is_none(), "{}", known.name);
            for domain in known.domains.iter().chain(known.exchangers) {
                let other = seen.insert(domain, known.name);
                assert!(other.is_none_or(|other| other == known.name), "{domain}");
                assert_eq!(*domain, domain.to_lowercase());
            }
        }
    }

    /// The providers of addresses after a lookup.
    async fn check_found(directory: &ProviderDirectory, expected: &[(&str, &str)]) {
        directory.find_all(expected.iter().map(|(address, _)| *address)).await;
        for (address, provider) in expected {
            assert_eq!(&*directory.provider(address), *provider, "{address}");
        }
    }

    fn directory(server: &NameServer) -> ProviderDirectory {
        let resolver = Resolver::of_server(server.address(), Duration::from_secs(20)).expect("a resolver");
        ProviderDirectory::new(Grouping::Provider, Some(Arc::new(resolver)))
    }

    #[tokio::test]
    async fn a_domain_belongs_to_the_operator_of_its_best_exchanger() {
        let server = NameServer::start(
            "hosted.example MX 20 mx.other.example.
             hosted.example MX 5 aspmx.l.google.com.
             own.example MX 10 mx1.own.example.
             friend.example MX 10 mx1.own.example.
             bare.example A 192.0.2.1
             null.example MX 0 .
             xn--mller-kva.example MX 10 mx00.gmx.net.
             broken.example SERVFAIL",
        );
        let directory = directory(&server);
        let expected = [
            ("a@hosted.example", "google"),
            ("a@HOSTED.example", "google"),
            ("a@own.example", "own.example"),
            ("b@friend.example", "own.example"),
            ("a@bare.example", "bare.example"),
            ("a@null.example", "null.example"),
            ("a@müller.example", "gmx"),
            ("a@broken.example", "broken.example"),
            ("a@absent.example", "absent.example"),
            ("a@gmail.com", "google"),
            ("not an address", "not an address"),
        ];
        check_found(&directory, &expected).await;
        let queries = server.queries();
        assert!(!queries.iter().any(|(name, _)| name.contains("gmail")), "the table needs no lookup: {queries:?}");
        check_found(&directory, &expected).await;
        assert_eq!(server.queries(), [], "answers and failures are remembered");
    }

    struct Slow;

    #[async_trait]
    impl ExchangerLookup for Slow {
        async fn best_exchanger(&self, domain: &str) -> Result<(Option<String>, Duration), String> {
            match domain {
                "fast.example" => Ok((Some("aspmx.l.google.com".into()), Duration::ZERO)),
                _ => std::future::pending().await,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_name_server_delays_mails_for_a_moment_only() {
        let directory = ProviderDirectory::new(Grouping::Provider, Some(Arc::new(Slow)));
        let begin = Instant::now();
        check_found(&directory, &[("a@fast.example", "google"), ("a@slow.example", "slow.example")]).await;
        assert_eq!(begin.elapsed(), LOOKUP_TIMEOUT);
        check_found(&directory, &[("b@slow.example", "slow.example")]).await;
        assert_eq!(begin.elapsed(), LOOKUP_TIMEOUT, "the failure is remembered");
        check_found(&directory, &[("a@other.example", "other.example")]).await;
        assert_eq!(begin.elapsed(), 2 * LOOKUP_TIMEOUT);
        check_found(&directory, &[("a@third.example", "third.example")]).await;
        assert_eq!(begin.elapsed(), 2 * LOOKUP_TIMEOUT, "no lookups while the server is down");
        tokio::time::advance(DOWN_TIME).await;
        check_found(&directory, &[("a@third.example", "third.example")]).await;
        assert_eq!(begin.elapsed(), 3 * LOOKUP_TIMEOUT + DOWN_TIME, "then they are tried again");
    }

    /// Answers that change.
    struct Changing(Mutex<Result<Option<String>, String>>);

    #[async_trait]
    impl ExchangerLookup for Changing {
        async fn best_exchanger(&self, _: &str) -> Result<(Option<String>, Duration), String> {
            self.0.lock().clone().map(|exchanger| (exchanger, Duration::from_secs(3_600)))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_used_for_its_ttl_and_survives_a_failure() {
        let changing = Arc::new(Changing(Mutex::new(Ok(Some("aspmx.l.google.com".into())))));
        let directory = ProviderDirectory::new(Grouping::Provider, Some(changing.clone()));
        check_found(&directory, &[("a@moving.example", "google")]).await;
        *changing.0.lock() = Err("SERVFAIL".into());
        tokio::time::advance(Duration::from_secs(3_601)).await;
        check_found(&directory, &[("a@moving.example", "google")]).await;
        *changing.0.lock() = Ok(Some("x.mail.protection.outlook.com".into()));
        check_found(&directory, &[("a@moving.example", "google")]).await;
        tokio::time::advance(FAILURE_TTL).await;
        check_found(&directory, &[("a@moving.example", "outlook")]).await;
    }

    #[tokio::test]
    async fn by_domain_nothing_is_looked_up() {
        let server = NameServer::start("hosted.example MX 5 aspmx.l.google.com.");
        let resolver = Resolver::of_server(server.address(), Duration::from_secs(20)).expect("a resolver");
        let directory = ProviderDirectory::new(Grouping::Domain, Some(Arc::new(resolver)));
        check_found(&directory, &[("a@hosted.example", "hosted.example"), ("a@gmail.com", "gmail.com")]).await;
        assert!(server.queries().is_empty());
    }
}
