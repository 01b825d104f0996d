//! The request loop of a worker process.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Write},
    os::fd::AsFd,
    process::ExitCode,
    time::{Duration, Instant},
};

use super::{
    COMPILE_BYTES_MAX, SCHEMA_BYTES_MAX, STYLESHEET_BYTES_MAX, TRANSFORM_TIME_MAX,
    messages::{GREETING, MessageBuffer, ProgramId, WorkerResponse, WorkerState, request, send},
};
use crate::{
    limits::OUTPUT_BYTES_MAX,
    tree::Fields,
    xslt::engine::{self, Limits, Schema, Sheet, TransformFailure, Transformer, Tree},
};

/// The argument that starts an executable as a worker; the process id of its parent follows.
pub const ARGUMENT: &str = "xml-worker";
/// Most stylesheets and schemas that a worker caches; the least recently used is evicted.
const PROGRAMS_MAX: usize = 64;
/// Most bytes of the cached programs.
const PROGRAMS_BYTES_MAX: i64 = 64 << 20;
/// Most bytes of all other memory that the library holds; a worker with more is replaced.
const SLACK_BYTES: i64 = 32 << 20;
/// Deepest nesting of XSLT templates.
pub const TEMPLATE_DEPTH_MAX: i32 = 1_500;
/// The stack of the computing thread. A nested template takes from some hundred to ten thousand bytes.
const STACK_BYTES: usize = 256 << 20;
/// Address space beyond that of the process at its start.
const ADDRESS_BYTES_MAX: u64 = 2 << 30;
/// Processor time of one request: a second limit behind that of the parent, in case the parent is stopped.
const SECONDS_MAX: u32 = 10;
/// Responses of a group of requests are written together: after so many bytes, and after so much time, so that the
/// parent can distinguish a slow group from a late request.
const RESPONSES_BYTES_MAX: usize = 32 << 10;
const RESPONSES_TIME_MAX: Duration = Duration::from_millis(10);

pub const TRANSFORM: Limits = Limits {
    steps: 100_000,
    xpath_steps: 2_000_000,
    bytes: STYLESHEET_BYTES_MAX as i64,
    milliseconds: TRANSFORM_TIME_MAX.as_millis() as i64,
    depth: TEMPLATE_DEPTH_MAX,
};

/// Serves as a worker if the process arguments request it; else returns `None`. Must be the first call of `main` of
/// each executable that formats: workers run the same executable.
pub fn serve_if_requested() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let parent = (arguments.next()? == ARGUMENT).then(|| arguments.next())?;
    Some(match parent_of(parent) {
        Some(parent) => serve(parent),
        None => ExitCode::FAILURE,
    })
}

fn parent_of(argument: Option<OsString>) -> Option<u32> {
    argument?.to_str()?.parse().ok()
}

