//! Raw messages, for requests that stock clients do not send.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Encodes a BER element.
pub fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    match u16::try_from(content.len()).expect("short") {
        length @ 0..0x80 => out.push(length as u8),
        length => {
            out.push(0x82);
            out.extend(length.to_be_bytes());
        }
    }
    out.extend_from_slice(content);
    out
}

/// Encodes a message with this id.
pub fn message(id: u8, operation: &[u8], controls: &[Vec<u8>]) -> Vec<u8> {
    let controls = if controls.is_empty() { Vec::new() } else { element(0xa0, &controls.concat()) };
    element(0x30, &[&[2, 1, id], operation, &controls].concat())
}

/// Encodes a critical control.
pub fn control(oid: &str, value: &[u8]) -> Vec<u8> {
    element(0x30, &[element(4, oid.as_bytes()), vec![1, 1, 0xff], element(4, value)].concat())
}

/// Paged results control (RFC 2696).
pub fn page(size: u8, cookie: &[u8]) -> Vec<u8> {
    control("1.2.840.113556.1.4.319", &element(0x30, &[&[2, 1, size], &*element(4, cookie)].concat()))
}

/// Sync request control (RFC 4533), refreshAndPersist.
pub fn persistent_sync_control() -> Vec<u8> {
    control("1.3.6.1.4.1.4203.1.9.1.1", &element(0x30, &[0x0a, 1, 3]))
}

pub fn bind(dn: &str, password: &str) -> Vec<u8> {
    let content = [&[2, 1, 3], &*element(4, dn.as_bytes()), &*element(0x80, password.as_bytes())].concat();
    element(0x60, &content)
}

/// A search for entries of a class below a name, without attributes.
pub fn search(base: &str, class: &str) -> Vec<u8> {
    search_for(base, class, "1.1")
}

/// Like `search`, with an attribute.
pub fn search_for(base: &str, class: &str, attribute: &str) -> Vec<u8> {
    let filter = element(0xa3, &[element(4, b"objectClass"), element(4, class.as_bytes())].concat());
    let head = [&*element(4, base.as_bytes()), &[0x0a, 1, 2, 0x0a, 1, 0, 2, 1, 0, 2, 1, 0, 1, 1, 0]].concat();
    element(0x63, &[head, filter, element(0x30, &element(4, attribute.as_bytes()))].concat())
}

pub fn abandon(id: u8) -> Vec<u8> {
    element(0x50, &[id])
}

/// A message of the server.
#[derive(Debug, Clone)]
pub struct Reply {
    pub id: u8,
    /// Operation tag, such as 0x61 for a bind response.
    pub operation: u8,
    pub content: Vec<u8>,
}

impl Reply {
    /// Result code.
    pub fn code(&self) -> u8 {
        self.content[2]
    }
}

/// A connection.
pub struct Raw {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Raw {
    pub async fn connect(port: u16) -> Raw {
        Raw { stream: TcpStream::connect(("127.0.0.1", port)).await.expect("connected"), read: Vec::new() }
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("sent");
    }

    /// The next message.
    pub async fn next(&mut self) -> Reply {
        loop {
            if let Some(reply) = self.take() {
                return reply;
            }
            let reading =
                tokio::time::timeout(tocsin_test_peers::wait_timeout(), self.stream.read_buf(&mut self.read)).await;
            assert_ne!(reading.expect("an answer").expect("read"), 0, "the server hangs up");
        }
    }

    /// All messages up to the final response of a request: a bind, a search or an extended operation.
    pub async fn until_done(&mut self, id: u8) -> Vec<Reply> {
        let mut all = Vec::new();
        loop {
            all.push(self.next().await);
            let last = &all[all.len() - 1];
            if last.id == id && matches!(last.operation, 0x61 | 0x65 | 0x78) {
                return all;
            }
        }
    }

    fn take(&mut self) -> Option<Reply> {
        let (content, length) = split(&self.read)?;
        // 2 1 ID, and then the operation.
        let (id, operation) = (content[2], content[3]);
        let (inner, _) = split(&content[3..]).expect("whole");
        let mut kept = inner.to_vec();
        // Controls, encoded, after the operation.
        let (_, used) = split(&content[3..]).expect("whole");
        kept.extend_from_slice(&content[3 + used..]);
        self.read.drain(..length);
        Some(Reply { id, operation, content: kept })
    }
}

/// Content and length of the first element; `None` until it is complete.
fn split(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (head, length) = match *bytes.get(1)? {
        0x81 => (3, usize::from(*bytes.get(2)?)),
        0x82 => (4, usize::from(*bytes.get(2)?) << 8 | usize::from(*bytes.get(3)?)),
        length => (2, usize::from(length)),
    };
    Some((bytes.get(head..head + length)?, head + length))
}
