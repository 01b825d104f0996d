//! Examination of a mail domain: `tocsin doctor --domain`.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use serde_json::{Value, json};
use tocsin_connect::dns::Resolver;
use tocsin_mail_domain::{Finding, Level, Selector, Subject, ascii_domain, examine};

use crate::{
    client::{Client, ConnectionArgs, segment},
    configuration::ConfigurationArgs,
    failure::{Failure, Outcome},
    terminal::{Colour, Terminal, printable},
};

/// Limit of one lookup, with its repetition.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Arguments of `tocsin doctor --domain`.
#[derive(Debug, Default, clap::Args)]
pub(super) struct DomainArgs {
    /// Examine a mail domain in DNS instead: SPF, DKIM, DMARC, reverse DNS, mail exchangers
    #[arg(long, value_name = "DOMAIN", help_heading = "Mail domain")]
    domain: Option<String>,
    /// DKIM selector; repeatable [default: those of the server's mail channels]
    #[arg(long, value_name = "NAME", requires = "domain", help_heading = "Mail domain")]
    selector: Vec<String>,
    /// Sending address; repeatable [default: those of the channel's mail servers, or of the mail exchangers]
    #[arg(long, value_name = "ADDRESS", requires = "domain", help_heading = "Mail domain")]
    ip: Vec<IpAddr>,
    /// Domain of the return address; repeatable [default: those of the server's mail channels]
    #[arg(long, value_name = "DOMAIN", requires = "domain", help_heading = "Mail domain")]
    return_domain: Vec<String>,
    /// Name server, as ADDRESS or ADDRESS:PORT [default: those of the system]
    #[arg(long, value_name = "ADDRESS", value_parser = name_server, requires = "domain", help_heading = "Mail domain")]
    dns: Option<SocketAddr>,
}

fn name_server(text: &str) -> Result<SocketAddr, String> {
    let address = text.parse::<IpAddr>().map(|address| SocketAddr::new(address, 53));
    address.or_else(|_| text.parse()).map_err(|_| "expected an address, such as 192.0.2.53 or [2001:db8::53]:53".into())
}

impl DomainArgs {
    /// The domain to examine, if the command is about one.
    pub fn domain(&self) -> Option<&str> {
        self.domain.as_deref()
    }

    /// Prints a line for each finding.
    ///
    /// # Errors
    /// If a check fails, or the arguments are not domains.
    pub async fn run(
        self,
        terminal: &Terminal,
        json: bool,
        configuration: &ConfigurationArgs,
        connection: &ConnectionArgs,
    ) -> Outcome {
        let client = connection.client(configuration);
        self.examine(terminal, json, client).await
    }

    async fn examine(self, terminal: &Terminal, json: bool, client: Outcome<Client>) -> Outcome {
        let wrong = |error: tocsin_mail_domain::DomainError| Failure::usage(error.to_string());
        let mut subject = Subject::new(self.domain.as_deref().unwrap_or_default()).map_err(wrong)?;
        subject.addresses = self.ip;
        let selectors = self.selector.into_iter();
        let domain = subject.domain.clone();
        subject.selectors = selectors.map(|name| Selector { name, domain: domain.clone(), record: None }).collect();
        let return_domains: Result<Vec<String>, _> = self.return_domain.iter().map(|text| ascii_domain(text)).collect();
        subject.return_domains = return_domains.map_err(wrong)?;
        let resolver = match self.dns {
            Some(server) => Resolver::of_server(server, LOOKUP_TIMEOUT),
            None => Resolver::system(LOOKUP_TIMEOUT),
        };
        let resolver = resolver.map_err(|error| {
            Failure::failed("cannot resolve names; specify a name server with --dns").because(&error)
        })?;
        let bar = terminal.progress(None, "{spinner} looking up records");
        bar.enable_steady_tick(Duration::from_millis(100));
        let mut findings = Vec::new();
        findings.extend(match client {
            Ok(client) => complete(&mut subject, &client).await,
            Err(failure) => Some(unread(&subject.domain, &failure)),
        });
        findings.extend(examine(&resolver, &subject).await);
        bar.finish_and_clear();
        let failed = findings.iter().filter(|finding| finding.level == Level::Fail).count();
        if json {
            terminal.json(&json!({"ok": failed == 0, "domain": subject.domain, "findings": findings}))?;
        } else {
            show(terminal, &findings)?;
        }
        match failed {
            0 => Ok(()),
            1 => Err(Failure::failed("1 check failed")),
            more => Err(Failure::failed(format!("{more} checks failed"))),
        }
    }
}

