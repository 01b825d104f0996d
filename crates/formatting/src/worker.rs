//! Worker processes that run libxslt and libxml2 for this process.
//!
//! The libraries have no time and memory limits of their own and cannot be interrupted. So stylesheets and schemas are
//! compiled and applied in a few child processes of the same executable. A worker caches compiled programs; a request
//! is one round trip over a socket pair. A worker that exceeds its time is killed, one that ends is replaced, and only
//! its request fails.
//!
//! Limits: one worker per processor, from 2 to 8. At most half of them run programs that are new or exceeded their time
//! before, so that these cannot block others (bulkhead). At most 256 requests wait, each for 30 s; further ones are
//! rejected.

mod messages; // requests and responses
mod serve; // the worker process

#[cfg(any(test, feature = "worker-in-tests"))]
mod hook; // makes test executables serve as workers

use std::{
    collections::HashSet,
    fmt,
    hash::{BuildHasher, RandomState},
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt, process::ExitStatusExt},
    },
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError, mpsc},
    time::{Duration, Instant},
};

pub(crate) use messages::WorkerResponse;
use messages::{GREETING, MESSAGE_BYTES_MAX, ProgramId, receive_rest, request};
pub(crate) use serve::TEMPLATE_DEPTH_MAX;
#[cfg(test)]
pub(crate) use serve::TRANSFORM;
pub use serve::serve_if_asked;

/// Processor time of a transformation.
pub(crate) const TRANSFORM_TIME_MAX: Duration = Duration::from_millis(800);
/// Processor time of other requests: compilation and validation.
pub(crate) const WORK_TIME_MAX: Duration = Duration::from_secs(2);
/// Memory limits of the library for compiling a stylesheet, for applying one, and for a schema.
pub(crate) const COMPILE_BYTES_MAX: usize = 64 << 20;
pub(crate) const STYLESHEET_BYTES_MAX: usize = 32 << 20;
pub(crate) const SCHEMA_BYTES_MAX: usize = 256 << 20;

/// A worker stops a transformation by itself where it can; it is killed this much later.
const GRACE: Duration = Duration::from_millis(200);
/// Wall-clock limit, as a multiple of the processor time, for a busy machine.
const CLOCK_FACTOR: u32 = 5;
/// Time until a new worker must send its greeting.
const START_TIME_MAX: Duration = Duration::from_secs(20);
const WAITING_MAX: usize = 256;
const WAITING_TIME_MAX: Duration = Duration::from_secs(30);
/// Most programs recorded as ending in time; beyond, all records are cleared.
const PROVEN_MAX: usize = 4_096;
/// Most programs recorded as compiled in a worker.
const KNOWN_MAX: usize = 256;
const WORKERS_MIN: usize = 2;
const WORKERS_MAX: usize = 8;
/// A worker idle for longer ends when another becomes idle.
const IDLE_TIME_MAX: Duration = Duration::from_secs(300);

/// Kind of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgramKind {
    Stylesheet,
    Schema,
}

/// A stylesheet or schema, to be compiled by workers.
pub(crate) struct Program {
    kind: ProgramKind,
    id: ProgramId,
    /// The request that compiles it.
    request: Vec<u8>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// The reason why a request has no response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WorkerError {
    Time { kind: ProgramKind, compiles: bool },
    Memory { kind: ProgramKind, compiles: bool },
    Crashed { kind: ProgramKind, how: String },
    TooLong { kind: ProgramKind },
    Busy,
    Unavailable(String),
}

impl fmt::Display for ProgramKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProgramKind::Stylesheet => "stylesheet",
            ProgramKind::Schema => "XML Schema",
        })
    }
}

