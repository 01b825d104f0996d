//! Far ends of somebody else, in place of our own: a mail server, a receiver of posts, an application that answers.
//!
//! They are asked whether they are there, and nothing more. What arrived is known by our receipts and by their answers, and
//! the conditions of a line say so.

use std::{fmt, net::Ipv4Addr, time::Duration};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};
use url::{Host, Position, Url};

use super::{context::Context, figures::Bench, peers::SmtpSink};
use crate::{
    failure::{Failure, Outcome},
    terminal::printable,
};

/// How long a far end may take until it answers.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of a mail server's greeting (RFC 5321, 4.5.3.1.5).
const GREETING_BYTES_MAX: u64 = 512;
/// Most figures that an error names.
const NAMED_MAX: usize = 3;

/// Far ends in place of our own, as flags. They get real mails and requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct Given {
    /// Send deliver.smtp and case.broadcast to this server, in place of a sink of our own: REAL MAIL, 100,000 a turn and
    /// more, without TLS, to people at example.org
    #[arg(long, value_name = "HOST:PORT", value_parser = mail_server)]
    pub smtp: Option<MailServer>,
    /// Send deliver.http to this URL, in place of nginx of our own: REAL REQUESTS, 100,000 a turn, and what wrk can besides
    #[arg(long, value_name = "URL", value_parser = far_url)]
    pub http: Option<Url>,
    /// Let this URL be application B of exchange.roundtrip and exchange.tracking, in place of a far end of our own: REAL
    /// REQUESTS, as many as it answers
    #[arg(long, value_name = "URL", value_parser = far_url)]
    pub application: Option<Url>,
}

/// What a far end is given for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Mail,
    Posts,
    Application,
}

impl Kind {
    fn flag(self) -> &'static str {
        match self {
            Kind::Mail => "--smtp",
            Kind::Posts => "--http",
            Kind::Application => "--application",
        }
    }

    /// The figures that can use one. Those of other figures are a part of what is measured: two sinks, a fast one, one that is
    /// slow or dead, an application that tells when it was asked.
    fn figures(self) -> &'static [&'static str] {
        match self {
            Kind::Mail => &[
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
            ],
            Kind::Posts => &["deliver.http"],
            Kind::Application => &["exchange.roundtrip", "exchange.tracking1", "exchange.tracking4"],
        }
    }
}

/// A far end that was given, and what for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Used {
    kind: Kind,
    name: String,
}

impl Used {
    /// What stands among the conditions of a figure that used it.
    pub fn condition(&self) -> String {
        let counted = match self.kind {
            Kind::Mail | Kind::Posts => "what arrived is counted by our receipts",
            Kind::Application => "what it answered is counted by the callers",
        };
        format!("{self}, a given far end that cannot be asked: {counted}")
    }

    /// What is told before anything is sent there.
    pub fn warning(&self) -> String {
        match self.kind {
            Kind::Mail => format!("REAL MAIL goes to {}, as much as it takes", self.name),
            Kind::Posts | Kind::Application => format!("REAL REQUESTS go to {}, as many as it answers", self.name),
        }
    }
}

impl fmt::Display for Used {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Mail => write!(f, "mails to {}", self.name),
            Kind::Posts => write!(f, "posts to {}", self.name),
            Kind::Application => write!(f, "B is {}", self.name),
        }
    }
}

impl Given {
    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = Used> + '_ {
        let posts = [(Kind::Posts, &self.http), (Kind::Application, &self.application)];
        let posts = posts.into_iter().filter_map(|(kind, url)| Some((kind, shown(url.as_ref()?))));
        let mails = self.smtp.iter().map(|server| (Kind::Mail, server.to_string()));
        mails.chain(posts).map(|(kind, name)| Used { kind, name })
    }

    /// What this figure uses of them.
    pub fn of(&self, figure: &str) -> Option<Used> {
        self.all().find(|used| used.kind.figures().contains(&figure))
    }

    /// Refuses figures that can use none of these, and a far end that none of the figures can use: nothing that was given is
    /// passed over.
    ///
    /// # Errors
    /// There is such a figure, or such a far end.
    pub fn must_fit(&self, benches: &[Bench]) -> Outcome {
        let all: Vec<Kind> = self.all().map(|used| used.kind).collect();
        let serves = |kind: &Kind| format!("{} is for {}", kind.flag(), kind.figures().join(", "));
        let is_idle = |kind: &&Kind| !benches.iter().any(|bench| kind.figures().contains(&bench.name));
        if let Some(idle) = all.iter().find(is_idle) {
            return Err(Failure::usage(format!("{}: name one of them", serves(idle))));
        }
        let without: Vec<&str> =
            benches.iter().map(|bench| bench.name).filter(|figure| self.of(figure).is_none()).collect();
        if all.is_empty() || without.is_empty() {
            return Ok(());
        }
        let named = without[..without.len().min(NAMED_MAX)].join(", ");
        let more = match without.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let why = format!("{named}{more} cannot use a given far end: name only figures that can");
        Err(all.iter().map(serves).fold(Failure::usage(why), Failure::detail))
    }

    /// Asks each whether it is there: a mail server for its greeting, a URL by a GET, whatever it answers.
    ///
    /// # Errors
    /// One does not answer.
    pub async fn must_answer(&self) -> Outcome {
        if let Some(server) = &self.smtp {
            server.must_answer().await?;
        }
        for (kind, url) in [(Kind::Posts, &self.http), (Kind::Application, &self.application)] {
            if let Some(url) = url {
                url_must_answer(kind.flag(), url).await?;
            }
        }
        Ok(())
    }
}

