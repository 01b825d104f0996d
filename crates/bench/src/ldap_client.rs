//! Minimal LDAP client for load: prebuilt requests, and only the result codes of responses are parsed. It leaves the
//! CPU to the server.

use std::{
    io::{self, ErrorKind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tocsin_face_ldap::ber::{self, Reader};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    context::run_blocking,
    ldap_fixture::{self, MEMBERS, PASSWORD, USER},
};
use crate::failure::{Failure, Outcome};

/// Persistent LDAP connection.
pub struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
    last: u32,
}

/// Result of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// LDAP result code; 0 is success.
    pub code: u32,
    /// Number of entries returned by a search.
    pub entries: u32,
}

impl Connection {
    /// Connects to a port of this machine and binds as the ordinary user.
    ///
    /// # Errors
    /// If the connection or the bind fails.
    pub async fn open(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let mut connection = Connection { stream, read: Vec::with_capacity(16 << 10), last: 0 };
        match connection.ask(&bind(USER)).await?.code {
            0 => Ok(connection),
            code => Err(io::Error::new(ErrorKind::PermissionDenied, format!("cannot bind as {USER}: code {code}"))),
        }
    }

    /// Sends an operation and waits for its final response.
    ///
    /// # Errors
    /// If the connection breaks or the response is invalid.
    pub async fn ask(&mut self, operation: &[u8]) -> io::Result<Answer> {
        self.last = self.last % 1_000_000 + 1;
        let mut request = Vec::with_capacity(operation.len() + 16);
        ber::nested(&mut request, 0x30, |out| {
            ber::number(out, 0x02, self.last);
            out.extend_from_slice(operation);
        });
        self.stream.write_all(&request).await?;
        let invalid = |_| io::Error::new(ErrorKind::InvalidData, "invalid LDAP response");
        let mut entries = 0;
        loop {
            while let Some(length) = ber::first_length(&self.read, usize::MAX >> 1).map_err(invalid)? {
                let mut message = Reader(Reader(&self.read[..length]).expect(0x30).map_err(invalid)?);
                message.count(0x02).map_err(invalid)?;
                let (tag, content) = message.value().map_err(invalid)?;
                let code = if tag == 0x64 { None } else { Some(Reader(content).count(0x0a).map_err(invalid)?) };
                self.read.drain(..length);
                match code {
                    Some(code) => return Ok(Answer { code, entries }),
                    None => entries += 1,
                }
            }
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// Operation of the LDAP load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LdapOperation {
    /// Search for an entry by its name.
    Base,
    /// Subtree search by `cn`.
    Equality,
    /// Modify that adds a value.
    ModifyAdd,
    /// Modify that replaces a value.
    ModifyReplace,
    /// Add of an entry with 20 attributes.
    Add,
    /// Bind as another user, and bind back as the ordinary user.
    Bind,
    /// Mix per 100: 75 searches by name, 12 modifies, 3 adds, 10 binds.
    Mix,
}

fn nested(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    ber::value(&mut out, tag, &parts.concat());
    out
}

fn text(tag: u8, text: &str) -> Vec<u8> {
    nested(tag, &[text.as_bytes()])
}

/// Simple bind with the common password.
pub fn bind(dn: &str) -> Vec<u8> {
    nested(0x60, &[&[2, 1, 3], &text(4, dn), &text(0x80, PASSWORD)])
}

fn search(base: &str, scope: u8, filter: &[u8]) -> Vec<u8> {
    // neverDerefAliases, no limits, with values, all attributes.
    nested(0x63, &[&text(4, base), &[10, 1, scope, 10, 1, 0, 2, 1, 0, 2, 1, 0, 1, 1, 0], filter, &[0x30, 0]])
}

fn attribute(name: &str, value: &str) -> Vec<u8> {
    nested(0x30, &[&text(4, name), &nested(0x31, &[&text(4, value)])])
}

fn modify(dn: &str, how: u8, name: &str, value: &str) -> Vec<u8> {
    let change = nested(0x30, &[&[10, 1, how], &attribute(name, value)]);
    nested(0x66, &[&text(4, dn), &nested(0x30, &[&change])])
}

impl LdapOperation {
    /// Resolves `Mix` to a random operation.
    fn drawn(self, chance: &mut fastrand::Rng) -> LdapOperation {
        if self != LdapOperation::Mix {
            return self;
        }
        match chance.u8(..100) {
            0..75 => LdapOperation::Base,
            75..81 => LdapOperation::ModifyAdd,
            81..87 => LdapOperation::ModifyReplace,
            87..90 => LdapOperation::Add,
            _ => LdapOperation::Bind,
        }
    }

    /// Encodes the operation for entry `number`.
    pub fn request(self, number: u64, new: &AtomicU64, chance: &mut fastrand::Rng) -> Vec<u8> {
        let dn = ldap_fixture::name(number);
        match self {
            LdapOperation::Base => search(&dn, 0, &text(0x87, "objectClass")),
            LdapOperation::Equality => {
                search(MEMBERS, 2, &nested(0xa3, &[&text(4, "cn"), &text(4, &format!("user.{number}"))]))
            }
            LdapOperation::ModifyAdd => modify(&dn, 0, "carLicense", &format!("{:016x}", chance.u64(..))),
            LdapOperation::ModifyReplace => {
                modify(&dn, 2, "telephoneNumber", &format!("+1 555 {:07}", chance.u32(..10_000_000)))
            }
            LdapOperation::Add => {
                let number = new.fetch_add(1, Ordering::Relaxed);
                let attributes: Vec<Vec<u8>> =
                    ldap_fixture::attributes(number).iter().map(|(name, value)| attribute(name, value)).collect();
                nested(0x68, &[&text(4, &ldap_fixture::name(number)), &nested(0x30, &[&attributes.concat()])])
            }
            LdapOperation::Bind | LdapOperation::Mix => bind(&dn),
        }
    }
}

/// Result of an LDAP load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LdapLoadResult {
    /// Operations per second.
    pub per_second: f64,
    /// Number of operations.
    pub count: u64,
    /// Median latency in milliseconds.
    pub p50_ms: f64,
    /// 99th percentile in milliseconds.
    pub p99_ms: f64,
    /// 99th percentile of the searches in milliseconds.
    pub searches_p99_ms: f64,
}

/// Entries that a load works on.
pub struct EntryRange {
    /// Number of entries that exist at the beginning.
    pub count: u64,
    /// Number of the next entry to add.
    pub new: AtomicU64,
    /// Number of loads so far; seeds each load differently, so that none adds a value that an earlier one added.
    loads: AtomicU64,
}

impl EntryRange {
    /// Entries 0 to `count`.
    pub fn of(count: u64) -> EntryRange {
        EntryRange { count, new: AtomicU64::new(count), loads: AtomicU64::new(0) }
    }
}

/// Closed loop over `connections` connections for this time. A single separate thread polls all connections. Several
/// threads would wake each other up, which costs CPU that the server needs.
///
/// # Errors
/// If a connection breaks, an operation fails, or a search does not find exactly one entry.
pub async fn closed_loop(
    port: u16,
    act: LdapOperation,
    crowd: &Arc<EntryRange>,
    connections: usize,
    time: Duration,
) -> Outcome<LdapLoadResult> {
    let crowd = crowd.clone();
    run_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::failed("cannot start the load").because(&error))?;
        runtime.block_on(run_connections(port, act, &crowd, connections, time))
    })
    .await?
}

