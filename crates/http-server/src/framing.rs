//! Strict framing of HTTP/1.1 requests (RFC 9112), against request smuggling.
//!
//! RFC 9112 lets a server accept a bare LF as a line end (2.2), repeated equal values of `Content-Length` (6.3), and
//! `Transfer-Encoding` together with `Content-Length` (6.1); hyper does. An intermediary that reads such bytes otherwise
//! sees other requests on the connection than this server does. They are refused here: 400, and the connection is closed.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Buffered bytes of a line, enough for the field name and the chunk size at its start.
const LINE_KEPT: usize = 128;
/// No head may contain it: hyper answers 400 and closes the connection.
const NUL: u8 = 0;

/// A connection that accepts only unambiguous framing.
///
/// It parses the bytes as they are read. In an ambiguous head it replaces the line end by NUL, so that the parser
/// refuses it; in a body it ends the stream with [`io::ErrorKind::InvalidData`].
pub struct StrictFraming<S> {
    stream: S,
    framing: Framing,
}

impl<S> StrictFraming<S> {
    /// The connection of a stream.
    pub fn new(stream: S) -> Self {
        StrictFraming { stream, framing: Framing::default() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StrictFraming<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let ambiguous = || {
            metrics::counter!("tocsin_http_ambiguous_requests_total").increment(1);
            Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "the chunks of the body are ambiguous")))
        };
        if this.framing.part == Part::BrokenBody {
            return ambiguous();
        }
        let before = buffer.filled().len();
        std::task::ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
        let new = &mut buffer.filled_mut()[before..];
        let was_broken = this.framing.part == Part::BrokenHead;
        match this.framing.scan(new) {
            Ok(()) if this.framing.part == Part::BrokenHead && !was_broken => {
                metrics::counter!("tocsin_http_ambiguous_requests_total").increment(1);
            }
            Ok(()) => {}
            // No bytes would be the end of the stream.
            Err(0) => return ambiguous(),
            Err(good) => buffer.set_filled(before + good),
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StrictFraming<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The part of a request that the next byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Head,
    /// A body by `Content-Length`, with the bytes that are left.
    Body(u64),
    ChunkSize,
    /// A chunk, with the bytes that are left.
    Chunk(u64),
    ChunkEnd,
    Trailer,
    /// The head is refused by the parser.
    BrokenHead,
    /// The next read fails.
    BrokenBody,
}

struct Framing {
    part: Part,
    /// The begin of the present line.
    line: [u8; LINE_KEPT],
    line_bytes: usize,
    last: u8,
    /// Whether the request line was read.
    is_begun: bool,
    length: Option<u64>,
    is_chunked: bool,
}

impl Default for Framing {
    fn default() -> Self {
        Framing {
            part: Part::Head,
            line: [0; LINE_KEPT],
            line_bytes: 0,
            last: 0,
            is_begun: false,
            length: None,
            is_chunked: false,
        }
    }
}

impl Framing {
    /// Follows bytes that were read.
    ///
    /// # Errors
    /// A body is ambiguous after so many of them.
    fn scan(&mut self, bytes: &mut [u8]) -> Result<(), usize> {
        let mut at = 0;
        while at < bytes.len() {
            let rest = bytes.len() - at;
            match self.part {
                Part::BrokenHead => return Ok(()),
                Part::BrokenBody => return Err(at),
                Part::Body(left) | Part::Chunk(left) => {
                    let taken = usize::try_from(left).unwrap_or(usize::MAX).min(rest);
                    at += taken;
                    let left = left - taken as u64;
                    self.part = match self.part {
                        Part::Body(_) if left == 0 => Part::Head,
                        Part::Body(_) => Part::Body(left),
                        _ if left == 0 => Part::ChunkEnd,
                        _ => Part::Chunk(left),
                    };
                }
                Part::Head | Part::ChunkSize | Part::ChunkEnd | Part::Trailer => {
                    let Some(end) = bytes[at..].iter().position(|byte| *byte == b'\n') else {
                        self.buffer(&bytes[at..]);
                        return Ok(());
                    };
                    let end = at + end;
                    self.buffer(&bytes[at..end]);
                    match self.end_line() {
                        Some(next) => self.part = next,
                        None if self.part == Part::Head => {
                            bytes[end] = NUL;
                            self.part = Part::BrokenHead;
                        }
                        None => {
                            self.part = Part::BrokenBody;
                            return Err(at);
                        }
                    }
                    at = end + 1;
                }
            }
        }
        Ok(())
    }

    fn buffer(&mut self, bytes: &[u8]) {
        let Some(last) = bytes.last() else { return };
        let kept = self.line_bytes.min(LINE_KEPT);
        let more = bytes.len().min(LINE_KEPT - kept);
        self.line[kept..kept + more].copy_from_slice(&bytes[..more]);
        self.line_bytes += bytes.len();
        self.last = *last;
    }

    /// The part behind the line that ends here; `None`: the line can be read in two ways.
    fn end_line(&mut self) -> Option<Part> {
        let (bytes, last) = (self.line_bytes, self.last);
        (self.line_bytes, self.last) = (0, 0);
        if last != b'\r' {
            return None;
        }
        let is_whole = bytes <= LINE_KEPT;
        let line = self.line;
        let line = &line[..bytes.min(LINE_KEPT) - usize::from(is_whole)];
        match self.part {
            Part::Head if line.is_empty() && self.is_begun => self.end_head(),
            // Empty lines before a request are passed over (RFC 9112, 2.2).
            Part::Head if line.is_empty() => Some(Part::Head),
            Part::Head if !self.is_begun => {
                self.is_begun = true;
                Some(Part::Head)
            }
            Part::Head => self.read_field(line, is_whole).then_some(Part::Head),
            Part::ChunkSize => match chunk_size(line)? {
                0 => Some(Part::Trailer),
                size => Some(Part::Chunk(size)),
            },
            Part::ChunkEnd => line.is_empty().then_some(Part::ChunkSize),
            Part::Trailer if line.is_empty() => Some(Part::Head),
            Part::Trailer => Some(Part::Trailer),
            part => Some(part),
        }
    }