impl fmt::Display for WorkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (compiling, all) = (" to compile", "");
        match self {
            WorkerError::Time { kind, compiles } => {
                let (most, how) = match (kind, compiles) {
                    (_, true) => (WORK_TIME_MAX, compiling),
                    (ProgramKind::Stylesheet, false) => (TRANSFORM_TIME_MAX, all),
                    (ProgramKind::Schema, false) => (WORK_TIME_MAX, " to check the document"),
                };
                write!(
                    f,
                    "{kind} took longer than {} s{how}: simplify it, or make documents smaller",
                    most.as_secs_f32()
                )
            }
            WorkerError::Memory { kind, compiles } => {
                let (most, how) = match (kind, compiles) {
                    (ProgramKind::Stylesheet, true) => (COMPILE_BYTES_MAX, compiling),
                    (ProgramKind::Stylesheet, false) => (STYLESHEET_BYTES_MAX, all),
                    (ProgramKind::Schema, true) => (SCHEMA_BYTES_MAX, compiling),
                    (ProgramKind::Schema, false) => (SCHEMA_BYTES_MAX, " to check the document"),
                };
                write!(
                    f,
                    "{kind} needs more than {} MiB of memory{how}: simplify it, or make documents smaller",
                    most >> 20
                )
            }
            WorkerError::Crashed { kind, how } => {
                write!(f, "{kind} or document is too complex for the library: its worker {how}; simplify it")
            }
            WorkerError::TooLong { kind } => {
                write!(f, "{kind} or document is longer than {} MiB: make it smaller", MESSAGE_BYTES_MAX >> 20)
            }
            WorkerError::Busy => {
                write!(f, "all XML workers are busy, and {WAITING_MAX} requests wait: try again later")
            }
            WorkerError::Unavailable(why) => write!(f, "no XML worker can be started: {why}"),
        }
    }
}

impl Program {
    /// A stylesheet with its imports, by name; `method` is its output method if it names none, and then it writes no
    /// XML declaration.
    pub(crate) fn stylesheet(text: &str, sources: &[(&str, &str)], method: Option<&str>) -> Program {
        let mut parts: Vec<&[u8]> = vec![method.unwrap_or_default().as_bytes(), text.as_bytes()];
        parts.extend(sources.iter().flat_map(|(name, text)| [name.as_bytes(), text.as_bytes()]));
        Program::new(ProgramKind::Stylesheet, request::STYLESHEET, &parts)
    }

    /// A schema, by the operations of its document.
    pub(crate) fn schema(operations: &[u8]) -> Program {
        Program::new(ProgramKind::Schema, request::SCHEMA, &[operations])
    }

    fn new(kind: ProgramKind, code: u8, parts: &[&[u8]]) -> Program {
        // Two hashes with keys of this process: no definition can contain two programs with one id.
        static KEYS: LazyLock<[RandomState; 2]> = LazyLock::new(Default::default);
        let hash = |key: &RandomState| key.hash_one((code, parts)).to_le_bytes();
        let mut id = ProgramId::default();
        id[..8].copy_from_slice(&hash(&KEYS[0]));
        id[8..].copy_from_slice(&hash(&KEYS[1]));
        Program { kind, id, request: messages::request(code, &id, parts) }
    }

    /// Compiles it in a worker.
    ///
    /// # Errors
    /// There was no response.
    pub(crate) fn compile(&self) -> Result<WorkerResponse, WorkerError> {
        POOL.perform(self, None)
    }

    /// Applies it to a document, given by its operations; compiles it first if the worker does not have it.
    ///
    /// # Errors
    /// There was no response.
    pub(crate) fn apply(&self, operations: &[u8]) -> Result<WorkerResponse, WorkerError> {
        let request = messages::request(request::APPLY, &self.id, &[operations]);
        POOL.perform(self, Some(&request))
    }
}

static POOL: LazyLock<Pool> = LazyLock::new(Pool::start);

type StartResult = io::Result<(Child, UnixStream)>;

/// All workers of this process.
struct Pool {
    workers_max: usize,
    state: Mutex<PoolState>,
    slot_freed: Condvar,
    /// Workers end with the thread that started them, so one thread starts them all and never ends. `None`: the thread
    /// could not be started; the next request tries again.
    starter: Mutex<Option<mpsc::Sender<mpsc::Sender<StartResult>>>>,
}

#[derive(Default)]
struct PoolState {
    idle: Vec<Worker>,
    busy: usize,
    /// The number of busy workers that run unproven programs.
    busy_unproven: usize,
    waiting: usize,
    proven: HashSet<ProgramId>,
}

