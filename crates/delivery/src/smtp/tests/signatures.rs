use std::{
    io::Write,
    process::{Command, Stdio},
    sync::Arc,
};

use serde_json::json;
use tocsin_test_peers::{Peer, missing};

use super::{OK, deliver, deliver_all, scripted_server::*, start};
use crate::{
    smtp::dkim::{DkimKey, tests::key},
    testing::{multicast, outgoing},
};

/// Generates a private key as the guide describes.
fn openssl(arguments: &[&str]) -> String {
    let made = Command::new(Peer::Openssl.path()).args(arguments).stderr(Stdio::null()).output().expect("openssl runs");
    assert!(made.status.success(), "openssl {arguments:?}");
    String::from_utf8(made.stdout).expect("PEM")
}

/// Results of dkimpy for the signatures of each mail.
fn verify(mails: &[String], records: &[(String, String)]) -> Vec<Vec<bool>> {
    let records: serde_json::Map<_, _> =
        records.iter().map(|(name, text)| (name.clone(), text.clone().into())).collect();
    let question = json!({ "mails": mails, "records": records }).to_string();
    // Debian's own interpreter, which finds Debian's packages.
    let mut python = Command::new("/usr/bin/python3")
        .args(["-c", include_str!("verify_dkim.py")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("/usr/bin/python3 is there: it comes with the package python3-dkim");
    python.stdin.take().expect("a pipe").write_all(question.as_bytes()).expect("it is read");
    let answer = python.wait_with_output().expect("it ends");
    assert!(answer.status.success(), "the package python3-dkim is installed");
    serde_json::from_slice(&answer.stdout).expect("JSON")
}

/// A content without dot-stuffing.
fn unstuffed(content: &str) -> String {
    content.split_inclusive("\r\n").map(|line| line.strip_prefix('.').unwrap_or(line)).collect()
}

#[tokio::test(start_paused = true)]
async fn an_independent_library_verifies_both_kinds_of_keys() {
    if missing(&[Peer::Dkim, Peer::Openssl]) {
        return;
    }
    let rsa = key(&openssl(&["genrsa", "2048"]), "r2048");
    let pkcs1 = key(&openssl(&["genrsa", "-traditional", "2048"]), "pkcs1");
    let edwards = key(&openssl(&["genpkey", "-algorithm", "ed25519"]), "ed");
    let records: Vec<_> = [&rsa, &pkcs1, &edwards]
        .map(|key| {
            DkimKey::open(key, "near.example", "dkim", &crate::testing::context().files).expect("a key").record()
        })
        .into_iter()
        .collect();
    assert_eq!(records[0].0, "r2048._domainkey.near.example");
    let keys: Vec<_> =
        [&rsa, &pkcs1, &edwards].map(|key| json!({ "selector": key.selector, "key": key.key })).into_iter().collect();
    let (open, server) = start(accept_all, json!({ "dkim": keys, "headers": { "X-Note": "ü  \tx" } }), None);
    let mut mails: Vec<_> = (0..5).map(|number| outgoing(number, "a@b.example")).collect();
    let text = |number: usize| match number {
        0 => "short",
        1 => "",
        2 => ".\r\n..\n  \t \nspaces  at   the end \t\n\n\n\n",
        3 => "a line without end",
        _ => "Grüße\n\n",
    };
    for (number, mail) in mails.iter_mut().enumerate() {
        let message = Arc::make_mut(&mut mail.message);
        Arc::make_mut(&mut message.content).text = Some(text(number).into());
        Arc::make_mut(&mut message.content).html = (number % 2 == 0).then(|| "<p>.\n.</p>".into());
        Arc::make_mut(&mut message.content).subject = Some("long and ü ".repeat(number * 10));
    }
    assert_eq!(deliver_all(&*open, mails).await, [OK; 5]);
    assert_eq!(deliver_all(&*open, multicast(&["a@b.example", "c@d.example"])).await, [OK; 2]);
    let contents: Vec<String> = server.seen.lock().contents.iter().map(|content| unstuffed(content)).collect();
    assert_eq!(verify(&contents, &records), vec![vec![true; 3]; 6]);

    // Changes and additions break the signature.
    let first = &contents[0];
    let broken = [
        first.replace("short", "shorT"),
        format!("From: x@y.example\r\n{first}"),
        first.replacen("\r\nSubject:", "\r\nSubject: first\r\nSubject:", 1),
        format!("Reply-To: x@y.example\r\n{first}"),
        first.replacen("MIME-Version: 1.0", "MIME-Version: 1.1", 1),
    ];
    for (mail, valid) in broken.iter().zip(verify(&broken, &records)) {
        assert!(mail != first && valid.iter().all(|valid| !valid), "{mail}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_keys_there_is_no_signature() {
    let (open, server) = start(accept_all, json!({}), None);
    assert_eq!(deliver(&*open, &["a@b.example"]).await, [OK]);
    assert!(!server.seen.lock().contents[0].contains("DKIM-Signature"));
}

#[tokio::test(start_paused = true)]
async fn the_identity_of_a_channel_has_domains_and_public_keys() {
    let pkcs8 = ring::signature::Ed25519KeyPair::generate_pkcs8(&ring::rand::SystemRandom::new()).expect("a key");
    let pem = format!(
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
        base64::Engine::encode(&base64::prelude::BASE64_STANDARD, pkcs8.as_ref())
    );
    let options = json!({
        "from": "Bücher <news@Bücher.example>", "return_path": "bounces@bounce.example", "ehlo": "out.example",
        "dkim": [{ "selector": "s1", "key": pem }],
    });
    let (open, _) = start(accept_all, options, None);
    let sender = open.mail_sender().expect("a mail channel");
    assert_eq!(
        (sender.from_domain.as_str(), sender.return_domain.as_str()),
        ("xn--bcher-kva.example", "bounce.example")
    );
    assert_eq!((sender.hosts, sender.ehlo.as_deref()), (vec!["far.example".to_owned()], Some("out.example")));
    let [key] = sender.keys.as_slice() else { panic!("one key: {:?}", sender.keys) };
    assert_eq!((key.selector.as_str(), key.domain.as_str()), ("s1", "xn--bcher-kva.example"));
    assert!(key.record.starts_with("v=DKIM1; k=ed25519; p="), "{}", key.record);
}
