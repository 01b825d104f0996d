//! Figure `binary.size`: size of this executable.

use std::fs;

use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {context::Context, figure::Figure, server::megabytes},
};

/// The figure.
pub const BENCH: Bench = Bench {
    name: "binary.size",
    about: "size of the binary",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

async fn run(context: &Context) -> Outcome<Figure> {
    let file = &context.program;
    let bytes = fs::metadata(file).map_err(|error| Failure::file("look at", file, &error))?.len();
    let build = if cfg!(debug_assertions) { "debug build" } else { "release build, stripped" };
    Ok(Figure::new("MB", [megabytes(bytes)].into_iter().collect()).with_condition(build))
}
