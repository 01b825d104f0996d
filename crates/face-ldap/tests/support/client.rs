//! Test client that sends exact requests and returns exact responses.

#![allow(dead_code, reason = "each test uses its part")]

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Write},
    net::TcpStream,
};

use tocsin_directory::{dn::Dn, filter::Filter, schema::Schema};
use tocsin_face_ldap::ber::{self, Reader};

/// Response of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Result code.
    pub code: u32,
    /// Entries by normalized name, with their sets of values.
    pub entries: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
}

/// A connection.
pub struct Client {
    stream: TcpStream,
    read: Vec<u8>,
    last: u32,
}

pub fn nested(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    ber::value(&mut out, tag, &parts.concat());
    out
}

pub fn text(tag: u8, text: &str) -> Vec<u8> {
    nested(tag, &[text.as_bytes()])
}

/// Encodes an attribute with its values.
pub fn attribute(name: &str, values: &[String]) -> Vec<u8> {
    let values: Vec<Vec<u8>> = values.iter().map(|value| text(4, value)).collect();
    nested(0x30, &[&text(4, name), &nested(0x31, &[&values.concat()])])
}

/// Encodes a filter.
pub fn filter(filter: &Filter) -> Vec<u8> {
    let all = |tag: u8, parts: &[Filter]| {
        let parts: Vec<Vec<u8>> = parts.iter().map(self::filter).collect();
        nested(tag, &[&parts.concat()])
    };
    let assertion = |tag: u8, name: &str, value: &[u8]| nested(tag, &[&text(4, name), &nested(4, &[value])]);
    match filter {
        Filter::And(parts) => all(0xa0, parts),
        Filter::Or(parts) => all(0xa1, parts),
        Filter::Not(part) => nested(0xa2, &[&self::filter(part)]),
        Filter::Present(name) => text(0x87, name),
        Filter::Equal(name, value) => assertion(0xa3, name, value),
        Filter::AtLeast(name, value) => assertion(0xa5, name, value),
        Filter::AtMost(name, value) => assertion(0xa6, name, value),
        Filter::Approximate(name, value) => assertion(0xa8, name, value),
        Filter::Substrings(name, first, middle, last) => {
            let mut parts: Vec<Vec<u8>> = first.iter().map(|part| nested(0x80, &[part])).collect();
            parts.extend(middle.iter().map(|part| nested(0x81, &[part])));
            parts.extend(last.iter().map(|part| nested(0x82, &[part])));
            nested(0xa4, &[&text(4, name), &nested(0x30, &[&parts.concat()])])
        }
        Filter::Extensible { rule, attribute, value, names } => {
            let rule = rule.as_ref().map(|rule| text(0x81, rule)).unwrap_or_default();
            let attribute = attribute.as_ref().map(|name| text(0x82, name)).unwrap_or_default();
            let names: &[u8] = if *names { &[0x84, 1, 0xff] } else { &[] };
            nested(0xa9, &[&rule, &attribute, &nested(0x83, &[value]), names])
        }
    }
}

impl Client {
    /// Connects and binds.
    pub fn open(port: u16, dn: &str, password: &str) -> Client {
        Client::try_open(port, dn, password).unwrap_or_else(|| panic!("bound as {dn}"))
    }

