//! The web console: its files, their encodings and headers, the paths of its views, and the configuration.

use reqwest::{Response, StatusCode, redirect::Policy};
use tocsin_face_http::HttpOptions;
use tocsin_http_server::embedded::EmbeddedFile;
use tocsin_store::journal::JournalOptions;

use crate::platform::Platform;

/// The policy of the specification, to the letter.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; font-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; \
    frame-ancestors 'none'; require-trusted-types-for 'script'";
const SCRIPT: &[u8] = b"console.log('a'); // aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
/// `SCRIPT` in gzip.
const SCRIPT_GZIP: &[u8] = include_bytes!("console/script.js.gz");

static COMPONENTS: EmbeddedFile = EmbeddedFile {
    path: "embed/tocsin.js",
    media_type: "text/javascript; charset=utf-8",
    sha256: "d4",
    is_immutable: false,
    identity: Some(b"export {};"),
    brotli: None,
    gzip: None,
};

/// A console of three files; the content in brotli stands for itself.
static FILES: [EmbeddedFile; 3] = [
    EmbeddedFile {
        path: "assets/index-1a2b3c.js",
        media_type: "text/javascript; charset=utf-8",
        sha256: "a1",
        is_immutable: true,
        identity: None,
        brotli: Some(b"in brotli"),
        gzip: Some(SCRIPT_GZIP),
    },
    EmbeddedFile {
        path: "icon.png",
        media_type: "image/png",
        sha256: "b2",
        is_immutable: false,
        identity: Some(b"an image"),
        brotli: None,
        gzip: None,
    },
    EmbeddedFile {
        path: "index.html",
        media_type: "text/html; charset=utf-8",
        sha256: "c3",
        is_immutable: false,
        identity: Some(b"<title>Console</title>"),
        brotli: None,
        gzip: None,
    },
];

async fn platform(options: HttpOptions) -> Platform {
    Platform::with(options, JournalOptions::default()).await
}

fn with_console() -> HttpOptions {
    HttpOptions { console: Some(&FILES), ..HttpOptions::default() }
}

/// A response, without following redirects or decoding bodies.
async fn get(platform: &Platform, path: &str, headers: &[(&str, &str)]) -> Response {
    let client = reqwest::Client::builder().redirect(Policy::none()).build().expect("a client");
    let mut request = client.get(format!("{}{path}", platform.address));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.expect("an answer")
}

fn header<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
    response.headers().get(name).map(|value| value.to_str().expect("text"))
}

#[tokio::test]
async fn the_console_has_the_headers_of_its_specification() {
    let public_url = Some("https://tocsin.example".to_owned());
    let platform = platform(HttpOptions { public_url, ..with_console() }).await;
    for path in ["/console/", "/console/events", "/console/assets/index-1a2b3c.js", "/console/assets/gone-1.js"] {
        let response = get(&platform, path, &[]).await;
        for (name, value) in [
            ("content-security-policy", POLICY),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("referrer-policy", "no-referrer"),
            ("x-content-type-options", "nosniff"),
            ("strict-transport-security", "max-age=31536000"),
        ] {
            assert_eq!(header(&response, name), Some(value), "{path} {name}");
        }
    }
    platform.stop().await;
    let plain = Platform::with(with_console(), JournalOptions::default()).await;
    assert_eq!(header(&get(&plain, "/console/", &[]).await, "strict-transport-security"), None);
    plain.stop().await;
}

