//! The guide names every system library that the binary links dynamically.

mod support;

use std::process::Command;

/// Parts of the C library and of the compiler, which every Linux system has.
const OF_EVERY_SYSTEM: [&str; 7] =
    ["libc.so", "libm.so", "libgcc_s.so", "libdl.so", "libpthread.so", "librt.so", "ld-linux"];

#[test]
fn a22_the_guide_names_the_libraries_that_the_binary_links() {
    let shown = Command::new("readelf").args(["--dynamic", "--wide", env!("CARGO_BIN_EXE_tocsin")]).output();
    let shown = shown.expect("readelf comes with the compiler");
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let needed = shown.lines().filter(|line| line.contains("(NEEDED)"));
    let names: Vec<&str> =
        needed.filter_map(|line| line.split_once('[')?.1.split_once(']')).map(|(name, _)| name).collect();
    assert!(!names.is_empty(), "{shown}");
    let guide = std::fs::read_to_string(support::repository("docs/guide/getting-started.md")).expect("the guide");
    for name in names.into_iter().filter(|name| !OF_EVERY_SYSTEM.iter().any(|own| name.starts_with(own))) {
        let library = name.split(".so").next().unwrap_or(name);
        assert!(
            guide.contains(&format!("`{library}`")),
            "the binary links {name}; docs/guide/getting-started.md does not mention it"
        );
    }
}
