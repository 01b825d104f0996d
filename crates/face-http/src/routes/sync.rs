//! What devices that keep replicas say: a session begins, edits go up, rows come down, and it ends.
//!
//! The bodies are told in the reference of the protocol. Blocks are lines of JSON, packed as the headers say.

use std::{
    io::Read,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    body::Bytes,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tocsin_model::{
    problem::Problem,
    replica::{BLOCK_BYTES_MAX, Begin, BlockEnd, read_edits},
};
use tocsin_service::ServiceError;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{Failures, json};
use crate::{
    App,
    problems::Failure,
    request::{JsonBody, Keeping, Parameters, Segments, media_type, parts, take_body},
    wire::sync::{NewsBody, TallyBody},
};

const NDJSON: &str = "application/x-ndjson";
/// Seconds that a device waits for news if it says nothing else, and at most.
const WAIT_DEFAULT: u64 = 50;
const WAIT_MAX: u64 = 300;
/// Fast: a phone and its server are on the same line for long, and the processor is shared by many.
const ZSTD_LEVEL: i32 = 1;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(begin))
        .routes(routes!(upload, download))
        .routes(routes!(end))
        .routes(routes!(wait))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Reading {
    /// How far the device has read: the cursor of the last block, or that with which the session began.
    cursor: String,
}

/// A device begins. It shows its own token, says how far it has read, and is told which of its edits came, and where it goes on.
#[utoipa::path(post, path = "/v1/sync/sessions", tag = "sync", request_body(content = serde_json::Value, description = "`Begin` of the protocol"), responses((status = 201, body = serde_json::Value, description = "`Begun` of the protocol"), Failures))]
async fn begin(
    State(app): State<Arc<App>>,
    Keeping(device): Keeping,
    JsonBody(begin): JsonBody<Begin>,
) -> Result<Response, Failure> {
    let begun = app.sync()?.begin(&device, begin).await?;
    Ok(json(StatusCode::CREATED, &begun))
}

/// Edits of a device, a line for each. What came before is passed over, so a block may be sent again.
#[utoipa::path(post, path = "/v1/sync/sessions/{id}/changes", tag = "sync", params(("id" = String, Path)), request_body(content = String, content_type = "application/x-ndjson", description = "`Edit` of the protocol, a line for each; packed with zstd or gzip if `Content-Encoding` says so"), responses((status = 200, body = serde_json::Value, description = "`Uploaded` of the protocol"), Failures))]
async fn upload(
    State(app): State<Arc<App>>,
    Keeping(device): Keeping,
    Segments(session): Segments<String>,
    request: Request,
) -> Result<Response, Failure> {
    let (headers, body) = parts(request);
    let given = media_type(&headers);
    if given != NDJSON {
        return Err(Failure::unsupported(&given, &[NDJSON]));
    }
    let taken = take_body(&app, &headers, body, BLOCK_BYTES_MAX).await?;
    let bytes = taken.bytes.len() as u64;
    let is_too_large = AtomicBool::new(false);
    let read = || {
        let lines = unpack(&headers, &taken.bytes).map_err(|refused| match refused {
            Unpacked::Wrong(problem) => vec![problem],
            Unpacked::TooLarge => {
                is_too_large.store(true, Ordering::Relaxed);
                Vec::new()
            }
        })?;
        Ok((read_edits(&lines)?, bytes))
    };
    let uploaded = app.sync()?.upload(&device, &session, read).await;
    if is_too_large.into_inner() {
        return Err(Failure::too_large(BLOCK_BYTES_MAX));
    }
    Ok(json(StatusCode::OK, &uploaded?))
}

