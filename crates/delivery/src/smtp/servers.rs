//! Which server a session goes to: the first that works, or each in proportion to its weight. One that fails is left
//! alone for a while, longer each time, and then tried by a single session before the others follow.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use rustls::ClientConfig;
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
use crate::{Context, files::Files, tls};

const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Wrong credentials do not become right by trying, and too many tries lock accounts.
const AUTHENTICATION_PAUSE_MIN: Duration = Duration::from_secs(30);
/// Trouble that goes on is told again after this time.
const TOLD_AGAIN: Duration = Duration::from_secs(900);
/// A server that lets so many sessions in and then ends each before it answers any mail has failed.
const FRUITLESS_MAX: u32 = 3;
/// How long a session waits for a server to let one more in before it looks again whether there is anything to do.
const VACANCY_PATIENCE: Duration = Duration::from_secs(1);

/// A mail server, with everything that opening a session takes.
pub(super) struct Server {
    pub host: String,
    pub port: u16,
    pub tls: TlsMode,
    pub trust: Arc<ClientConfig>,
    pub credentials: Option<Credentials>,
    weight: i64,
}

impl Server {
    /// The options must be free of problems. `path` leads to them.
    ///
    /// # Errors
    /// The file of further certificates cannot be used.
    fn open(options: ServerOptions, path: &str, files: &Files) -> Result<Server, Problem> {
        let trust = tls::trust(files, options.ca_file.as_deref(), &format!("{path}ca_file"))?;
        let port = options.port_or_custom();
        let tls = options.tls.unwrap_or_default();
        let credentials = match (options.username, options.password, options.token_file) {
            (Some(username), _, Some(file)) => Some(Credentials::Token { username, file, files: files.clone() }),
            (Some(username), Some(password), None) => Some(Credentials::Password { username, password }),
            _ => None,
        };
        Ok(Server { host: options.host, port, tls, trust, credentials, weight: i64::from(options.weight.max(1)) })
    }

    /// Where it is, as operators write it.
    pub fn place(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// The servers of a channel, and which of them let us in.
pub(super) struct Servers {
    all: Vec<Server>,
    balance: Balance,
    gates: Mutex<Vec<Gate>>,
    changed: Notify,
}

struct Gate {
    failures: u32,
    fruitless: u32,
    /// Until when the server is left alone, and why. Stays until a session was opened.
    closed: Option<(Instant, Reason)>,
    /// When the log was told last that it is left alone; nothing while it is not.
    told: Option<Instant>,
    /// A session is finding out whether the server works again.
    probing: bool,
    /// Sessions that are open.
    live: usize,
    credit: i64,
    opened: metrics::Counter,
    failed: metrics::Counter,
    is_closed: metrics::Gauge,
}

impl Gate {
    fn may_enter(&self, now: Instant) -> bool {
        !self.probing && self.closed.as_ref().is_none_or(|(until, _)| *until <= now)
    }
}

/// What the gates say.
enum Choice {
    Enter(usize),
    /// All are closed, for this reason; the first may be tried then, or is being tried now.
    Closed(Reason, Option<Instant>),
}

impl Servers {
    /// The servers of a channel; its options must be free of problems.
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
            let (application, channel, place) = (context.application.clone(), name.to_string(), server.place());
            let count = |outcome: &'static str| metrics::counter!("deliver_smtp_sessions_total", "application" => application.clone(), "channel" => channel.clone(), "server" => place.clone(), "outcome" => outcome);
            let is_closed = metrics::gauge!("deliver_smtp_server_closed", "application" => application.clone(), "channel" => channel.clone(), "server" => place.clone());
            is_closed.set(0.0);
            Gate {
                failures: 0,
                fruitless: 0,
                closed: None,
                told: None,
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

    /// All of them.
    pub fn all(&self) -> &[Server] {
        &self.all
    }

    /// A server that may be asked for a session. At the deadline: why there is none, and how long that may take.
    pub async fn enter(self: &Arc<Self>, deadline: Instant) -> Result<Entry, (Reason, Duration)> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let now = Instant::now();
            match self.choose(now) {
                Choice::Enter(at) => return Ok(Entry { servers: self.clone(), at, started: now, is_open: true }),
                Choice::Closed(reason, until) if deadline <= now => {
                    return Err((reason, until.map_or(Duration::ZERO, |until| until.duration_since(now))));
                }
                Choice::Closed(_, until) => {
                    tokio::select! {
                        () = sleep_until(until.map_or(deadline, |until| until.min(deadline))) => {}
                        () = changed => {}
                    }
                }
            }
        }
    }

    /// Waits while no server lets more sessions in and there are others at work, but not for long.
    pub async fn vacancy(&self) {
        let mut changed = std::pin::pin!(self.changed.notified());
        changed.as_mut().enable();
        let now = Instant::now();
        let first = {
            let gates = self.gates.lock();
            if gates.iter().any(|gate| gate.may_enter(now)) {
                return;
            }
            gates.iter().filter(|gate| !gate.probing).filter_map(|gate| Some(gate.closed.as_ref()?.0)).min()
        };
        let until = first.unwrap_or(now + VACANCY_PATIENCE).min(now + VACANCY_PATIENCE);
        tokio::select! {
            () = sleep_until(until) => {}
            () = changed => {}
        }
    }

    /// Whether there are sessions, and no server lets more in: what waits is theirs.
    pub fn others_work(&self) -> bool {
        let (gates, now) = (self.gates.lock(), Instant::now());
        gates.iter().any(|gate| gate.live > 0) && !gates.iter().any(|gate| gate.may_enter(now))
    }

    /// Whether a session with this server should make room for one with a server that comes before it and may be tried
    /// again.
    pub fn is_stand_in(&self, at: usize) -> bool {
        if at == 0 || self.balance == Balance::Weighted {
            return false;
        }
        let (gates, now) = (self.gates.lock(), Instant::now());
        gates[..at].iter().any(|gate| gate.may_enter(now))
    }

    fn choose(&self, now: Instant) -> Choice {
        let mut gates = self.gates.lock();
        let may_enter = |gate: &Gate| gate.may_enter(now);
        let chosen = match self.balance {
            Balance::Ordered => gates.iter().position(may_enter),
            // Smooth: with weights 2 and 1 the sessions go A B A, A B A.
            Balance::Weighted => {
                let mut total = 0;
                for (gate, server) in gates.iter_mut().zip(&self.all).filter(|(gate, _)| may_enter(gate)) {
                    gate.credit += server.weight;
                    total += server.weight;
                }
                let open = (0..gates.len()).filter(|at| may_enter(&gates[*at]));
                let chosen = open.max_by_key(|at| (gates[*at].credit, std::cmp::Reverse(*at)));
                if let Some(at) = chosen {
                    gates[at].credit -= total;
                }
                chosen
            }
        };
        if let Some(at) = chosen {
            gates[at].probing = gates[at].closed.is_some();
            return Choice::Enter(at);
        }
        let closed = gates.iter().filter_map(|gate| Some((gate.probing, gate.closed.as_ref()?)));
        let first = closed.min_by_key(|(probing, (until, _))| (*probing, *until));
        match first {
            Some((probing, (until, reason))) => Choice::Closed(reason.clone(), (!probing).then_some(*until)),
            // Only a closed gate is probed, so this is a channel without servers, which the options do not allow.
            None => Choice::Closed(Reason::new(ReasonKind::Internal, "there is no mail server"), None),
        }
    }

    /// Closes the gate of a server for a while, longer each time. Sessions that failed together count once.
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
        gate.fruitless = 0;
        gate.is_closed.set(1.0);
        let server = self.all[at].place();
        let pause_ms = pause.as_millis() as u64;
        if gate.told.is_none_or(|told| told.elapsed() >= TOLD_AGAIN) {
            gate.told = Some(Instant::now());
            tracing::warn!(server, reason = %reason.text, pause_ms, "a mail server does not let us in and is left alone for a while, each time longer");
        } else {
            tracing::debug!(server, reason = %reason.text, pause_ms, "a mail server does not let us in still");
        }
        gate.closed = Some((Instant::now() + pause, reason.clone()));
        drop(gates);
        self.changed.notify_waiters();
    }