/// A mail server by its host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailServer {
    host: Host<String>,
    port: u16,
}

impl MailServer {
    /// At a port of this machine.
    pub fn here(port: u16) -> Self {
        MailServer { host: Host::Ipv4(Ipv4Addr::LOCALHOST), port }
    }

    /// `host` and `port` as options of a channel.
    pub fn options(&self) -> String {
        format!("host: {}, port: {}", Value::from(bare(&self.host)), self.port)
    }

    async fn must_answer(&self) -> Outcome {
        let silent =
            || Failure::failed(format!("no mail server answers at {self}: start it, or give another by --smtp"));
        let greeting = async {
            let mut stream = BufReader::new(TcpStream::connect((bare(&self.host), self.port)).await?);
            let mut line = Vec::new();
            (&mut stream).take(GREETING_BYTES_MAX).read_until(b'\n', &mut line).await?;
            // It has answered: whether it hears us leave is its own affair.
            let _ = stream.write_all(b"QUIT\r\n").await;
            Ok::<_, std::io::Error>(String::from_utf8_lossy(&line).trim_end().to_owned())
        };
        let greeting = match timeout(PATIENCE, greeting).await {
            Ok(greeting) => greeting.map_err(|error| silent().because(&error))?,
            Err(_) => return Err(silent().detail(format!("nothing came within {} s", PATIENCE.as_secs()))),
        };
        if greeting.starts_with("220") {
            return Ok(());
        }
        Err(silent().detail(format!("its greeting was `{}`, and should begin with 220", printable(&greeting))))
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
    parsed.ok_or_else(|| "give a host and a port, such as `mail.example.org:2525` or `[::1]:2525`".to_owned())
}

fn far_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    let url = url.ok_or("give a whole URL, such as `http://10.0.0.7:8080/hook`")?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("leave user name and password out: they would stand in the results".to_owned());
    }
    Ok(url)
}

/// A URL without its query, which may hold a secret.
fn shown(url: &Url) -> String {
    url[..Position::AfterPath].to_owned()
}

/// A host without the brackets of a URL.
fn bare(host: &Host<impl AsRef<str>>) -> String {
    match host {
        Host::Domain(name) => name.as_ref().to_owned(),
        Host::Ipv4(address) => address.to_string(),
        Host::Ipv6(address) => address.to_string(),
    }
}

/// The option by which a channel or a send port talks to a URL wherever its host leads.
pub fn opened(url: &Url) -> String {
    format!("allow_hosts: [{}]", Value::from(url.host().map(|host| bare(&host)).unwrap_or_default()))
}

async fn url_must_answer(flag: &str, url: &Url) -> Outcome {
    let silent = || Failure::failed(format!("nobody answers at {}: start it, or give another by {flag}", shown(url)));
    // Whom it would lead to is not asked: posts follow nobody either.
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy().timeout(PATIENCE);
    let client = client.build().map_err(|error| silent().because(&error))?;
    let answer = client.get(url.clone()).send().await;
    // The error would repeat the URL with its query.
    answer.map(|_| ()).map_err(|error| silent().because(&error.without_url()))
}

/// Where the mails of a figure go.
pub struct MailEnd {
    /// The server.
    pub server: MailServer,
    /// Its name in the conditions.
    pub name: &'static str,
    sink: Option<SmtpSink>,
}

impl MailEnd {
    /// The given server, or a smtp-sink that is started.
    ///
    /// # Errors
    /// smtp-sink is missing or does not start.
    pub async fn ready(context: &Context) -> Outcome<Self> {
        if let Some(server) = &context.given.smtp {
            return Ok(MailEnd { server: server.clone(), name: "the given server", sink: None });
        }
        let sink = SmtpSink::start(context).await?;
        Ok(MailEnd { server: MailServer::here(sink.port), name: "smtp-sink", sink: Some(sink) })
    }