/// Adds selectors, return domains and mail servers of the server's channels that send as the domain. Selectors and
/// return domains of the arguments are not replaced.
async fn complete(subject: &mut Subject, client: &Client) -> Option<Finding> {
    let senders = match senders(client).await {
        Ok(senders) => senders,
        Err(failure) => return Some(unread(&subject.domain, &failure)),
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let is_of_domain =
        |sender: &&Value| ascii_domain(&text(&sender["from_domain"])).is_ok_and(|domain| domain == subject.domain);
    let own: Vec<&Value> = senders.iter().filter(is_of_domain).collect();
    if own.is_empty() {
        let text = format!("no mail channel of {} sends as {}", client.server(), subject.domain);
        return Some(note(&subject.domain, text, "keys of channels were not compared"));
    }
    let (are_selectors_given, are_domains_given) = (!subject.selectors.is_empty(), !subject.return_domains.is_empty());
    for sender in own {
        for key in all(&sender["dkim"]) {
            let (name, domain, record) = (text(&key["selector"]), text(&key["domain"]), text(&key["record"]));
            let is_same = |known: &&mut Selector| known.name == name && known.domain.eq_ignore_ascii_case(&domain);
            match subject.selectors.iter_mut().find(is_same) {
                Some(known) => known.record = Some(record),
                None if are_selectors_given => {}
                None => subject.selectors.push(Selector { name, domain, record: Some(record) }),
            }
        }
        let return_domain = text(&sender["return_domain"]).to_ascii_lowercase();
        if !are_domains_given && !subject.return_domains.contains(&return_domain) {
            subject.return_domains.push(return_domain);
        }
        for host in all(&sender["hosts"]).iter().map(text) {
            if !subject.hosts.contains(&host) {
                subject.hosts.push(host);
            }
        }
        // An address in brackets is no name.
        let name = sender["ehlo"].as_str().filter(|name| !name.starts_with('['));
        subject.host_name = subject.host_name.take().or(name.map(str::to_owned));
    }
    None
}

/// The identities of all mail channels.
async fn senders(client: &Client) -> Outcome<Vec<Value>> {
    let status = client.get("/v1/status", &[]).await?;
    let mut senders = Vec::new();
    for application in status["applications"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let name = application["name"].as_str().unwrap_or_default();
        let found = client.get(&format!("/v1/applications/{}/mail-senders", segment(name)), &[]).await?;
        senders.extend(found["items"].as_array().cloned().unwrap_or_default());
    }
    Ok(senders)
}

fn unread(domain: &str, failure: &Failure) -> Finding {
    let text = format!("the channels of the server are unknown: {}", super::in_one_line(failure));
    note(domain, text, "keys of channels were not compared; specify selectors with --selector")
}

fn note(domain: &str, text: String, advice: &str) -> Finding {
    Finding {
        level: Level::Info,
        check: "server",
        subject: domain.to_owned(),
        text,
        source: "",
        advice: Some(advice.to_owned()),
        publish: Vec::new(),
    }
}

fn show(terminal: &Terminal, findings: &[Finding]) -> std::io::Result<()> {
    for finding in findings {
        let level = match finding.level {
            Level::Ok => terminal.paint(Colour::Green, "ok  "),
            Level::Info => terminal.paint(Colour::Dim, "info"),
            Level::Warn => terminal.paint(Colour::Yellow, "warn"),
            Level::Fail => terminal.paint(Colour::Red, "fail"),
        };
        let source = if finding.source.is_empty() { String::new() } else { format!(" ({})", finding.source) };
        let check = finding.check.replace('_', " ");
        let text = format!("{check} {}: {}{source}", finding.subject, finding.text);
        terminal.line(format_args!("{level}  {}", printable(&text)))?;
        if let Some(advice) = &finding.advice {
            terminal.line(format_args!("      {}", printable(advice)))?;
        }
        for record in &finding.publish {
            let text = format!("{} {} {}", record.name, record.kind, record.value);
            terminal.line(format_args!("      publish: {}", printable(&text)))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use tocsin_test_peers::NameServer;

    use super::*;
    use crate::{commands::fake_server::FakeServer, failure::Exit};

    const KEY: &str = "QBfVM3zXv+361EkamKvCUYT76+aAMe6QtakYtM8O6II=";

    const ZONE: &str = r#"
        example.org MX 10 mail.example.org.
        example.org TXT "v=spf1 mx -all"
        mail.example.org A 192.0.2.10
        10.2.0.192.in-addr.arpa PTR mail.example.org.
        t1._domainkey.example.org TXT "v=DKIM1; k=ed25519; p=QBfVM3zXv+361EkamKvCUYT76+aAMe6QtakYtM8O6II="
        _dmarc.example.org TXT "v=DMARC1; p=reject; rua=mailto:dmarc@example.org"
    "#;

    fn arguments(zone: &NameServer) -> DomainArgs {
        DomainArgs { domain: Some("example.org".into()), dns: Some(zone.address()), ..DomainArgs::default() }
    }

    /// A server with one application, whose mail channel signs with the key.
    async fn server(key: &str) -> FakeServer {
        let sender = json!({
            "channel": "mail", "from_domain": "example.org", "return_domain": "example.org",
            "hosts": ["mail.example.org"], "ehlo": "mail.example.org",
            "dkim": [{"selector": "t1", "domain": "example.org", "record": format!("v=DKIM1; k=ed25519; p={key}")}],
        });
        let answers =
            vec![(200, json!({"applications": [{"name": "quakes"}]})), (200, json!({"items": [sender], "next": null}))];
        FakeServer::start(answers).await
    }

    async fn examined(arguments: DomainArgs, json: bool, client: Outcome<Client>) -> (Outcome, String) {
        let (terminal, captured) = Terminal::captured();
        let outcome = arguments.examine(&terminal, json, client).await;
        (outcome, captured.text())
    }

    #[tokio::test]
    async fn a_ready_domain_succeeds_with_the_keys_of_the_channels() {
        let (zone, server) = (NameServer::start(ZONE), server(KEY).await);
        let (outcome, text) = examined(arguments(&zone), false, Ok(server.client())).await;
        assert!(outcome.is_ok(), "{text}");
        expect![[r#"
            info  sender example.org: sending addresses are assumed to be those of the mail servers of the channel: 192.0.2.10 (RFC 7208, section 2.4)
                  specify others with --ip
            ok    spf example.org: the record is well-formed and needs 1 of 10 lookups: v=spf1 mx -all (RFC 7208)
            ok    spf example.org: 192.0.2.10 passes (mx) (RFC 7208, section 2.6)
            ok    dkim t1._domainkey.example.org: the Ed25519 key is that of the channel (RFC 6376, section 3.6.1)
            ok    dmarc _dmarc.example.org: the policy is reject: v=DMARC1; p=reject; rua=mailto:dmarc@example.org (RFC 7489, section 6.3)
            ok    alignment example.org: the return domain example.org is aligned by SPF, relaxed and strict (RFC 7489, section 3.1)
            ok    alignment example.org: the signing domain example.org is aligned by DKIM, relaxed and strict (RFC 7489, section 3.1)
            ok    reverse dns 192.0.2.10: the name is mail.example.org, which leads back to the address (RFC 1912, section 2.1)
            ok    mx example.org: mail exchangers: mail.example.org (RFC 5321, section 5.1)
            info  mta sts _mta-sts.example.org: there is no record (RFC 8461, section 3.1)
                  optional; it enforces TLS for mail to the domain, such as bounces, and needs a policy file at an HTTPS server
                  publish: _mta-sts.example.org. TXT "v=STSv1; id=1"
            info  tls rpt _smtp._tls.example.org: there is no record (RFC 8460, section 3)
                  optional; senders report failures of TLS
                  publish: _smtp._tls.example.org. TXT "v=TLSRPTv1; rua=mailto:tls-reports@example.org"
        "#]].assert_eq(&text);
        let requests = server.requests();
        assert!(requests[1].contains("/v1/applications/quakes/mail-senders"), "{requests:?}");
    }

    #[tokio::test]
    async fn each_failed_check_says_what_to_publish() {
        let other = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        let (zone, server) = (NameServer::start(ZONE), server(other).await);
        let arguments = DomainArgs { ip: vec![[192, 0, 2, 77].into()], ..arguments(&zone) };
        let (outcome, text) = examined(arguments, false, Ok(server.client())).await;
        let failure = outcome.expect_err("checks failed");
        assert_eq!((failure.exit, failure.message.as_str()), (Exit::Failed, "3 checks failed"));
        expect![[r#"
            ok    spf example.org: the record is well-formed and needs 1 of 10 lookups: v=spf1 mx -all (RFC 7208)
            fail  spf example.org: the result for 192.0.2.77 is fail (-all), not pass (RFC 7208, section 2.6)
                  add the address, or the name of the provider that sends
                  publish: example.org. TXT "v=spf1 ip4:192.0.2.77 mx -all"
            fail  dkim t1._domainkey.example.org: the Ed25519 key is not that of the channel, so signatures fail (RFC 6376, section 3.6.1)
                  publish the record of the channel's key
                  publish: t1._domainkey.example.org. TXT "v=DKIM1; k=ed25519; p=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
            ok    dmarc _dmarc.example.org: the policy is reject: v=DMARC1; p=reject; rua=mailto:dmarc@example.org (RFC 7489, section 6.3)
            ok    alignment example.org: the return domain example.org is aligned by SPF, relaxed and strict (RFC 7489, section 3.1)
            ok    alignment example.org: the signing domain example.org is aligned by DKIM, relaxed and strict (RFC 7489, section 3.1)
            fail  reverse dns 192.0.2.77: the address has no name (PTR); large receivers reject its mail (RFC 1912, section 2.1)
                  the owner of the network, usually the hosting provider, publishes the first record
                  publish: 77.2.0.192.in-addr.arpa. PTR mail.example.org.
                  publish: mail.example.org. A 192.0.2.77
            ok    mx example.org: mail exchangers: mail.example.org (RFC 5321, section 5.1)
            info  mta sts _mta-sts.example.org: there is no record (RFC 8461, section 3.1)
                  optional; it enforces TLS for mail to the domain, such as bounces, and needs a policy file at an HTTPS server
                  publish: _mta-sts.example.org. TXT "v=STSv1; id=1"
            info  tls rpt _smtp._tls.example.org: there is no record (RFC 8460, section 3)
                  optional; senders report failures of TLS
                  publish: _smtp._tls.example.org. TXT "v=TLSRPTv1; rua=mailto:tls-reports@example.org"
        "#]].assert_eq(&text);
    }

    #[tokio::test]
    async fn without_a_server_selectors_are_given() {
        let zone = NameServer::start(ZONE);
        let arguments = DomainArgs {
            selector: vec!["t1".into(), "gone".into()],
            return_domain: vec!["Bounce.example.org".into()],
            ..arguments(&zone)
        };
        let (outcome, text) = examined(arguments, true, Err(Failure::failed("no server"))).await;
        assert!(outcome.is_err());
        let printed: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&printed["ok"], &printed["domain"]), (&json!(false), &json!("example.org")));
        let failed = printed["findings"].as_array().expect("findings").iter();
        let failed: Vec<String> = failed
            .filter(|finding| finding["level"] == "fail")
            .map(|finding| format!("{} {} {}", finding["check"], finding["subject"], finding["publish"][0]["type"]))
            .collect();
        assert_eq!(
            failed,
            [
                r#""spf" "bounce.example.org" "TXT""#,
                r#""dkim" "gone._domainkey.example.org" "TXT""#,
                r#""mx" "bounce.example.org" "MX""#,
            ]
        );
    }

    #[tokio::test]
    async fn arguments_are_checked() {
        let zone = NameServer::start(ZONE);
        let arguments = DomainArgs { domain: Some("https://example.org".into()), ..arguments(&zone) };
        let (outcome, _) = examined(arguments, false, Err(Failure::failed("no server"))).await;
        let failure = outcome.expect_err("not a domain");
        assert_eq!(failure.exit, Exit::Usage);
        assert_eq!(name_server("192.0.2.53"), Ok(SocketAddr::from(([192, 0, 2, 53], 53))));
        assert_eq!(name_server("192.0.2.53:5353"), Ok(SocketAddr::from(([192, 0, 2, 53], 5353))));
        assert!(name_server("ns.example.org").is_err());
    }
}
