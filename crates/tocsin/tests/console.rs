//! The web console: its types and unit tests by Node, and its pages in Chromium against the real binary by Playwright.
//!
//! A failed browser test keeps its trace, a screenshot and the log of its server in `console/test-results`.

mod support;

use std::{
    fs,
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
};

use support::repository;
use tocsin_test_peers::{Peer, missing};

/// Browser tests use both cores, so only one run is in progress.
static TURN: Mutex<()> = Mutex::new(());

/// Runs a program of Node in the folder of the console; shows its output if it fails.
fn node(arguments: &[&str]) {
    let mut command = Command::new(Peer::Node.path());
    command
        .args(arguments)
        .current_dir(repository("console"))
        .env("TOCSIN_BINARY", env!("CARGO_BIN_EXE_tocsin"))
        .env("TOCSIN_CHROMIUM", Peer::Chromium.path())
        .stdin(Stdio::null());
    let done = command.output().unwrap_or_else(|error| panic!("node: {error}"));
    let output = [done.stdout, done.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    println!("{output}");
    assert!(done.status.success(), "node {arguments:?}: {}\n{output}", done.status);
}

fn playwright(name: &str, selection: &[&str]) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let output = format!("test-results/{name}");
    let arguments = ["node_modules/@playwright/test/cli.js", "test", "--output", &output];
    node(&[&arguments[..], selection].concat());
}

/// Runs the build script with a `PATH` of its own, in a tree that has nothing to build. Returns whether it succeeded,
/// and its messages.
fn build_with(node: Option<&str>, arguments: &[&str]) -> (bool, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let (tree, path) = (folder.path().join("tree"), folder.path().join("bin"));
    for folder in [&tree.join("scripts"), &path] {
        fs::create_dir_all(folder).expect("made");
    }
    for script in ["environment", "console"] {
        fs::copy(repository("scripts").join(script), tree.join("scripts").join(script)).expect("copied");
    }
    let given = std::env::var_os("PATH").expect("a path");
    for program in ["bash", "dirname", "sort", "head"] {
        let found = std::env::split_paths(&given).map(|path| path.join(program)).find(|path| path.is_file());
        let found = found.unwrap_or_else(|| panic!("{program} is missing"));
        std::os::unix::fs::symlink(found, path.join(program)).expect("linked");
    }
    if let Some(version) = node {
        for program in ["node", "npm"] {
            fs::write(path.join(program), format!("#!/bin/sh\necho {version}\n")).expect("written");
            fs::set_permissions(path.join(program), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("set");
        }
    }
    let mut command = Command::new(tree.join("scripts/console"));
    let output = command.args(arguments).env("PATH", &path).env("HOME", folder.path()).output().expect("it runs");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn without_a_suitable_node_the_build_names_the_version() {
    let (done, said) = build_with(None, &[]);
    assert!(!done && said.contains("cannot be built: Node 20.19.0 or newer with npm is missing"), "{said}");
    let (done, said) = build_with(Some("v18.20.4"), &[]);
    assert!(!done && said.contains("Node 20.19.0 or newer is needed, and this is v18.20.4"), "{said}");
    // The server can be built without the console.
    let (done, said) = build_with(Some("v20.9.0"), &["--optional"]);
    assert!(done && said.contains("console: not built. Node 20.19.0 or newer is needed"), "{said}");
    let (done, said) = build_with(Some("v22.1.0"), &["--unknown"]);
    assert!(!done && said.contains("unknown argument --unknown"), "{said}");
}

#[test]
fn the_committed_types_of_the_api_are_the_generated_ones() {
    if missing(&[Peer::Console]) {
        return;
    }
    let committed = repository("console/src/api/schema.d.ts");
    let folder = tempfile::tempdir().expect("a folder");
    let generated = folder.path().join("schema.d.ts");
    let output = generated.to_str().expect("a path");
    node(&["node_modules/openapi-typescript/bin/cli.js", "../docs/reference/openapi.json", "--output", output]);
    let expected = fs::read_to_string(&generated).expect("the types");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&committed, &expected).expect("the file can be written");
    }
    let found = fs::read_to_string(&committed).unwrap_or_default();
    assert!(found == expected, "{}: run scripts/console, and commit the result", committed.display());
}

#[test]
fn the_console_passes_its_type_check_and_unit_tests() {
    if missing(&[Peer::Console]) {
        return;
    }
    node(&["node_modules/typescript/bin/tsc", "--noEmit", "--project", "tests"]);
    node(&["scripts/unit.mjs"]);
}

#[test]
fn the_console_passes_its_smoke_tests() {
    if missing(&[Peer::Console]) {
        return;
    }
    playwright("smoke", &["--grep", "@smoke"]);
}

#[test]
fn slow_the_console_passes_its_browser_tests() {
    if missing(&[Peer::Console]) {
        return;
    }
    playwright("all", &["--grep-invert", "@smoke"]);
}
