//! A minimal HTTP/1.1 client (RFC 9112): one request and its response. It has no pipelining and no task of its own,
//! and every part of a response is bounded.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use bytes::{Buf, BytesMut};
use tocsin_connect::tls::Stream;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::response::{Response, excerpt};
use crate::repeated::repeated;

/// Most bytes of a body; a longer one is cut and its connection closed.
pub(super) const BODY_BYTES_MAX: usize = 64 * 1024;
/// The same for channels that classify by the body.
pub(super) const JUDGED_BODY_BYTES_MAX: usize = 1024 * 1024;
/// Most bytes of a head or of a chunked trailer.
const HEAD_BYTES_MAX: usize = 64 * 1024;
const FIELDS_MAX: usize = 128;

/// Limits on the stored parts of a response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResponseLimits {
    /// Most bytes of a body; a longer one is cut.
    pub body_bytes_max: usize,
    /// Whether header fields are kept.
    pub headers: bool,
}

impl Default for ResponseLimits {
    fn default() -> Self {
        ResponseLimits { body_bytes_max: BODY_BYTES_MAX, headers: false }
    }
}

/// A persistent HTTP/1.1 connection.
pub(super) struct Http1Connection {
    stream: Box<dyn Stream>,
    unread: BytesMut,
    limits: ResponseLimits,
}

/// Why there is no response.
#[derive(Debug)]
pub(super) enum ExchangeError {
    /// No byte of the request was sent: the server had closed the idle connection.
    Before,
    /// The request may or may not have been processed.
    After(String),
}

/// Length of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    Bytes(u64),
    Chunks,
    ToTheEnd,
}

struct Head {
    status: u16,
    retry_after: Option<String>,
    headers: Vec<(String, String)>,
    length: Length,
    /// Whether another request may follow.
    stays: bool,
}

impl Http1Connection {
    pub fn new(stream: Box<dyn Stream>, limits: ResponseLimits) -> Http1Connection {
        Http1Connection { stream, unread: BytesMut::new(), limits }
    }

    /// Whether the connection is still open and has no unexpected input.
    pub fn is_usable(&mut self) -> bool {
        let mut byte = [0; 1];
        let mut room = ReadBuf::new(&mut byte);
        let mut context = Context::from_waker(Waker::noop());
        self.unread.is_empty() && Pin::new(&mut self.stream).poll_read(&mut context, &mut room).is_pending()
    }

    /// Sends a request and reads its response; returns whether the connection can be reused.
    pub async fn exchange(&mut self, request: &[u8]) -> Result<(Response, bool), ExchangeError> {
        let sent = self.send(request).await?;
        let head = loop {
            let head = self.head().await.map_err(ExchangeError::After)?;
            // Interim responses, which we never ask for (RFC 9110, 15.2).
            if head.status >= 200 {
                break head;
            }
            if head.status == 101 {
                return Err(ExchangeError::After("it wants to speak another protocol".into()));
            }
        };
        let (body, whole, cut) = self.body(head.length).await;
        let stays = sent && whole && head.stays && self.unread.is_empty();
        let Head { status, retry_after, headers, .. } = head;
        let repeated = if body.is_empty() { Vec::new() } else { repeated(request, &excerpt(&body)) };
        Ok((Response { status, retry_after, headers, body, whole, cut, repeated }, stays))
    }

