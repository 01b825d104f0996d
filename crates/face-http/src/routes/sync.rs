//! Sync protocol for devices with replicas: begin a session, upload edits, download rows, end the session.
//!
//! The protocol reference describes the bodies. Blocks are JSON lines, compressed as the headers say.

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
    problem::{Code, Problem},
    replica::{BLOCK_BYTES_MAX, Begin, BlockEnd, read_edits},
};
use tocsin_service::ServiceError;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{DeviceCaller, JsonBody, Parameters, Segments, media_type, parts, take_body},
    responses::{Failures, json},
    wire::sync::{NewsBody, TallyBody},
};

const NDJSON: &str = "application/x-ndjson";
/// Default and maximum wait of a long poll in seconds.
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
    /// Position of the device: the cursor of the last block, or that of the session's begin.
    cursor: String,
}

/// Begins a session. The device sends its own token and its position; the response has the edits that were received,
/// and the position to continue from.
#[utoipa::path(post, path = "/v1/sync/sessions", tag = "sync", request_body(content = serde_json::Value, description = "`Begin` of the protocol"), responses((status = 201, body = serde_json::Value, description = "`Begun` of the protocol"), Failures))]
async fn begin(
    State(app): State<Arc<App>>,
    DeviceCaller(device): DeviceCaller,
    JsonBody(begin): JsonBody<Begin>,
) -> Result<Response, Failure> {
    let begun = app.sync()?.begin(&device, begin).await?;
    Ok(json(StatusCode::CREATED, &begun))
}

