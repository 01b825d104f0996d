//! One worker process as its parent uses it: requests, limits of time, and its end.

use std::{
    collections::HashSet,
    io::{self, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    CLOCK_FACTOR, GRACE, KNOWN_MAX, Program, ProgramKind, START_TIME_MAX, TRANSFORM_TIME_MAX, WORK_TIME_MAX,
    WorkerError, WorkerResponse,
    messages::{GREETING, MessageBuffer, ProgramId},
    serve::ARGUMENT,
};

/// A failed request; the worker has ended.
pub struct WorkerFailure {
    pub error: WorkerError,
    pub is_killed: bool,
}

impl WorkerFailure {
    pub fn cause(&self) -> &'static str {
        match self.error {
            WorkerError::Time { .. } => "time",
            WorkerError::Memory { .. } => "memory",
            _ => "crash",
        }
    }
}

/// The kind of a request, which determines its limits and its errors.
#[derive(Clone, Copy)]
struct CallKind {
    kind: ProgramKind,
    compiles: bool,
}

impl CallKind {
    /// Limit of processor time.
    fn time_max(self) -> Duration {
        match (self.kind, self.compiles) {
            (ProgramKind::Stylesheet, false) => TRANSFORM_TIME_MAX,
            _ => WORK_TIME_MAX,
        }
    }
}

/// Time limits of one response.
struct Deadline {
    /// Limit of the worker's processor time.
    processor_time: Duration,
    /// Limit by the clock.
    time: Duration,
    begun: Instant,
    /// Time until the processor time is checked.
    wait: Duration,
}

impl Deadline {
    fn new(processor_time: Duration, time: Duration) -> Deadline {
        Deadline { processor_time, time, begun: Instant::now(), wait: processor_time }
    }
}

pub struct Worker {
    pub child: Child,
    /// Non-blocking: a worker that writes a response reads no request at the same time.
    requests: ChildStdin,
    responses: ChildStdout,
    received: MessageBuffer,
    /// Programs that it has compiled; some may have been evicted.
    pub loaded: HashSet<ProgramId>,
    /// Processor time at its last response.
    processor_time: Duration,
    pub idle_since: Instant,
    pub exceeds_memory: bool,
}

/// Starts a worker process. The calling thread must not end before the worker: the worker ends with it.
pub fn start() -> io::Result<Worker> {
    // The executable of this process, even if its file was replaced. The worker gets no secret in its environment, and
    // no descriptor except its connection.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tocsin-xml-worker").args([ARGUMENT, &std::process::id().to_string()]);
    command.env_clear().current_dir("/");
    if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
        command.env("LD_LIBRARY_PATH", path);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let (Some(requests), Some(responses)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::Error::other("the process has no pipes"));
    };
    rustix::io::ioctl_fionbio(&requests, true)?;
    Ok(Worker {
        child,
        requests,
        responses,
        received: MessageBuffer::default(),
        loaded: HashSet::new(),
        processor_time: Duration::ZERO,
        idle_since: Instant::now(),
        exceeds_memory: false,
    })
}

impl Worker {
    /// Waits for the greeting of a new worker. `false`: the executable does not serve as one.
    pub fn greet(&mut self) -> io::Result<bool> {
        let mut deadline = Deadline::new(START_TIME_MAX, START_TIME_MAX);
        loop {
            if let Some(greeting) = self.received.next()? {
                return Ok(greeting == GREETING);
            }
            if !self.transfer(&mut &[][..], &mut deadline)? {
                return Ok(false);
            }
        }
    }

    /// Compiles a program, or applies it by a request.
    pub fn perform(&mut self, program: &Program, apply: Option<&[u8]>) -> Result<WorkerResponse, WorkerFailure> {
        let Some(apply) = apply else { return self.compile(program) };
        for _ in 0..2 {
            if !self.loaded.contains(&program.id) {
                match self.compile(program)? {
                    WorkerResponse::Compiled { .. } => {}
                    response => return Ok(response),
                }
            }
            match self.call_worker(CallKind { kind: program.kind, compiles: false }, apply)? {
                // It has evicted the program.
                WorkerResponse::Unknown => drop(self.loaded.remove(&program.id)),
                response => return Ok(response),
            }
        }
        Ok(WorkerResponse::Unknown)
    }

