//! Worker processes that run libxslt and libxml2 for this one.
//!
//! The libraries have no bound of time and memory of their own and cannot be interrupted, so stylesheets and schemas are
//! compiled and applied in a few child processes of the same executable. A worker keeps what it has compiled; a request is
//! one round trip over a socket pair. A worker that is late is killed, one that ends is replaced, and only its request
//! fails.
//!
//! Bounds: one worker for each processor, from 2 to 8. At most half of them run programs that are new or were late, so that
//! these hold up no others (bulkhead). At most 256 requests wait, each for 30 s; what comes beyond that is refused.

mod messages; // requests and answers
mod serve; // the worker's side

#[cfg(any(test, feature = "worker-in-tests"))]
mod hook; // test binaries are workers too

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

pub(crate) use messages::Answer;
use messages::{GREETING, MESSAGE_BYTES_MAX, ProgramId, receive_rest, request};
pub(crate) use serve::TEMPLATE_DEPTH_MAX;
#[cfg(test)]
pub(crate) use serve::TRANSFORM;
pub use serve::serve_if_asked;

/// Processor time of a transformation.
pub(crate) const TRANSFORM_TIME_MAX: Duration = Duration::from_millis(800);
/// Processor time of all else: compiling, and comparing a document with a schema.
pub(crate) const WORK_TIME_MAX: Duration = Duration::from_secs(2);
/// Memory of the library for compiling a stylesheet, for applying one, and for a schema.
pub(crate) const COMPILE_BYTES_MAX: usize = 64 << 20;
pub(crate) const STYLESHEET_BYTES_MAX: usize = 32 << 20;
pub(crate) const SCHEMA_BYTES_MAX: usize = 256 << 20;

/// A worker stops a transformation by itself where it can; it is killed so much later.
const GRACE: Duration = Duration::from_millis(200);
/// On a busy machine a worker has so many times its processor time by the clock.
const PATIENCE: u32 = 5;
/// Time in which a new worker must greet.
const START_TIME_MAX: Duration = Duration::from_secs(20);
const WAITING_MAX: usize = 256;
const WAITING_TIME_MAX: Duration = Duration::from_secs(30);
/// Programs that are known to end in time; beyond that they are all forgotten, and become known again.
const PROVEN_MAX: usize = 4_096;
/// Programs that a worker is taken to know.
const KNOWN_MAX: usize = 256;
const WORKERS_MIN: usize = 2;
const WORKERS_MAX: usize = 8;
/// A worker that was idle for so long ends when another becomes idle.
const IDLE_TIME_MAX: Duration = Duration::from_secs(300);

/// Kind of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Stylesheet,
    Schema,
}

