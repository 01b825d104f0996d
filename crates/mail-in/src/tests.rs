//! Sessions with a server, from the client's side.

use std::{io::Cursor, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
};
use tokio_rustls::TlsConnector;

use crate::{Access, Envelope, ErrorReply, Handler, Login, Patterns, Server, ServerLimits, ServerSettings};

/// Accepts recipients at `*@x`, and defers mails that contain `later`.
struct TestHandler(mpsc::UnboundedSender<(Envelope, String)>);

#[async_trait]
impl Handler for TestHandler {
    fn check_recipient(&self, recipient: &str) -> Result<(), ErrorReply> {
        match Patterns::new(&["*@x".to_owned()]).matches(recipient) {
            true => Ok(()),
            false => Err(ErrorReply::new(550, "5.1.1", "no such mailbox")),
        }
    }

    async fn accept(&self, envelope: Envelope, mail: Vec<u8>) -> Result<(), ErrorReply> {
        let text = String::from_utf8_lossy(&mail).into_owned();
        if text.contains("later") {
            return Err(ErrorReply::new(451, "4.3.0", "not now"));
        }
        self.0.send((envelope, text)).map_err(|_| ErrorReply::new(451, "4.3.0", "the test has ended"))
    }
}

struct TestServer {
    server: Server,
    accepted: mpsc::UnboundedReceiver<(Envelope, String)>,
}

async fn start(access: Access, limits: ServerLimits) -> TestServer {
    let (sender, accepted) = mpsc::unbounded_channel();
    let setting = ServerSettings { host: "mx.x".to_owned(), access, limits, handler: Arc::new(TestHandler(sender)) };
    let server = Server::start("127.0.0.1:0".parse().expect("an address"), setting).await.expect("it listens");
    TestServer { server, accepted }
}

fn small() -> ServerLimits {
    ServerLimits { mail_bytes_max: 200, recipients_max: 2, ..ServerLimits::default() }
}

/// Sends everything at once, and reads until the server closes the connection.
async fn say_all(mut stream: impl AsyncRead + AsyncWrite + Unpin, words: &[u8]) -> String {
    stream.write_all(words).await.expect("it reads");
    let mut replies = Vec::new();
    // The connection may be reset after the server closes it.
    let _ = stream.read_to_end(&mut replies).await;
    String::from_utf8(replies).expect("text").replace('\r', "")
}

impl TestServer {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.server.address()).await.expect("it listens")
    }

    async fn run_commands(&self, words: &str) -> String {
        say_all(self.connect().await, words.replace('\n', "\r\n").as_bytes()).await
    }

    fn texts(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.accepted.try_recv().ok()).map(|(_, text)| text).collect()
    }
}

/// The codes of replies, one for each line that is not continued.
fn codes(replies: &str) -> Vec<&str> {
    replies.lines().filter(|line| line.as_bytes().get(3) == Some(&b' ')).map(|line| &line[..3]).collect()
}

#[tokio::test]
async fn a_pipelined_session() {
    let mut server = start(Access::default(), small()).await;
    let replies = server
        .run_commands(
            "EHLO me\nMAIL FROM:<a@y> BODY=8BITMIME SMTPUTF8\nRCPT TO:<grüße@x>\nRCPT TO:<b@z>\nRCPT TO:<b@x>\nRCPT TO:<c@x>\n\
            DATA\nSubject: hi\n\n..dot\nend\n.\nMAIL FROM:<>\nRCPT TO:<b@x>\nDATA\n.\nMAIL FROM:<>\nRCPT TO:<b@x>\n\
            DATA\nlater\n.\nQUIT\n",
        )
        .await;
    assert_eq!(
        codes(&replies),
        [
            "220", "250", "250", "250", "550", "250", "452", "354", "250", "250", "250", "354", "250", "250", "250",
            "354", "451", "221"
        ],
        "{replies}"
    );
    assert!(replies.contains("550 5.1.1 no such mailbox"), "{replies}");
    let (envelope, text) = server.accepted.try_recv().expect("a mail");
    assert_eq!((envelope.from.as_str(), text.as_str()), ("a@y", "Subject: hi\r\n\r\n.dot\r\nend\r\n"));
    assert_eq!(envelope.to, ["grüße@x", "b@x"]);
    assert_eq!((envelope.host.as_str(), envelope.user, envelope.encrypted), ("me", None, false));
    assert_eq!(server.texts(), [""], "an empty mail is one");
}

