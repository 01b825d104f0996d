//! Hostile clients: endless bodies, wrong lengths, request smuggling, and requests that outlast their key.

use std::num::NonZeroU32;

use tocsin_face_http::{HttpOptions, RateLimit};
use tocsin_store::journal::JournalOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::platform::{Platform, rest};

const LARGEST: usize = 1024 * 1024;

fn head(platform: &Platform, method: &str, path: &str, more: &str) -> String {
    let key = &platform.key;
    format!(
        "{method} {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n{more}\r\n"
    )
}

#[tokio::test]
async fn e3_a_body_that_is_too_large_is_answered_before_it_is_sent() {
    let platform = Platform::with_quakes().await;
    for length in [LARGEST + 1, 1 << 40, usize::MAX / 2] {
        let length = format!("Content-Length: {length}\r\n");
        let answer = platform.exchange(head(&platform, "POST", "/v1/subscribers", &length).as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        assert!(answer.to_ascii_lowercase().contains("\r\nconnection: close\r\n"), "{answer}");
        assert!(answer.contains("\"bytes_max\":1048576"), "{answer}");
    }
    // With `Expect` the client never sends it (RFC 9110, 10.1.1).
    let expect = format!("Content-Length: {}\r\nExpect: 100-continue\r\n", LARGEST + 1);
    let answer = platform.exchange(head(&platform, "POST", "/v1/subscribers", &expect).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    platform.stop().await;
}

#[tokio::test]
async fn b5_a_response_before_the_body_says_that_the_connection_ends() {
    let platform = Platform::with_quakes().await;
    let body = "Content-Length: 10\r\n";
    let known = head(&platform, "POST", "/v1/subscribers", body);
    let unknown = known.replace(&platform.key, "tk_nonsense");
    for (request, status) in [(unknown, 401), (known.replace("application/json", "text/nonsense"), 415)] {
        let answer = platform.exchange(request.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(answer.to_ascii_lowercase().contains("\r\nconnection: close\r\n"), "{answer}");
    }
    platform.stop().await;
}

#[tokio::test]
async fn e3_chunks_without_end_are_answered_at_the_bound() {
    let platform = Platform::with_quakes().await;
    let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
    let mut stream = platform.connect().await;
    let (mut from, mut to) = stream.split();
    let head = head(&platform, "POST", "/v1/subscribers", "Transfer-Encoding: chunked\r\n");
    let mut sent = 0;
    let send = async {
        to.write_all(head.as_bytes()).await.expect("written");
        // Repeats until the server closes the connection.
        while to.write_all(&chunk).await.is_ok() {
            sent += chunk.len();
        }
    };
    let mut answer = vec![0; 12];
    let read = async {
        from.read_exact(&mut answer).await.expect("an answer");
    };
    tokio::time::timeout(tocsin_test_peers::wait_timeout(), async { tokio::join!(send, read) }).await.expect("it ends");
    assert_eq!(answer, b"HTTP/1.1 413");
    // The amount includes the buffers of the connection.
    assert!(sent < 64 * LARGEST, "{sent} bytes were taken");
    platform.stop().await;
}

#[tokio::test]
async fn e3_packed_bodies_are_refused_where_none_is_taken() {
    let platform = Platform::with_quakes().await;
    let mut packed = Vec::new();
    let mut zeros = std::io::Read::take(std::io::repeat(b' '), 64 << 20);
    let mut encoder = flate2::write::GzEncoder::new(&mut packed, flate2::Compression::fast());
    std::io::copy(&mut zeros, &mut encoder).expect("memory takes it");
    encoder.finish().expect("packed");
    for coding in ["gzip", "br", "zstd", "deflate", "gzip, identity"] {
        for path in
            ["/v1/subscribers", "/v1/applications/quakes/events/quake", "/v1/import/subscribers", "/scim/v2/Users"]
        {
            let request = platform.request("POST", path).header("content-encoding", coding);
            let answer = request.header("content-type", "application/json").body(packed[..1_000].to_vec()).send().await;
            let answer = answer.expect("an answer");
            assert_eq!(
                (answer.status().as_u16(), &answer.headers()["accept-encoding"]),
                (415, &"identity".parse().expect("a value")),
                "{coding} {path}"
            );
        }
    }
    let (status, body) = platform.post("/v1/subscribers", "application/json", r#"{"id":"bob"}"#).await;
    assert_eq!(status, 201, "{body}");
    platform.stop().await;
}

#[tokio::test]
async fn e3_lengths_that_lie_make_no_request() {
    let platform = Platform::with_quakes().await;
    // Shorter than the body: the rest is not a request.
    let body = r#"{"id":"bob"}{"id":"eve"}"#;
    let text = head(&platform, "POST", "/v1/subscribers", "Content-Length: 12\r\n") + body;
    let answer = platform.exchange(text.as_bytes()).await;
    assert!(
        answer.starts_with("HTTP/1.1 201 ") && answer.contains("\r\nHTTP/1.1 400 ") || answer.contains("HTTP/1.1 400 "),
        "{answer}"
    );
    assert_eq!(platform.get("/v1/subscribers/eve").await.0, 404);
    // Longer: the client ends before the announced length.
    let mut stream = platform.connect().await;
    let text = head(&platform, "POST", "/v1/subscribers", "Content-Length: 99\r\n") + r#"{"id":"joe"}"#;
    stream.write_all(text.as_bytes()).await.expect("written");
    stream.shutdown().await.expect("shut");
    let answer = rest(&mut stream).await;
    assert!(!answer.contains(" 201 "), "{answer}");
    assert_eq!(platform.get("/v1/subscribers/joe").await.0, 404);
    platform.stop().await;
}

#[tokio::test]
async fn e7_requests_that_can_be_read_in_two_ways_are_refused_and_the_connection_is_closed() {
    let platform = Platform::with_quakes().await;
    let inner =
        format!("DELETE /v1/subscribers/alice HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\n\r\n", platform.key);
    let length = inner.len();
    let chunked = format!("0\r\n\r\n{inner}");
    for (name, fields, body) in [
        ("CL.TE", format!("Content-Length: {}\r\nTransfer-Encoding: chunked\r\n", chunked.len()), chunked.clone()),
        (
            "TE.CL",
            "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n".to_owned(),
            format!("{length:x}\r\n{inner}\r\n0\r\n\r\n"),
        ),
        ("TE.TE", "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n".to_owned(), chunked.clone()),
        ("TE with a space", "Transfer-Encoding : chunked\r\n".to_owned(), chunked.clone()),
        ("TE with a tab", "Transfer-Encoding:\tchunked\r\nContent-Length: 5\r\n".to_owned(), chunked.clone()),
        ("TE that is none", "Transfer-Encoding: \x0bchunked\r\n".to_owned(), chunked.clone()),
        ("CL.CL", format!("Content-Length: 0\r\nContent-Length: {length}\r\n"), inner.clone()),
        ("CL twice the same", format!("Content-Length: {length}\r\nContent-Length: {length}\r\n"), inner.clone()),
        ("CL as a list", "Content-Length: 0, 0\r\n".to_owned(), inner.clone()),
        ("CL with a sign", "Content-Length: +0\r\n".to_owned(), inner.clone()),
        ("CL folded", format!("Content-Length:\r\n {length}\r\n"), inner.clone()),
        ("obs-fold", format!("X-A: b\r\n Content-Length: {length}\r\n"), inner.clone()),
        ("bare LF in a field", format!("X-A: b\nContent-Length: {length}\r\n"), inner.clone()),
        ("bare CR in a field", format!("X-A: b\rContent-Length: {length}\r\n"), inner.clone()),
        ("bare LF ends the head", "\n".to_owned(), inner.clone()),
        ("NUL in a field", "X-A: b\0\r\n".to_owned(), inner.clone()),
    ] {
        let outer = head(&platform, "GET", "/v1/subscribers/alice", &fields);
        let answer = platform.exchange(format!("{outer}{body}").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{name}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{name}: the connection is closed: {answer}");
        assert_eq!(platform.get("/v1/subscribers/alice").await.0, 200, "{name}: the request within was done");
    }
    // Ambiguous chunks end the request and the connection.
    for chunks in [
        "0\n\r\n",
        "0\r\n\n",
        "2\r\n{}\n0\r\n\r\n",
        "2\n{}\r\n0\r\n\r\n",
        "0x2\r\n{}\r\n0\r\n\r\n",
        "2 \r\n{}\r\n0\r\n\r\n",
    ] {
        let outer = head(&platform, "POST", "/v1/subscribers", "Transfer-Encoding: chunked\r\n");
        let answer = platform.exchange(format!("{outer}{chunks}{inner}").as_bytes()).await;
        assert!(answer.matches("HTTP/1.1 ").count() <= 1 && !answer.contains("HTTP/1.1 2"), "{chunks:?}: {answer}");
        assert_eq!(platform.get("/v1/subscribers/alice").await.0, 200, "{chunks:?}: the request within was done");
    }
    platform.stop().await;
}

#[tokio::test]
async fn a9_an_import_ends_with_its_key() {
    let platform = Platform::with_quakes().await;
    let (id, key) = platform.make_key(&["subscribers:write"]).await;
    let mut stream = platform.connect().await;
    let head = format!(
        "POST /v1/import/subscribers HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("written");
    let mut goes_on = [0; 12];
    stream.read_exact(&mut goes_on).await.expect("an answer");
    assert_eq!(&goes_on, b"HTTP/1.1 100", "its key is good");
    platform.revoke(&id).await;
    let line = "{\"id\":\"late\"}\n";
    let chunks = format!("{:x}\r\n{line}\r\n0\r\n\r\n", line.len());
    stream.write_all(chunks.as_bytes()).await.expect("written");
    let answer = rest(&mut stream).await;
    assert!(answer.contains("HTTP/1.1 401 ") && answer.contains("was revoked"), "{answer}");
    assert_eq!(platform.get("/v1/subscribers/late").await.0, 404);
    platform.stop().await;
}

#[tokio::test]
async fn a9_an_export_ends_with_its_key() {
    let platform = Platform::with_quakes().await;
    let text = "x".repeat(8_000);
    let lines: String =
        (0..1_500).map(|number| format!("{{\"id\":\"s{number}\",\"attributes\":{{\"a\":\"{text}\"}}}}\n")).collect();
    let (status, body) = platform.post("/v1/import/subscribers", "application/x-ndjson", &lines).await;
    assert!(status == 200 && body["stored"] == 1_500, "{body}");
    let (id, key) = platform.make_key(&["subscribers:read"]).await;
    let mut stream = platform.connect().await;
    let head = format!("GET /v1/export/subscribers HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("written");
    let mut begin = [0; 12];
    stream.read_exact(&mut begin).await.expect("an answer");
    assert_eq!(&begin, b"HTTP/1.1 200");
    platform.revoke(&id).await;
    // The buffers of the connection hold less than the export.
    let answer = rest(&mut stream).await;
    assert!(answer.len() < lines.len(), "{} bytes were sent", answer.len());
    assert!(!answer.ends_with("0\r\n\r\n"), "a part is not taken for the whole");
    platform.stop().await;
}

#[tokio::test]
async fn i12_a_key_that_sends_too_much_is_refused_and_no_other_is() {
    let rate = |burst| NonZeroU32::new(burst).map(|burst| RateLimit { per_second: NonZeroU32::MIN, burst });
    let options = HttpOptions { key_rate: rate(12), address_rate: rate(3), ..HttpOptions::default() };
    let platform = Platform::with(options, JournalOptions::default()).await;
    let (_, noisy) = platform.make_key(&["subscribers:read"]).await;
    let (_, quiet) = platform.make_key(&["subscribers:read"]).await;
    let send_request = async |path: &str, key: Option<&str>| {
        let request = platform.client.get(format!("{}{path}", platform.address));
        let answer = match key {
            Some(key) => request.bearer_auth(key).send().await,
            None => request.send().await,
        };
        answer.expect("an answer")
    };
    let mut refused = 0;
    for number in 1..=500 {
        let answer = send_request("/v1/subscribers", Some(&noisy)).await;
        let headers = answer.headers().clone();
        assert_eq!(headers["ratelimit-policy"], "\"key\";q=12;w=12");
        if answer.status() == 429 {
            assert_eq!(
                (&headers["retry-after"], &headers["ratelimit"]),
                (&"1".parse().expect("a value"), &"\"key\";r=0;t=1".parse().expect("a value"))
            );
            let problem: serde_json::Value = answer.json().await.expect("a problem");
            assert_eq!(problem["type"], "/problems/too-many");
            assert!(problem["detail"].as_str().expect("text").contains("12 at once"), "{problem}");
            refused += 1;
        } else {
            assert_eq!(answer.status(), 200);
            assert!(headers["ratelimit"].to_str().expect("text").starts_with("\"key\";r="), "{headers:?}");
        }
        if number % 50 == 0 {
            assert_eq!(send_request("/v1/subscribers", Some(&quiet)).await.status(), 200, "the quiet one is let in");
        }
    }
    assert!(refused > 0, "500 requests are more than 12 and one a second");
    // Without a valid key, requests count against the address, whatever their path; health checks do not count.
    let mut statuses = Vec::new();
    for _ in 0..50 {
        statuses.push(send_request("/v1/subscribers", Some("tocsin_0_0")).await.status().as_u16());
        statuses.push(send_request("/openapi.json", None).await.status().as_u16());
        assert_eq!(send_request("/livez", None).await.status(), 200);
    }
    assert_eq!(statuses[..3], [401, 200, 401]);
    assert!(statuses.contains(&429), "{statuses:?}");
    assert_eq!(
        send_request("/v1/subscribers", Some(&quiet)).await.status(),
        200,
        "a good key does not count for its address"
    );
    platform.stop().await;
}