/// A stylesheet or a schema, as workers compile it.
pub(crate) struct Program {
    kind: Kind,
    id: ProgramId,
    /// The request that compiles it.
    request: Vec<u8>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// Why a worker gave no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WorkerError {
    Time { kind: Kind, compiles: bool },
    Memory { kind: Kind, compiles: bool },
    Crashed { kind: Kind, how: String },
    TooLong { kind: Kind },
    Busy,
    Unavailable(String),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Stylesheet => "stylesheet",
            Kind::Schema => "XML Schema",
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
                    (Kind::Stylesheet, false) => (TRANSFORM_TIME_MAX, all),
                    (Kind::Schema, false) => (WORK_TIME_MAX, " to check the document"),
                };
                write!(
                    f,
                    "{kind} took longer than {} s{how}: simplify it, or make documents smaller",
                    most.as_secs_f32()
                )
            }
            WorkerError::Memory { kind, compiles } => {
                let (most, how) = match (kind, compiles) {
                    (Kind::Stylesheet, true) => (COMPILE_BYTES_MAX, compiling),
                    (Kind::Stylesheet, false) => (STYLESHEET_BYTES_MAX, all),
                    (Kind::Schema, true) => (SCHEMA_BYTES_MAX, compiling),
                    (Kind::Schema, false) => (SCHEMA_BYTES_MAX, " to check the document"),
                };
                write!(
                    f,
                    "{kind} needs more than {} MiB of memory{how}: simplify it, or make documents smaller",
                    most >> 20
                )
            }
            WorkerError::Crashed { kind, how } => {
                write!(f, "{kind} or document is beyond what the library can process: its worker {how}; simplify it")
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
    /// A stylesheet with what it imports, by name; `method` is its output method if it names none, and then it writes no
    /// XML declaration.
    pub(crate) fn stylesheet(text: &str, sources: &[(&str, &str)], method: Option<&str>) -> Program {
        let mut parts: Vec<&[u8]> = vec![method.unwrap_or_default().as_bytes(), text.as_bytes()];
        parts.extend(sources.iter().flat_map(|(name, text)| [name.as_bytes(), text.as_bytes()]));
        Program::new(Kind::Stylesheet, request::STYLESHEET, &parts)
    }

    /// A schema, by the operations of its document.
    pub(crate) fn schema(operations: &[u8]) -> Program {
        Program::new(Kind::Schema, request::SCHEMA, &[operations])
    }

    fn new(kind: Kind, code: u8, parts: &[&[u8]]) -> Program {
        // Two hashes with keys of this process: no definition can hold two programs with one id.
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
    /// No worker gave an answer.
    pub(crate) fn compile(&self) -> Result<Answer, WorkerError> {
        POOL.perform(self, None)
    }

    /// Applies it to a document, given by its operations. It is compiled before, where the worker does not know it.
    ///
    /// # Errors
    /// No worker gave an answer.
    pub(crate) fn apply(&self, operations: &[u8]) -> Result<Answer, WorkerError> {
        let request = messages::request(request::APPLY, &self.id, &[operations]);
        POOL.perform(self, Some(&request))
    }
}

static POOL: LazyLock<Pool> = LazyLock::new(Pool::start);

type StartResult = io::Result<(Child, UnixStream)>;

/// All workers of this process.
struct Pool {
    workers_max: usize,
    seats: Mutex<Seats>,
    freed: Condvar,
    /// Workers end with the thread that has started them, so one thread starts them all and never ends. None: the system had
    /// no thread left; the next request tries again.
    starter: Mutex<Option<mpsc::Sender<mpsc::Sender<StartResult>>>>,
}

#[derive(Default)]
struct Seats {
    idle: Vec<Worker>,
    busy: usize,
    /// Those among them that run programs that are not proven.
    busy_unproven: usize,
    waiting: usize,
    proven: HashSet<ProgramId>,
}

/// A seat for one request, given back when it is dropped.
struct Seat<'p> {
    pool: &'p Pool,
    is_proven: bool,
    worker: Option<Worker>,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut seats = self.pool.seats();
        seats.busy -= 1;
        seats.busy_unproven -= usize::from(!self.is_proven);
        let mut ended = None;
        if let Some(mut worker) = self.worker.take() {
            worker.idle_since = Instant::now();
            if seats.idle.first().is_some_and(|first| first.idle_since.elapsed() > IDLE_TIME_MAX) {
                ended = Some(seats.idle.remove(0));
            }
            seats.idle.push(worker);
        }
        drop(seats);
        self.pool.freed.notify_all();
        drop(ended);
    }
}

impl Pool {
    fn start() -> Pool {
        let processors = std::thread::available_parallelism().map_or(WORKERS_MIN, usize::from);
        Pool {
            workers_max: processors.clamp(WORKERS_MIN, WORKERS_MAX),
            seats: Mutex::default(),
            freed: Condvar::new(),
            starter: Mutex::default(),
        }
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a worker that is free, one that has compiled the program if there is one.
    fn seat(&self, id: &ProgramId) -> Result<Seat<'_>, WorkerError> {
        let refuse = || {
            metrics::counter!("xml_worker_refused_total").increment(1);
            Err(WorkerError::Busy)
        };
        let deadline = Instant::now() + WAITING_TIME_MAX;
        let mut seats = self.seats();
        if seats.waiting >= WAITING_MAX {
            return refuse();
        }
        loop {
            let is_proven = seats.proven.contains(id);
            let is_free = is_proven || seats.busy_unproven < self.workers_max / 2;
            if seats.busy < self.workers_max && is_free {
                seats.busy += 1;
                seats.busy_unproven += usize::from(!is_proven);
                let known = seats.idle.iter().rposition(|worker| worker.knows.contains(id));
                let worker = known.or(seats.idle.len().checked_sub(1)).map(|at| seats.idle.remove(at));
                return Ok(Seat { pool: self, is_proven, worker });
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return refuse() };
            seats.waiting += 1;
            let (after, _) = self.freed.wait_timeout(seats, left).unwrap_or_else(PoisonError::into_inner);
            seats = after;
            seats.waiting -= 1;
        }
    }

    /// Compiles a program, or applies it by a request.
    fn perform(&self, program: &Program, apply: Option<&[u8]>) -> Result<Answer, WorkerError> {
        let length = program.request.len().max(apply.map_or(0, <[u8]>::len));
        if length > MESSAGE_BYTES_MAX {
            return Err(WorkerError::TooLong { kind: program.kind });
        }
        let mut seat = self.seat(&program.id)?;
        let mut is_retried = false;
        loop {
            let mut worker = match seat.worker.take() {
                Some(worker) => worker,
                None => self.start_worker()?,
            };
            match worker.perform(program, apply) {
                Ok(answer) => {
                    if apply.is_some() {
                        self.judge(&program.id, !matches!(answer, Answer::Memory | Answer::Time));
                    }
                    if !worker.holds_too_much {
                        seat.worker = Some(worker);
                    }
                    return Ok(answer);
                }
                // It was killed from outside, such as by a person or for want of memory elsewhere.
                Err(WorkerFailure { is_killed: true, .. }) if !is_retried => is_retried = true,
                Err(broken) => {
                    self.judge(&program.id, false);
                    metrics::counter!("xml_worker_killed_total", "cause" => broken.cause()).increment(1);
                    return Err(broken.error);
                }
            }
        }
    }