#[tokio::test]
async fn each_recipient_has_a_reply_in_lmtp() {
    let server = start(Access::default(), small()).await;
    let replies = server.run_commands("LHLO me\nMAIL FROM:<a@y>\nRCPT TO:<a@x>\nRCPT TO:<b@x>\nDATA\n.\nQUIT\n").await;
    assert_eq!(codes(&replies), ["220", "250", "250", "250", "250", "354", "250", "250", "221"], "{replies}");
}

#[tokio::test]
async fn a_mail_can_be_sent_in_chunks() {
    let mut server = start(Access::default(), small()).await;
    let to = "MAIL FROM:<a@y>\nRCPT TO:<a@x>\n";
    let replies = server
        .run_commands(&format!(
            "EHLO me\n{to}BDAT 5\none\nBDAT 5 LAST\ntwo\n{to}BDAT 5\nsix\nDATA\nBDAT 0 LAST\nBDAT 5\none\n{to}BDAT 402 LAST\n{}\n\
            BDAT 5\none\nQUIT\n",
            "x".repeat(400)
        ))
        .await;
    assert_eq!(
        codes(&replies),
        [
            "220", "250", "250", "250", "250", "250", "250", "250", "250", "503", "250", "503", "250", "250", "552",
            "503", "221"
        ],
        "{replies}"
    );
    assert_eq!(server.texts(), ["one\r\ntwo\r\n", "six\r\n"]);
}

#[tokio::test]
async fn errors_get_a_reply_and_do_not_end_the_session() {
    let mut server = start(Access::default(), small()).await;
    let replies = server
        .run_commands(
            "MAIL FROM:<a@y>\nHELO me\nRCPT TO:<b@x>\nDATA\nNONSENSE\nMAIL FROM:<a@y> SIZE=9999\nMAIL FROM:<a@y>\nMAIL FROM:<b@y>\nDATA\n\
            RCPT TO:<nobody@z>\nDATA\nRSET\nSTARTTLS\nAUTH PLAIN AGEAYg==\nVRFY b\nEXPN b\nNOOP\nMAIL FROM:<a@y> BODY=BINARYMIME\nQUIT\n",
        )
        .await;
    assert_eq!(
        codes(&replies),
        [
            "220", "503", "250", "503", "503", "500", "552", "250", "503", "503", "550", "503", "250", "502", "502",
            "252", "502", "250", "501", "221"
        ],
        "{replies}"
    );
    assert_eq!(server.texts(), [""; 0]);
}

#[tokio::test]
async fn a_large_mail_is_refused_and_the_next_is_accepted() {
    let mut server = start(Access::default(), small()).await;
    let large = "a long line of text\n".repeat(20_000);
    let replies = server
        .run_commands(&format!(
            "EHLO me\nMAIL FROM:<a@y>\nRCPT TO:<b@x>\nDATA\n{large}.\nMAIL FROM:<a@y>\nRCPT TO:<b@x>\nDATA\nsmall\n.\nQUIT\n"
        ))
        .await;
    assert_eq!(codes(&replies), ["220", "250", "250", "250", "354", "552", "250", "250", "354", "250", "221"]);
    assert_eq!(server.texts(), ["small\r\n"]);
}

/// Possible and apparent ends of a mail: a second mail must never be extracted from the data of the first.
#[tokio::test]
async fn only_a_line_with_a_single_dot_ends_a_mail() {
    let ends = [
        "\n.\n",
        "\n.\r",
        "\r.\r",
        "\n.\r\n",
        "\r\n.\n",
        "\r\n.\r",
        "\r.\r\n",
        "\r\n\0.\r\n",
        "\r\r\n.\r\r\n",
        "\r.\n",
        ".\r\n",
    ];
    for end in ends {
        let mut server = start(Access::default(), ServerLimits::default()).await;
        let words = format!(
            "EHLO me\r\nMAIL FROM:<a@y>\r\nRCPT TO:<b@x>\r\nDATA\r\none{end}MAIL FROM:<evil@y>\r\nRCPT TO:<b@x>\r\nDATA\r\ntwo\r\n.\r\nQUIT\r\n"
        );
        let replies = say_all(server.connect().await, words.as_bytes()).await;
        let texts = server.texts();
        // One mail in any case: with a bare CR or LF it is refused, otherwise all of it is its data.
        let has_bare_break = end.replace("\r\n", "").contains(['\r', '\n']);
        assert_eq!(texts.len(), usize::from(!has_bare_break), "{end:?}: {replies} {texts:?}");
        assert_eq!(replies.matches("\n554 ").count(), usize::from(has_bare_break), "{end:?}: {replies}");
        assert_eq!(replies.matches("\n354 ").count(), 1, "{end:?}: {replies}");
        assert!(texts.iter().all(|text| text.contains("evil@y")), "{end:?}");
    }
}

