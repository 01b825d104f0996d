//! Mail server that accepts and records every mail; it outlives the platforms that send to it.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// Received mail: envelope and text.
#[derive(Debug, Clone)]
pub struct Mail {
    pub from: String,
    pub to: Vec<String>,
    pub text: String,
    /// Time of its end.
    pub received: std::time::Instant,
}

impl Mail {
    /// Value of a header, unfolded.
    pub fn header(&self, name: &str) -> Option<String> {
        let head = self.text.split("\r\n\r\n").next()?.replace("\r\n ", " ").replace("\r\n\t", " ");
        let mut lines = head.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned())
    }

    /// Text after the headers.
    pub fn body(&self) -> &str {
        self.text.split_once("\r\n\r\n").map_or("", |(_, body)| body)
    }
}

/// Recorded mails.
#[derive(Clone)]
pub struct Mails {
    pub port: u16,
    mails: Arc<Mutex<Vec<Mail>>>,
    count: watch::Sender<usize>,
    closed: Arc<AtomicBool>,
    refused: Arc<Mutex<BTreeSet<String>>>,
    deferred: Arc<Mutex<HashMap<String, usize>>>,
}

impl Mails {
    /// Starts the server on a free port.
    pub async fn start() -> Mails {
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let mails = Mails {
            port: socket.local_addr().expect("an address").port(),
            mails: Arc::default(),
            count: watch::Sender::new(0),
            closed: Arc::default(),
            refused: Arc::default(),
            deferred: Arc::default(),
        };
        let server = mails.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = socket.accept().await {
                let server = server.clone();
                tokio::spawn(async move {
                    // A killed client breaks its connection, which is expected.
                    let _ = server.serve(stream).await;
                });
            }
        });
        mails
    }

    /// While closed, every mail gets 451.
    pub fn set_closed(&self, closed: bool) {
        self.closed.store(closed, Ordering::SeqCst);
    }

    /// Refuses an address at RCPT from now on with 550 5.1.1, or accepts it again.
    pub fn set_refused(&self, address: &str, is_refused: bool) {
        let mut refused = self.refused.lock();
        match is_refused {
            true => refused.insert(address.to_owned()),
            false => refused.remove(address),
        };
    }

    /// Defers the next attempts for an address at RCPT with 451 4.3.0.
    pub fn set_deferred(&self, address: &str, attempts: usize) {
        self.deferred.lock().insert(address.to_owned(), attempts);
    }

    fn is_deferred(&self, address: &str) -> bool {
        match self.deferred.lock().get_mut(address) {
            Some(attempts) if *attempts > 0 => {
                *attempts -= 1;
                true
            }
            _ => false,
        }
    }

    /// All mails so far.
    pub fn all(&self) -> Vec<Mail> {
        self.mails.lock().clone()
    }

    /// Number of mails so far.
    pub fn count(&self) -> usize {
        self.mails.lock().len()
    }

    /// Waits until the condition holds; it is checked whenever a mail arrives. Fails after [`super::wait_timeout`].
    pub async fn wait_until(&self, condition: impl Fn() -> bool) -> bool {
        let mut count = self.count.subscribe();
        let waiting = async {
            while !condition() {
                if count.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(super::wait_timeout(), waiting).await.is_ok()
    }

    /// Waits until there is a mail for each of these tokens. Fails as `wait_until`.
    pub async fn wait_for_tokens(&self, tokens: &BTreeSet<String>) -> bool {
        let all_received = || {
            // Parsing all mails at each arrival would take quadratic time.
            self.count() >= tokens.len() && {
                let seen = self.ids_by_token();
                tokens.iter().all(|token| seen.contains_key(token))
            }
        };
        self.wait_until(all_received).await
    }

    /// Message-IDs by the first line of the text that begins with `token:`.
    pub fn ids_by_token(&self) -> HashMap<String, Vec<String>> {
        let mut ids: HashMap<String, Vec<String>> = HashMap::new();
        for mail in self.mails.lock().iter() {
            let token = mail.body().lines().find_map(|line| line.trim().strip_prefix("token:")).expect("a token");
            ids.entry(token.trim().to_owned()).or_default().push(mail.header("message-id").expect("a message id"));
        }
        ids
    }

    async fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let (reader, mut writer) = stream.into_split();
        let mut lines = BufReader::new(reader);
        writer.write_all(b"220 sink\r\n").await?;
        let (mut from, mut to) = (String::new(), Vec::new());
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            let upper = line.to_ascii_uppercase();
            let closed = self.closed.load(Ordering::SeqCst);
            if upper.starts_with("MAIL FROM:") {
                from = line[10..].split('>').next().unwrap_or_default().trim_start_matches(['<', ' ']).to_owned();
            }
            let answer = if upper.starts_with("EHLO") {
                "250-sink\r\n250-PIPELINING\r\n250-8BITMIME\r\n250 SMTPUTF8\r\n"
            } else if upper.starts_with("MAIL") && closed {
                "451 not now\r\n"
            } else if upper.starts_with("RCPT TO:") {
                let address = line[8..].split('>').next().unwrap_or_default().trim_start_matches(['<', ' ']);
                if closed {
                    "451 not now\r\n"
                } else if self.refused.lock().contains(address) {
                    "550 5.1.1 the mailbox does not exist\r\n"
                } else if self.is_deferred(address) {
                    "451 4.3.0 try again later\r\n"
                } else {
                    to.push(address.to_owned());
                    "250 ok\r\n"
                }
            } else if upper.starts_with("DATA") && (closed || to.is_empty()) {
                "503 no recipients\r\n"
            } else if upper.starts_with("DATA") {
                writer.write_all(b"354 go on\r\n").await?;
                let text = read_data(&mut lines).await?;
                let (from, to) = (std::mem::take(&mut from), std::mem::take(&mut to));
                self.mails.lock().push(Mail { from, to, text, received: std::time::Instant::now() });
                self.count.send_modify(|count| *count += 1);
                "250 kept\r\n"
            } else if upper.starts_with("QUIT") {
                writer.write_all(b"221 bye\r\n").await?;
                return Ok(());
            } else {
                if upper.starts_with("RSET") {
                    to.clear();
                }
                "250 ok\r\n"
            };
            writer.write_all(answer.as_bytes()).await?;
        }
    }
}

async fn read_data(lines: &mut BufReader<tokio::net::tcp::OwnedReadHalf>) -> std::io::Result<String> {
    let mut text = String::new();
    loop {
        let mut line = Vec::new();
        if lines.read_until(b'\n', &mut line).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if line == b".\r\n" {
            return Ok(text);
        }
        let line = String::from_utf8_lossy(&line);
        text.push_str(line.strip_prefix('.').filter(|_| line.starts_with("..")).unwrap_or(&line));
    }
}
