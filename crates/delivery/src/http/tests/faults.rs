//! Fault table: faults of a server, and their effect on the message and its destination.

use tocsin_model::delivery_policy::Priority;

use super::*;
use crate::channel::DestinationState;

/// Sends three messages one after the other; compares the result of the first, the state of the destination and the
/// duration in seconds.
async fn check(script: Script, expected: &str, state: DestinationState, limit: u32, seconds: u64) {
    let (open, _) = start(script, json!({}), 1);
    let before = tokio::time::Instant::now();
    let shown = deliver(&*open, &[HOOK]).await;
    assert!(shown[0].starts_with(expected), "{shown:?} is not {expected}");
    assert_eq!(before.elapsed().as_secs(), seconds, "{expected}");
    let found = open.destinations(10);
    assert_eq!((found.len(), found[0].state, found[0].concurrency), (1, state, limit), "{found:?}");
    assert_eq!(found[0].name, "http://1.1.1.1");
}

#[tokio::test(start_paused = true)]
async fn each_fault_has_its_answer() {
    use DestinationState::Open;
    check(|_, _, _| Say("HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops"), "deferred Answer 500 oops", Open, 5, 0)
        .await;
    check(
        |_, _, _| Say("HTTP/1.1 429 Slow\r\nRetry-After: 60\r\nContent-Length: 0\r\n\r\n"),
        "deferred Answer 429",
        Open,
        2,
        0,
    )
    .await;
    check(|_, _, _| Say("HTTP/1.1 503 Later\r\nContent-Length: 0\r\n\r\n"), "deferred Answer 503", Open, 2, 0).await;
    check(
        |_, _, _| Say("HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n"),
        "refused Gone 410; the endpoint is gone for good",
        Open,
        5,
        0,
    )
    .await;
    check(
        |_, _, _| Say("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n"),
        "refused Answer 302: redirects are not followed",
        Open,
        5,
        0,
    )
    .await;
    check(|_, request, _| if request == 0 { Say("") } else { Silence }, "deferred Timeout", Open, 2, 15).await;
    check(|_, _, _| Drip, "deferred Timeout", Open, 2, 15).await;
    check(|_, _, _| Endless, "delivered 200", Open, 5, 0).await;
    check(|_, request, _| if request == 0 { Say("") } else { Close }, "deferred Connection no response", Open, 2, 0)
        .await;
    check(|_, _, _| Close, "deferred Connection no connection", Open, 2, 0).await;
    check(|_, _, _| Reset, "deferred Connection no response", Open, 2, 0).await;
    // The status is the answer, even if the body breaks off.
    check(|_, _, _| Last("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this"), "delivered 200", Open, 5, 0).await;
    check(
        |_, _, _| Last("HTTP/1.1 500 Oops\r\nContent-Length: 100\r\n\r\nonly this"),
        "deferred Answer 500 only this",
        Open,
        5,
        0,
    )
    .await;
    // The connection is closed after the first bytes of a huge body.
    check(
        |_, _, _| Last("HTTP/1.1 503 Later\r\nContent-Length: 10737418240\r\n\r\nthe beginning"),
        "deferred Answer 503 the beginning",
        Open,
        2,
        0,
    )
    .await;
    // A compressed body is not decompressed, so it cannot exhaust memory.
    check(
        |_, _, _| Say("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x0b\x08\x00"),
        "delivered 200",
        Open,
        5,
        0,
    )
    .await;
    check(|_, _, _| Say("SSH-2.0-OpenSSH_9.2\r\n\r\n"), "deferred Connection no response", Open, 2, 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_destination_is_paused_and_its_messages_come_back_untried() {
    let (open, far) = start(|_, request, _| if request == 0 { Say("") } else { Silence }, json!({}), 8);
    let before = tokio::time::Instant::now();
    let shown = deliver(&*open, &[HOOK; 40]).await;
    let timeouts = shown.iter().filter(|shown| shown.starts_with("deferred Timeout")).count();
    let untried = shown.iter().filter(|shown| shown.starts_with("deferred Untried")).count();
    assert_eq!((timeouts, untried), (5, 35), "{shown:?}");
    assert_eq!(before.elapsed().as_secs(), 15);
    assert_eq!(far.connections.load(Ordering::SeqCst), 5, "five at first, and no more");
    let found = &open.destinations(1)[0];
    assert_eq!((found.state, found.failures), (DestinationState::Paused, 20));
    assert_eq!(open.destination_counts(), [0, 0, 1, 0]);
    assert!(open.hold(HOOK, Priority::Normal).is_some_and(|wait| wait.as_secs() <= 6));
    assert_eq!(open.hold("http://1.1.1.2/", Priority::Normal), None);
    tokio::time::advance(Duration::from_secs(6)).await;
    assert_eq!((open.destination_counts(), open.hold(HOOK, Priority::Normal)), ([0, 1, 0, 0], None));
}

#[tokio::test(start_paused = true)]
async fn a_wish_for_later_is_kept_by_the_destination() {
    let script: Script = |_, request, _| match request {
        1 => Say("HTTP/1.1 429 Slow\r\nRetry-After: 60\r\nContent-Length: 0\r\n\r\n"),
        _ => Say(OK),
    };
    let (open, _) = start(script, json!({"retry_after_max": "20s"}), 1);
    assert_eq!(deliver(&*open, &[HOOK]).await, ["deferred Answer 429"]);
    assert_eq!(open.hold(HOOK, Priority::Normal), Some(Duration::from_secs(20)), "obeyed, and capped");
    assert_eq!(deliver(&*open, &[HOOK]).await, ["deferred Untried its destination has enough to do"]);
    tokio::time::advance(Duration::from_secs(20)).await;
    assert_eq!(deliver(&*open, &[HOOK]).await, ["delivered 200"]);
}

/// Invalid certificates of every kind, and a client certificate.
#[tokio::test]
async fn certificates_are_looked_at_from_both_sides() {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use rustls::{pki_types::pem::PemObject, server::WebPkiClientVerifier};

    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("text").to_owned()
    };
    let authority = |name: &str| {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        (params.self_signed(&key).expect("a certificate").pem(), Issuer::new(params, key))
    };
    let (ours, ours_issuer) = authority("ours");
    let (theirs, theirs_issuer) = authority("theirs");
    let leaf = |host: &str, issuer: &Issuer<'_, KeyPair>, expired: bool| {
        let mut params = CertificateParams::new(vec![host.to_owned()]).expect("parameters");
        if expired {
            (params.not_before, params.not_after) =
                (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(2021, 1, 1));
        }
        let key = KeyPair::generate().expect("a key");
        (params.signed_by(&key, issuer).expect("a certificate").pem(), key.serialize_pem())
    };
    let ca_file = file("ca.pem", ours.clone());
    let (client, client_key) = leaf("tocsin.example", &ours_issuer, false);
    let (client, client_key) = (file("client.pem", client), file("client.key", client_key));
    let (stranger, stranger_key) = leaf("tocsin.example", &theirs_issuer, false);
    let (stranger, stranger_key) = (file("stranger.pem", stranger), file("stranger.key", stranger_key));

    // Serves one connection with a certificate; with `asks`, only a client that ours has signed.
    let named = Arc::new(Mutex::new(Vec::new()));
    let serve = async |certificate: (String, String), asks: bool| {
        let named = named.clone();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("versions");
        let builder = match asks {
            false => builder.with_no_client_auth(),
            true => {
                let mut roots = rustls::RootCertStore::empty();
                let root = rustls::pki_types::CertificateDer::from_pem_slice(ours.as_bytes()).expect("PEM");
                roots.add(root).expect("a root");
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().expect("a verifier"))
            }
        };
        let chain = vec![rustls::pki_types::CertificateDer::from_pem_slice(certificate.0.as_bytes()).expect("PEM")];
        let key = rustls::pki_types::PrivateKeyDer::from_pem_slice(certificate.1.as_bytes()).expect("PEM");
        let acceptor =
            tokio_rustls::TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).expect("a server")));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.expect("a connection");
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            named.lock().push(stream.get_ref().1.server_name().map(str::to_owned));
            let mut unread = Vec::new();
            while !unread.ends_with(b"}") && matches!(stream.read_buf(&mut unread).await, Ok(1..)) {}
            stream.write_all(OK.as_bytes()).await.ok();
            stream.shutdown().await.ok();
        });
        port
    };
    let cases = [
        ("right", leaf("localhost", &ours_issuer, false), false, json!({}), "delivered 200"),
        ("wrong host", leaf("other.example", &ours_issuer, false), false, json!({}), "deferred Tls"),
        ("expired", leaf("localhost", &ours_issuer, true), false, json!({}), "deferred Tls"),
        ("unknown issuer", leaf("localhost", &theirs_issuer, false), false, json!({}), "deferred Tls"),
        (
            "asked for ours, and have one",
            leaf("localhost", &ours_issuer, false),
            true,
            json!({"certificate_file": client, "key_file": client_key}),
            "delivered 200",
        ),
        // The server's refusal comes with the first answer or instead of it.
        ("asked for ours, and have none", leaf("localhost", &ours_issuer, false), true, json!({}), "deferred "),
        (
            "asked for ours, and have a stranger's",
            leaf("localhost", &ours_issuer, false),
            true,
            json!({"certificate_file": stranger, "key_file": stranger_key}),
            "deferred ",
        ),
    ];
    for (case, certificate, asks, more, expected) in cases {
        let port = serve(certificate, asks).await;
        let mut options = json!({"ca_file": ca_file, "allow_hosts": ["localhost"]});
        options.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let name = "hook".parse().expect("a name");
        let open = crate::open(&name, &channel("http", options, 1), &context());
        let open = open.unwrap_or_else(|problems| panic!("{problems:?}"));
        let shown = deliver(&*open, &[&format!("https://localhost:{port}/")]).await;
        assert!(shown[0].starts_with(expected), "{case}: {shown:?}");
        if expected == "deferred Tls" {
            assert!(shown[0].contains("certificate") || shown[0].contains("UnknownIssuer"), "{case}: {shown:?}");
        }
    }
    assert!(named.lock().iter().all(|name| name.as_deref() == Some("localhost")), "each request names its host");
    drop(theirs);

    // A server with only TLS 1.0 answers with an alert: there is no common version.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut hello = vec![0; 4096];
        let _ = stream.read(&mut hello).await;
        stream.write_all(&[21, 3, 1, 0, 2, 2, 70]).await.ok();
        stream.shutdown().await.ok();
    });
    let options = json!({"ca_file": ca_file, "allow_hosts": ["localhost"]});
    let name = "hook".parse().expect("a name");
    let open = crate::open(&name, &channel("http", options, 1), &context());
    let open = open.unwrap_or_else(|problems| panic!("{problems:?}"));
    let shown = deliver(&*open, &[&format!("https://localhost:{port}/")]).await;
    assert!(shown[0].starts_with("deferred Tls") && shown[0].contains("ProtocolVersion"), "{shown:?}");

    let name = "hook".parse().expect("a name");
    let wrong = json!({"certificate_file": client, "key_file": ca_file});
    let problems = crate::open(&name, &channel("http", wrong, 1), &context()).err().expect("no key");
    assert!(problems[0].to_string().starts_with("key_file: "), "{problems:?}");
}