    /// Remembers whether a program ends in time.
    fn judge(&self, id: &ProgramId, in_time: bool) {
        let mut seats = self.seats();
        match (in_time, seats.proven.contains(id)) {
            (true, false) => {
                if seats.proven.len() >= PROVEN_MAX {
                    seats.proven.clear();
                }
                seats.proven.insert(*id);
            }
            (false, true) => drop(seats.proven.remove(id)),
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
        metrics::counter!("xml_worker_started_total").increment(1);
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

/// The thread that starts workers.
fn start_starter() -> io::Result<mpsc::Sender<mpsc::Sender<StartResult>>> {
    let (starter, requests) = mpsc::channel::<mpsc::Sender<StartResult>>();
    let run = move || requests.into_iter().for_each(|reply| drop(reply.send(start_process())));
    std::thread::Builder::new().name("xml-workers".to_owned()).spawn(run)?;
    Ok(starter)
}

fn start_process() -> StartResult {
    let (ours, theirs) = UnixStream::pair()?;
    // The executable of this process, also where its file was replaced since. It has no secret in its environment, and no
    // descriptor but its connection.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tocsin-xml-worker").args([serve::ARGUMENT, &std::process::id().to_string()]);
    command.env_clear().current_dir("/");
    if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
        command.env("LD_LIBRARY_PATH", path);
    }
    let child = command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    Ok((child, ours))
}

/// A worker that gave no answer, and is dead.
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
    /// Programs that it has compiled; it may have forgotten some.
    knows: HashSet<ProgramId>,
    /// Processor time that it had used at its last answer.
    processor_time: Duration,
    idle_since: Instant,
    holds_too_much: bool,
}

impl Worker {
    fn perform(&mut self, program: &Program, apply: Option<&[u8]>) -> Result<Answer, WorkerFailure> {
        let Some(apply) = apply else { return self.compile(program) };
        for _ in 0..2 {
            if !self.knows.contains(&program.id) {
                match self.compile(program)? {
                    Answer::Compiled { .. } => {}
                    answer => return Ok(answer),
                }
            }
            match self.ask(program, apply, false)? {
                // It has forgotten it for others.
                Answer::Unknown => drop(self.knows.remove(&program.id)),
                answer => return Ok(answer),
            }
        }
        Ok(Answer::Unknown)
    }

    fn compile(&mut self, program: &Program) -> Result<Answer, WorkerFailure> {
        let answer = self.ask(program, &program.request, true)?;
        if matches!(answer, Answer::Compiled { .. }) {
            // It keeps far fewer; what it has forgotten it says.
            if self.knows.len() >= KNOWN_MAX {
                self.knows.clear();
            }
            self.knows.insert(program.id);
        }
        Ok(answer)
    }

    fn ask(&mut self, program: &Program, message: &[u8], compiles: bool) -> Result<Answer, WorkerFailure> {
        let most = match (program.kind, compiles) {
            (Kind::Stylesheet, false) => TRANSFORM_TIME_MAX,
            _ => WORK_TIME_MAX,
        };
        let sent = DeadlineStream::new(&self.connection, most * PATIENCE).write_all(message);
        let answer = match sent.and_then(|()| self.receive(most + GRACE, most * PATIENCE)) {
            Ok(Some(answer)) => Answer::read(&answer),
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
        match answer {
            Some((answer, state)) => {
                self.processor_time = state.processor_time;
                self.holds_too_much = state.holds_too_much;
                Ok(answer)
            }
            None => Err(self.broken(program.kind, compiles)),
        }
    }

    /// Receives a message: within `processor_time` that the worker uses for it, and within `time` at the latest.
    fn receive(&mut self, processor_time: Duration, time: Duration) -> io::Result<Option<Vec<u8>>> {
        let begun = Instant::now();
        let (mut wait, mut first) = (processor_time, [0]);
        loop {
            match DeadlineStream::new(&self.connection, wait).read(&mut first) {
                Ok(0) => return Ok(None),
                // The worker has it whole, and only writes.
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
    fn broken(&mut self, kind: Kind, compiles: bool) -> WorkerFailure {
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

    /// Lets it end by itself where it is about to, kills it else, and takes its status.
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

/// The processor time that a process has used.
fn processor_time_of(process: u32) -> Option<Duration> {
    /// Ticks of Linux in a second, whatever its own clock has.
    const TICKS: u64 = 100;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program may have anything in it; the fields behind it are numbers.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis((user + system) * 1_000 / TICKS))
}

/// A connection that is read and written until a deadline.
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