    /// Writes a request. Returns whether all of it was read: a server may respond before and stop reading.
    async fn send(&mut self, request: &[u8]) -> Result<bool, ExchangeError> {
        let Http1Connection { stream, unread, .. } = self;
        let mut at = 0;
        let sent = poll_fn(|context| {
            while at < request.len() {
                match Pin::new(&mut *stream).poll_write(context, &request[at..]) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Poll::Ready(Ok(written)) => at += written,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        let mut early = [0; 1024];
                        let mut room = ReadBuf::new(&mut early);
                        match Pin::new(&mut *stream).poll_read(context, &mut room) {
                            Poll::Pending => return Poll::Pending,
                            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                            Poll::Ready(Ok(())) if room.filled().is_empty() => {
                                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                            }
                            Poll::Ready(Ok(())) => {
                                unread.extend_from_slice(room.filled());
                                return Poll::Ready(Ok(false));
                            }
                        }
                    }
                }
            }
            Pin::new(&mut *stream).poll_flush(context).map_ok(|()| true)
        });
        match sent.await {
            Ok(all) => Ok(all),
            Err(_) if at == 0 => Err(ExchangeError::Before),
            // A server that stops reading a request has often sent a response.
            Err(error) if self.unread.is_empty() && self.fill().await.is_err() => {
                Err(ExchangeError::After(error.to_string()))
            }
            Err(_) => Ok(false),
        }
    }

    /// Reads at least one more byte.
    async fn fill(&mut self) -> Result<(), String> {
        self.unread.reserve(4096);
        match self.stream.read_buf(&mut self.unread).await {
            Ok(0) => Err("the server closed the connection".into()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn head(&mut self) -> Result<Head, String> {
        loop {
            let found = read_head(&self.unread, self.limits.headers)?;
            if found.as_ref().map_or(self.unread.len(), |(_, length)| *length) > HEAD_BYTES_MAX {
                return Err(format!("its head takes more than {HEAD_BYTES_MAX} bytes"));
            }
            if let Some((head, length)) = found {
                self.unread.advance(length);
                return Ok(head);
            }
            self.fill().await?;
        }
    }

    /// The beginning of a body, whether it is known to be complete, and whether it is known to be incomplete.
    async fn body(&mut self, length: Length) -> (Vec<u8>, bool, bool) {
        let mut body = Vec::new();
        match length {
            Length::Bytes(count) => {
                let whole = self.take(count, &mut body).await;
                (body, whole, !whole)
            }
            Length::Chunks => {
                let whole = self.chunks(&mut body).await;
                (body, whole, !whole)
            }
            Length::ToTheEnd => {
                let most = self.limits.body_bytes_max;
                while body.len() < most && self.take(1, &mut body).await {
                    let rest = self.unread.len().min(most - body.len());
                    self.take(rest as u64, &mut body).await;
                }
                let cut = body.len() >= most;
                (body, false, cut)
            }
        }
    }

    /// Reads `count` bytes of a body; `false` if it breaks off or is too long.
    async fn take(&mut self, mut count: u64, body: &mut Vec<u8>) -> bool {
        while count > 0 {
            if self.unread.is_empty() && self.fill().await.is_err() {
                return false;
            }
            let room = self.limits.body_bytes_max - body.len();
            let some = self.unread.len().min(usize::try_from(count).unwrap_or(usize::MAX)).min(room);
            if some == 0 {
                return false;
            }
            body.extend_from_slice(&self.unread[..some]);
            self.unread.advance(some);
            count -= some as u64;
        }
        true
    }

    /// Reads a chunked body (RFC 9112, 7.1).
    async fn chunks(&mut self, body: &mut Vec<u8>) -> bool {
        loop {
            let Some(line) = self.line().await else { return false };
            let size = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
            let size = std::str::from_utf8(size).ok().filter(|size| size.bytes().all(|byte| byte.is_ascii_hexdigit()));
            let Some(size) = size.and_then(|size| u64::from_str_radix(size, 16).ok()) else { return false };
            if size == 0 {
                break;
            }
            if !self.take(size, body).await || self.line().await.is_none_or(|line| !line.is_empty()) {
                return false;
            }
        }
        // The trailer is not used.
        let mut rest = HEAD_BYTES_MAX;
        loop {
            match self.line().await {
                Some(line) if line.is_empty() => return true,
                Some(line) if line.len() < rest => rest -= line.len(),
                _ => return false,
            }
        }
    }

    /// The next line without its end; none if it breaks off or is too long.
    async fn line(&mut self) -> Option<Vec<u8>> {
        let mut looked_at = 0;
        loop {
            if let Some(at) = self.unread[looked_at..].iter().position(|byte| *byte == b'\n') {
                let line = self.unread.split_to(looked_at + at + 1);
                let line = line.strip_suffix(b"\n").unwrap_or(&line);
                return Some(line.strip_suffix(b"\r").unwrap_or(line).to_vec());
            }
            looked_at = self.unread.len();
            if looked_at > HEAD_BYTES_MAX || self.fill().await.is_err() {
                return None;
            }
        }
    }
}

/// The head of a response and its length, if it is complete.
fn read_head(bytes: &[u8], keep_headers: bool) -> Result<Option<(Head, usize)>, String> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let length = match response.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(format!("it is not HTTP: {error}")),
    };
    let status = response.code.unwrap_or_default();
    let fields = &*response.headers;
    let all = |name: &'static str| fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
    let tokens = |name| {
        let values = all(name).flat_map(|field| field.value.split(|byte| *byte == b','));
        values.map(<[u8]>::trim_ascii)
    };
    let has = |name, token: &str| tokens(name).any(|found| found.eq_ignore_ascii_case(token.as_bytes()));
    let is_old = response.version == Some(0);
    let stays = if is_old { has("connection", "keep-alive") } else { !has("connection", "close") };
    let length_of_body = if matches!(status, 204 | 304) || status < 200 {
        Length::Bytes(0)
    } else if let Some(last) = tokens("transfer-encoding").next_back() {
        if last.eq_ignore_ascii_case(b"chunked") { Length::Chunks } else { Length::ToTheEnd }
    } else {
        let mut lengths = tokens("content-length").map(|text| {
            let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
            std::str::from_utf8(text).ok().filter(|_| digits).and_then(|text| text.parse::<u64>().ok())
        });
        match lengths.next() {
            None => Length::ToTheEnd,
            Some(Some(first)) if lengths.all(|other| other == Some(first)) => Length::Bytes(first),
            Some(_) => return Err("it does not say how long it is".into()),
        }
    };
    // A date consists of ASCII bytes, so a value that is not UTF-8 is invalid.
    let retry_after: Vec<&str> = all("retry-after").filter_map(|field| std::str::from_utf8(field.value).ok()).collect();
    let retry_after = (!retry_after.is_empty()).then(|| retry_after.join(", "));
    let kept = |field: &httparse::Header<'_>| {
        Some((field.name.to_ascii_lowercase(), std::str::from_utf8(field.value).ok()?.to_owned()))
    };
    let headers = if keep_headers { fields.iter().filter_map(kept).collect() } else { Vec::new() };
    let head = Head { status, retry_after, headers, length: length_of_body, stays };
    Ok(Some((head, length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a response in pieces of several sizes: status, body, whether the connection can be reused.
    async fn check(response: &str, expected: &str) {
        for piece in [1, 7, 100_000] {
            let (near, far) = tokio::io::duplex(1 << 20);
            let bytes = response.as_bytes().to_vec();
            tokio::spawn(async move {
                let (mut reading, mut writing) = tokio::io::split(far);
                let mut asked = [0; 3];
                reading.read_exact(&mut asked).await.expect("a request");
                for piece in bytes.chunks(piece) {
                    tokio::io::AsyncWriteExt::write_all(&mut writing, piece).await.expect("written");
                }
                tokio::io::AsyncWriteExt::shutdown(&mut writing).await.expect("closed");
            });
            let shown = match Http1Connection::new(Box::new(near), ResponseLimits::default()).exchange(b"ask").await {
                Ok((response, again)) => {
                    let body = String::from_utf8_lossy(&response.body).into_owned();
                    format!("{} {body:?} {}", response.status, if again { "again" } else { "over" })
                }
                Err(ExchangeError::Before) => "before".to_owned(),
                Err(ExchangeError::After(what)) => what,
            };
            assert_eq!(shown, expected, "{response:?} in pieces of {piece}");
        }
    }

    #[tokio::test]
    async fn body_length_follows_the_head() {
        check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", r#"200 "ok" again"#).await;
        check("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", r#"200 "ok" again"#).await;
        check("HTTP/1.1 204 None\r\n\r\n", r#"204 "" again"#).await;
        check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: x, Close\r\n\r\nok", r#"200 "ok" over"#).await;
        check("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", r#"200 "ok" over"#).await;
        check("HTTP/1.1 200 OK\r\n\r\nto the end", r#"200 "to the end" over"#).await;
        check("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", r#"200 "ok" over"#).await;
        check("HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok", r#"200 "ok" again"#).await;
        check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", "it does not say how long it is")
            .await;
        check("HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok", "it does not say how long it is").await;
        check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more", r#"200 "ok" over"#).await;
    }

    #[tokio::test]
    async fn chunks_are_put_together() {
        let chunked = |body: &str| {
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\nContent-Length: 9\r\n\r\n{body}")
        };
        check(&chunked("2\r\nok\r\n3;x=y\r\nabc\r\n0\r\n\r\n"), r#"200 "okabc" again"#).await;
        check(&chunked("2\r\nok\r\n0\r\nX: y\r\n\r\n"), r#"200 "ok" again"#).await;
        check(&chunked("2\r\nokay\r\n"), r#"200 "ok" over"#).await;
        check(&chunked("-2\r\nok\r\n"), r#"200 "" over"#).await;
        check(&chunked("2\r\nok\r\n"), r#"200 "ok" over"#).await;
    }

    #[tokio::test]
    async fn an_invalid_response_is_an_error() {
        check("", "the server closed the connection").await;
        check("HTTP/1.1 200", "the server closed the connection").await;
        check("SSH-2.0-OpenSSH_9.2\r\n\r\n", "it is not HTTP: invalid HTTP version").await;
        check("HTTP/1.1 101 Switch\r\n\r\n", "it wants to speak another protocol").await;
    }
}
