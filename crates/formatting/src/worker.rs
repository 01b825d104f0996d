//! Worker processes that run libxslt and libxml2 for this process.
//!
//! The libraries have no time and memory limits of their own and cannot be interrupted. So stylesheets and schemas are
//! compiled and applied in a few child processes of the same executable. A worker caches compiled programs; a request
//! is one round trip over two pipes, and several can share one. A worker that exceeds its time is killed, one that ends
//! is replaced, and only its request fails.
//!
//! Limits: one worker per processor, from 2 to 8. At most half of them run programs that are new or exceeded their time
//! before, so that these cannot block others (bulkhead). At most 256 requests wait, each for 30 s; further ones are
//! rejected.

mod messages; // requests and responses
mod process; // one worker, as its parent uses it
mod serve; // the worker process

#[cfg(any(test, feature = "worker-in-tests"))]
mod hook; // makes test executables serve as workers

use std::{
    collections::HashSet,
    fmt,
    hash::{BuildHasher, RandomState},
    io,
    sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError, mpsc},
    time::{Duration, Instant},
};

pub(crate) use messages::WorkerResponse;
use messages::{MESSAGE_BYTES_MAX, ProgramId, request};
use process::{Worker, WorkerFailure};
pub(crate) use serve::TEMPLATE_DEPTH_MAX;
#[cfg(test)]
pub(crate) use serve::TRANSFORM;
pub use serve::serve_if_requested;

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
/// Most requests of one exchange with a worker, and most bytes of their documents.
const GROUP_MAX: usize = 64;
const GROUP_BYTES_MAX: usize = 1 << 20;
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

/// Applies stylesheets to documents, given by their operations. The results are in this order, one for each.
///
/// Requests share exchanges with a worker: many are sent in one write and answered in one read. Each has the limits of
/// [`Program::apply`]. If one ends its worker, it fails alone: those without a response are repeated one by one.
pub(crate) fn apply_all(calls: &[(&Program, &[u8])]) -> Vec<Result<WorkerResponse, WorkerError>> {
    let mut results = Vec::with_capacity(calls.len());
    let mut rest = calls;
    while !rest.is_empty() {
        let mut bytes = 0;
        let count = rest.iter().take(GROUP_MAX).take_while(|(_, operations)| {
            bytes += operations.len();
            bytes <= GROUP_BYTES_MAX
        });
        let (group, others) = rest.split_at(count.count().max(1));
        rest = others;
        let responses = if group.len() > 1 { POOL.perform_group(group) } else { Vec::new() };
        let responses = responses.into_iter().chain(std::iter::repeat_with(|| None));
        results.extend(group.iter().zip(responses).map(|((program, operations), response)| match response {
            Some(response) => Ok(response),
            None => program.apply(operations),
        }));
    }
    results
}

static POOL: LazyLock<Pool> = LazyLock::new(Pool::start);

