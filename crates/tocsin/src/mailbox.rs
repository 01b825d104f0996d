//! Test SMTP server: counts every mail, keeps the newest, and shows them on a web page.
//!
//! Accepts mail for any recipient (RFC 5321 with PIPELINING, 8BITMIME, SMTPUTF8 and SIZE); relays nothing. Memory is
//! bounded by the number and size of kept mails, of recipient counters, and of `Message-ID` hashes.

mod mail; // parser of mails for display
mod page; // web page
mod ring; // counters, and a ring of the newest mails
mod session; // SMTP session

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinHandle,
};

pub use mail::{ParsedMail, Part};
pub use ring::{Counts, Mail};

use crate::failure::{Failure, Outcome};
use ring::Ring;

/// Number of ports to try, starting at the requested one.
const PORTS_TRIED: u16 = 100;

/// Options of a mailbox.
#[derive(Debug, Clone)]
pub struct MailboxOptions {
    /// SMTP address; if it is in use, the next free port.
    pub smtp: SocketAddr,
    /// Address of the web page; if it is in use, the next free port.
    pub page: SocketAddr,
    /// Maximum number of kept mails.
    pub keep: usize,
    /// Maximum total size of kept mails in bytes.
    pub keep_bytes: usize,
    /// Maximum size of a mail in bytes; a larger one gets 552.
    pub mail_bytes_max: usize,
    /// Maximum number of concurrent sessions; further ones get 421.
    pub sessions_max: usize,
    /// Idle time after which a session ends with 421.
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

/// State shared by sessions and the web page.
struct MailboxState {
    ring: Mutex<Ring>,
    came: watch::Sender<u64>,
    options: MailboxOptions,
}

impl MailboxState {
    fn put(&self, from: String, to: Vec<String>, body: Vec<u8>) {
        let mails = self.ring.lock().put(from, to, body, crate::local_change::now());
        self.came.send_replace(mails);
    }
}

/// Mailbox that runs until it is dropped.
pub struct Mailbox {
    shared: Arc<MailboxState>,
    smtp: SocketAddr,
    page: SocketAddr,
    tasks: Vec<JoinHandle<()>>,
}

impl Mailbox {
    /// Starts the SMTP server and the web page.
    ///
    /// # Errors
    /// If no port is free.
    pub async fn start(options: MailboxOptions) -> Outcome<Self> {
        let (smtp, page) = (bind(options.smtp).await?, bind(options.page).await?);
        let address = |listener: &TcpListener| {
            listener
                .local_addr()
                .map_err(|error| Failure::failed("cannot read the address of a socket").because(&error))
        };
        let (smtp_address, page_address) = (address(&smtp)?, address(&page)?);
        let ring = Mutex::new(Ring::new(options.keep, options.keep_bytes));
        let shared = Arc::new(MailboxState { ring, came: watch::channel(0).0, options });
        let pages = page::router(shared.clone());
        let tasks = vec![
            tokio::spawn(receive(smtp, shared.clone())),
            tokio::spawn(async move {
                // It ends with the task.
                let _ = axum::serve(page, pages).await;
            }),
        ];
        Ok(Mailbox { shared, smtp: smtp_address, page: page_address, tasks })
    }

    /// SMTP address.
    pub fn smtp_address(&self) -> SocketAddr {
        self.smtp
    }

    /// Address of the web page.
    pub fn page_address(&self) -> SocketAddr {
        self.page
    }

    /// Counters so far. Cheap.
    pub fn counts(&self) -> Counts {
        self.shared.ring.lock().counts()
    }

    /// Number of mails for this address.
    pub fn mails_for(&self, address: &str) -> u64 {
        self.shared.ring.lock().mails_for(address)
    }

    /// Kept mails, newest first.
    pub fn newest(&self) -> Vec<Arc<Mail>> {
        self.shared.ring.lock().newest().cloned().collect()
    }

    /// Watch channel of the number of received mails.
    pub fn arrivals(&self) -> watch::Receiver<u64> {
        self.shared.came.subscribe()
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Listens at this address, or at the next free port.
///
/// # Errors
/// If none of a hundred ports is free, or the address is not local.
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

async fn receive(listener: TcpListener, shared: Arc<MailboxState>) {
    let sessions = Arc::new(Semaphore::new(shared.options.sessions_max));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors: ending sessions free some.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Ok(permit) = sessions.clone().try_acquire_owned() else {
            refuse(&stream);
            continue;
        };
        let shared = shared.clone();
        tokio::spawn(async move {
            // The client repeats after an interrupted session.
            let _ = session::run_session(stream, &shared).await;
            drop(permit);
        });
    }
}

/// Sends 421 if the socket accepts it immediately.
fn refuse(stream: &TcpStream) {
    let _ = stream.try_write(b"421 4.3.2 too many sessions, try again later\r\n");
}

#[cfg(test)]
mod tests;