/// The rows behind a cursor, a line for each, and a last line with the cursor behind them. Reading it again gives the same rows,
/// or newer ones.
#[utoipa::path(get, path = "/v1/sync/sessions/{id}/changes", tag = "sync", params(("id" = String, Path), Reading), responses((status = 200, body = String, content_type = "application/x-ndjson", description = "Rows, and `BlockEnd` of the protocol; packed as `Accept-Encoding` allows"), Failures))]
async fn download(
    State(app): State<Arc<App>>,
    Keeping(device): Keeping,
    Segments(session): Segments<String>,
    Parameters(Reading { cursor }): Parameters<Reading>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let packing = Packing::accepted(&headers);
    let pack = |mut lines: Vec<u8>, end: BlockEnd| {
        serde_json::to_writer(&mut lines, &end).expect("text and numbers are JSON");
        lines.push(b'\n');
        let packed = packing.pack(lines);
        let bytes = packed.len() as u64;
        (packed, bytes)
    };
    let packed = app.sync()?.download(&device, &session, &cursor, pack).await?;
    let mut response = packed.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(NDJSON));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(word) = packing.word() {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(word));
    }
    Ok(response)
}

/// Ends a session of this device, and tells what it carried.
#[utoipa::path(delete, path = "/v1/sync/sessions/{id}", tag = "sync", params(("id" = String, Path)), responses((status = 200, body = TallyBody), Failures))]
async fn end(
    State(app): State<Arc<App>>,
    Keeping(device): Keeping,
    Segments(session): Segments<String>,
) -> Result<Response, Failure> {
    let tally = app.sync()?.end(&device, &session).await?;
    Ok(json(StatusCode::OK, &TallyBody::from(tally)))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Waiting {
    /// How far the device has read: the cursor of the last block.
    cursor: String,
    /// How long it waits at most, in seconds: 1 to 300, default 50.
    #[serde(default)]
    seconds: Option<u64>,
}

/// Waits until there may be something new for a device behind its cursor. The answer comes when that is so, or after a while.
#[utoipa::path(get, path = "/v1/sync/wait", tag = "sync", params(Waiting), responses((status = 200, body = NewsBody), Failures))]
async fn wait(
    State(app): State<Arc<App>>,
    Keeping(device): Keeping,
    Parameters(Waiting { cursor, seconds }): Parameters<Waiting>,
) -> Result<Response, Failure> {
    let seconds = seconds.unwrap_or(WAIT_DEFAULT);
    if !(1..=WAIT_MAX).contains(&seconds) {
        return Err(ServiceError::invalid("seconds", format!("should be from 1 to {WAIT_MAX}")).into());
    }
    let news = tokio::select! {
        news = app.sync()?.wait_for_news(&device, &cursor, Duration::from_secs(seconds)) => news?,
        () = app.stopping.cancelled() => false,
    };
    let mut response = json(StatusCode::OK, &NewsBody { news });
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// How a block is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    None,
    Gzip,
    Zstd,
}

impl Packing {
    /// The best that a device takes.
    fn accepted(headers: &HeaderMap) -> Packing {
        let accepts = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let takes = |word: &str| {
            accepts.split(',').map(str::trim).any(|coding| {
                let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
                name.trim().eq_ignore_ascii_case(word)
                    && !matches!(weight.trim(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000")
            })
        };
        if takes("zstd") {
            Packing::Zstd
        } else if takes("gzip") {
            Packing::Gzip
        } else {
            Packing::None
        }
    }

    fn word(self) -> Option<&'static str> {
        match self {
            Packing::None => None,
            Packing::Gzip => Some("gzip"),
            Packing::Zstd => Some("zstd"),
        }
    }

    fn pack(self, lines: Vec<u8>) -> Bytes {
        match self {
            Packing::None => lines.into(),
            Packing::Gzip => {
                let mut packed = Vec::new();
                let mut encoder = flate2::read::GzEncoder::new(&lines[..], flate2::Compression::fast());
                encoder.read_to_end(&mut packed).expect("memory can be read");
                packed.into()
            }
            Packing::Zstd => zstd::bulk::compress(&lines, ZSTD_LEVEL).expect("memory can be packed").into(),
        }
    }
}

/// Why a body is not unpacked.
#[derive(Debug)]
enum Unpacked {
    /// It is not packed as its header says.
    Wrong(Problem),
    /// It would have more than [`BLOCK_BYTES_MAX`].
    TooLarge,
}

/// Unpacks a body. No more than [`BLOCK_BYTES_MAX`] is unpacked, and no window of zstd is larger.
fn unpack(headers: &HeaderMap, body: &Bytes) -> Result<Bytes, Unpacked> {
    let coding = headers.get(header::CONTENT_ENCODING).map_or("identity", |value| value.to_str().unwrap_or_default());
    let mut unpacked = Vec::new();
    let most = BLOCK_BYTES_MAX as u64 + 1;
    let read = match coding.trim().to_ascii_lowercase().as_str() {
        "identity" => return Ok(body.clone()),
        "gzip" => flate2::read::GzDecoder::new(&body[..]).take(most).read_to_end(&mut unpacked),
        "zstd" => zstd::Decoder::new(&body[..]).and_then(|mut decoder| {
            decoder.window_log_max(BLOCK_BYTES_MAX.ilog2())?;
            decoder.take(most).read_to_end(&mut unpacked)
        }),
        other => {
            let problem = Problem::at("Content-Encoding", format!("`{other}` is not known here"));
            return Err(Unpacked::Wrong(problem.hint("send zstd, gzip, or no packing at all")));
        }
    };
    read.map_err(|error| Unpacked::Wrong(Problem::at("", format!("the body is not {coding}: {error}"))))?;
    if unpacked.len() > BLOCK_BYTES_MAX {
        return Err(Unpacked::TooLarge);
    }
    Ok(unpacked.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(text: &'static str) -> Packing {
        Packing::accepted(&HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(text))]))
    }

    #[test]
    fn blocks_are_packed_as_the_device_takes_them() {
        assert_eq!(accepts("gzip, deflate, zstd"), Packing::Zstd);
        assert_eq!(accepts("GZIP;q=0.5, zstd;q=0"), Packing::Gzip);
        assert_eq!(accepts("identity"), Packing::None);
        for packing in [Packing::None, Packing::Gzip, Packing::Zstd] {
            let packed = packing.pack(b"lines".to_vec());
            let coding = HeaderValue::from_static(packing.word().unwrap_or("identity"));
            let headers = HeaderMap::from_iter([(header::CONTENT_ENCODING, coding)]);
            assert_eq!(unpack(&headers, &packed).expect("unpacked"), &b"lines"[..]);
        }
    }

    #[test]
    fn e3_a_little_that_becomes_much_is_refused() {
        for packing in [Packing::Gzip, Packing::Zstd] {
            let bomb = packing.pack(vec![b' '; BLOCK_BYTES_MAX + 1]);
            let headers =
                HeaderMap::from_iter([(header::CONTENT_ENCODING, HeaderValue::from_static(packing.word().unwrap()))]);
            assert!(matches!(unpack(&headers, &bomb), Err(Unpacked::TooLarge)));
            let fits = packing.pack(vec![b' '; BLOCK_BYTES_MAX]);
            assert_eq!(unpack(&headers, &fits).expect("it fits").len(), BLOCK_BYTES_MAX);
        }
    }

    #[test]
    fn e3_a_frame_of_zstd_with_a_large_window_takes_no_memory_for_it() {
        // A frame that asks for a window of 128 MiB, and would unpack to 256 MiB.
        let mut packed = Vec::new();
        let mut encoder = zstd::Encoder::new(&mut packed, 1).expect("an encoder");
        encoder.window_log(27).expect("a window");
        let zeros = vec![0; 1 << 20];
        for _ in 0..256 {
            std::io::Write::write_all(&mut encoder, &zeros).expect("memory takes it");
        }
        encoder.finish().expect("packed");
        assert!(packed.len() < BLOCK_BYTES_MAX, "{}", packed.len());
        let headers = HeaderMap::from_iter([(header::CONTENT_ENCODING, HeaderValue::from_static("zstd"))]);
        assert!(matches!(unpack(&headers, &packed.into()), Err(Unpacked::Wrong(_))));
    }
}
