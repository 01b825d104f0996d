//! Transforms messages by a program, in JSON lines as channels use them:
//!
//! ```json
//! {"id": "m-41", "content_type": "application/json", "properties": {"order": 7}, "body": "{...}"}
//! {"id": "m-41", "outcome": "done", "content_type": "text/plain", "properties": {"tenant": "a"}, "body": "..."}
//! {"id": "m-42", "outcome": "refused", "reason": "no such customer"}
//! ```
//!
//! The first line is a request, the others are possible answers. A body that is not UTF-8 is in `body_base64`, both
//! ways. Programs are started on demand and kept running; one that times out or ends is not used again.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tocsin_model::{
    id::Name,
    problem::{Code, Problem},
};
use tokio::{io::AsyncWriteExt, sync::Semaphore, time::timeout};

use super::{command, policy::Programs, running::Program};

/// Most programs that run at the same time for one step.
const PROGRAMS_MAX: usize = 4;
/// A body of 64 MiB in base64, with the other fields.
const LINE_BYTES_MAX: u64 = 96 << 20;
/// Time that a program has to end after its input is closed.
const GRACE: Duration = Duration::from_secs(5);

/// A message for a program, and its result.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Changed {
    /// The media type of the body.
    pub content_type: String,
    /// The promoted properties.
    pub properties: Map<String, Value>,
    /// The body.
    pub body: Vec<u8>,
}

/// Pool of running programs of one kind.
pub struct Changer {
    name: Name,
    program: PathBuf,
    arguments: Vec<String>,
    environment: BTreeMap<String, String>,
    patience: Duration,
    idle: Mutex<Vec<Program>>,
    room: Semaphore,
}

