use std::{path::PathBuf, sync::Arc};

use rcgen::{CertificateParams, KeyPair};
use rustls::{ServerConfig, pki_types::PrivateKeyDer};
use serde_json::json;
use tokio_rustls::TlsAcceptor;

use super::{OK, check_with, deliver, scripted_server::*, start};

#[tokio::test(start_paused = true)]
async fn wrong_credentials_defer_mails() {
    let script: Script = |connection, mail, heard| match heard.split(' ').next() {
        Some("EHLO") => Say("250-far.example\r\n250 AUTH LOGIN PLAIN"),
        Some("AUTH") => Say("535 5.7.8 no"),
        _ => accept_all(connection, mail, heard),
    };
    let options = json!({ "username": "me", "password": "secret", "allow_plain_auth": true });
    let expected = ["deferred Authentication our credentials are not accepted: 535 5.7.8 no"; 3];
    let server = check_with(script, options, expected, 1).await;
    assert!(server.seen.lock().heard.contains(&"AUTH PLAIN AG1lAHNlY3JldA==".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn credentials_are_sent_by_both_mechanisms_over_tls_only() {
    let script: Script = |connection, mail, heard| match heard {
        "EHLO [127.0.0.1]" => Say("250-far.example\r\n250 AUTH LOGIN"),
        "AUTH LOGIN" => Say("334 VXNlcm5hbWU6"),
        "bWU=" => Say("334 UGFzc3dvcmQ6"),
        "c2VjcmV0" => Say("235 welcome"),
        _ => accept_all(connection, mail, heard),
    };
    let options = json!({ "username": "me", "password": "secret", "allow_plain_auth": true });
    check_with(script, options, [OK, OK, OK], 1).await;
    let (open, server) = start(script, json!({ "username": "me", "password": "secret" }), None);
    let expected =
        "deferred Authentication the server offers no encryption, and the password does not travel in clear text";
    assert_eq!(deliver(&*open, &["a@b.example"]).await, [expected]);
    assert!(!server.seen.lock().heard.iter().any(|heard| heard.contains("AUTH")));
}

/// A certificate for a host with its final year, the server that uses it, and a file that trusts it.
fn certificate(host: &str, end: i32, folder: &tempfile::TempDir) -> (Encryption, PathBuf) {
    let mut parameters = CertificateParams::new([host.to_owned()]).expect("a host name");
    // Names that differ, as those of different authorities do.
    parameters.distinguished_name.push(rcgen::DnType::CommonName, host);
    parameters.not_before = rcgen::date_time_ymd(2019, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(end, 1, 1);
    let key = KeyPair::generate().expect("a key");
    let certificate = parameters.self_signed(&key).expect("a certificate");
    let file = folder.path().join(format!("{host}-{end}.pem"));
    std::fs::write(&file, certificate.pem()).expect("a file");
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider's versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
        .expect("a pair");
    (Encryption::Modern(TlsAcceptor::from(Arc::new(config))), file)
}

fn with_tls(connection: u32, mail: u32, heard: &str) -> Act {
    match heard.split(' ').next() {
        Some("EHLO") => Say("250-far.example\r\n250-STARTTLS\r\n250-PIPELINING\r\n250 AUTH PLAIN"),
        Some("STARTTLS") => Say("220 go"),
        Some("AUTH") => Say("235 welcome"),
        _ => accept_all(connection, mail, heard),
    }
}

#[tokio::test(start_paused = true)]
async fn encryption_is_verified() {
    let folder = tempfile::tempdir().expect("a folder");
    let (good, file) = certificate("far.example", 4000, &folder);
    for tls in ["if_offered", "required"] {
        let options = json!({ "tls": tls, "ca_file": file, "username": "me", "password": "secret" });
        let (open, server) = start(with_tls, options, Some(good.clone()));
        assert_eq!(deliver(&*open, &["a@b.example"]).await, [OK]);
        assert!(open.probe().await.is_ok_and(|text| text.contains("(encrypted, pipelining)")));
        let seen = server.seen.lock();
        assert!(seen.heard.iter().any(|heard| heard.starts_with("AUTH PLAIN")));
        assert!(seen.heard.contains(&"TLS for far.example".to_owned()), "the server learns whom we mean");
    }
}

#[tokio::test(start_paused = true)]
async fn encryption_that_cannot_be_trusted_is_refused_with_its_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let (good, file) = certificate("far.example", 4000, &folder);
    let (expired, expired_file) = certificate("far.example", 2020, &folder);
    let (other, other_file) = certificate("other.example", 4000, &folder);
    for (encryption, script, trusted, expected) in [
        (expired, with_tls as Script, &expired_file, "certificate expired"),
        (other, with_tls, &other_file, "certificate not valid for name \"far.example\""),
        // Self-signed, and not trusted.
        (good.clone(), with_tls, &other_file, "UnknownIssuer"),
        (Encryption::Old, with_tls, &file, "peer is incompatible"),
        (good, accept_all, &file, "the server does not offer STARTTLS"),
    ] {
        let (open, server) = start(script, json!({ "tls": "required", "ca_file": trusted }), Some(encryption));
        let shown = deliver(&*open, &["a@b.example"]).await;
        assert!(shown[0].starts_with("deferred Tls") && shown[0].contains(expected), "{shown:?}");
        assert!(open.down().is_some_and(|reason| shown[0].ends_with(&reason.text)), "it is visible at the channel too");
        let seen = server.seen.lock();
        assert!(seen.contents.is_empty() && !seen.heard.iter().any(|heard| heard.starts_with("MAIL")));
    }
}

#[tokio::test(start_paused = true)]
async fn scram_is_preferred_and_allowed_without_tls() {
    // The server's part of RFC 7677 would need our nonce, so only the beginning of the exchange is checked.
    let script: Script = |connection, mail, heard| match heard.split(' ').next().unwrap_or_default() {
        "EHLO" => Say("250-far.example\r\n250 AUTH PLAIN SCRAM-SHA-256"),
        "AUTH" => Say("334 cj1zb21lYm9keSBlbHNlLHM9QUFBQSxpPTQwOTY="),
        _ => accept_all(connection, mail, heard),
    };
    // The first message, with the name in the form of SASLprep.
    for (username, first) in [("me", "biwsbj1tZSxyP"), ("me\u{301}", "biwsbj1tw6kscj")] {
        let (open, server) = start(script, json!({ "username": username, "password": "gehe\u{ad}im" }), None);
        let expected = ["deferred Authentication the server's SCRAM challenge has another nonce"];
        assert_eq!(deliver(&*open, &["a@b.example"]).await, expected);
        let seen = server.seen.lock();
        let first = format!("AUTH SCRAM-SHA-256 {first}");
        assert!(seen.heard.iter().any(|heard| heard.starts_with(&first)), "{:?}", seen.heard);
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_is_read_anew_for_each_session() {
    let script: Script = |connection, mail, heard| match (heard.split(' ').next().unwrap_or_default(), heard) {
        ("EHLO", _) => Say("250-far.example\r\n250 AUTH PLAIN XOAUTH2"),
        // user=me auth=Bearer old, with the separators of XOAUTH2.
        (_, "AUTH XOAUTH2 dXNlcj1tZQFhdXRoPUJlYXJlciBvbGQBAQ==") => Say("334 eyJzdGF0dXMiOiI0MDEifQ=="),
        (_, "AUTH XOAUTH2 dXNlcj1tZQFhdXRoPUJlYXJlciBuZXcBAQ==") => Say("235 welcome"),
        ("", _) if connection > 0 && mail == 0 => Say("220 far.example ready"),
        (_, "") => Say("535 5.7.8 no"),
        _ => accept_all(connection, mail, heard),
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    std::fs::write(&file, "old\n").expect("a file");
    let options = json!({ "username": "me", "token_file": file, "allow_plain_auth": true, "patience": "1s" });
    let (open, server) = start(script, options, None);
    let shown = deliver(&*open, &["a@b.example"]).await;
    assert!(shown[0].starts_with("deferred Authentication our credentials are not accepted: "), "{shown:?}");
    std::fs::write(&file, "new\n").expect("a file");
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert_eq!(deliver(&*open, &["a@b.example"]).await, [OK]);
    assert_eq!(server.connections(), 2);
    std::fs::write(&file, "two words").expect("a file");
    let options = json!({ "username": "me", "token_file": file, "allow_plain_auth": true });
    let (open, _) = start(script, options, None);
    let shown = deliver(&*open, &["a@b.example"]).await;
    assert!(shown[0].ends_with("cannot be used: it must be one line of visible ASCII"), "{shown:?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_said_before_encryption_counts_after_it() {
    let script: Script = |connection, mail, heard| match heard {
        "STARTTLS" => Say("220 go\r\n250 injected"),
        _ => with_tls(connection, mail, heard),
    };
    let (open, _) = start(script, json!({ "tls": "required" }), None);
    assert_eq!(
        deliver(&*open, &["a@b.example"]).await,
        ["deferred Tls the server sent more than its reply to STARTTLS"]
    );
}
