//! Web push browser simulated with third-party libraries.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use tocsin_test_peers::Peer;

// The browser of RFC 8291, section 5.
const BROWSER: &str = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
const BROWSER_PRIVATE: &str = "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94";
const AUTH: &str = "BTBZMqHH6r4Tts7J_aSIgg";

/// Device address: the push subscription of the browser at this endpoint.
pub fn address(endpoint: &str) -> String {
    let keys = json!({"p256dh": BROWSER, "auth": AUTH});
    json!({"endpoint": endpoint, "expirationTime": null, "keys": keys}).to_string()
}

/// Request in the libraries' format: body and authorization, to a push service at this origin.
pub fn request(body: &[u8], authorization: &str, origin: &str) -> Value {
    json!({
        "body": BASE64_URL_SAFE_NO_PAD.encode(body), "authorization": authorization,
        "audience": origin, "private": BROWSER_PRIVATE, "auth": AUTH,
    })
}

/// Result of the libraries for requests: `text`, and the `subject` and `key` of the sender.
pub fn read(requests: &[Value]) -> Vec<Value> {
    let lines: String = requests.iter().map(|request| format!("{request}\n")).collect();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/push/read.js");
    let mut child = Command::new(Peer::Node.path())
        .arg(script)
        .env("NODE_PATH", Peer::PushLibraries.path().join("node_modules"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("node starts");
    let mut input = child.stdin.take().expect("a pipe");
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = child.wait_with_output().expect("an end");
    let _ = writer.join();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let answers = String::from_utf8(output.stdout).expect("UTF-8");
    answers.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}