#[tokio::test]
async fn a_session_byte_by_byte() {
    let mut server = start(Access::default(), small()).await;
    let mut stream = server.connect().await;
    stream.set_nodelay(true).expect("a socket option");
    for byte in b"EHLO me\r\nMAIL FROM:<a@y>\r\nRCPT TO:<b@x>\r\nDATA\r\nx\r\n..\r\n.\r\nQUIT\r\n" {
        stream.write_all(&[*byte]).await.expect("it reads");
    }
    let replies = say_all(stream, b"").await;
    assert!(replies.ends_with("250 2.0.0 accepted\n221 2.0.0 bye\n"), "{replies}");
    assert_eq!(server.texts(), ["x\r\n.\r\n"]);
}

#[tokio::test]
async fn limits_are_enforced() {
    let none = ServerLimits { connections_max: 0, ..ServerLimits::default() };
    let replies = start(Access::default(), none).await.run_commands("").await;
    assert_eq!(replies, "421 4.3.2 too many connections, try again later\n");

    let one = ServerLimits { connections_per_address_max: 1, ..ServerLimits::default() };
    let server = start(Access::default(), one).await;
    let mut first = server.connect().await;
    first.read_exact(&mut [0; 4]).await.expect("a greeting");
    assert_eq!(codes(&server.run_commands("").await), ["421"]);

    let server = start(Access::default(), ServerLimits { mails_max: 1, ..ServerLimits::default() }).await;
    let mail = "MAIL FROM:<a@y>\nRCPT TO:<b@x>\nDATA\n.\n";
    let replies = server.run_commands(&format!("EHLO me\n{mail}MAIL FROM:<a@y>\nQUIT\n")).await;
    assert_eq!(codes(&replies), ["220", "250", "250", "250", "354", "250", "451", "221"]);

    let server = start(Access::default(), ServerLimits::default()).await;
    assert!(server.run_commands(&"x".repeat(100_000)).await.ends_with("421 4.7.0 the line is too long\n"));
    assert!(server.run_commands(&"NONSENSE\n".repeat(200)).await.ends_with("421 4.7.0 too many errors\n"));
    assert!(
        server.run_commands(&"NOOP\n".repeat(2_000)).await.ends_with("421 4.7.0 too many commands without a mail\n")
    );

    let hasty = ServerLimits { idle: Duration::from_millis(1), ..ServerLimits::default() };
    assert_eq!(codes(&start(Access::default(), hasty).await.run_commands("").await), ["220", "421"]);
    let hasty = ServerLimits { mail_timeout: Duration::from_millis(1), ..ServerLimits::default() };
    let begun = "EHLO me\nMAIL FROM:<a@y>\nRCPT TO:<b@x>\nDATA\nnever whole\n";
    assert!(start(Access::default(), hasty).await.run_commands(begun).await.ends_with("421 4.4.2 timeout\n"));
}

