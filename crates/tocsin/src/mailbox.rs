//! A small SMTP receiver for demos and tests: counts every mail, keeps the newest, and shows them on a page.
//!
//! Takes in whatever is said to be for anybody (RFC 5321 with PIPELINING, 8BITMIME, SMTPUTF8 and SIZE); sends nothing
//! on. Memory is bounded: the newest mails up to a number and a size, one counter for each recipient up to a number,
//! one hash for each `Message-ID` up to a number.

mod mail; // what a mail says, read for people
mod page; // the page
mod ring; // counts of all, the newest of them
mod session; // one conversation

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinHandle,
};

pub use mail::{Part, Readable};
pub use ring::{Counts, Mail};

use crate::failure::{Failure, Outcome};
use ring::Ring;

/// Ports tried after the one that was asked for.
const PORTS_TRIED: u16 = 100;

/// How a mailbox is set up.
#[derive(Debug, Clone)]
pub struct MailboxOptions {
    /// Where mail is taken in; the next free port if it is busy.
    pub smtp: SocketAddr,
    /// Where the page is; the next free port if it is busy.
    pub page: SocketAddr,
    /// Most mails kept.
    pub keep: usize,
    /// Most bytes of mails kept.
    pub keep_bytes: usize,
    /// Largest mail; a larger one is refused with 552.
    pub mail_bytes_max: usize,
    /// Most conversations at the same time; one more is told 421.
    pub sessions_max: usize,
    /// A conversation in which nothing is said for so long ends with 421.
    pub idle: Duration,
}

impl Default for MailboxOptions {
    fn default() -> Self {
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        MailboxOptions {
            smtp: local(2525),
            page: local(8025),
            keep: 500,
            keep_bytes: 32 << 20,
            mail_bytes_max: 8 << 20,
            sessions_max: 256,
            idle: Duration::from_secs(300),
        }
    }
}

/// What conversations and the page share.
struct Shared {
    ring: Mutex<Ring>,
    came: watch::Sender<u64>,
    options: MailboxOptions,
}

impl Shared {
    fn put(&self, from: String, to: Vec<String>, body: Vec<u8>) {
        let mails = self.ring.lock().put(from, to, body, crate::platform::now());
        self.came.send_replace(mails);
    }
}

/// A mailbox that runs until it is dropped.
pub struct Mailbox {
    shared: Arc<Shared>,
    smtp: SocketAddr,
    page: SocketAddr,
    tasks: Vec<JoinHandle<()>>,
}

impl Mailbox {
    /// Starts to take in mail and to show it.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start(options: MailboxOptions) -> Outcome<Self> {
        let (smtp, page) = (bind(options.smtp).await?, bind(options.page).await?);
        let address = |listener: &TcpListener| {
            listener.local_addr().map_err(|error| Failure::failed("a socket has no address").because(&error))
        };
        let (smtp_address, page_address) = (address(&smtp)?, address(&page)?);
        let ring = Mutex::new(Ring::new(options.keep, options.keep_bytes));
        let shared = Arc::new(Shared { ring, came: watch::channel(0).0, options });
        let pages = page::router(shared.clone());
        let tasks = vec![
            tokio::spawn(receive(smtp, shared.clone())),
            tokio::spawn(async move {
                // It ends only with the task.
                let _ = axum::serve(page, pages).await;
            }),
        ];
        Ok(Mailbox { shared, smtp: smtp_address, page: page_address, tasks })
    }

    /// Where mail is taken in.
    pub fn smtp_address(&self) -> SocketAddr {
        self.smtp
    }

    /// Where the page is.
    pub fn page_address(&self) -> SocketAddr {
        self.page
    }

    /// What came so far. Cheap.
    pub fn counts(&self) -> Counts {
        self.shared.ring.lock().counts()
    }

    /// How many mails came for this address.
    pub fn mails_for(&self, address: &str) -> u64 {
        self.shared.ring.lock().mails_for(address)
    }

    /// The mails that are kept, newest first.
    pub fn newest(&self) -> Vec<Arc<Mail>> {
        self.shared.ring.lock().newest().cloned().collect()
    }

    /// The number of mails so far; the receiver wakes up when more come.
    pub fn arrivals(&self) -> watch::Receiver<u64> {
        self.shared.came.subscribe()
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Listens at this address, or at the next free port after it.
///
/// # Errors
/// None of a hundred ports is free, or the address is not of this machine.
pub async fn bind(address: SocketAddr) -> Outcome<TcpListener> {
    let mut last = None;
    for port in address.port()..=address.port().saturating_add(PORTS_TRIED) {
        match TcpListener::bind((address.ip(), port)).await {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = Some(error),
            Err(error) => {
                return Err(Failure::failed(format!("cannot listen at {}:{port}", address.ip())).because(&error));
            }
        }
    }
    let failure = Failure::failed(format!(
        "free one of the ports {} to {}",
        address.port(),
        address.port().saturating_add(PORTS_TRIED)
    ));
    Err(match last {
        Some(error) => failure.because(&error),
        None => failure,
    })
}

async fn receive(listener: TcpListener, shared: Arc<Shared>) {
    let sessions = Arc::new(Semaphore::new(shared.options.sessions_max));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors: conversations that end free some.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Ok(permit) = sessions.clone().try_acquire_owned() else {
            refuse(&stream);
            continue;
        };
        let shared = shared.clone();
        tokio::spawn(async move {
            // A conversation that breaks off is the sender's to repeat.
            let _ = session::converse(stream, &shared).await;
            drop(permit);
        });
    }
}

/// Says that there is no room, if the socket takes it at once.
fn refuse(stream: &TcpStream) {
    let _ = stream.try_write(b"421 4.3.2 too many conversations, come back later\r\n");
}

#[cfg(test)]
mod tests;
