//! External targets that replace the built-in receivers: a mail server, an HTTP receiver, a replying application.
//!
//! A target is only checked for reachability. Arrived messages cannot be counted there, so the figures count receipts
//! and responses, and the conditions of a line say so.

use std::{fmt, net::Ipv4Addr, time::Duration};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};
use url::{Host, Position, Url};

use crate::{
    failure::{Failure, Outcome},
    terminal::printable,
};

/// Maximum time until a target answers.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of an SMTP greeting line in bytes (RFC 5321, 4.5.3.1.5).
const GREETING_BYTES_MAX: u64 = 512;
/// Maximum number of figures listed in an error.
const NAMED_MAX: usize = 3;

/// External targets, as flags. They receive real mail and real requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct ExternalTargets {
    /// Mail server for deliver.smtp and case.broadcast in place of the built-in sink. Receives REAL MAIL: 100,000
    /// messages per turn and more, without TLS, to recipients at example.org
    #[arg(long, value_name = "HOST:PORT", value_parser = mail_server)]
    pub smtp: Option<MailServer>,
    /// Receiver for deliver.http in place of nginx. Receives REAL REQUESTS: 100,000 per turn, plus the load that wrk
    /// generates
    #[arg(long, value_name = "URL", value_parser = target_url)]
    pub http: Option<Url>,
    /// Application B for exchange.roundtrip and exchange.tracking in place of the built-in receiver. Receives REAL
    /// REQUESTS, as many as it answers
    #[arg(long, value_name = "URL", value_parser = target_url)]
    pub application: Option<Url>,
}

/// Kind of external target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TargetKind {
    Mail,
    Posts,
    Application,
}

impl TargetKind {
    fn flag(self) -> &'static str {
        match self {
            TargetKind::Mail => "--smtp",
            TargetKind::Posts => "--http",
            TargetKind::Application => "--application",
        }
    }

    /// Figures that can use this target. Other figures measure the receiver too: two sinks, a slow or dead receiver, an
    /// application that records its request times.
    fn figures(self) -> &'static [&'static str] {
        match self {
            TargetKind::Mail => &[
                "deliver.smtp",
                "deliver.smtp.many2",
                "deliver.smtp.many4",
                "deliver.smtp.many10",
                "deliver.smtp.many50",
                "deliver.smtp.many100",
                "deliver.smtp.pool50",
                "case.broadcast",
                "case.broadcast.10",
                "case.broadcast.1k",
                "case.broadcast.100k",
                "case.broadcast.sent",
                "notifybc.subscribe",
                "notifybc.10",
                "notifybc.10.guaranteed",
                "notifybc.1k",
                "notifybc.1k.guaranteed",
                "notifybc.100k",
                "notifybc.100k.guaranteed",
                "notifybc.1m",
                "notifybc.1m.guaranteed",
            ],
            TargetKind::Posts => &["deliver.http"],
            TargetKind::Application => &["exchange.roundtrip", "exchange.tracking1", "exchange.tracking4"],
        }
    }
}

/// External target that a figure uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedTarget {
    kind: TargetKind,
    name: String,
}

impl UsedTarget {
    /// Condition of a figure that used this target.
    pub fn condition(&self) -> String {
        let counted = match self.kind {
            TargetKind::Mail | TargetKind::Posts => "arrivals are counted by receipts",
            TargetKind::Application => "responses are counted by the callers",
        };
        format!("{self}, an external target: {counted}")
    }

    /// Warning before anything is sent to the target.
    pub fn warning(&self) -> String {
        match self.kind {
            TargetKind::Mail => format!("REAL MAIL goes to {}, as much as it takes", self.name),
            TargetKind::Posts | TargetKind::Application => {
                format!("REAL REQUESTS go to {}, as many as it answers", self.name)
            }
        }
    }
}

impl fmt::Display for UsedTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            TargetKind::Mail => write!(f, "mails to {}", self.name),
            TargetKind::Posts => write!(f, "posts to {}", self.name),
            TargetKind::Application => write!(f, "B is {}", self.name),
        }
    }
}