    /// A session of this server answered its first mail.
    pub fn fruitful(&self, at: usize) {
        let mut gates = self.gates.lock();
        (gates[at].failures, gates[at].fruitless) = (0, 0);
    }

    /// A session of this server ended before it answered any mail.
    pub fn fruitless(&self, at: usize, reason: &Reason) {
        let count = {
            let mut gates = self.gates.lock();
            gates[at].fruitless += 1;
            gates[at].fruitless
        };
        if count >= FRUITLESS_MAX {
            self.shut_out(at, reason, Instant::now());
        }
    }

    /// Why no server lets us in, if so. One that only takes no more sessions than it has is not down.
    pub fn down(&self) -> Option<Reason> {
        let gates = self.gates.lock();
        let first = gates.first()?.closed.as_ref()?.1.clone();
        gates.iter().all(|gate| gate.closed.is_some() && gate.live == 0).then_some(first)
    }
}

/// Leave to ask a server for a session. Who drops it has not found out anything.
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

    /// There is a session: the others may follow.
    pub fn opened(mut self) -> Tenure {
        self.is_open = false;
        let mut gates = self.servers.gates.lock();
        let gate = &mut gates[self.at];
        gate.opened.increment(1);
        gate.is_closed.set(0.0);
        gate.probing = false;
        gate.live += 1;
        let reopened = gate.closed.take().is_some();
        let told = gate.told.take().is_some();
        drop(gates);
        if told {
            tracing::info!(server = self.server().place(), "a mail server lets us in again");
        }
        if reopened {
            self.servers.changed.notify_waiters();
        }
        Tenure { servers: self.servers.clone(), at: self.at }
    }

    /// There is none.
    pub fn failed(mut self, reason: &Reason) {
        self.is_open = false;
        self.servers.shut_out(self.at, reason, self.started);
    }
}

/// A session with a server, until it is dropped.
pub(super) struct Tenure {
    servers: Arc<Servers>,
    /// The server's place in the list.
    pub at: usize,
}

impl Drop for Tenure {
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