    /// Applies stylesheets to documents in one exchange. Adds the responses, in this order, to `responses`: only the
    /// first ones if it fails, and none if a stylesheet cannot be compiled.
    pub fn perform_group(
        &mut self,
        programs: &[&Program],
        requests: &[u8],
        responses: &mut Vec<WorkerResponse>,
    ) -> Result<(), WorkerFailure> {
        for program in programs {
            let is_compiled =
                self.loaded.contains(&program.id) || matches!(self.compile(program)?, WorkerResponse::Compiled { .. });
            if !is_compiled {
                return Ok(());
            }
        }
        let call = CallKind { kind: ProgramKind::Stylesheet, compiles: false };
        self.exchange(call, requests, programs.len(), responses)?;
        for (program, response) in programs.iter().zip(responses) {
            if *response == WorkerResponse::Unknown {
                self.loaded.remove(&program.id);
            }
        }
        Ok(())
    }

    fn compile(&mut self, program: &Program) -> Result<WorkerResponse, WorkerFailure> {
        let response = self.call_worker(CallKind { kind: program.kind, compiles: true }, &program.request)?;
        if matches!(response, WorkerResponse::Compiled { .. }) {
            // A worker caches far fewer; it reports evicted programs.
            if self.loaded.len() >= KNOWN_MAX {
                self.loaded.clear();
            }
            self.loaded.insert(program.id);
        }
        Ok(response)
    }

    fn call_worker(&mut self, call: CallKind, request: &[u8]) -> Result<WorkerResponse, WorkerFailure> {
        let mut responses = Vec::with_capacity(1);
        self.exchange(call, request, 1, &mut responses)?;
        Ok(responses.swap_remove(0))
    }

    /// Sends requests and adds their responses, in this order. Each response has the limits of its kind, from the one
    /// before it.
    fn exchange(
        &mut self,
        call: CallKind,
        mut requests: &[u8],
        count: usize,
        responses: &mut Vec<WorkerResponse>,
    ) -> Result<(), WorkerFailure> {
        let new_deadline = || Deadline::new(call.time_max() + GRACE, call.time_max() * CLOCK_FACTOR);
        let mut deadline = new_deadline();
        let whole = responses.len() + count;
        while responses.len() < whole {
            let response = match self.received.next() {
                Ok(Some(message)) => WorkerResponse::read(message),
                Ok(None) => match self.transfer(&mut requests, &mut deadline) {
                    Ok(true) => continue,
                    Ok(false) => None,
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                        self.kill();
                        let error = WorkerError::Time { kind: call.kind, compiles: call.compiles };
                        return Err(WorkerFailure { error, is_killed: false });
                    }
                    Err(_) => None,
                },
                Err(_) => None,
            };
            let Some((response, state)) = response else { return Err(self.worker_failure(call)) };
            self.processor_time = state.processor_time;
            self.exceeds_memory = state.exceeds_memory;
            responses.push(response);
            if responses.len() < whole {
                deadline = new_deadline();
            }
        }
        Ok(())
    }

    /// Sends as much as the pipe takes, then waits until it takes more or something arrives. `Ok(false)`: the worker
    /// has ended.
    fn transfer(&mut self, unsent: &mut &[u8], deadline: &mut Deadline) -> io::Result<bool> {
        while !unsent.is_empty() {
            match self.requests.write(unsent) {
                Ok(count) => *unsent = &unsent[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let readable = PollFd::new(&self.responses, PollFlags::IN);
        let mut events = [readable, PollFd::new(&self.requests, PollFlags::OUT)];
        let awaited = if unsent.is_empty() { 1 } else { 2 };
        let wait = Timespec::try_from(deadline.wait).map_err(io::Error::other)?;
        match poll(&mut events[..awaited], Some(&wait)) {
            Ok(0) => return self.extend(deadline).map(|()| true),
            Ok(_) if events[0].revents().is_empty() => return Ok(true),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
        Ok(self.received.fill(&mut self.responses)? > 0)
    }

    /// Extends a wait that is over if the worker had no processor for a part of it.
    fn extend(&self, deadline: &mut Deadline) -> io::Result<()> {
        let used = processor_time_of(self.child.id()).unwrap_or(Duration::MAX);
        let left = deadline.processor_time.saturating_sub(used.saturating_sub(self.processor_time));
        deadline.wait = left.min(deadline.time.saturating_sub(deadline.begun.elapsed()));
        if deadline.wait.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }

    /// The error for a worker that ended.
    fn worker_failure(&mut self, call: CallKind) -> WorkerFailure {
        const SIGKILL: i32 = 9;
        const SIGXCPU: i32 = 24;
        let CallKind { kind, compiles } = call;
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