    /// Connects and binds; `None`: no listener, or the bind failed.
    pub fn try_open(port: u16, dn: &str, password: &str) -> Option<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(tocsin_test_peers::wait_timeout())).expect("a timeout");
        stream.set_nodelay(true).expect("a socket");
        let mut client = Client { stream, read: Vec::new(), last: 0 };
        let reply = client.try_ask(&nested(0x60, &[&[2, 1, 3], &text(4, dn), &text(0x80, password)]))?;
        (reply.code == 0).then_some(client)
    }

    /// Asks, and waits for the result.
    pub fn send_request(&mut self, operation: &[u8]) -> Reply {
        self.try_ask(operation).expect("the server answers")
    }

    /// Sends a request, and waits for its result; `None`: the server disconnected.
    pub fn try_ask(&mut self, operation: &[u8]) -> Option<Reply> {
        self.last += 1;
        let mut request = Vec::new();
        ber::nested(&mut request, 0x30, |out| {
            ber::number(out, 2, self.last);
            out.extend_from_slice(operation);
        });
        self.stream.write_all(&request).ok()?;
        let mut entries = BTreeMap::new();
        loop {
            let message = self.message()?;
            let mut message = Reader(Reader(&message).expect(0x30).expect("a message"));
            assert_eq!(message.count(2), Ok(self.last), "the number of the request");
            match message.value().expect("an operation") {
                (0x64, content) => entries.extend([entry(content)]),
                // A search result reference.
                (0x73, _) => {}
                (_, content) => {
                    return Some(Reply { code: Reader(content).count(0x0a).expect("a result"), entries });
                }
            }
        }
    }

    /// Sends a search, and returns the names of its entries in order.
    pub fn order(&mut self, operation: &[u8]) -> Vec<String> {
        self.send(operation);
        let mut names = Vec::new();
        loop {
            let message = self.message().expect("the server answers");
            let mut message = Reader(Reader(&message).expect(0x30).expect("a message"));
            message.count(2).expect("a number");
            match message.value().expect("an operation") {
                (0x64, content) => names.push(Reader(content).text(4).expect("a name")),
                _ => return names,
            }
        }
    }

    /// Waits for the notice of disconnection, and returns its code. Tags of earlier responses go to `seen`.
    pub fn notice_of_disconnection(&mut self, seen: &mut Vec<u8>) -> u32 {
        loop {
            let message = self.message().expect("the server sends a notice of disconnection");
            let mut message = Reader(Reader(&message).expect(0x30).expect("a message"));
            let id = message.count(2).expect("a number");
            let (tag, content) = message.value().expect("an operation");
            match id {
                0 => {
                    let code = Reader(content).count(0x0a).expect("a result");
                    assert!(self.message().is_none(), "the connection ends");
                    return code;
                }
                _ => seen.push(tag),
            }
        }
    }

    /// Whether no byte is read beyond the last message.
    pub fn has_read_all(&self) -> bool {
        self.read.is_empty()
    }

    /// Sends a request without waiting.
    pub fn send(&mut self, operation: &[u8]) {
        self.last += 1;
        let mut request = Vec::new();
        ber::nested(&mut request, 0x30, |out| {
            ber::number(out, 2, self.last);
            out.extend_from_slice(operation);
        });
        self.stream.write_all(&request).expect("the server reads");
    }

    /// The next message; `None`: the server disconnected.
    pub fn message(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(length) = ber::first_length(&self.read, usize::MAX >> 1).expect("a message") {
                return Some(self.read.drain(..length).collect());
            }
            let mut more = [0; 16 << 10];
            match self.stream.read(&mut more) {
                Ok(0) => return None,
                Ok(count) => self.read.extend_from_slice(&more[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no answer for a minute"),
                Err(_) => return None,
            }
        }
    }
}

/// Normalizes a name.
pub fn normal(dn: &str) -> String {
    Schema::standard().normal_dn(&Dn::parse(dn).unwrap_or_else(|error| panic!("{dn}: {error}")))
}

fn entry(content: &[u8]) -> (String, BTreeMap<String, BTreeSet<String>>) {
    let mut entry = Reader(content);
    let dn = entry.text(4).expect("a name");
    let mut list = Reader(entry.expect(0x30).expect("attributes"));
    let mut attributes = BTreeMap::new();
    while !list.is_empty() {
        let mut attribute = Reader(list.expect(0x30).expect("an attribute"));
        let name = attribute.text(4).expect("a name").to_ascii_lowercase();
        let mut set = Reader(attribute.expect(0x31).expect("values"));
        let mut values = BTreeSet::new();
        while !set.is_empty() {
            values.insert(String::from_utf8_lossy(set.expect(4).expect("a value")).into_owned());
        }
        attributes.insert(name, values);
    }
    (normal(&dn), attributes)
}