#[derive(Serialize)]
struct ChangeRequest<'a> {
    id: &'a str,
    content_type: &'a str,
    properties: &'a Map<String, Value>,
    #[serde(flatten)]
    body: Body<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Body<'a> {
    Body(&'a str),
    BodyBase64(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    id: String,
    outcome: Outcome,
    reason: Option<String>,
    content_type: Option<String>,
    #[serde(default)]
    properties: Map<String, Value>,
    body: Option<String>,
    body_base64: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Done,
    Refused,
}

impl Changer {
    /// Reads the definition of a program, without starting it. `name` is used in the log.
    ///
    /// # Errors
    /// Problems of the definition; their paths begin with `path`.
    pub fn open(
        name: &Name,
        given: &[String],
        environment: &BTreeMap<String, String>,
        patience: Duration,
        programs: &Programs,
        path: &str,
    ) -> Result<Changer, Vec<Problem>> {
        let mut problems = command::problems(given, environment, "/usr/local/bin/enrich, --fast");
        let program = match (problems.is_empty(), given.first()) {
            (true, Some(program)) => {
                let resolved = programs.resolve_allowed(Path::new(program));
                resolved
                    .map_err(|text| problems.push(Problem::new(Code::NotAllowed, "command", text)))
                    .unwrap_or_default()
            }
            _ => PathBuf::new(),
        };
        if !problems.is_empty() {
            let within = |problem: Problem| Problem { path: format!("{path}.{}", problem.path), ..problem };
            return Err(problems.into_iter().map(within).collect());
        }
        Ok(Changer {
            name: name.clone(),
            program,
            arguments: given[1..].to_vec(),
            environment: environment.clone(),
            patience,
            idle: Mutex::default(),
            room: Semaphore::new(PROGRAMS_MAX),
        })
    }

    /// Transforms a message.
    ///
    /// # Errors
    /// A sentence: the program refused, timed out, ended, or gave an invalid answer.
    pub async fn change(&self, id: &str, message: &Changed) -> Result<Changed, String> {
        let _room = self.room.acquire().await.map_err(|_| "the programs are closed".to_owned())?;
        let idle = self.idle.lock().pop();
        let mut program = match idle {
            Some(program) => program,
            None => self.start()?,
        };
        let answer = match timeout(self.patience, exchange_line(&mut program, &question(id, message))).await {
            Ok(Ok(line)) => read(id, &line),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(format!("the program did not answer within {} s", self.patience.as_secs_f64())),
        };
        match answer {
            Ok(Ok(changed)) => {
                self.idle.lock().push(program);
                Ok(changed.merge_into(message))
            }
            Ok(Err(refusal)) => {
                self.idle.lock().push(program);
                Err(format!("the program refuses it: {refusal}"))
            }
            // A late answer could be taken for that of the next message, so the program is not used again.
            Err(error) => Err(format!("{error} ({})", program.end(GRACE).await)),
        }
    }

    fn start(&self) -> Result<Program, String> {
        let folder = std::env::temp_dir();
        Program::start(&self.name, &self.program, &self.arguments, &self.environment, &folder, LINE_BYTES_MAX)
            .map_err(|error| format!("{} cannot be started: {error}", self.program.display()))
    }
}

/// The changes in an answer; absent fields stay as they were.
struct ChangeResponse {
    content_type: Option<String>,
    properties: Map<String, Value>,
    body: Option<Vec<u8>>,
}

impl ChangeResponse {
    fn merge_into(self, before: &Changed) -> Changed {
        let mut properties = before.properties.clone();
        properties.extend(self.properties);
        Changed {
            content_type: self.content_type.unwrap_or_else(|| before.content_type.clone()),
            properties,
            body: self.body.unwrap_or_else(|| before.body.clone()),
        }
    }
}

fn question(id: &str, message: &Changed) -> Vec<u8> {
    let body = match std::str::from_utf8(&message.body) {
        Ok(text) => Body::Body(text),
        Err(_) => Body::BodyBase64(BASE64_STANDARD.encode(&message.body)),
    };
    let question = ChangeRequest { id, content_type: &message.content_type, properties: &message.properties, body };
    let mut line = serde_json::to_vec(&question).expect("a question is always JSON");
    line.push(b'\n');
    line
}

async fn exchange_line(program: &mut Program, question: &[u8]) -> Result<Vec<u8>, String> {
    let ended = || "the program ended".to_owned();
    let input = program.input.as_mut().ok_or_else(ended)?;
    input.write_all(question).await.map_err(|error| format!("the program reads no more: {error}"))?;
    input.flush().await.map_err(|error| format!("the program reads no more: {error}"))?;
    program.lines.recv().await.ok_or_else(ended)
}

/// Parses an answer: a result, a refusal, or an error if it is neither.
fn read(id: &str, line: &[u8]) -> Result<Result<ChangeResponse, String>, String> {
    let wrong = |why: &dyn std::fmt::Display| format!("the program wrote an invalid answer: {why}");
    let answer: Answer = serde_json::from_slice(line).map_err(|error| wrong(&error))?;
    if answer.id != id {
        return Err(wrong(&format!("it is about `{}`, not `{id}`", answer.id)));
    }
    let body = match (answer.body, answer.body_base64) {
        (Some(_), Some(_)) => return Err(wrong(&"it gives `body` and `body_base64`")),
        (Some(text), None) => Some(text.into_bytes()),
        (None, Some(text)) => {
            Some(BASE64_STANDARD.decode(text).map_err(|error| wrong(&format!("`body_base64`: {error}")))?)
        }
        (None, None) => None,
    };
    Ok(match answer.outcome {
        Outcome::Done => Ok(ChangeResponse { content_type: answer.content_type, properties: answer.properties, body }),
        Outcome::Refused => Err(answer.reason.unwrap_or_else(|| "it does not say why".to_owned())),
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use tocsin_test_peers::{Peer, missing};

    use super::*;

    fn changer(folder: &Path, script: &str, patience: Duration) -> Changer {
        let path = folder.join("change");
        fs::write(&path, format!("#!/usr/bin/env python3\nimport sys, json\n{script}")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a program");
        let (name, programs) = ("test".parse().expect("a name"), Programs { allow: vec![folder.to_owned()] });
        let given = [path.to_str().expect("a path").to_owned()];
        Changer::open(&name, &given, &BTreeMap::new(), patience, &programs, "run").unwrap_or_else(|_| panic!("good"))
    }

    fn message(body: &[u8]) -> Changed {
        Changed { content_type: "text/plain".into(), properties: Map::new(), body: body.to_vec() }
    }

    #[tokio::test]
    async fn a_program_changes_refuses_and_ends() {
        if missing(&[Peer::Python]) {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let script = r#"
for line in sys.stdin:
    m = json.loads(line)
    body = m.get("body")
    if body == "end": sys.exit("enough")
    if body == "no": answer = {"id": m["id"], "outcome": "refused", "reason": "not that"}
    elif body is None: answer = {"id": m["id"], "outcome": "done", "body_base64": m["body_base64"]}
    elif body == "odd": answer = {"id": "m-0", "outcome": "done"}
    else: answer = {"id": m["id"], "outcome": "done", "body": body.upper(), "properties": {"long": len(body)}}
    print(json.dumps(answer), flush=True)
"#;
        let changer = changer(folder.path(), script, Duration::from_secs(60));
        let changed = changer.change("m-1", &message(b"abc")).await.expect("changed");
        assert_eq!((&*changed.body, &changed.properties["long"]), (&b"ABC"[..], &3.into()));
        assert_eq!(changer.change("m-2", &message(&[0xff, 0])).await.expect("changed").body, [0xff, 0]);
        for (body, why) in [("no", "refuses it: not that"), ("odd", "`m-0`, not `m-4`"), ("end", "enough")] {
            let error = changer.change("m-4", &message(body.as_bytes())).await.expect_err(body);
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(changer.change("m-5", &message(b"again")).await.expect("a new one").body, b"AGAIN");
    }

    #[tokio::test]
    async fn a_silent_program_times_out() {
        if missing(&[Peer::Python]) {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let changer = changer(folder.path(), "sys.stdin.read()", Duration::from_millis(50));
        let error = changer.change("m-1", &message(b"")).await.expect_err("no answer");
        assert!(error.contains("did not answer within"), "{error}");
    }
}
