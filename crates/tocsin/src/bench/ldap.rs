//! A bare LDAP client: whole requests, of their answers only the codes. It leaves the processor to the server.

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
    context::busy,
    people::{self, MEMBERS, PASSWORD, USER},
};
use crate::failure::{Failure, Outcome};

/// A connection that is used again and again.
pub struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
    last: u32,
}

/// What an operation came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// 0: it was done.
    pub code: u32,
    /// How many entries came before.
    pub entries: u32,
}

impl Connection {
    /// To a port of this machine, bound as the ordinary user.
    ///
    /// # Errors
    /// Nobody listens there, or knows the user.
    pub async fn open(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let mut connection = Connection { stream, read: Vec::with_capacity(16 << 10), last: 0 };
        match connection.ask(&bind(USER)).await?.code {
            0 => Ok(connection),
            code => Err(io::Error::new(ErrorKind::PermissionDenied, format!("cannot bind as {USER}: code {code}"))),
        }
    }

    /// Sends an operation and waits for its last answer.
    ///
    /// # Errors
    /// The connection broke, or what came is no answer.
    pub async fn ask(&mut self, operation: &[u8]) -> io::Result<Answer> {
        self.last = self.last % 1_000_000 + 1;
        let mut request = Vec::with_capacity(operation.len() + 16);
        ber::nested(&mut request, 0x30, |out| {
            ber::number(out, 0x02, self.last);
            out.extend_from_slice(operation);
        });
        self.stream.write_all(&request).await?;
        let garbled = |_| io::Error::new(ErrorKind::InvalidData, "what came is no answer");
        let mut entries = 0;
        loop {
            while let Some(length) = ber::first_length(&self.read, usize::MAX >> 1).map_err(garbled)? {
                let mut message = Reader(Reader(&self.read[..length]).expect(0x30).map_err(garbled)?);
                message.count(0x02).map_err(garbled)?;
                let (tag, content) = message.value().map_err(garbled)?;
                let code = if tag == 0x64 { None } else { Some(Reader(content).count(0x0a).map_err(garbled)?) };
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

/// What is done again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// A search for an entry by its name.
    Base,
    /// A search of the tree by `cn`.
    Equality,
    /// One more value.
    ModifyAdd,
    /// Another value.
    ModifyReplace,
    /// An entry of 20 attributes.
    Add,
    /// A bind, and one back as the ordinary user.
    Bind,
    /// Of 100: 75 searches by name, 12 changes, 3 adds, 10 binds.
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

/// A bind by the password of everybody.
pub fn bind(dn: &str) -> Vec<u8> {
    nested(0x60, &[&[2, 1, 3], &text(4, dn), &text(0x80, PASSWORD)])
}

fn search(base: &str, scope: u8, filter: &[u8]) -> Vec<u8> {
    // Never through aliases, without limits, with values, all attributes.
    nested(0x63, &[&text(4, base), &[10, 1, scope, 10, 1, 0, 2, 1, 0, 2, 1, 0, 1, 1, 0], filter, &[0x30, 0]])
}

fn attribute(name: &str, value: &str) -> Vec<u8> {
    nested(0x30, &[&text(4, name), &nested(0x31, &[&text(4, value)])])
}

fn modify(dn: &str, how: u8, name: &str, value: &str) -> Vec<u8> {
    let change = nested(0x30, &[&[10, 1, how], &attribute(name, value)]);
    nested(0x66, &[&text(4, dn), &nested(0x30, &[&change])])
}

impl Act {
    /// What is done this time.
    fn drawn(self, chance: &mut fastrand::Rng) -> Act {
        if self != Act::Mix {
            return self;
        }
        match chance.u8(..100) {
            0..75 => Act::Base,
            75..81 => Act::ModifyAdd,
            81..87 => Act::ModifyReplace,
            87..90 => Act::Add,
            _ => Act::Bind,
        }
    }

    /// The operation for a person.
    pub fn request(self, number: u64, new: &AtomicU64, chance: &mut fastrand::Rng) -> Vec<u8> {
        let dn = people::name(number);
        match self {
            Act::Base => search(&dn, 0, &text(0x87, "objectClass")),
            Act::Equality => search(MEMBERS, 2, &nested(0xa3, &[&text(4, "cn"), &text(4, &format!("user.{number}"))])),
            Act::ModifyAdd => modify(&dn, 0, "carLicense", &format!("{:016x}", chance.u64(..))),
            Act::ModifyReplace => modify(&dn, 2, "telephoneNumber", &format!("+1 555 {:07}", chance.u32(..10_000_000))),
            Act::Add => {
                let number = new.fetch_add(1, Ordering::Relaxed);
                let attributes: Vec<Vec<u8>> =
                    people::attributes(number).iter().map(|(name, value)| attribute(name, value)).collect();
                nested(0x68, &[&text(4, &people::name(number)), &nested(0x30, &[&attributes.concat()])])
            }
            Act::Bind | Act::Mix => bind(&dn),
        }
    }
}

/// What a load saw.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Operations per second.
    pub per_second: f64,
    /// Operations.
    pub count: u64,
    /// Half of them were answered within this time, in milliseconds.
    pub p50_ms: f64,
    /// All but one in a hundred.
    pub p99_ms: f64,
    /// The same of the searches among them.
    pub searches_p99_ms: f64,
}

/// Whom a load concerns.
pub struct Crowd {
    /// People that are there from the beginning.
    pub count: u64,
    /// The number of the next one that is added.
    pub new: AtomicU64,
    /// Loads so far: each draws numbers of its own, so that none adds a value that one before it added.
    loads: AtomicU64,
}

impl Crowd {
    /// So many people.
    pub fn of(count: u64) -> Crowd {
        Crowd { count, new: AtomicU64::new(count), loads: AtomicU64::new(0) }
    }
}

/// Does the same over so many connections at once for this time, each as soon as its answer has come. Closed loop. One thread of
/// its own looks at all connections, without the wake-ups from thread to thread that several have: they would be the load's, on
/// processors that the server needs.
///
/// # Errors
/// A connection broke, an operation was refused, or a search did not find its one entry.
pub async fn flood(port: u16, act: Act, crowd: &Arc<Crowd>, connections: usize, time: Duration) -> Outcome<Load> {
    let crowd = crowd.clone();
    busy(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::failed("cannot start the load").because(&error))?;
        runtime.block_on(pour(port, act, &crowd, connections, time))
    })
    .await?
}

async fn pour(port: u16, act: Act, crowd: &Crowd, connections: usize, time: Duration) -> Outcome<Load> {
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
            let is_search = matches!(now, Act::Base | Act::Equality);
            took.push((is_search, asked.elapsed()));
            if answer != (Answer { code: 0, entries: u32::from(is_search) }) {
                return Err(Failure::failed(format!("{now:?} was answered by {answer:?}")));
            }
            if now == Act::Bind {
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
        let place = (times.len() as f64 * share) as usize;
        times.get(place.min(times.len().saturating_sub(1))).map_or(0.0, |time| time.as_secs_f64() * 1_000.0)
    };
    let (all, searches) = (times(false), times(true));
    Ok(Load {
        per_second: all.len() as f64 / seconds,
        count: all.len() as u64,
        p50_ms: at(&all, 0.5),
        p99_ms: at(&all, 0.99),
        searches_p99_ms: at(&searches, 0.99),
    })
}

/// Whether a person is there.
///
/// # Errors
/// The connection broke.
pub async fn is_there(port: u16, number: u64) -> Outcome<bool> {
    let broke = |error: io::Error| Failure::failed("a connection of the load broke").because(&error);
    let mut connection = Connection::open(port).await.map_err(broke)?;
    let found = connection.ask(&search(&people::name(number), 0, &text(0x87, "objectClass"))).await.map_err(broke)?;
    Ok(found.entries == 1)
}