/// A worker reserved for one request; released on drop.
struct WorkerSlot<'p> {
    pool: &'p Pool,
    is_proven: bool,
    worker: Option<Worker>,
}

impl Drop for WorkerSlot<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        state.busy -= 1;
        state.busy_unproven -= usize::from(!self.is_proven);
        let mut ended = None;
        if let Some(mut worker) = self.worker.take() {
            worker.idle_since = Instant::now();
            if state.idle.first().is_some_and(|first| first.idle_since.elapsed() > IDLE_TIME_MAX) {
                ended = Some(state.idle.remove(0));
            }
            state.idle.push(worker);
        }
        drop(state);
        self.pool.slot_freed.notify_all();
        drop(ended);
    }
}

impl Pool {
    fn start() -> Pool {
        let processors = std::thread::available_parallelism().map_or(WORKERS_MIN, usize::from);
        Pool {
            workers_max: processors.clamp(WORKERS_MIN, WORKERS_MAX),
            state: Mutex::default(),
            slot_freed: Condvar::new(),
            starter: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a free worker, preferably one that has compiled the program.
    fn slot(&self, id: &ProgramId) -> Result<WorkerSlot<'_>, WorkerError> {
        let refuse = || {
            metrics::counter!("tocsin_xml_worker_refused_total").increment(1);
            Err(WorkerError::Busy)
        };
        let deadline = Instant::now() + WAITING_TIME_MAX;
        let mut state = self.state();
        if state.waiting >= WAITING_MAX {
            return refuse();
        }
        loop {
            let is_proven = state.proven.contains(id);
            let is_free = is_proven || state.busy_unproven < self.workers_max / 2;
            if state.busy < self.workers_max && is_free {
                state.busy += 1;
                state.busy_unproven += usize::from(!is_proven);
                let known = state.idle.iter().rposition(|worker| worker.knows.contains(id));
                let worker = known.or(state.idle.len().checked_sub(1)).map(|at| state.idle.remove(at));
                return Ok(WorkerSlot { pool: self, is_proven, worker });
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return refuse() };
            state.waiting += 1;
            let (after, _) = self.slot_freed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
            state = after;
            state.waiting -= 1;
        }
    }

    /// Compiles a program, or applies it by a request.
    fn perform(&self, program: &Program, apply: Option<&[u8]>) -> Result<WorkerResponse, WorkerError> {
        let length = program.request.len().max(apply.map_or(0, <[u8]>::len));
        if length > MESSAGE_BYTES_MAX {
            return Err(WorkerError::TooLong { kind: program.kind });
        }
        let mut slot = self.slot(&program.id)?;
        let mut is_retried = false;
        loop {
            let mut worker = match slot.worker.take() {
                Some(worker) => worker,
                None => self.start_worker()?,
            };
            match worker.perform(program, apply) {
                Ok(response) => {
                    if apply.is_some() {
                        self.record_outcome(
                            &program.id,
                            !matches!(response, WorkerResponse::Memory | WorkerResponse::Time),
                        );
                    }
                    if !worker.holds_too_much {
                        slot.worker = Some(worker);
                    }
                    return Ok(response);
                }
                // It was killed from outside, for example by an operator or the kernel's OOM killer.
                Err(WorkerFailure { is_killed: true, .. }) if !is_retried => is_retried = true,
                Err(broken) => {
                    self.record_outcome(&program.id, false);
                    metrics::counter!("tocsin_xml_worker_killed_total", "cause" => broken.cause()).increment(1);
                    return Err(broken.error);
                }
            }
        }
    }

    /// Records whether a program ended in time.
    fn record_outcome(&self, id: &ProgramId, in_time: bool) {
        let mut state = self.state();
        match (in_time, state.proven.contains(id)) {
            (true, false) => {
                if state.proven.len() >= PROVEN_MAX {
                    state.proven.clear();
                }
                state.proven.insert(*id);
            }
            (false, true) => drop(state.proven.remove(id)),
            _ => {}
        }
    }

    fn start_worker(&self) -> Result<Worker, WorkerError> {
        let failed = |why: String| WorkerError::Unavailable(why);
        let (reply, started) = mpsc::channel();
        {
            let mut starter = self.starter.lock().unwrap_or_else(PoisonError::into_inner);
            let requests = match &*starter {
                Some(requests) => requests.clone(),
                None => starter.insert(start_starter().map_err(|error| failed(error.to_string()))?).clone(),
            };
            requests.send(reply).map_err(|_| failed("the thread that starts them has ended".to_owned()))?;
        }
        let (child, connection) = started
            .recv()
            .map_err(|_| failed("the thread that starts them has ended".to_owned()))?
            .map_err(|error| failed(error.to_string()))?;
        metrics::counter!("tocsin_xml_worker_started_total").increment(1);
        let mut worker = Worker {
            child,
            connection,
            knows: HashSet::new(),
            processor_time: Duration::ZERO,
            idle_since: Instant::now(),
            holds_too_much: false,
        };
        let greeting = worker.receive(START_TIME_MAX, START_TIME_MAX);
        match greeting {
            Ok(Some(greeting)) if greeting == GREETING => Ok(worker),
            Ok(_) => Err(failed("the executable does not serve as one".to_owned())),
            Err(error) => Err(failed(error.to_string())),
        }
    }
}

/// Starts the thread that starts workers.
fn start_starter() -> io::Result<mpsc::Sender<mpsc::Sender<StartResult>>> {
    let (starter, requests) = mpsc::channel::<mpsc::Sender<StartResult>>();
    let run = move || requests.into_iter().for_each(|reply| drop(reply.send(start_process())));
    std::thread::Builder::new().name("xml-workers".to_owned()).spawn(run)?;
    Ok(starter)
}

fn start_process() -> StartResult {
    let (ours, theirs) = UnixStream::pair()?;
    // The executable of this process, even if its file was replaced. The worker gets no secret in its environment, and
    // no descriptor except its connection.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tocsin-xml-worker").args([serve::ARGUMENT, &std::process::id().to_string()]);
    command.env_clear().current_dir("/");
    if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
        command.env("LD_LIBRARY_PATH", path);
    }
    let child = command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    Ok((child, ours))
}