    /// Our own sink, if none was given.
    pub fn sink(&self) -> Option<&SmtpSink> {
        self.sink.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tokio::net::TcpListener;

    use super::{super::figures::ALL, *};

    #[derive(Debug, Parser)]
    struct Typed {
        #[command(flatten)]
        given: Given,
    }

    fn typed(words: &[&str]) -> Result<Given, String> {
        let typed = Typed::try_parse_from(std::iter::once(&"x").chain(words));
        typed.map(|typed| typed.given).map_err(|error| error.to_string())
    }

    fn given(words: &[&str]) -> Given {
        typed(words).expect("far ends")
    }

    #[test]
    fn what_is_no_far_end_is_refused_with_an_example() {
        let refused = |flag: &str, text: &str, advice: &str| {
            let why = typed(&[flag, text]).expect_err(text);
            assert!(why.contains(advice), "{text}: {why}");
        };
        for text in
            ["mail.example.org", "mail.example.org:", "mail.example.org:0", ":25", "::1:25", "a b:25", "x:65536"]
        {
            refused("--smtp", text, "give a host and a port, such as `mail.example.org:2525` or `[::1]:2525`");
        }
        for flag in ["--http", "--application"] {
            for text in ["far.test", "far.test:80/hook", "ftp://far.test/", "http://"] {
                refused(flag, text, "give a whole URL, such as `http://10.0.0.7:8080/hook`");
            }
            refused(flag, "http://ann:secret@far.test/", "leave user name and password out");
        }
    }

    #[test]
    fn a_mail_server_is_named_as_each_wants_it() {
        let check = |text: &str, options: &str| {
            let server = given(&["--smtp", text]).smtp.expect("a server");
            assert_eq!((server.to_string(), server.options()), (text.to_owned(), options.to_owned()));
        };
        check("mail.test:25", r#"host: "mail.test", port: 25"#);
        check("10.0.0.7:2525", r#"host: "10.0.0.7", port: 2525"#);
        check("[::1]:25", r#"host: "::1", port: 25"#);
        assert_eq!(MailServer::here(7).to_string(), "127.0.0.1:7");
    }

    #[test]
    fn a_line_names_what_its_figure_used() {
        let given = given(&[
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
        check(
            "case.broadcast.1k",
            Some(
                "mails to mail.test:25, a given far end that cannot be asked: what arrived is counted by our receipts",
            ),
        );
        check(
            "deliver.http",
            Some(
                "posts to http://far.test/hook, a given far end that cannot be asked: what arrived is counted by our receipts",
            ),
        );
        check(
            "exchange.roundtrip",
            Some(
                "B is https://b.test:8443/ask, a given far end that cannot be asked: what it answered is counted by the callers",
            ),
        );
        check("deliver.file", None);
        check("deliver.smtp.two_sinks", None);
        let warnings: Vec<String> = given.all().map(|used| used.warning()).collect();
        assert_eq!(warnings[0], "REAL MAIL goes to mail.test:25, as much as it takes");
        assert!(!warnings.concat().contains("secret"), "{warnings:?}");
    }

    #[test]
    fn nothing_that_was_given_is_passed_over() {
        let check = |words: &[&str], figures: &[&str], expected: &str| {
            let benches: Vec<Bench> = ALL.iter().copied().filter(|bench| figures.contains(&bench.name)).collect();
            let said =
                given(words).must_fit(&benches).map_or_else(|failure| failure.to_string(), |()| "fits".to_owned());
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
            "deliver.http.isolation cannot use a given far end: name only figures that can\n  --http is for deliver.http",
        );
        let whole: Vec<&str> = ALL.iter().map(|bench| bench.name).collect();
        check(&http, &whole, "binary.size, start.ready, idle.memory and ");
    }

    #[test]
    fn every_figure_that_can_use_one_is_there() {
        for kind in [Kind::Mail, Kind::Posts, Kind::Application] {
            for figure in kind.figures() {
                assert!(ALL.iter().any(|bench| bench.name == *figure), "{figure}");
            }
        }
    }

    /// What is said of a far end that says this text to whoever comes: a mail server at once, others once they were asked.
    async fn asked(text: &'static str, words: impl Fn(u16) -> Vec<String>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let words = words(listener.local_addr().expect("an address").port());
        let given = given(&words.iter().map(String::as_str).collect::<Vec<_>>());
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
        let said = given.must_answer().await.map_or_else(|failure| failure.to_string(), |()| "answers".to_owned());
        far.await.expect("it was asked");
        said
    }

    #[tokio::test]
    async fn a_far_end_that_does_not_answer_is_told_of_before_anything_is_measured() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mail = |port: u16| vec!["--smtp".to_owned(), format!("127.0.0.1:{port}")];
        assert_eq!(asked("220 far ready\r\n", mail).await, "answers");
        assert_eq!(asked("220-far\r\n220 ready\r\n", mail).await, "answers");
        let said = asked("554 go\x1b away\r\n", mail).await;
        assert!(said.starts_with("no mail server answers at 127.0.0.1:"), "{said}");
        assert!(said.ends_with(r"its greeting was `554 go\u{1b} away`, and should begin with 220"), "{said}");
        let said = asked("", mail).await;
        assert!(said.contains("start it, or give another by --smtp"), "{said}");

        let http = |port: u16| vec!["--http".to_owned(), format!("http://127.0.0.1:{port}/hook?token=secret")];
        assert_eq!(asked("HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n", http).await, "answers");
        let said = asked("", http).await;
        assert!(said.starts_with("nobody answers at http://127.0.0.1:"), "{said}");
        assert!(said.contains("/hook: start it, or give another by --http") && !said.contains("secret"), "{said}");
        let b = |port: u16| vec!["--application".to_owned(), format!("http://127.0.0.1:{port}/")];
        let said = asked("", b).await;
        assert!(said.contains("give another by --application"), "{said}");
    }
}
