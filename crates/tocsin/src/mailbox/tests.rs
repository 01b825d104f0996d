//! Tests of SMTP sessions with a mailbox.

use expect_test::{Expect, expect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

async fn start(change: impl FnOnce(&mut MailboxOptions)) -> Mailbox {
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut options = MailboxOptions { smtp: local, page: local, ..MailboxOptions::default() };
    change(&mut options);
    Mailbox::start(options).await.expect("free ports")
}

/// Sends everything at once and reads until the mailbox disconnects.
async fn run_dialogue(mailbox: &Mailbox, words: &[u8]) -> String {
    let mut stream = TcpStream::connect(mailbox.smtp_address()).await.expect("it listens");
    stream.write_all(words).await.expect("it reads");
    let mut replies = String::new();
    stream.read_to_string(&mut replies).await.expect("it answers");
    replies.replace('\r', "")
}

async fn check(words: &str, expected: Expect) -> Mailbox {
    let mailbox = start(|options| options.mail_bytes_max = 200).await;
    expected.assert_eq(&run_dialogue(&mailbox, words.replace('\n', "\r\n").as_bytes()).await);
    mailbox
}

#[tokio::test]
async fn a_pipelined_session() {
    let words = "EHLO me\nMAIL FROM:<a@x> BODY=8BITMIME SMTPUTF8\nRCPT TO:<grüße@x>\nRCPT TO:<b@x>\nDATA\nMessage-ID: <1@x>\nSubject: hi\n\n..dot\nend\n.\n\
        MAIL FROM:<>\nRCPT TO:<b@x>\nDATA\nMessage-ID: <1@x>\n\n.\nQUIT\n";
    let mailbox = check(
        words,
        expect![[r#"
        220 mailbox.localhost ESMTP Tocsin mailbox
        250-mailbox.localhost you had me at EHLO
        250-SMTPUTF8
        250-SIZE 200
        250-PIPELINING
        250-ENHANCEDSTATUSCODES
        250 8BITMIME
        250 2.1.0 ok
        250 2.1.5 ok
        250 2.1.5 ok
        354 end data with a dot
        250 2.0.0 accepted
        250 2.1.0 ok
        250 2.1.5 ok
        354 end data with a dot
        250 2.0.0 accepted
        221 2.0.0 bye
    "#]],
    )
    .await;
    assert_eq!(mailbox.counts(), Counts { mails: 2, recipients: 3, bytes: mailbox.counts().bytes, repeated: 1 });
    let mails = mailbox.newest();
    assert_eq!(mails[1].to, ["grüße@x", "b@x"]);
    assert_eq!(ParsedMail::read(&mails[1].bytes).part("text/plain"), Some(".dot\r\nend\r\n"));
    assert_eq!((mailbox.mails_for("b@x"), mailbox.mails_for("grüße@x")), (2, 1));
    assert_eq!(*mailbox.arrivals().borrow(), 2);
}

#[tokio::test]
async fn errors_get_a_reply_and_do_not_end_the_session() {
    let words = "RCPT TO:<b@x>\nDATA\nNONSENSE\nMAIL FROM:<a@x> SIZE=9999\nMAIL FROM:<a@x>\nMAIL FROM:<b@x>\nDATA\nRSET\nSTARTTLS\nVRFY b\nNOOP\nHELO me\nQUIT\n";
    let mailbox = check(
        words,
        expect![[r#"
        220 mailbox.localhost ESMTP Tocsin mailbox
        503 5.5.1 MAIL first
        503 5.5.1 MAIL first
        500 5.5.1 unknown command
        552 5.3.4 message too large
        250 2.1.0 ok
        503 5.5.1 nested MAIL command
        554 5.5.1 no valid recipients
        250 2.0.0 reset
        502 5.5.1 not implemented
        252 2.5.0 all mail is accepted
        250 2.0.0 ok
        250 mailbox.localhost
        221 2.0.0 bye
    "#]],
    )
    .await;
    assert_eq!(mailbox.counts(), Counts::default());
}

#[tokio::test]
async fn a_large_mail_is_refused_and_the_next_is_accepted() {
    let words = format!(
        "MAIL FROM:<a@x>\nRCPT TO:<b@x>\nDATA\n{}.\nMAIL FROM:<a@x>\nRCPT TO:<b@x>\nDATA\nsmall\n.\nQUIT\n",
        "a long line of text\n".repeat(20_000)
    );
    let mailbox = check(
        &words,
        expect![[r#"
        220 mailbox.localhost ESMTP Tocsin mailbox
        250 2.1.0 ok
        250 2.1.5 ok
        354 end data with a dot
        552 5.3.4 message too large
        250 2.1.0 ok
        250 2.1.5 ok
        354 end data with a dot
        250 2.0.0 accepted
        221 2.0.0 bye
    "#]],
    )
    .await;
    assert_eq!(mailbox.newest().iter().map(|mail| mail.bytes.clone()).collect::<Vec<_>>(), [b"small\r\n".to_vec()]);
}

#[tokio::test]
async fn a_session_byte_by_byte() {
    let mailbox = start(|_| {}).await;
    let mut stream = TcpStream::connect(mailbox.smtp_address()).await.expect("it listens");
    stream.set_nodelay(true).expect("a socket option");
    for byte in b"MAIL FROM:<a@x>\r\nRCPT TO:<b@x>\r\nDATA\r\nx\r\n..\r\n.\r\nQUIT\r\n" {
        stream.write_all(&[*byte]).await.expect("it reads");
    }
    let mut replies = String::new();
    stream.read_to_string(&mut replies).await.expect("it answers");
    assert!(replies.ends_with("250 2.0.0 accepted\r\n221 2.0.0 bye\r\n"), "{replies}");
    assert_eq!(mailbox.newest()[0].bytes, b"x\r\n.\r\n");
}

#[tokio::test]
async fn only_the_standard_terminator_ends_a_mail() {
    let ends = [
        "\n.\n",
        "\n.\r\n",
        "\r\n.\n",
        "\r.\r",
        "\r.\r\n",
        "\r\n.\r",
        "\n.\r",
        "\r.\n",
        "\r\n\0.\r\n",
        "\r\n.\0\r\n",
        "\r\n. \r\n",
    ];
    for end in ends {
        let mailbox = start(|_| {}).await;
        let other = "MAIL FROM:<other@x>\r\nRCPT TO:<b@x>\r\nDATA\r\nother\r\n.\r\n";
        let words = format!("MAIL FROM:<a@x>\r\nRCPT TO:<b@x>\r\nDATA\r\none{end}{other}QUIT\r\n");
        run_dialogue(&mailbox, words.as_bytes()).await;
        let mails = mailbox.newest();
        assert_eq!(mails.len(), 1, "{end:?} must not end a mail");
        assert!(mails[0].bytes.ends_with(b"other\r\n"), "{end:?}");
    }
}

#[tokio::test]
async fn limits_are_enforced() {
    let mailbox = start(|options| options.sessions_max = 0).await;
    assert_eq!(run_dialogue(&mailbox, b"").await, "421 4.3.2 too many sessions, try again later\n");
    let mailbox = start(|_| {}).await;
    assert!(run_dialogue(&mailbox, &[b'x'; 100_000]).await.ends_with("421 4.7.0 line too long\n"));
    let mailbox = start(|_| {}).await;
    assert!(
        run_dialogue(&mailbox, "NONSENSE\r\n".repeat(100).as_bytes()).await.ends_with("421 4.7.0 too many errors\n")
    );
}

#[tokio::test]
async fn the_page_shows_mails_and_executes_nothing() {
    let mailbox = start(|_| {}).await;
    let mail = "MAIL FROM:<a@x>\r\nRCPT TO:<b@x>\r\nDATA\r\nSubject: <script>1</script>\r\nContent-Type: text/html\r\n\r\n<script>2</script>\r\n.\r\nQUIT\r\n";
    run_dialogue(&mailbox, mail.as_bytes()).await;
    let client = crate::client::Client::new(format!("http://{}", mailbox.page_address()), None).expect("a client");
    let get = async |path: &str| {
        let answer = client.exchange(client.request(reqwest::Method::GET, path)).await.expect("an answer");
        let policy =
            answer.headers().get("content-security-policy").map(|value| value.to_str().expect("text").to_owned());
        (answer.status().as_u16(), policy.unwrap_or_default(), answer.text().await.expect("a body"))
    };
    let (status, policy, list) = get("/").await;
    assert_eq!(status, 200);
    assert!(list.contains("&lt;script&gt;1&lt;/script&gt;") && !list.contains("<script"), "{list}");
    assert!(policy.contains("default-src 'none'"));
    let (_, _, shown) = get("/mails/1").await;
    assert!(shown.contains("<iframe sandbox") && !shown.contains("<script"), "{shown}");
    let (_, policy, html) = get("/mails/1/html").await;
    assert!(policy.starts_with("sandbox;") && html.contains("<script>2"));
    assert_eq!(get("/mails/2").await.0, 404);
    let (_, _, list) = get("/api/mails").await;
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    assert_eq!((list["mails"].as_u64(), list["items"][0]["to"][0].as_str()), (Some(1), Some("b@x")));
}

#[tokio::test]
async fn a_busy_port_is_replaced_by_the_next() {
    let first = start(|_| {}).await;
    let second = start(|options| options.smtp = first.smtp_address()).await;
    assert!(second.smtp_address().port() > first.smtp_address().port());
}