async fn run_connections(
    port: u16,
    act: LdapOperation,
    crowd: &EntryRange,
    connections: usize,
    time: Duration,
) -> Outcome<LdapLoadResult> {
    let broke = |error: io::Error| Failure::failed("a connection of the load broke").because(&error);
    let opening = (0..connections).map(|_| Connection::open(port));
    let opened = futures_util::future::try_join_all(opening).await.map_err(broke)?;
    let (started, seed) = (Instant::now(), crowd.loads.fetch_add(1, Ordering::Relaxed));
    let senders = opened.into_iter().enumerate().map(|(at, mut connection)| async move {
        let mut chance = fastrand::Rng::with_seed(seed << 16 | at as u64);
        let mut took: Vec<(bool, Duration)> = Vec::new();
        while started.elapsed() < time {
            let now = act.drawn(&mut chance);
            let request = now.request(chance.u64(..crowd.count), &crowd.new, &mut chance);
            let asked = Instant::now();
            let answer = connection.ask(&request).await.map_err(broke)?;
            let is_search = matches!(now, LdapOperation::Base | LdapOperation::Equality);
            took.push((is_search, asked.elapsed()));
            if answer != (Answer { code: 0, entries: u32::from(is_search) }) {
                return Err(Failure::failed(format!("{now:?} was answered by {answer:?}")));
            }
            if now == LdapOperation::Bind {
                connection.ask(&bind(USER)).await.map_err(broke)?;
            }
        }
        Ok(took)
    });
    let took = futures_util::future::try_join_all(senders).await?.concat();
    let seconds = started.elapsed().as_secs_f64();
    let times = |only_searches: bool| {
        let mut times: Vec<Duration> =
            took.iter().filter(|(is_search, _)| *is_search || !only_searches).map(|(_, time)| *time).collect();
        times.sort_unstable();
        times
    };
    let at = |times: &[Duration], share: f64| {
        let rank = (times.len() as f64 * share) as usize;
        times.get(rank.min(times.len().saturating_sub(1))).map_or(0.0, |time| time.as_secs_f64() * 1_000.0)
    };
    let (all, searches) = (times(false), times(true));
    Ok(LdapLoadResult {
        per_second: all.len() as f64 / seconds,
        count: all.len() as u64,
        p50_ms: at(&all, 0.5),
        p99_ms: at(&all, 0.99),
        searches_p99_ms: at(&searches, 0.99),
    })
}

/// Whether an entry exists.
///
/// # Errors
/// If the connection breaks.
pub async fn entry_exists(port: u16, number: u64) -> Outcome<bool> {
    let broke = |error: io::Error| Failure::failed("a connection of the load broke").because(&error);
    let mut connection = Connection::open(port).await.map_err(broke)?;
    let found =
        connection.ask(&search(&ldap_fixture::name(number), 0, &text(0x87, "objectClass"))).await.map_err(broke)?;
    Ok(found.entries == 1)
}