type StartResult = io::Result<Worker>;

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
    busy_untested: usize,
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
        state.busy_untested -= usize::from(!self.is_proven);
        let mut ended = None;
        if let Some(mut worker) = self.worker.take() {
            worker.idle_since = Instant::now();
            if state.idle.first().is_some_and(|first| first.idle_since.elapsed() > IDLE_TIME_MAX) {
                ended = Some(state.idle.remove(0));
            }
            state.idle.push(worker);
        }
        // Without waiting threads, it would only cost a system call.
        let is_awaited = state.waiting > 0;
        drop(state);
        if is_awaited {
            self.pool.slot_freed.notify_all();
        }
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
        let mut deadline = None;
        let mut state = self.state();
        if state.waiting >= WAITING_MAX {
            return refuse();
        }
        loop {
            let is_proven = state.proven.contains(id);
            let is_free = is_proven || state.busy_untested < self.workers_max / 2;
            if state.busy < self.workers_max && is_free {
                state.busy += 1;
                state.busy_untested += usize::from(!is_proven);
                let known = state.idle.iter().rposition(|worker| worker.loaded.contains(id));
                let worker = known.or(state.idle.len().checked_sub(1)).map(|at| state.idle.remove(at));
                return Ok(WorkerSlot { pool: self, is_proven, worker });
            }
            let now = Instant::now();
            let deadline = *deadline.get_or_insert(now + WAITING_TIME_MAX);
            let Some(left) = deadline.checked_duration_since(now) else { return refuse() };
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
                    let in_time = !matches!(response, WorkerResponse::Memory | WorkerResponse::Time);
                    if apply.is_some() && in_time != slot.is_proven {
                        self.record_outcome(&program.id, in_time);
                    }
                    if !worker.exceeds_memory {
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

    /// Applies stylesheets to documents in one exchange. `None` for each request that must be made alone: it has no
    /// response, or a stylesheet of the group is not proven.
    fn perform_group(&self, calls: &[(&Program, &[u8])]) -> Vec<Option<WorkerResponse>> {
        let is_proven = {
            let state = self.state();
            calls.iter().all(|(program, _)| state.proven.contains(&program.id))
        };
        let Some((first, _)) = calls.first().filter(|_| is_proven) else { return Vec::new() };
        // The error is that of each request alone.
        let Ok(mut slot) = self.slot(&first.id) else { return Vec::new() };
        let Ok(mut worker) = slot.worker.take().map_or_else(|| self.start_worker(), Ok) else { return Vec::new() };
        let programs: Vec<&Program> = calls.iter().map(|(program, _)| *program).collect();
        let mut requests = Vec::new();
        for (program, operations) in calls {
            requests.extend_from_slice(&messages::request(request::APPLY, &program.id, &[operations]));
        }
        let mut responses = Vec::with_capacity(calls.len());
        match worker.perform_group(&programs, &requests, &mut responses) {
            Ok(()) if !worker.exceeds_memory => slot.worker = Some(worker),
            Ok(()) => {}
            Err(broken) => metrics::counter!("tocsin_xml_worker_killed_total", "cause" => broken.cause()).increment(1),
        }
        let recorded = programs.iter().zip(responses).map(|(program, response)| {
            let in_time = !matches!(response, WorkerResponse::Memory | WorkerResponse::Time);
            if !in_time {
                self.record_outcome(&program.id, false);
            }
            Some(response).filter(|response| *response != WorkerResponse::Unknown)
        });
        recorded.collect()
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
            // Dropped before the answer is awaited: a thread that ends without one ends the wait.
            let reply = reply;
            let mut starter = self.starter.lock().unwrap_or_else(PoisonError::into_inner);
            let sent = starter.as_ref().is_some_and(|requests| requests.send(reply.clone()).is_ok());
            if !sent {
                // The first start, or the thread has ended by a panic.
                let requests = start_starter().map_err(|error| failed(error.to_string()))?;
                requests.send(reply).map_err(|_| failed("the thread that starts them has ended".to_owned()))?;
                *starter = Some(requests);
            }
        }
        let mut worker = started
            .recv()
            .map_err(|_| failed("the thread that starts them has ended".to_owned()))?
            .map_err(|error| failed(error.to_string()))?;
        metrics::counter!("tocsin_xml_worker_started_total").increment(1);
        match worker.greet() {
            Ok(true) => Ok(worker),
            Ok(false) => Err(failed("the executable does not serve as one".to_owned())),
            Err(error) => Err(failed(error.to_string())),
        }
    }
}

/// Starts the thread that starts workers.
fn start_starter() -> io::Result<mpsc::Sender<mpsc::Sender<StartResult>>> {
    let (starter, requests) = mpsc::channel::<mpsc::Sender<StartResult>>();
    let run = move || requests.into_iter().for_each(|reply| drop(reply.send(process::start())));
    std::thread::Builder::new().name("xml-workers".to_owned()).spawn(run)?;
    Ok(starter)
}

#[cfg(test)]
mod tests;