impl ExternalTargets {
    /// All configured targets.
    pub fn all(&self) -> impl Iterator<Item = UsedTarget> + '_ {
        let posts = [(TargetKind::Posts, &self.http), (TargetKind::Application, &self.application)];
        let posts = posts.into_iter().filter_map(|(kind, url)| Some((kind, shown(url.as_ref()?))));
        let mails = self.smtp.iter().map(|server| (TargetKind::Mail, server.to_string()));
        mails.chain(posts).map(|(kind, name)| UsedTarget { kind, name })
    }

    /// Target that this figure uses.
    pub fn of(&self, figure: &str) -> Option<UsedTarget> {
        self.all().find(|used| used.kind.figures().contains(&figure))
    }

    /// Rejects figures that can use no target, and a target that no selected figure can use. No target is silently
    /// ignored.
    ///
    /// # Errors
    /// If there is such a figure or target.
    pub fn check_figures(&self, figures: &[&str]) -> Outcome {
        let all: Vec<TargetKind> = self.all().map(|used| used.kind).collect();
        let serves = |kind: &TargetKind| format!("{} is for {}", kind.flag(), kind.figures().join(", "));
        let is_idle = |kind: &&TargetKind| !figures.iter().any(|figure| kind.figures().contains(figure));
        if let Some(idle) = all.iter().find(is_idle) {
            return Err(Failure::usage(format!("{}: name one of them", serves(idle))));
        }
        let without: Vec<&str> = figures.iter().copied().filter(|figure| self.of(figure).is_none()).collect();
        if all.is_empty() || without.is_empty() {
            return Ok(());
        }
        let named = without[..without.len().min(NAMED_MAX)].join(", ");
        let more = match without.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let why = format!("{named}{more} cannot use an external target: name only figures that can");
        Err(all.iter().map(serves).fold(Failure::usage(why), Failure::detail))
    }

    /// Checks that each target is reachable: a mail server by its greeting, a URL by a GET with any response.
    ///
    /// # Errors
    /// If a target does not answer.
    pub async fn check_reachable(&self) -> Outcome {
        if let Some(server) = &self.smtp {
            server.check_reachable().await?;
        }
        for (kind, url) in [(TargetKind::Posts, &self.http), (TargetKind::Application, &self.application)] {
            if let Some(url) = url {
                url_must_answer(kind.flag(), url).await?;
            }
        }
        Ok(())
    }
}

/// Mail server by host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailServer {
    host: Host<String>,
    port: u16,
}

impl MailServer {
    /// Mail server on a port of this machine.
    pub fn here(port: u16) -> Self {
        MailServer { host: Host::Ipv4(Ipv4Addr::LOCALHOST), port }
    }

    /// Host and port.
    pub fn address(&self) -> (String, u16) {
        (host_text(&self.host), self.port)
    }

    /// Channel options `host` and `port`.
    pub fn options(&self) -> String {
        format!("host: {}, port: {}", Value::from(host_text(&self.host)), self.port)
    }

    async fn check_reachable(&self) -> Outcome {
        let silent =
            || Failure::failed(format!("no mail server answers at {self}: start it, or give another by --smtp"));
        let greeting = async {
            let mut stream = BufReader::new(TcpStream::connect((host_text(&self.host), self.port)).await?);
            let mut line = Vec::new();
            (&mut stream).take(GREETING_BYTES_MAX).read_until(b'\n', &mut line).await?;
            // The greeting has arrived; the result of QUIT does not matter.
            let _ = stream.write_all(b"QUIT\r\n").await;
            Ok::<_, std::io::Error>(String::from_utf8_lossy(&line).trim_end().to_owned())
        };
        let greeting = match timeout(TIMEOUT, greeting).await {
            Ok(greeting) => greeting.map_err(|error| silent().because(&error))?,
            Err(_) => return Err(silent().detail(format!("no greeting within {} s", TIMEOUT.as_secs()))),
        };
        if greeting.starts_with("220") {
            return Ok(());
        }
        Err(silent()
            .detail(format!("its greeting is `{}`; expected a line that starts with 220", printable(&greeting))))
    }
}

impl fmt::Display for MailServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

fn mail_server(text: &str) -> Result<MailServer, String> {
    let parsed = text.rsplit_once(':').and_then(|(host, port)| {
        let port = port.parse().ok().filter(|port| *port > 0)?;
        Some(MailServer { host: Host::parse(host).ok()?, port })
    });
    parsed.ok_or_else(|| "expected a host and a port, such as `mail.example.org:2525` or `[::1]:2525`".to_owned())
}

