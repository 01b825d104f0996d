//! Tocsin: a self-hosted notification platform in one binary.

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tocsin::cli::Cli::parse().main()
}
