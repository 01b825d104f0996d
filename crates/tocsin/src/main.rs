//! Tocsin: a self-hosted notification platform in one binary.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Stylesheets and schemas run in child processes of this executable.
    if let Some(code) = tocsin_formatting::worker::serve_if_requested() {
        return code;
    }
    tocsin::cli::Cli::from_process().main()
}
