//! Selects the server of a session: fail-over in order, or by weight. Each server has a circuit breaker: after a
//! failure it is paused, longer each time, and then a single session probes it before others follow.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use rustls::ClientConfig;
use tocsin_connect::{files::Files, tls};
use tocsin_model::{
    id::Name,
    problem::Problem,
    receipt::{Reason, ReasonKind},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::{
    auth::Credentials,
    options::{Balance, ServerOptions, SmtpOptions, TlsMode},
};
use crate::Context;

const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Wrong credentials stay wrong, and too many attempts lock accounts.
const AUTHENTICATION_PAUSE_MIN: Duration = Duration::from_secs(30);
/// Interval at which continued failure is logged again.
const LOG_INTERVAL: Duration = Duration::from_secs(900);
/// A server fails after this many sessions in a row that it accepts and then ends before any mail is answered.
const BAD_SESSIONS_MAX: u32 = 3;
/// Time that a session waits for a free slot of a server before it looks again whether there is work.
const SLOT_WAIT: Duration = Duration::from_secs(1);

/// A mail server with everything needed to open a session.
pub(super) struct Server {
    pub host: String,
    pub port: u16,
    pub tls: TlsMode,
    pub trust: Arc<ClientConfig>,
    pub credentials: Option<Credentials>,
    weight: i64,
}

impl Server {
    /// Opens the options, which must be free of problems. `path` leads to them.
    ///
    /// # Errors
    /// The file of further certificates cannot be used.
    fn open(options: ServerOptions, path: &str, files: &Files) -> Result<Server, Problem> {
        let trust = tls::client_config(files, options.ca_file.as_deref(), &format!("{path}ca_file"))?;
        let port = options.port_or_custom();
        let tls = options.tls.unwrap_or_default();
        let credentials = match (options.username, options.password, options.token_file) {
            (Some(username), _, Some(file)) => Some(Credentials::Token { username, file, files: files.clone() }),
            (Some(username), Some(password), None) => Some(Credentials::Password { username, password }),
            _ => None,
        };
        Ok(Server { host: options.host, port, tls, trust, credentials, weight: i64::from(options.weight.max(1)) })
    }

    /// Host and port, for logs and reasons.
    pub fn host_port(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// The servers of a channel and their circuit breakers.
pub(super) struct Servers {
    all: Vec<Server>,
    balance: Balance,
    gates: Mutex<Vec<Gate>>,
    changed: Notify,
}

struct Gate {
    failures: u32,
    bad_sessions: u32,
    /// End and reason of the pause. Stays until a session was opened.
    closed: Option<(Instant, Reason)>,
    /// When the pause was last logged; none while the server works.
    logged_at: Option<Instant>,
    /// Whether a session probes the server.
    probing: bool,
    /// Number of open sessions.
    live: usize,
    credit: i64,
    opened: metrics::Counter,
    failed: metrics::Counter,
    is_closed: metrics::Gauge,
}

impl Gate {
    fn may_connect(&self, now: Instant) -> bool {
        !self.probing && self.closed.as_ref().is_none_or(|(until, _)| *until <= now)
    }
}

/// Result of selecting a server.
enum Choice {
    Connect(usize),
    /// All are paused, for this reason; the first may be probed at this time, or is being probed now.
    AllPaused(Reason, Option<Instant>),
}

impl Servers {
    /// Opens the servers of a channel; its options must be free of problems.
    ///
    /// # Errors
    /// Files that cannot be used.
    pub fn open(name: &Name, options: &SmtpOptions, context: &Context) -> Result<Servers, Problem> {
        let given = options.servers();
        let path = |at: usize| if options.servers.is_empty() { String::new() } else { format!("servers[{at}].") };
        let all: Result<Vec<Server>, Problem> =
            given.into_iter().enumerate().map(|(at, server)| Server::open(server, &path(at), &context.files)).collect();
        let all = all?;
        let gate = |server: &Server| {
            let (application, channel, place) = (context.application.clone(), name.to_string(), server.host_port());
            let count = |outcome: &'static str| metrics::counter!("tocsin_deliver_smtp_sessions_total", "application" => application.clone(), "channel" => channel.clone(), "server" => place.clone(), "outcome" => outcome);
            let is_closed = metrics::gauge!("tocsin_deliver_smtp_server_closed", "application" => application.clone(), "channel" => channel.clone(), "server" => place.clone());
            is_closed.set(0.0);
            Gate {
                failures: 0,
                bad_sessions: 0,
                closed: None,
                logged_at: None,
                probing: false,
                live: 0,
                credit: 0,
                opened: count("opened"),
                failed: count("failed"),
                is_closed,
            }
        };
        let gates = Mutex::new(all.iter().map(gate).collect());
        Ok(Servers { all, balance: options.balance, gates, changed: Notify::new() })
    }

    /// All servers.
    pub fn all(&self) -> &[Server] {
        &self.all
    }

    /// Selects a server for a new session. At the deadline: the failure, and how long it may last.
    pub async fn acquire(self: &Arc<Self>, deadline: Instant) -> Result<Entry, (Reason, Duration)> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let now = Instant::now();
            match self.choose(now) {
                Choice::Connect(at) => return Ok(Entry { servers: self.clone(), at, started: now, is_open: true }),
                Choice::AllPaused(reason, until) if deadline <= now => {
                    return Err((reason, until.map_or(Duration::ZERO, |until| until.duration_since(now))));
                }
                Choice::AllPaused(_, until) => {
                    tokio::select! {
                        () = sleep_until(until.map_or(deadline, |until| until.min(deadline))) => {}
                        () = changed => {}
                    }
                }
            }
        }
    }

    /// Waits briefly for a free slot while no server accepts more sessions and other sessions work.
    pub async fn free_slot(&self) {
        let mut changed = std::pin::pin!(self.changed.notified());
        changed.as_mut().enable();
        let now = Instant::now();
        let first = {
            let gates = self.gates.lock();
            if gates.iter().any(|gate| gate.may_connect(now)) {
                return;
            }
            gates.iter().filter(|gate| !gate.probing).filter_map(|gate| Some(gate.closed.as_ref()?.0)).min()
        };
        let until = first.unwrap_or(now + SLOT_WAIT).min(now + SLOT_WAIT);
        tokio::select! {
            () = sleep_until(until) => {}
            () = changed => {}
        }
    }

    /// Whether other sessions exist and no server accepts more, so that they will send the waiting mails.
    pub fn others_work(&self) -> bool {
        let (gates, now) = (self.gates.lock(), Instant::now());
        gates.iter().any(|gate| gate.live > 0) && !gates.iter().any(|gate| gate.may_connect(now))
    }

    /// Whether a session with this server should give way to one with a preferred server that may be tried again.
    pub fn is_fallback(&self, at: usize) -> bool {
        if at == 0 || self.balance == Balance::Weighted {
            return false;
        }
        let (gates, now) = (self.gates.lock(), Instant::now());
        gates[..at].iter().any(|gate| gate.may_connect(now))
    }

    fn choose(&self, now: Instant) -> Choice {
        let mut gates = self.gates.lock();
        let may_connect = |gate: &Gate| gate.may_connect(now);
        let chosen = match self.balance {
            Balance::Ordered => gates.iter().position(may_connect),
            // Smooth weighted round robin: with weights 2 and 1 the sessions go A B A, A B A.
            Balance::Weighted => {
                let mut total = 0;
                for (gate, server) in gates.iter_mut().zip(&self.all).filter(|(gate, _)| may_connect(gate)) {
                    gate.credit += server.weight;
                    total += server.weight;
                }
                let open = (0..gates.len()).filter(|at| may_connect(&gates[*at]));
                let chosen = open.max_by_key(|at| (gates[*at].credit, std::cmp::Reverse(*at)));
                if let Some(at) = chosen {
                    gates[at].credit -= total;
                }
                chosen
            }
        };
        if let Some(at) = chosen {
            gates[at].probing = gates[at].closed.is_some();
            return Choice::Connect(at);
        }
        let closed = gates.iter().filter_map(|gate| Some((gate.probing, gate.closed.as_ref()?)));
        let first = closed.min_by_key(|(probing, (until, _))| (*probing, *until));
        match first {
            Some((probing, (until, reason))) => Choice::AllPaused(reason.clone(), (!probing).then_some(*until)),
            // Only a paused server is probed, so this channel has no servers, which the options do not allow.
            None => Choice::AllPaused(Reason::new(ReasonKind::Internal, "there is no mail server"), None),
        }
    }

    /// Pauses a server, longer each time. Sessions that failed together count once.
    fn shut_out(&self, at: usize, reason: &Reason, started: Instant) {
        let mut gates = self.gates.lock();
        let gate = &mut gates[at];
        gate.failed.increment(1);
        gate.probing = false;
        if gate.closed.as_ref().is_some_and(|(until, _)| *until > started) {
            return;
        }
        let first = if reason.kind == ReasonKind::Authentication { AUTHENTICATION_PAUSE_MIN } else { PAUSE_MIN };
        let pause =
            first.saturating_mul(1 << gate.failures.min(10)).min(PAUSE_MAX).mul_f64(0.8 + 0.4 * fastrand::f64());
        gate.failures += 1;
        gate.bad_sessions = 0;
        gate.is_closed.set(1.0);
        let server = self.all[at].host_port();
        let pause_ms = pause.as_millis() as u64;
        if gate.logged_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            gate.logged_at = Some(Instant::now());
            tracing::warn!(server, reason = %reason.text, pause_ms, "a mail server does not let us in and is left alone for a while, each time longer");
        } else {
            tracing::debug!(server, reason = %reason.text, pause_ms, "a mail server does not let us in still");
        }
        gate.closed = Some((Instant::now() + pause, reason.clone()));
        drop(gates);
        self.changed.notify_waiters();
    }

    /// Records that a session of this server completed its first mail.
    pub fn mark_good(&self, at: usize) {
        let mut gates = self.gates.lock();
        (gates[at].failures, gates[at].bad_sessions) = (0, 0);
    }

    /// Records that a session of this server ended before it completed any mail.
    pub fn mark_bad(&self, at: usize, reason: &Reason) {
        let count = {
            let mut gates = self.gates.lock();
            gates[at].bad_sessions += 1;
            gates[at].bad_sessions
        };
        if count >= BAD_SESSIONS_MAX {
            self.shut_out(at, reason, Instant::now());
        }
    }

    /// The failure of all servers, if none works. A server that only refuses more sessions is not down.
    pub fn down(&self) -> Option<Reason> {
        let gates = self.gates.lock();
        let first = gates.first()?.closed.as_ref()?.1.clone();
        gates.iter().all(|gate| gate.closed.is_some() && gate.live == 0).then_some(first)
    }
}

