//! Makes test executables serve as workers: their `main` belongs to the test harness, so this runs before it.
#![allow(unsafe_code)]

// SAFETY: the C library calls each function of this section once, before `main`, with the arguments of the process.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn serve() {
        if super::serve_if_requested().is_some() {
            std::process::exit(0);
        }
    }
    serve
};
