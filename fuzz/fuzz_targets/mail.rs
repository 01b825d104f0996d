#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tocsin_fuzz_targets::run("mail", input));
