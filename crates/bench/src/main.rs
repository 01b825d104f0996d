//! `tocsin-bench`: measures a server binary of Tocsin, its crates and its peers.

use std::process::ExitCode;

use clap::Parser;
use tocsin_command_line::failure::{Failure, Outcome};
use tocsin_command_line::terminal::Terminal;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measure Tocsin, its crates and its peers
#[derive(Debug, Parser)]
#[command(name = "tocsin-bench", version)]
struct Cli {
    #[command(flatten)]
    args: tocsin_bench::commands::Args,
}

fn main() -> ExitCode {
    // Stylesheets and schemas run in child processes of this executable.
    if let Some(code) = tocsin_formatting::worker::serve_if_requested() {
        return code;
    }
    // The first TLS connection would panic without a provider; a second installation is harmless.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("tocsin-bench"),
    }
}

fn run(cli: Cli) -> Outcome {
    // The load shares the cores with the server.
    let threads = std::thread::available_parallelism().map_or(2, usize::from).max(2);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .max_blocking_threads(16)
        .enable_all()
        .build()
        .map_err(|error| Failure::failed("cannot start the threads of the process").because(&error))?;
    let result = runtime.block_on(cli.args.run(&Terminal::standard()));
    runtime.shutdown_background();
    result
}