fn target_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    let url = url.ok_or("expected a complete URL, such as `http://10.0.0.7:8080/hook`")?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("remove the user name and password: the URL appears in the results".to_owned());
    }
    Ok(url)
}

/// URL without its query, which may contain a secret.
fn shown(url: &Url) -> String {
    url[..Position::AfterPath].to_owned()
}

/// Host without the brackets of a URL.
fn host_text(host: &Host<impl AsRef<str>>) -> String {
    match host {
        Host::Domain(name) => name.as_ref().to_owned(),
        Host::Ipv4(address) => address.to_string(),
        Host::Ipv6(address) => address.to_string(),
    }
}

/// Option that lets a channel or send port connect to the URL's host whatever its address.
pub fn allow_hosts_option(url: &Url) -> String {
    format!("allow_hosts: [{}]", Value::from(url.host().map(|host| host_text(&host)).unwrap_or_default()))
}

async fn url_must_answer(flag: &str, url: &Url) -> Outcome {
    let silent =
        || Failure::failed(format!("no HTTP server answers at {}: start it, or give another by {flag}", shown(url)));
    // Redirects are not checked: deliveries do not follow them.
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy().timeout(TIMEOUT);
    let client = client.build().map_err(|error| silent().because(&error))?;
    let answer = client.get(url.clone()).send().await;
    // The error would contain the URL with its query.
    answer.map(|_| ()).map_err(|error| silent().because(&error.without_url()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tokio::net::TcpListener;

    use super::{super::figures::ALL, *};

    #[derive(Debug, Parser)]
    struct TestCli {
        #[command(flatten)]
        given: ExternalTargets,
    }

    fn parse_args(words: &[&str]) -> Result<ExternalTargets, String> {
        let typed = TestCli::try_parse_from(std::iter::once(&"x").chain(words));
        typed.map(|typed| typed.given).map_err(|error| error.to_string())
    }

    fn valid_args(words: &[&str]) -> ExternalTargets {
        parse_args(words).expect("valid targets")
    }

    #[test]
    fn invalid_targets_are_refused_with_an_example() {
        let refused = |flag: &str, text: &str, advice: &str| {
            let why = parse_args(&[flag, text]).expect_err(text);
            assert!(why.contains(advice), "{text}: {why}");
        };
        for text in
            ["mail.example.org", "mail.example.org:", "mail.example.org:0", ":25", "::1:25", "a b:25", "x:65536"]
        {
            refused("--smtp", text, "expected a host and a port, such as `mail.example.org:2525` or `[::1]:2525`");
        }
        for flag in ["--http", "--application"] {
            for text in ["far.test", "far.test:80/hook", "ftp://far.test/", "http://"] {
                refused(flag, text, "expected a complete URL, such as `http://10.0.0.7:8080/hook`");
            }
            refused(flag, "http://ann:secret@far.test/", "remove the user name and password");
        }
    }

    #[test]
    fn a_mail_server_is_formatted_for_display_and_for_channel_options() {
        let check = |text: &str, options: &str| {
            let server = valid_args(&["--smtp", text]).smtp.expect("a server");
            assert_eq!((server.to_string(), server.options()), (text.to_owned(), options.to_owned()));
        };
        check("mail.test:25", r#"host: "mail.test", port: 25"#);
        check("10.0.0.7:2525", r#"host: "10.0.0.7", port: 2525"#);
        check("[::1]:25", r#"host: "::1", port: 25"#);
        assert_eq!(MailServer::here(7).to_string(), "127.0.0.1:7");
    }

    #[test]
    fn the_conditions_name_the_target_of_the_figure() {
        let given = valid_args(&[
            "--smtp",
            "mail.test:25",
            "--http",
            "http://far.test/hook?token=secret",
            "--application",
            "https://b.test:8443/ask",
        ]);
        let check = |figure: &str, expected: Option<&str>| {
            assert_eq!(given.of(figure).map(|used| used.condition()).as_deref(), expected, "{figure}");
        };
        check("case.broadcast.1k", Some("mails to mail.test:25, an external target: arrivals are counted by receipts"));
        check(
            "deliver.http",
            Some("posts to http://far.test/hook, an external target: arrivals are counted by receipts"),
        );
        check(
            "exchange.roundtrip",
            Some("B is https://b.test:8443/ask, an external target: responses are counted by the callers"),
        );
        check("deliver.file", None);
        check("deliver.smtp.two_sinks", None);
        let warnings: Vec<String> = given.all().map(|used| used.warning()).collect();
        assert_eq!(warnings[0], "REAL MAIL goes to mail.test:25, as much as it takes");
        assert!(!warnings.concat().contains("secret"), "{warnings:?}");
    }

    #[test]
    fn no_target_is_silently_ignored() {
        let check = |words: &[&str], figures: &[&str], expected: &str| {
            let said = valid_args(words)
                .check_figures(figures)
                .map_or_else(|failure| failure.to_string(), |()| "fits".to_owned());
            assert!(said.starts_with(expected), "{said}");
        };
        let (smtp, http) = (["--smtp", "mail.test:25"], ["--http", "http://far.test/"]);
        let both = [smtp, http].concat();
        check(&[], &["deliver.file"], "fits");
        check(&smtp, &["deliver.smtp", "case.broadcast"], "fits");
        check(&both, &["deliver.smtp", "deliver.http"], "fits");
        check(&both, &["deliver.smtp"], "--http is for deliver.http: name one of them");
        check(&http, &["deliver.smtp.two_sinks"], "--http is for deliver.http: name one of them");
        check(
            &http,
            &["deliver.http", "deliver.http.isolation"],
            "deliver.http.isolation cannot use an external target: name only figures that can\n  --http is for deliver.http",
        );
        let whole: Vec<&str> = ALL.iter().map(|bench| bench.name).collect();
        check(&http, &whole, "binary.size, start.ready, idle.memory and ");
    }

    #[test]
    fn every_figure_with_a_target_exists() {
        for kind in [TargetKind::Mail, TargetKind::Posts, TargetKind::Application] {
            for figure in kind.figures() {
                assert!(ALL.iter().any(|bench| bench.name == *figure), "{figure}");
            }
        }
    }

    /// Result of checking a target that sends this text: a mail server at once, others after the request.
    async fn reachability_of(text: &'static str, words: impl Fn(u16) -> Vec<String>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let words = words(listener.local_addr().expect("an address").port());
        let given = valid_args(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let far = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut heard = Vec::new();
            while text.starts_with("HTTP") && !heard.ends_with(b"\r\n\r\n") {
                stream.read_buf(&mut heard).await.expect("a request");
            }
            stream.write_all(text.as_bytes()).await.expect("it is read");
            if !text.is_empty() {
                let _ = stream.read_buf(&mut heard).await;
            }
        });
        let said = given.check_reachable().await.map_or_else(|failure| failure.to_string(), |()| "answers".to_owned());
        far.await.expect("the target was checked");
        said
    }

    #[tokio::test]
    async fn an_unreachable_target_is_reported_before_measuring() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mail = |port: u16| vec!["--smtp".to_owned(), format!("127.0.0.1:{port}")];
        assert_eq!(reachability_of("220 far ready\r\n", mail).await, "answers");
        assert_eq!(reachability_of("220-far\r\n220 ready\r\n", mail).await, "answers");
        let said = reachability_of("554 go\x1b away\r\n", mail).await;
        assert!(said.starts_with("no mail server answers at 127.0.0.1:"), "{said}");
        assert!(said.ends_with(r"its greeting is `554 go\u{1b} away`; expected a line that starts with 220"), "{said}");
        let said = reachability_of("", mail).await;
        assert!(said.contains("start it, or give another by --smtp"), "{said}");

        let http = |port: u16| vec!["--http".to_owned(), format!("http://127.0.0.1:{port}/hook?token=secret")];
        assert_eq!(
            reachability_of("HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n", http).await,
            "answers"
        );
        let said = reachability_of("", http).await;
        assert!(said.starts_with("no HTTP server answers at http://127.0.0.1:"), "{said}");
        assert!(said.contains("/hook: start it, or give another by --http") && !said.contains("secret"), "{said}");
        let b = |port: u16| vec!["--application".to_owned(), format!("http://127.0.0.1:{port}/")];
        let said = reachability_of("", b).await;
        assert!(said.contains("give another by --application"), "{said}");
    }
}