/// A failed request; the worker has ended.
struct WorkerFailure {
    error: WorkerError,
    is_killed: bool,
}

impl WorkerFailure {
    fn cause(&self) -> &'static str {
        match self.error {
            WorkerError::Time { .. } => "time",
            WorkerError::Memory { .. } => "memory",
            _ => "crash",
        }
    }
}

struct Worker {
    child: Child,
    connection: UnixStream,
    /// Programs that it has compiled; some may have been evicted.
    knows: HashSet<ProgramId>,
    /// Processor time at its last response.
    processor_time: Duration,
    idle_since: Instant,
    holds_too_much: bool,
}

impl Worker {
    fn perform(&mut self, program: &Program, apply: Option<&[u8]>) -> Result<WorkerResponse, WorkerFailure> {
        let Some(apply) = apply else { return self.compile(program) };
        for _ in 0..2 {
            if !self.knows.contains(&program.id) {
                match self.compile(program)? {
                    WorkerResponse::Compiled { .. } => {}
                    response => return Ok(response),
                }
            }
            match self.ask(program, apply, false)? {
                // It has evicted the program.
                WorkerResponse::Unknown => drop(self.knows.remove(&program.id)),
                response => return Ok(response),
            }
        }
        Ok(WorkerResponse::Unknown)
    }

    fn compile(&mut self, program: &Program) -> Result<WorkerResponse, WorkerFailure> {
        let response = self.ask(program, &program.request, true)?;
        if matches!(response, WorkerResponse::Compiled { .. }) {
            // A worker caches far fewer; it reports evicted programs.
            if self.knows.len() >= KNOWN_MAX {
                self.knows.clear();
            }
            self.knows.insert(program.id);
        }
        Ok(response)
    }