#[tokio::test(start_paused = true)]
async fn requests_are_filled_in_and_answers_read_by_rules() {
    let options = json!({
        "url": "http://1.1.1.1/send/{address}?c={class}",
        "method": "PUT",
        "headers": {"x-place": "{fields.place}", "x-text": "{text}", "authorization": "Bearer t"},
        "body": {"json": {"to": "{address}", "quake": "{fields}"}},
        "answers": [{"status": "200", "json": "/status", "is": ["error"], "means": "refused", "reply": "/why"}],
    });
    let script: Script = |_, request, _| match request {
        1 => Say("HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{\"status\": \"error\", \"why\": \"bad number\"}"),
        _ => Say("HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"status\":\"ok\"}"),
    };
    let (open, far) = start(script, options, 1);
    assert_eq!(deliver(&*open, &["a b/../\r\nx: y", "+1"]).await, ["refused Answer 200 bad number", "delivered 200"]);
    let heads = far.heads.lock();
    assert!(heads[0].starts_with("PUT /send/a%20b%2F..%2F%0D%0Ax%3A%20y?c=quake HTTP/1.1\r\n"), "{}", heads[0]);
    assert!(heads[0].contains("\r\nx-place: Kobe\r\n"), "{}", heads[0]);
    assert!(heads[0].contains("\r\nx-text: Magnitude 6.1 . Stay safe – 神戸\r\n"), "{}", heads[0]);
    let body: Value = serde_json::from_str(heads[1].split_once("\r\n\r\n").expect("a request").1).expect("JSON");
    assert_eq!(body, json!({"to": "+1", "quake": {"magnitude": 6.1, "place": "Kobe"}}));
    assert_eq!(open.destinations(9).len(), 1, "the channel's URL is one destination, whatever the addresses");
}