#[tokio::test]
async fn an_incomplete_command_does_not_extend_the_idle_time() {
    let limits = ServerLimits { idle: Duration::from_millis(300), ..ServerLimits::default() };
    let server = start(Access::default(), limits).await;
    let (mut reading, mut writing) = server.connect().await.into_split();
    let dripping = tokio::spawn(async move {
        while writing.write_all(b"N").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let mut replies = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(20), reading.read_to_end(&mut replies)).await.expect("it is cut");
    dripping.abort();
    assert!(String::from_utf8_lossy(&replies).ends_with("421 4.4.2 timeout\r\n"));
}

#[tokio::test]
async fn too_many_recipients_do_not_end_the_session() {
    let mut server = start(Access::default(), small()).await;
    let recipients = "RCPT TO:<b@x>\n".repeat(300);
    let replies = server.run_commands(&format!("EHLO me\nMAIL FROM:<a@y>\n{recipients}DATA\n.\nQUIT\n")).await;
    assert_eq!(codes(&replies).iter().filter(|code| **code == "452").count(), 298);
    assert!(replies.ends_with("250 2.0.0 accepted\n221 2.0.0 bye\n"), "{replies}");
    assert_eq!(server.accepted.try_recv().expect("a mail").0.to.len(), 2);
}

#[tokio::test]
async fn a_stopping_server_replies_421() {
    let server = start(Access::default(), ServerLimits::default()).await;
    let mut stream = server.connect().await;
    stream.read_exact(&mut [0; 4]).await.expect("a greeting");
    server.server.close(Duration::from_secs(60)).await;
    assert!(say_all(stream, b"").await.ends_with("421 4.3.2 this server is stopping, try again later\n"));
}

/// An access with a certificate, and a client that trusts it.
fn encrypted() -> (Access, TlsConnector) {
    let made = rcgen::generate_simple_self_signed(vec!["mx.x".to_owned()]).expect("a certificate");
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let own = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("a certificate");
    let access = Access { tls: Some(Arc::new(own)), ..Access::default() };
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("a root");
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    (access, TlsConnector::from(Arc::new(config)))
}

async fn start_tls(server: &TestServer, connector: &TlsConnector) -> impl AsyncRead + AsyncWrite + Unpin + use<> {
    let mut stream = server.connect().await;
    stream.write_all(b"EHLO me\r\nMAIL FROM:<a@y>\r\nSTARTTLS\r\n").await.expect("it reads");
    let mut replies = Vec::new();
    while !replies.ends_with(b"220 2.0.0 ready for TLS\r\n") {
        replies.push(stream.read_u8().await.expect("it answers"));
    }
    let replies = String::from_utf8(replies).expect("text");
    assert!(replies.contains("250-STARTTLS") && !replies.contains("AUTH PLAIN\r"), "{replies}");
    connector.connect("mx.x".try_into().expect("a name"), stream).await.expect("a handshake")
}

#[tokio::test]
async fn s8_a_connection_with_implicit_tls_begins_with_the_handshake() {
    let (access, connector) = encrypted();
    let mut server = start(Access { implicit_tls: true, ..access }, ServerLimits::default()).await;
    let stream = server.connect().await;
    let stream = connector.connect("mx.x".try_into().expect("a name"), stream).await.expect("a handshake");
    let words = "EHLO me\r\nSTARTTLS\r\nMAIL FROM:<a@y>\r\nRCPT TO:<b@x>\r\nDATA\r\nsafe\r\n.\r\nQUIT\r\n";
    let replies = say_all(stream, words.as_bytes()).await;
    assert_eq!(codes(&replies), ["220", "250", "503", "250", "250", "354", "250", "221"], "{replies}");
    assert!(server.accepted.try_recv().expect("a mail").0.encrypted);
}

#[tokio::test]
async fn sending_requires_a_login_and_encryption() {
    let (access, connector) = encrypted();
    let login = Login { user: "meters".to_owned(), password: "pass".to_owned() };
    let access = Access { require_tls: true, login: Some(login), ..access };
    let mut server = start(access, ServerLimits::default()).await;
    // A login with a wrong password, then with the correct one on a separate line.
    let words = "EHLO me\r\nMAIL FROM:<a@y>\r\nAUTH PLAIN AG1ldGVycwBwYXN6\r\nAUTH LOGIN\r\nAUTH PLAIN\r\nAG1ldGVycwBwYXNz\r\n\
        MAIL FROM:<a@y>\r\nRCPT TO:<b@x>\r\nDATA\r\nsafe\r\n.\r\nSTARTTLS\r\nQUIT\r\n";
    let replies = say_all(start_tls(&server, &connector).await, words.as_bytes()).await;
    assert_eq!(
        codes(&replies),
        ["250", "530", "535", "504", "334", "235", "250", "250", "354", "250", "503", "221"],
        "{replies}"
    );
    assert!(replies.contains("AUTH PLAIN\n"), "{replies}");
    let (envelope, _) = server.accepted.try_recv().expect("a mail");
    assert_eq!((envelope.user.as_deref(), envelope.encrypted), (Some("meters"), true));

    let replies = server.run_commands("EHLO me\nMAIL FROM:<a@y>\nAUTH PLAIN AG1ldGVycwBwYXNz\nQUIT\n").await;
    assert_eq!(codes(&replies), ["220", "250", "530", "538", "221"], "{replies}");
    let wrong = "AUTH PLAIN AG1ldGVycwBwYXN6\r\n".repeat(5);
    let replies = say_all(start_tls(&server, &connector).await, wrong.as_bytes()).await;
    assert_eq!(codes(&replies), ["535", "535", "421"], "{replies}");
}

#[tokio::test]
async fn bytes_sent_before_a_handshake_are_not_used_after_it() {
    let (access, _) = encrypted();
    let mut server = start(access, ServerLimits::default()).await;
    let replies = server.run_commands("EHLO me\nSTARTTLS\nMAIL FROM:<a@y>\nRCPT TO:<b@x>\nDATA\nevil\n.\nQUIT\n").await;
    assert_eq!(codes(&replies), ["220", "501"], "{replies}");
    assert_eq!(server.texts(), [""; 0]);
}

/// Random input in random pieces: no panic, and the session ends. The seed of a failing case is in the message.
#[tokio::test]
async fn random_input_does_not_break_the_server() {
    let words: [&[u8]; 16] = [
        b"EHLO me\r\n",
        b"LHLO me\r\n",
        b"MAIL FROM:<a@y>\r\n",
        b"RCPT TO:<b@x>\r\n",
        b"DATA\r\n",
        b".\r\n",
        b"\r\n.\r\n",
        b"BDAT 3\r\nabc",
        b"BDAT 0 LAST\r\n",
        b"BDAT 99999999999999999999\r\n",
        b"AUTH PLAIN\r\n",
        b"STARTTLS\r\n",
        b"\0\xff\r\n",
        b"RSET\r\n",
        b"RCPT TO:<@a,@b:\"x y\"@x>\r\n",
        b"MAIL FROM:<> SIZE=18446744073709551616\r\n",
    ];
    let seed: u64 = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(4_711);
    let cases: u64 = std::env::var("CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let mut server = start(Access::default(), small()).await;
    for case in seed..seed + cases {
        let mut random = case.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut next = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below
        };
        let mut text = Cursor::new(Vec::new());
        for _ in 0..next(40) {
            std::io::Write::write_all(&mut text, words[next(words.len())]).expect("memory");
        }
        let mut stream = server.connect().await;
        let text = text.into_inner();
        for piece in text.chunks(next(50) + 1) {
            if stream.write_all(piece).await.is_err() {
                break;
            }
        }
        let _ = stream.shutdown().await;
        let replies = say_all(stream, b"").await;
        assert!(replies.starts_with("220 "), "SEED={case}: {replies}");
    }
    server.texts();
    assert_eq!(codes(&server.run_commands("QUIT\n").await), ["220", "221"]);
}

#[tokio::test]
async fn c12_a_bare_line_break_does_not_end_a_command() {
    let server = start(Access::default(), small()).await;
    for words in [
        "EHLO me\nMAIL FROM:<a@y>\r\n",
        "EHLO me\rMAIL FROM:<a@y>\r\n",
        "EHLO me\r\nNOOP\nQUIT\r\n",
        "EHLO me\r\nNOOP\r\rQUIT\r\n",
        "EHLO me\r\n\nQUIT\r\n",
        "EHLO me\r\nMAIL FROM:<a@y>\r\nRCPT TO:<a@x>\nDATA\r\n.\r\n",
    ] {
        let replies = say_all(server.connect().await, words.as_bytes()).await;
        assert!(
            replies
                .ends_with("521 5.5.2 the command contains a bare CR or LF: lines end with CR LF (RFC 5321, 2.3.8)\n"),
            "{words:?}: {replies}"
        );
        assert!(!replies.contains("221") && !replies.contains("354"), "{words:?}: {replies}");
    }
}

#[tokio::test]
async fn c12_a_mail_with_a_bare_line_break_is_refused_and_is_one_mail() {
    let mut server = start(Access::default(), ServerLimits { mail_bytes_max: 2_000, ..small() }).await;
    let smuggled = "MAIL FROM:<evil@y>\r\nRCPT TO:<b@x>\r\nDATA\r\nsecond\r\n";
    for end in ["\n.\n", "\n.\r\n", "\r\n.\n", "\r.\r", "\r\n.\r", "\r.\r\n", "\n.\r", "\r\n.\r\r\n", "\r\n\0.\n"] {
        let words = format!("EHLO me\r\nMAIL FROM:<a@y>\r\nRCPT TO:<a@x>\r\nDATA\r\nfirst{end}{smuggled}.\r\nQUIT\r\n");
        let replies = say_all(server.connect().await, words.as_bytes()).await;
        assert_eq!(codes(&replies), ["220", "250", "250", "250", "354", "554", "221"], "{end:?}: {replies}");
        assert_eq!(server.texts(), Vec::<String>::new(), "{end:?}");
    }
    // In LMTP each recipient gets a reply, and a correct mail is accepted afterwards.
    let words = "LHLO me\r\nMAIL FROM:<a@y>\r\nRCPT TO:<a@x>\r\nRCPT TO:<b@x>\r\nDATA\r\na\nb\r\n.\r\n\
                 MAIL FROM:<a@y>\r\nRCPT TO:<a@x>\r\nDATA\r\ngood\r\n.\r\nQUIT\r\n";
    let replies = say_all(server.connect().await, words.as_bytes()).await;
    assert_eq!(
        codes(&replies),
        ["220", "250", "250", "250", "250", "354", "554", "554", "250", "250", "354", "250", "221"]
    );
    assert_eq!(server.texts(), ["good\r\n"]);
}
