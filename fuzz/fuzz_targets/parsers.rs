//! The fuzzer's program for all targets. The variable `FUZZ_TARGET` names the target.
#![no_main]

use std::sync::LazyLock;

static TARGET: LazyLock<String> = LazyLock::new(|| {
    std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET is not set; scripts/fuzz sets it to the name of a target")
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| tocsin_fuzz_targets::run(&TARGET, input));