fn serve(parent: u32) -> ExitCode {
    if engine::begin(parent).is_err() {
        return ExitCode::FAILURE;
    }
    // After `begin`, which closes all but the first three descriptors.
    let requests = io::stdin().as_fd().try_clone_to_owned().map(File::from);
    let responses = io::stdout().as_fd().try_clone_to_owned().map(File::from);
    let (Ok(requests), Ok(responses)) = (requests, responses) else { return ExitCode::FAILURE };
    let serve = || serve_requests(requests, responses);
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(serve);
    match thread.map(|thread| thread.join()) {
        Ok(Ok(Ok(()))) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn serve_requests(mut requests: File, mut responses: File) -> io::Result<()> {
    engine::confine(ADDRESS_BYTES_MAX).map_err(io::Error::other)?;
    send(&mut responses, GREETING)?;
    let (mut programs, mut received, mut unsent) = (Programs::default(), MessageBuffer::default(), Vec::new());
    while received.fill(&mut requests)? > 0 {
        let mut begun = Instant::now();
        while let Some(message) = received.next()? {
            engine::bound_seconds(SECONDS_MAX);
            let response = programs.response(message).ok_or_else(|| io::Error::other("a request is incomplete"))?;
            programs.bound_memory(0);
            let exceeds_memory = programs.held_bytes.max(engine::pool_bytes()) > PROGRAMS_BYTES_MAX + SLACK_BYTES;
            let state = WorkerState { processor_time: engine::processor_time(), exceeds_memory };
            response.write(state, &mut unsent);
            if unsent.len() >= RESPONSES_BYTES_MAX || begun.elapsed() >= RESPONSES_TIME_MAX {
                responses.write_all(&unsent)?;
                unsent = Vec::new();
                begun = Instant::now();
            }
        }
        responses.write_all(&unsent)?;
        unsent.clear();
    }
    Ok(())
}

enum CompiledProgram {
    Sheet(Transformer),
    Schema(Schema),
}

struct Program {
    id: ProgramId,
    compiled: CompiledProgram,
    bytes: i64,
}

/// The program cache of a worker.
#[derive(Default)]
struct Programs {
    /// Most recently used last.
    compiled: Vec<Program>,
    /// Bytes that the library has allocated and not freed.
    held_bytes: i64,
}

impl Programs {
    /// Sets the library's memory limit from now on. Returns the bytes allocated since the last call.
    fn bound_memory(&mut self, bytes: usize) -> i64 {
        let taken = engine::bound_memory(bytes);
        self.held_bytes += taken;
        taken
    }

    fn response(&mut self, message: &[u8]) -> Option<WorkerResponse> {
        let (code, rest) = message.split_first()?;
        let (id, rest) = rest.split_first_chunk::<16>()?;
        let mut fields = Fields(rest);
        match *code {
            request::STYLESHEET => {
                let (method, text) = (fields.text()?, fields.text()?);
                let mut sources = Vec::new();
                while !fields.0.is_empty() {
                    sources.push((fields.text()?, fields.text()?));
                }
                self.bound_memory(COMPILE_BYTES_MAX);
                Some(match Sheet::compile(text, engine::OWN_NAME, &sources, Some(method)) {
                    Ok(sheet) => {
                        let output = sheet.output();
                        self.cache_program(id, CompiledProgram::Sheet(Transformer::new(sheet)));
                        let (method, encoding, media_type) = (output.method, output.encoding, output.media_type);
                        WorkerResponse::Compiled { method, encoding, media_type }
                    }
                    Err(said) => WorkerResponse::Failed(said),
                })
            }
            request::SCHEMA => {
                self.bound_memory(SCHEMA_BYTES_MAX);
                Some(match Schema::compile(Tree::build(fields.bytes()?)?) {
                    Ok(schema) => {
                        self.cache_program(id, CompiledProgram::Schema(schema));
                        let [method, encoding, media_type] = Default::default();
                        WorkerResponse::Compiled { method, encoding, media_type }
                    }
                    Err(objections) => WorkerResponse::ValidationErrors { count: objections.len(), objections },
                })
            }
            request::APPLY => {
                let known = self.compiled.iter().position(|program| program.id == *id);
                let Some(at) = known else { return Some(WorkerResponse::Unknown) };
                let mut program = self.compiled.remove(at);
                let tree = Tree::build(fields.bytes()?)?;
                let response = match &mut program.compiled {
                    CompiledProgram::Sheet(sheet) => {
                        // The library stops at the limit by itself after most steps; one step may need a little more.
                        self.bound_memory(STYLESHEET_BYTES_MAX * 2);
                        match sheet.apply(tree, &TRANSFORM) {
                            Ok(text) if text.bytes().len() > OUTPUT_BYTES_MAX => {
                                WorkerResponse::Failed(format!("the output is longer than {OUTPUT_BYTES_MAX} bytes"))
                            }
                            Ok(text) => WorkerResponse::Done(match std::str::from_utf8(text.bytes()) {
                                Ok(text) => text.as_bytes().to_vec(),
                                Err(_) => String::from_utf8_lossy(text.bytes()).into_owned().into_bytes(),
                            }),
                            Err(TransformFailure::Said(said)) => WorkerResponse::Failed(said),
                            Err(TransformFailure::Memory) => WorkerResponse::Memory,
                            Err(TransformFailure::Time) => WorkerResponse::Time,
                        }
                    }
                    CompiledProgram::Schema(schema) => {
                        self.bound_memory(SCHEMA_BYTES_MAX);
                        match schema.check(&tree) {
                            Ok(()) => WorkerResponse::Done(Vec::new()),
                            Err((count, objections)) => WorkerResponse::ValidationErrors { count, objections },
                        }
                    }
                };
                self.compiled.push(program);
                Some(response)
            }
            _ => None,
        }
    }

    fn cache_program(&mut self, id: &ProgramId, compiled: CompiledProgram) {
        let bytes = self.bound_memory(0);
        self.compiled.retain(|program| program.id != *id);
        let mut all = bytes + self.compiled.iter().map(|program| program.bytes).sum::<i64>();
        while !self.compiled.is_empty() && (self.compiled.len() >= PROGRAMS_MAX || all > PROGRAMS_BYTES_MAX) {
            all -= self.compiled.remove(0).bytes;
        }
        self.compiled.push(Program { id: *id, compiled, bytes });
    }
}
