//! TypeScript client: its types are checked, and its tests run against the real binary.

mod support;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use support::Platform;
use tocsin_test_peers::{Peer, missing};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/typescript")
}

/// Runs node in the folder of the client; shows its output if it fails.
fn node(arguments: &[String], environment: &[(&str, &str)]) {
    let mut command = Command::new(Peer::Node.path());
    command.args(arguments).envs(environment.iter().copied()).current_dir(folder()).stdin(Stdio::null());
    let done = command.output().unwrap_or_else(|error| panic!("node: {error}"));
    let said = [done.stdout, done.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(done.status.success(), "node {arguments:?}: {}\n{said}", done.status);
}

#[tokio::test]
async fn the_typescript_client_passes_its_tests() {
    if missing(&[Peer::TypescriptLibraries]) {
        return;
    }
    node(&["node_modules/typescript/bin/tsc".to_owned()], &[]);
    let platform = Platform::start(&[]).await;
    let key = fs::read_to_string(platform.folder.join("admin.key")).expect("the first key");
    let compiled = fs::read_dir(folder().join("dist/test")).expect("compiled tests");
    let tests = compiled.map(|entry| entry.expect("an entry").path().display().to_string());
    let tests = tests.filter(|path| path.ends_with(".test.js"));
    // The timeout fails a hanging test.
    let options = ["--test", "--test-timeout=300000"].map(str::to_owned);
    let arguments: Vec<String> = options.into_iter().chain(tests).collect();
    node(&arguments, &[("TOCSIN_URL", &platform.url), ("TOCSIN_KEY", key.trim())]);
}