    fn end_head(&mut self) -> Option<Part> {
        self.is_begun = false;
        match (self.length.take(), std::mem::take(&mut self.is_chunked)) {
            (Some(_), true) => None,
            (None, true) => Some(Part::ChunkSize),
            (None | Some(0), false) => Some(Part::Head),
            (Some(length), false) => Some(Part::Body(length)),
        }
    }

    /// Records the body length that a header field gives. Returns whether it is unambiguous.
    fn read_field(&mut self, line: &[u8], is_whole: bool) -> bool {
        // A line that is folded (RFC 9112, 5.2) belongs to the field before.
        if line.first().is_some_and(|byte| matches!(byte, b' ' | b'\t')) {
            return false;
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = colon.map_or((line, &line[line.len()..]), |colon| (&line[..colon], &line[colon + 1..]));
        let is = |requested: &str| name.trim_ascii().eq_ignore_ascii_case(requested.as_bytes());
        let (is_length, is_coding) = (is("content-length"), is("transfer-encoding"));
        if !is_length && !is_coding {
            return true;
        }
        if !is_whole || colon.is_none() || name != name.trim_ascii() {
            return false;
        }
        let value = value.trim_ascii();
        if is_coding {
            return value.eq_ignore_ascii_case(b"chunked") && !std::mem::replace(&mut self.is_chunked, true);
        }
        let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        match digits.and_then(|digits| digits.parse().ok()) {
            Some(length) => self.length.replace(length).is_none(),
            None => false,
        }
    }
}

/// The size of a chunk; its extensions are passed over.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
    let is_number = (1..=16).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    u64::from_str_radix(std::str::from_utf8(digits).ok().filter(|_| is_number)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Follows bytes in pieces. Gives the part at their end, and whether they were changed.
    fn scan(text: &str, piece: usize) -> (Part, bool) {
        let mut framing = Framing::default();
        let mut bytes = text.as_bytes().to_vec();
        for piece in bytes.chunks_mut(piece) {
            if framing.scan(piece).is_err() {
                break;
            }
        }
        (framing.part, bytes != text.as_bytes())
    }

    #[test]
    fn e7_requests_with_one_reading_pass_unchanged() {
        let long = format!("GET /{} HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(300), "b".repeat(300));
        for (good, part) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Part::Head),
            ("\r\n\r\nGET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n", Part::Head),
            ("POST / HTTP/1.1\r\ncontent-LENGTH:\t5 \r\n\r\na\nb\r\nGET / HTTP/1.1\r\n", Part::Head),
            ("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\na\n", Part::Body(3)),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n3;x=\"y\"\r\n\n\n\n\r\n0\r\n\r\n", Part::Head),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n\r\nGET", Part::Head),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nAb\r\n", Part::Chunk(0xab)),
            (&long, Part::Head),
        ] {
            for piece in [1, 2, 3, 7, 1_000] {
                assert_eq!(scan(good, piece), (part, false), "{good:?} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn e7_heads_with_two_readings_are_made_unreadable() {
        for bad in [
            "GET / HTTP/1.1\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\n",
            "\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked, chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 5, 5\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 0x5\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length:\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
            "POST / HTTP/1.1\r\nX: y\r\n Content-Length: 5\r\n\r\n",
            &format!("POST / HTTP/1.1\r\nContent-Length: {}5\r\n\r\n", "0".repeat(LINE_KEPT)),
        ] {
            for piece in [1, 2, 3, 7, 1_000] {
                assert_eq!(scan(bad, piece), (Part::BrokenHead, true), "{bad:?} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn e7_chunks_with_two_readings_end_the_body() {
        for bad in [
            "3\nabc\r\n",
            "3\r\nabc\n",
            "3\r\nabcd\r\n",
            "x\r\n",
            "\r\n",
            "+3\r\n",
            "0x3\r\n",
            "3 \r\n",
            "0\r\n\n",
            "fffffffffffffffff\r\n",
        ] {
            let text = format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{bad}");
            for piece in [1, 2, 3, 7, 1_000] {
                assert_eq!(scan(&text, piece), (Part::BrokenBody, false), "{bad:?} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn e7_random_pieces_of_good_requests_are_never_refused() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..500 {
            let mut framing = Framing::default();
            let mut bytes = Vec::new();
            for _ in 0..random.usize(1..6) {
                let body: Vec<u8> =
                    (0..random.usize(0..40)).map(|_| *b"\r\n:0a ".get(random.usize(0..6)).expect("one")).collect();
                if random.bool() {
                    bytes.extend_from_slice(
                        format!("POST /x HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(),
                    );
                    bytes.extend_from_slice(&body);
                } else {
                    bytes.extend_from_slice(b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
                    for chunk in body.chunks(random.usize(1..20)) {
                        bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                        bytes.extend_from_slice(chunk);
                        bytes.extend_from_slice(b"\r\n");
                    }
                    bytes.extend_from_slice(b"0\r\n\r\n");
                }
            }
            let before = bytes.clone();
            let mut rest = &mut bytes[..];
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at_mut(random.usize(1..=rest.len()));
                framing.scan(piece).expect("good");
                rest = behind;
            }
            assert_eq!((framing.part, bytes), (Part::Head, before));
        }
    }
}
