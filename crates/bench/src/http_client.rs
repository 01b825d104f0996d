//! Minimal HTTP/1.1 client for load: prebuilt requests, responses with a length. It leaves the CPU to the server on the
//! same machine.

use std::{
    io::{self, ErrorKind},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::failure::{Failure, Outcome};

/// Maximum size of a response head in bytes.
const HEAD_MAX: usize = 64 << 10;

/// Persistent HTTP connection.
pub struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Connection {
    /// Connects to a port of this machine.
    ///
    /// # Errors
    /// If no server listens there.
    pub async fn open(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, read: Vec::with_capacity(16 << 10) })
    }

    /// Sends a request; returns the status and body of the response.
    ///
    /// # Errors
    /// If the connection breaks, or the response has no length.
    pub async fn exchange(&mut self, request: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        self.stream.write_all(request).await?;
        let head = loop {
            if let Some(end) = self.read.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            if self.read.len() > HEAD_MAX {
                return Err(io::Error::new(ErrorKind::InvalidData, "the response head is too long"));
            }
            self.more().await?;
        };
        let (status, length) = parse_head(&self.read[..head])
            .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "the response has no status or no length"))?;
        while self.read.len() < head + length {
            self.more().await?;
        }
        let body = self.read[head..head + length].to_vec();
        self.read.drain(..head + length);
        Ok((status, body))
    }

    async fn more(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.read).await? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// Parses status and body length (RFC 9112, sections 4 and 6.2).
fn parse_head(head: &[u8]) -> Option<(u16, usize)> {
    let text = std::str::from_utf8(head).ok()?;
    let mut lines = text.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    // A response without content may omit its length.
    length.or(matches!(status, 204 | 304).then_some(0)).map(|length| (status, length))
}

/// End of the head and end of the body of the first request, if it is complete.
pub fn complete_request(bytes: &[u8]) -> Option<(usize, usize)> {
    let head = bytes.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let mut lines = bytes[..head].split(|byte| *byte == b'\n');
    let length = lines.find_map(|line| {
        let (name, value) = line.split_at_checked(15)?;
        let value = name.eq_ignore_ascii_case(b"content-length:").then_some(value)?;
        std::str::from_utf8(value).ok()?.trim().parse::<usize>().ok()
    });
    let length = head + length.unwrap_or(0);
    (bytes.len() >= length).then_some((head, length))
}

/// Builds a POST request.
pub fn post(path: &str, key: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    request("POST", path, key, content_type, body)
}

/// Builds a request with another method.
pub fn request(method: &str, path: &str, key: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Closed loop: sends one request repeatedly over `connections` connections for this time. Returns the number of
/// responses and the seconds.
///
/// # Errors
/// If a connection breaks, or a response is not 2xx.
pub async fn closed_loop(port: u16, request: Vec<u8>, connections: usize, time: Duration) -> Outcome<(u64, f64)> {
    let request = Arc::new(request);
    let started = Instant::now();
    let senders = (0..connections).map(|_| {
        let request = request.clone();
        async move {
            let broke = |error: io::Error| Failure::failed("a connection of the load broke").because(&error);
            let mut connection = Connection::open(port).await.map_err(broke)?;
            let mut answers = 0_u64;
            while started.elapsed() < time {
                let (status, body) = connection.exchange(&request).await.map_err(broke)?;
                if !(200..300).contains(&status) {
                    let words = String::from_utf8_lossy(&body).into_owned();
                    return Err(Failure::failed(format!("the server answered {status}")).detail(words));
                }
                answers += 1;
            }
            Ok(answers)
        }
    });
    let answers: u64 = futures_util::future::try_join_all(senders).await?.into_iter().sum();
    Ok((answers, started.elapsed().as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_length_are_parsed_from_the_head() {
        let check = |head: &str, expected| assert_eq!(parse_head(head.as_bytes()), expected, "{head:?}");
        check("HTTP/1.1 202 Accepted\r\nContent-Length: 12\r\n\r\n", Some((202, 12)));
        check("HTTP/1.1 204 No Content\r\n\r\n", Some((204, 0)));
        check("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", None);
        check("nonsense", None);
    }

    #[test]
    fn a_request_is_complete_with_its_body() {
        assert_eq!(complete_request(b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nab"), None);
        assert_eq!(complete_request(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcPOST"), Some((38, 41)));
        assert_eq!(complete_request(b"GET / HTTP/1.1\r\n\r\n"), Some((18, 18)));
        assert_eq!(complete_request(b"GET / HTTP/1.1\r\n"), None);
    }

    #[tokio::test]
    async fn responses_are_reassembled_from_any_fragments() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = vec![0; post("/x", "k", "text/plain", b"hello").len()];
            for _ in 0..2 {
                stream.read_exact(&mut request).await.expect("a request");
                for part in ["HTTP/1.1 202 Acc", "epted\r\ncontent-length: 4\r\n\r", "\nabcd"] {
                    stream.write_all(part.as_bytes()).await.expect("written");
                    stream.flush().await.expect("flushed");
                }
            }
        });
        let mut connection = Connection::open(port).await.expect("open");
        for _ in 0..2 {
            let answer = connection.exchange(&post("/x", "k", "text/plain", b"hello")).await.expect("an answer");
            assert_eq!(answer, (202, b"abcd".to_vec()));
        }
        server.await.expect("served");
    }
}