#[tokio::test]
async fn a_file_has_its_encodings_each_with_a_tag_of_its_own() {
    let platform = platform(with_console()).await;
    let script = "/console/assets/index-1a2b3c.js";
    for (accepts, coding, tag, body) in [
        ("gzip, br", Some("br"), "\"a1-br\"", &b"in brotli"[..]),
        ("gzip", Some("gzip"), "\"a1-gzip\"", SCRIPT_GZIP),
        ("identity", None, "\"a1\"", SCRIPT),
    ] {
        let response = get(&platform, script, &[("accept-encoding", accepts)]).await;
        assert_eq!(
            (header(&response, "content-encoding"), header(&response, "etag")),
            (coding, Some(tag)),
            "{accepts}"
        );
        assert_eq!(header(&response, "cache-control"), Some("public, max-age=31536000, immutable"));
        assert_eq!(header(&response, "vary"), Some("accept-encoding"));
        assert_eq!(header(&response, "content-type"), Some("text/javascript; charset=utf-8"));
        assert_eq!(&response.bytes().await.expect("a body")[..], body, "{accepts}");
    }
    let headers = [("accept-encoding", "br"), ("if-none-match", "\"a1-br\"")];
    let known = get(&platform, script, &headers).await;
    assert_eq!((known.status().as_u16(), header(&known, "etag")), (304, Some("\"a1-br\"")));
    // An image is not compressed, whatever the client accepts.
    let image = get(&platform, "/console/icon.png", &[("accept-encoding", "br, gzip, zstd")]).await;
    assert_eq!((header(&image, "content-encoding"), header(&image, "content-type")), (None, Some("image/png")));
    assert_eq!(header(&image, "cache-control"), Some("no-cache"));
    assert_eq!(&image.bytes().await.expect("a body")[..], b"an image");
    platform.stop().await;
}

#[tokio::test]
async fn every_view_is_answered_by_the_first_page_and_a_missing_file_is_not_found() {
    let platform = platform(with_console()).await;
    let browser = [("accept", "text/html,application/xhtml+xml,*/*;q=0.8")];
    for (path, headers, expected) in [
        ("/console/", &[][..], 200),
        ("/console/events/e-12-7", &[], 200),
        ("/console/subscribers/ada@example.org", &browser, 200),
        ("/console/logo.svg", &[], 404),
        ("/console/assets/index-0.js", &browser, 404),
        ("/console/assets/", &browser, 404),
    ] {
        let response = get(&platform, path, headers).await;
        assert_eq!(response.status().as_u16(), expected, "{path}");
        if expected == 200 {
            assert_eq!(header(&response, "cache-control"), Some("no-cache"), "{path}");
            assert_eq!(response.text().await.expect("a page"), "<title>Console</title>", "{path}");
        }
    }
    let moved = get(&platform, "/console", &[]).await;
    assert_eq!((moved.status(), header(&moved, "location")), (StatusCode::PERMANENT_REDIRECT, Some("/console/")));
    platform.stop().await;
}

#[tokio::test]
async fn the_first_address_leads_browsers_to_the_console_or_the_status_page() {
    let browser = [("accept", "text/html, */*;q=0.8")];
    let off = HttpOptions { public_status: false, ..HttpOptions::default() };
    for (options, expected) in
        [(with_console(), Some("/console/")), (HttpOptions::default(), Some("/status")), (off.clone(), None)]
    {
        let platform = Platform::with(options, JournalOptions::default()).await;
        let response = get(&platform, "/", &browser).await;
        assert_eq!((header(&response, "location"), header(&response, "vary")), (expected, Some("accept")));
        assert_eq!(response.status().as_u16(), if expected.is_some() { 303 } else { 404 });
        assert_eq!(get(&platform, "/", &[("accept", "*/*")]).await.status().as_u16(), 404);
        let has_console = expected == Some("/console/");
        let status = get(&platform, "/console/", &browser).await.status().as_u16();
        assert_eq!(status, if has_console { 200 } else { 404 });
        platform.stop().await;
    }
    let closed = Platform::with(off, JournalOptions::default()).await;
    assert_eq!(get(&closed, "/status", &browser).await.status().as_u16(), 404);
    closed.stop().await;
}

#[tokio::test]
async fn the_web_components_may_be_loaded_by_any_origin() {
    let options = HttpOptions { web_components: Some(&COMPONENTS), ..HttpOptions::default() };
    let platform = platform(options).await;
    let response = get(&platform, "/embed/tocsin.js", &[("origin", "https://shop.example.org")]).await;
    for (name, value) in [
        ("access-control-allow-origin", "*"),
        ("cross-origin-resource-policy", "cross-origin"),
        ("cache-control", "no-cache"),
        ("etag", "\"d4\""),
        ("content-type", "text/javascript; charset=utf-8"),
    ] {
        assert_eq!(header(&response, name), Some(value), "{name}");
    }
    assert_eq!(response.text().await.expect("a script"), "export {};");
    platform.stop().await;
    let without = Platform::with(with_console(), JournalOptions::default()).await;
    assert_eq!(get(&without, "/embed/tocsin.js", &[]).await.status().as_u16(), 404);
    without.stop().await;
}