/// Permission to open a session with a server. If dropped, nothing is recorded.
pub(super) struct Entry {
    servers: Arc<Servers>,
    at: usize,
    started: Instant,
    is_open: bool,
}

impl Entry {
    pub fn server(&self) -> &Server {
        &self.servers.all[self.at]
    }

    /// Records an opened session; other sessions may follow.
    pub fn opened(mut self) -> ServerLease {
        self.is_open = false;
        let mut gates = self.servers.gates.lock();
        let gate = &mut gates[self.at];
        gate.opened.increment(1);
        gate.is_closed.set(0.0);
        gate.probing = false;
        gate.live += 1;
        let reopened = gate.closed.take().is_some();
        let was_logged = gate.logged_at.take().is_some();
        drop(gates);
        if was_logged {
            tracing::info!(server = self.server().host_port(), "a mail server lets us in again");
        }
        if reopened {
            self.servers.changed.notify_waiters();
        }
        ServerLease { servers: self.servers.clone(), at: self.at }
    }

    /// Records a failure to open a session.
    pub fn failed(mut self, reason: &Reason) {
        self.is_open = false;
        self.servers.shut_out(self.at, reason, self.started);
    }
}

/// A session's slot at a server, freed on drop.
pub(super) struct ServerLease {
    servers: Arc<Servers>,
    /// Index of the server.
    pub at: usize,
}

impl Drop for ServerLease {
    fn drop(&mut self) {
        let none_left = {
            let mut gates = self.servers.gates.lock();
            gates[self.at].live -= 1;
            gates[self.at].live == 0
        };
        if none_left {
            self.servers.changed.notify_waiters();
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.is_open {
            self.servers.gates.lock()[self.at].probing = false;
            self.servers.changed.notify_waiters();
        }
    }
}
