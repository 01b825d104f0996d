//! A scripted mail server.

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tocsin_connect::tls::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

use crate::smtp::session::Dial;

/// An action of the scripted server.
#[derive(Clone, Copy)]
pub enum Act {
    /// Replies; the line end is added.
    Say(&'static str),
    /// Replies and closes the connection.
    Last(&'static str),
    /// Closes the connection.
    Close,
    /// Replies, with ten seconds between its letters.
    Drip(&'static str),
    /// Never replies.
    Silence,
}
pub use Act::*;

/// Chooses an action by the number of the connection, of the mail over all connections, and the input: a command, `.`
/// for the end of a content, or nothing for a new connection.
pub type Script = fn(u32, u32, &str) -> Act;

/// A server with all extensions and without faults.
pub fn accept_all(_: u32, _: u32, heard: &str) -> Act {
    match heard.split([' ', ':']).next().unwrap_or_default() {
        "" => Say("220 far.example ready"),
        "EHLO" => Say("250-far.example\r\n250-PIPELINING\r\n250-SIZE 200000\r\n250-8BITMIME\r\n250 SMTPUTF8"),
        "DATA" => Say("354 go on"),
        "QUIT" => Last("221 bye"),
        _ => Say("250 ok"),
    }
}

/// Log of the server.
#[derive(Default)]
pub struct ServerLog {
    /// All input, a line for each command, `CONTENT` for a content.
    pub heard: Vec<String>,
    /// The commands of each read.
    pub flights: Vec<String>,
    /// Complete contents in wire form.
    pub contents: Vec<String>,
}

pub struct Scripted {
    pub script: Script,
    pub tls: Option<Encryption>,
    pub connections: AtomicU32,
    pub mails: Arc<AtomicU32>,
    pub seen: Arc<Mutex<ServerLog>>,
}

#[async_trait]
impl Dial for Scripted {
    async fn dial(&self, _: &str, _: u16) -> io::Result<(Box<dyn Stream>, Option<IpAddr>)> {
        let connection = self.connections.fetch_add(1, Ordering::SeqCst) + 1;
        let greeting = (self.script)(connection, 0, "");
        if matches!(greeting, Close) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (near, far) = tokio::io::duplex(1 << 20);
        let (script, mails, seen, tls) = (self.script, self.mails.clone(), self.seen.clone(), self.tls.clone());
        tokio::spawn(async move { serve(Box::new(far), connection, script, mails, seen, tls).await });
        Ok((Box::new(near), Some(IpAddr::from([127, 0, 0, 1]))))
    }
}

async fn serve(
    mut stream: Box<dyn Stream>,
    connection: u32,
    script: Script,
    mails: Arc<AtomicU32>,
    seen: Arc<Mutex<ServerLog>>,
    mut tls: Option<Encryption>,
) {
    let (mut unread, mut content, mut awaited) = (Vec::with_capacity(1 << 20), None::<String>, vec![String::new()]);
    loop {
        for heard in std::mem::take(&mut awaited) {
            let mut mail = mails.load(Ordering::SeqCst);
            if heard.starts_with("MAIL") {
                mail = mails.fetch_add(1, Ordering::SeqCst) + 1;
            }
            match script(connection, mail, &heard) {
                Say(reply) => {
                    stream.write_all(format!("{reply}\r\n").as_bytes()).await.ok();
                    if heard == "DATA" && reply.starts_with("354") {
                        content = Some(String::new());
                    }
                    if heard == "STARTTLS" && reply == "220 go" {
                        let Some(encrypted) = tls.take().expect("a script with TLS").accept(stream, &seen).await else {
                            return;
                        };
                        stream = encrypted;
                    }
                }
                Drip(reply) => {
                    for byte in format!("{reply}\r\n").bytes() {
                        stream.write_all(&[byte]).await.ok();
                        tokio::time::sleep(std::time::Duration::from_secs(10)).await;
                    }
                }
                Last(reply) => {
                    stream.write_all(format!("{reply}\r\n").as_bytes()).await.ok();
                    return;
                }
                Close => return,
                Silence => std::future::pending().await,
            }
        }
        if !unread.contains(&b'\n') {
            match stream.read_buf(&mut unread).await {
                Ok(0) | Err(_) => return,
                Ok(_) => seen.lock().flights.push(flight(&unread)),
            }
        }
        // One line at a time: its meaning depends on the previous reply.
        let Some(end) = unread.iter().position(|byte| *byte == b'\n') else { continue };
        let line = String::from_utf8(unread.drain(..=end).collect()).expect("UTF-8");
        assert!(line.ends_with("\r\n") && !line[..line.len() - 2].contains(['\r', '\n']), "{line:?}");
        match &mut content {
            Some(text) if line == ".\r\n" => {
                let mut seen = seen.lock();
                seen.contents.push(std::mem::take(text));
                seen.heard.push("CONTENT".into());
                content = None;
                awaited.push(".".into());
            }
            Some(text) => text.push_str(&line),
            None => {
                seen.lock().heard.push(line.trim_end().to_owned());
                awaited.push(line.trim_end().to_owned());
            }
        }
    }
}

/// The commands in some bytes, by their first letters.
fn flight(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let known = |line: &str| {
        ["EHLO", "MAIL", "RCPT", "DATA", "RSET", "QUIT", "From"]
            .into_iter()
            .find(|word| line.starts_with(word))
            .or((line == ".").then_some("."))
    };
    text.lines().filter_map(known).collect::<Vec<_>>().join(" ")
}

/// The server's response to a TLS client.
#[derive(Clone)]
pub enum Encryption {
    /// A current TLS server.
    Modern(TlsAcceptor),
    /// A server that supports only TLS 1.0.
    Old,
}

impl Encryption {
    async fn accept(self, mut stream: Box<dyn Stream>, seen: &Mutex<ServerLog>) -> Option<Box<dyn Stream>> {
        match self {
            Encryption::Modern(acceptor) => {
                let encrypted = acceptor.accept(stream).await.ok()?;
                let name = encrypted.get_ref().1.server_name().unwrap_or("nobody").to_owned();
                seen.lock().heard.push(format!("TLS for {name}"));
                Some(Box::new(encrypted))
            }
            Encryption::Old => {
                let mut hello = [0; 4096];
                let _ = stream.read(&mut hello).await;
                // ServerHello of RFC 2246, 7.4.1.3, in one record: version 1.0, TLS_RSA_WITH_AES_128_CBC_SHA.
                let mut answer = vec![0x16, 3, 1, 0, 42, 2, 0, 0, 38, 3, 1];
                answer.extend([7; 32]);
                answer.extend([0, 0, 0x2f, 0]);
                let _ = stream.write_all(&answer).await;
                let _ = stream.read(&mut hello).await;
                None
            }
        }
    }
}

/// Several servers by name.
pub struct Hosts(pub BTreeMap<&'static str, Arc<Scripted>>);

#[async_trait]
impl Dial for Hosts {
    async fn dial(&self, host: &str, port: u16) -> io::Result<(Box<dyn Stream>, Option<IpAddr>)> {
        self.0[host].dial(host, port).await
    }
}

impl Scripted {
    pub fn new(script: Script, tls: Option<Encryption>) -> Arc<Scripted> {
        Arc::new(Scripted { script, tls, connections: AtomicU32::new(0), mails: Arc::default(), seen: Arc::default() })
    }

    pub fn connections(&self) -> u32 {
        self.connections.load(Ordering::SeqCst)
    }
}