    fn ask(&mut self, program: &Program, message: &[u8], compiles: bool) -> Result<WorkerResponse, WorkerFailure> {
        let most = match (program.kind, compiles) {
            (ProgramKind::Stylesheet, false) => TRANSFORM_TIME_MAX,
            _ => WORK_TIME_MAX,
        };
        let sent = DeadlineStream::new(&self.connection, most * CLOCK_FACTOR).write_all(message);
        let response = match sent.and_then(|()| self.receive(most + GRACE, most * CLOCK_FACTOR)) {
            Ok(Some(response)) => WorkerResponse::read(&response),
            Ok(None) => None,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                self.kill();
                return Err(WorkerFailure {
                    error: WorkerError::Time { kind: program.kind, compiles },
                    is_killed: false,
                });
            }
            Err(_) => None,
        };
        match response {
            Some((response, state)) => {
                self.processor_time = state.processor_time;
                self.holds_too_much = state.holds_too_much;
                Ok(response)
            }
            None => Err(self.broken(program.kind, compiles)),
        }
    }

    /// Receives a message: within `processor_time` of the worker, and within `time` at the latest.
    fn receive(&mut self, processor_time: Duration, time: Duration) -> io::Result<Option<Vec<u8>>> {
        let begun = Instant::now();
        let (mut wait, mut first) = (processor_time, [0]);
        loop {
            match DeadlineStream::new(&self.connection, wait).read(&mut first) {
                Ok(0) => return Ok(None),
                // The worker has the whole response, and only writes.
                Ok(_) => return receive_rest(first[0], &mut DeadlineStream::new(&self.connection, time)).map(Some),
                // It may have waited for a processor.
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    let used = processor_time_of(self.child.id()).unwrap_or(Duration::MAX);
                    let left = processor_time.saturating_sub(used.saturating_sub(self.processor_time));
                    wait = left.min(time.saturating_sub(begun.elapsed()));
                    if wait.is_zero() {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The error for a worker that ended.
    fn broken(&mut self, kind: ProgramKind, compiles: bool) -> WorkerFailure {
        const SIGKILL: i32 = 9;
        const SIGXCPU: i32 = 24;
        let status = self.end();
        let signal = status.and_then(|status| status.signal());
        let error = match (status.and_then(|status| status.code()), signal) {
            (Some(crate::xslt::engine::EXIT_MEMORY), _) => WorkerError::Memory { kind, compiles },
            (_, Some(SIGXCPU)) => WorkerError::Time { kind, compiles },
            (_, Some(signal)) => WorkerError::Crashed { kind, how: format!("ended by signal {signal}") },
            (Some(code), _) => WorkerError::Crashed { kind, how: format!("ended with status {code}") },
            (None, None) => WorkerError::Crashed { kind, how: "ended".to_owned() },
        };
        WorkerFailure { error, is_killed: signal == Some(SIGKILL) }
    }

    fn kill(&mut self) -> Option<ExitStatus> {
        // It may have ended already.
        let _ = self.child.kill();
        self.child.wait().ok()
    }

    /// Waits for a worker that is about to end, else kills it; returns its status.
    fn end(&mut self) -> Option<ExitStatus> {
        let _ = self.connection.shutdown(std::net::Shutdown::Both);
        for _ in 0..100 {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => break,
            }
        }
        self.kill()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The processor time of a process.
fn processor_time_of(process: u32) -> Option<Duration> {
    /// Clock ticks per second in Linux interfaces.
    const TICKS: u64 = 100;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program may contain anything; the fields behind it are numbers.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis((user + system) * 1_000 / TICKS))
}

/// A connection with a deadline for reads and writes.
struct DeadlineStream<'c> {
    connection: &'c UnixStream,
    deadline: Instant,
}

impl DeadlineStream<'_> {
    fn new(connection: &UnixStream, time: Duration) -> DeadlineStream<'_> {
        DeadlineStream { connection, deadline: Instant::now() + time }
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

impl Read for DeadlineStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.connection.set_read_timeout(Some(self.left()?))?;
        (&mut &*self.connection).read(buffer).map_err(timed_out)
    }
}

impl Write for DeadlineStream<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.connection.set_write_timeout(Some(self.left()?))?;
        (&mut &*self.connection).write(buffer).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