/// Uploads edits of a device, one per line. Edits that were received before are ignored, so a block can be sent again.
#[utoipa::path(post, path = "/v1/sync/sessions/{id}/changes", tag = "sync", params(("id" = String, Path)), request_body(content = String, content_type = "application/x-ndjson", description = "`Edit` of the protocol, a line for each; packed with zstd or gzip if `Content-Encoding` says so"), responses((status = 200, body = serde_json::Value, description = "`Uploaded` of the protocol"), Failures))]
async fn upload(
    State(app): State<Arc<App>>,
    DeviceCaller(device): DeviceCaller,
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

/// Returns the rows behind a cursor, one per line, and a last line with the next cursor. Reading it again returns the
/// same rows, or newer ones.
#[utoipa::path(get, path = "/v1/sync/sessions/{id}/changes", tag = "sync", params(("id" = String, Path), Reading), responses((status = 200, body = String, content_type = "application/x-ndjson", description = "Rows, and `BlockEnd` of the protocol; packed as `Accept-Encoding` allows"), Failures))]
async fn download(
    State(app): State<Arc<App>>,
    DeviceCaller(device): DeviceCaller,
    Segments(session): Segments<String>,
    Parameters(Reading { cursor }): Parameters<Reading>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let packing = BlockCoding::accepted(&headers);
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

/// Ends a session of this device, and returns its totals.
#[utoipa::path(delete, path = "/v1/sync/sessions/{id}", tag = "sync", params(("id" = String, Path)), responses((status = 200, body = TallyBody), Failures))]
async fn end(
    State(app): State<Arc<App>>,
    DeviceCaller(device): DeviceCaller,
    Segments(session): Segments<String>,
) -> Result<Response, Failure> {
    let tally = app.sync()?.end(&device, &session).await?;
    Ok(json(StatusCode::OK, &TallyBody::from(tally)))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Waiting {
    /// Position of the device: the cursor of the last block.
    cursor: String,
    /// Maximum wait in seconds, 1 to 300; default 50.
    #[serde(default)]
    seconds: Option<u64>,
}

/// Long poll: waits until there may be changes behind the device's cursor, or until the timeout.
#[utoipa::path(get, path = "/v1/sync/wait", tag = "sync", params(Waiting), responses((status = 200, body = NewsBody), Failures))]
async fn wait(
    State(app): State<Arc<App>>,
    DeviceCaller(device): DeviceCaller,
    Parameters(Waiting { cursor, seconds }): Parameters<Waiting>,
) -> Result<Response, Failure> {
    let seconds = seconds.unwrap_or(WAIT_DEFAULT);
    if !(1..=WAIT_MAX).contains(&seconds) {
        return Err(ServiceError::from(Problem::out_of_range("seconds", 1, WAIT_MAX)).into());
    }
    let news = tokio::select! {
        news = app.sync()?.wait_for_news(&device, &cursor, Duration::from_secs(seconds)) => news?,
        () = app.stopping.cancelled() => false,
    };
    let mut response = json(StatusCode::OK, &NewsBody { news });
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Compression of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockCoding {
    None,
    Gzip,
    Zstd,
}

impl BlockCoding {
    /// The best coding that a device accepts.
    fn accepted(headers: &HeaderMap) -> BlockCoding {
        let accepts = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let takes = |word: &str| {
            accepts.split(',').map(str::trim).any(|coding| {
                let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
                name.trim().eq_ignore_ascii_case(word)
                    && !matches!(weight.trim(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000")
            })
        };
        if takes("zstd") {
            BlockCoding::Zstd
        } else if takes("gzip") {
            BlockCoding::Gzip
        } else {
            BlockCoding::None
        }
    }

    fn word(self) -> Option<&'static str> {
        match self {
            BlockCoding::None => None,
            BlockCoding::Gzip => Some("gzip"),
            BlockCoding::Zstd => Some("zstd"),
        }
    }

    fn pack(self, lines: Vec<u8>) -> Bytes {
        match self {
            BlockCoding::None => lines.into(),
            BlockCoding::Gzip => {
                let mut packed = Vec::new();
                let mut encoder = flate2::read::GzEncoder::new(&lines[..], flate2::Compression::fast());
                encoder.read_to_end(&mut packed).expect("memory can be read");
                packed.into()
            }
            BlockCoding::Zstd => zstd::bulk::compress(&lines, ZSTD_LEVEL).expect("memory can be packed").into(),
        }
    }
}

/// Why a body is not unpacked.
#[derive(Debug)]
enum Unpacked {
    /// The body is not encoded as its `Content-Encoding`.
    Wrong(Problem),
    /// It would have more than [`BLOCK_BYTES_MAX`].
    TooLarge,
}

/// Decompresses a body, to at most [`BLOCK_BYTES_MAX`], and with a bounded zstd window.
fn unpack(headers: &HeaderMap, body: &Bytes) -> Result<Bytes, Unpacked> {
    let coding = headers.get(header::CONTENT_ENCODING).map_or("identity", |value| value.to_str().unwrap_or_default());
    let mut unpacked = Vec::new();
    let most = BLOCK_BYTES_MAX as u64 + 1;
    let read = match coding.trim().to_ascii_lowercase().as_str() {
        "identity" => return Ok(body.clone()),
        "gzip" => flate2::read::MultiGzDecoder::new(&body[..]).take(most).read_to_end(&mut unpacked),
        "zstd" => zstd::Decoder::new(&body[..]).and_then(|mut decoder| {
            decoder.window_log_max(BLOCK_BYTES_MAX.ilog2())?;
            decoder.take(most).read_to_end(&mut unpacked)
        }),
        other => {
            let problem = Problem::new(Code::Unsupported, "Content-Encoding", format!("`{other}` is not known here"))
                .param("value", other.to_string());
            return Err(Unpacked::Wrong(problem.hint("send zstd, gzip, or no packing at all")));
        }
    };
    read.map_err(|error| {
        Unpacked::Wrong(
            Problem::new(Code::InvalidFormat, "", format!("the body is not {coding}: {error}"))
                .param("format", "content_coding"),
        )
    })?;
    if unpacked.len() > BLOCK_BYTES_MAX {
        return Err(Unpacked::TooLarge);
    }
    Ok(unpacked.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(text: &'static str) -> BlockCoding {
        BlockCoding::accepted(&HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(text))]))
    }

    #[test]
    fn blocks_are_packed_as_the_device_takes_them() {
        assert_eq!(accepts("gzip, deflate, zstd"), BlockCoding::Zstd);
        assert_eq!(accepts("GZIP;q=0.5, zstd;q=0"), BlockCoding::Gzip);
        assert_eq!(accepts("identity"), BlockCoding::None);
        for packing in [BlockCoding::None, BlockCoding::Gzip, BlockCoding::Zstd] {
            let packed = packing.pack(b"lines".to_vec());
            let coding = HeaderValue::from_static(packing.word().unwrap_or("identity"));
            let headers = HeaderMap::from_iter([(header::CONTENT_ENCODING, coding)]);
            assert_eq!(unpack(&headers, &packed).expect("unpacked"), &b"lines"[..]);
            // A body may have several members (RFC 1952, 2.2) or frames.
            let twice = Bytes::from([&packed[..], &packed[..]].concat());
            assert_eq!(unpack(&headers, &twice).expect("unpacked"), &b"lineslines"[..]);
        }
    }

    #[test]
    fn e3_a_little_that_becomes_much_is_refused() {
        for packing in [BlockCoding::Gzip, BlockCoding::Zstd] {
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
