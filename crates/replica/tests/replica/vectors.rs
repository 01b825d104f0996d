//! Test vectors for every client: `testdata/replica`, whose README describes the steps.

use std::{collections::VecDeque, fs, path::Path, sync::Mutex, time::Duration};

use serde_json::{Map, Value as Json, json};
use tocsin_model::{
    field::FieldType,
    replica::{Begin, BeginResponse, Uploaded},
};
use tocsin_replica::{Link, LinkError, Replica, ReplicaError, ServerCredentials};

/// A server that expects scripted calls.
struct Script {
    collections: Json,
    calls: Mutex<VecDeque<Json>>,
    /// Batch ids in the order of their first use. A case calls them `b1`, `b2`.
    batches: Mutex<Vec<String>>,
    session: Mutex<String>,
}

impl Script {
    /// The response to a call, which must be the next of the script.
    fn answer(&self, mut made: Json) -> Result<Json, LinkError> {
        let call = self.calls.lock().expect("not poisoned").pop_front();
        let Some(Json::Object(mut call)) = call else { panic!("one call too many: {made}") };
        let answer = call.remove("answer").unwrap_or_default();
        let error = ["broken", "over", "busy", "refused"].into_iter().find_map(|word| Some((word, call.remove(word)?)));
        self.remove_optional(&mut made, &call);
        assert_eq!(made, Json::Object(call));
        let on_purpose = || "on purpose".to_owned();
        match error {
            None => Ok(answer),
            Some(("broken", _)) => Err(LinkError::Broken(on_purpose())),
            Some(("over", _)) => Err(LinkError::SessionEnded(on_purpose())),
            Some(("busy", seconds)) => Err(LinkError::Busy(Duration::from_secs(seconds.as_u64().expect("seconds")))),
            Some((_, why)) => Err(LinkError::Refused(why.to_string())),
        }
    }

    /// Names batches as the case does. Fields that the case omits are removed: the edit log, and the batch of an edit.
    fn remove_optional(&self, made: &mut Json, call: &Map<String, Json>) {
        if let Some(begin) = made.get_mut("begin").and_then(Json::as_object_mut) {
            match begin.get_mut("edits").filter(|_| call["begin"].get("edits").is_some()) {
                Some(log) => {
                    for field in ["after", "batch"] {
                        let name = log[field].as_str().map(|id| self.name_of(id));
                        log[field] = name.into();
                    }
                }
                None => drop(begin.remove("edits")),
            }
        }
        for (at, edit) in made.get_mut("upload").and_then(Json::as_array_mut).into_iter().flatten().enumerate() {
            let name = edit["batch"].as_str().map(|id| self.name_of(id));
            match call["upload"][at].get("batch") {
                Some(_) => edit["batch"] = name.into(),
                None => drop(edit.as_object_mut().expect("an edit").remove("batch")),
            }
        }
    }

    fn name_of(&self, id: &str) -> String {
        let mut batches = self.batches.lock().expect("not poisoned");
        let at = batches.iter().position(|known| known == id).unwrap_or_else(|| {
            batches.push(id.to_owned());
            batches.len() - 1
        });
        format!("b{}", at + 1)
    }

    fn id_of(&self, name: &str) -> String {
        let at = name.strip_prefix('b').and_then(|number| number.parse::<usize>().ok()).expect("a name of a batch");
        self.batches.lock().expect("not poisoned")[at - 1].clone()
    }

    fn check_session(&self, session: &str) {
        assert_eq!(session, *self.session.lock().expect("not poisoned"));
    }
}

/// A response with defaults for omitted fields.
fn filled<T: serde::de::DeserializeOwned>(mut usual: Json, given: Json) -> T {
    let given = given.as_object().expect("an answer").clone();
    usual.as_object_mut().expect("an object").extend(given);
    serde_json::from_value(usual).expect("an answer of the protocol")
}

impl Link for Script {
    async fn begin(&self, begin: &Begin) -> Result<BeginResponse, LinkError> {
        let response = self.answer(json!({ "begin": begin }))?;
        let usual = json!({
            "session": "s", "uploaded": 0, "anew": false, "wipe": false, "cursor": "", "collections": self.collections,
        });
        let mut begun: BeginResponse = filled(usual, response);
        for (batch, _) in begun.restored.iter_mut().flatten() {
            *batch = self.id_of(batch);
        }
        self.session.lock().expect("not poisoned").clone_from(&begun.session);
        Ok(begun)
    }

    async fn upload(&self, session: &str, lines: Vec<u8>) -> Result<Uploaded, LinkError> {
        self.check_session(session);
        let edits: Result<Vec<Json>, _> = serde_json::Deserializer::from_slice(&lines).into_iter().collect();
        let response = self.answer(json!({ "upload": edits.expect("lines of JSON") }))?;
        Ok(filled(json!({ "applied": 0, "conflicts": [], "refused": [] }), response))
    }

    async fn download(&self, session: &str, cursor: &str) -> Result<Vec<u8>, LinkError> {
        self.check_session(session);
        let response = self.answer(json!({ "download": cursor }))?;
        let lines = response.as_array().expect("lines").iter();
        Ok(lines.map(|line| format!("{line}\n")).collect::<String>().into_bytes())
    }

    async fn end(&self, session: &str) -> Result<(), LinkError> {
        self.check_session(session);
        self.answer(json!({ "end": true })).map(drop)
    }
}

/// Name of a result.
fn word<T>(done: &Result<T, ReplicaError>) -> Option<&'static str> {
    match done {
        Ok(_) => None,
        Err(ReplicaError::Link(LinkError::Broken(_))) => Some("broken"),
        Err(ReplicaError::Link(LinkError::Busy(_))) => Some("busy"),
        Err(ReplicaError::Link(LinkError::Refused(_))) => Some("refused"),
        Err(ReplicaError::Protocol(_)) => Some("protocol"),
        Err(ReplicaError::Wiped) => Some("wiped"),
        Err(ReplicaError::Unfit(_)) => Some("unfit"),
        Err(error) => panic!("{error}"),
    }
}

fn text(json: &Json) -> &str {
    json.as_str().expect("text")
}

/// The rows of a table in protocol form.
fn rows(replica: &Replica, collection: &str) -> Json {
    let shapes = replica.shapes().expect("read");
    let shape = shapes.iter().find(|shape| shape.name.as_str() == collection).expect("a collection");
    let (names, rows) = replica.query(&format!("SELECT * FROM {collection}")).expect("queried");
    let row = |cells: Vec<Json>| {
        let mut cells: Map<String, Json> = names.iter().cloned().zip(cells).collect();
        let id = text(&cells["id"]).to_owned();
        let fields = shape.fields.iter().filter_map(|field| {
            let value = match (field.kind, cells.remove(field.name.as_str())?) {
                (_, Json::Null) => return None,
                (FieldType::Boolean, value) => Json::Bool(value == 1),
                (FieldType::List | FieldType::Map, value) => serde_json::from_str(text(&value)).expect("JSON"),
                (_, value) => value,
            };
            Some((field.name.to_string(), value))
        });
        (id, Json::Object(fields.collect()))
    };
    Json::Object(rows.into_iter().map(row).collect())
}

fn status(replica: &Replica) -> Json {
    let local_status = replica.status().expect("read");
    let refused = local_status.refused.iter().map(|refused| {
        let (collection, id) = &refused.row;
        json!({ "n": refused.n, "collection": collection, "id": id, "why": refused.why })
    });
    json!({ "edited": local_status.edited, "sending": local_status.sending, "refused": refused.collect::<Vec<_>>() })
}

async fn take(replica: &mut Replica, script: &Script, step: &Json) {
    let expected_error = step["error"].as_str();
    if let Some(calls) = step["sync"].as_array() {
        *script.calls.lock().expect("not poisoned") = calls.iter().cloned().collect();
        let done = replica.sync(script, &mut |_| ()).await;
        assert_eq!(word(&done), expected_error);
        assert!(script.calls.lock().expect("not poisoned").is_empty(), "calls that were not made");
        let Ok(done) = done else { return };
        let done = json!({
            "applied": done.applied, "conflicts": done.conflicts, "refused": done.refused, "rows": done.rows,
            "removed": done.removed, "blocks": done.blocks, "anew": done.anew, "sent_again": done.sent_again,
        });
        for (name, value) in step["summary"].as_object().into_iter().flatten() {
            assert_eq!(&done[name], value, "{name}");
        }
    } else if let Some(put) = step["put"].as_array() {
        let done = replica.put(text(&put[0]), text(&put[1]), put[2].as_object().expect("fields"));
        assert_eq!(word(&done), expected_error);
    } else if let Some(remove) = step["remove"].as_array() {
        replica.remove(text(&remove[0]), text(&remove[1])).expect("removed");
    } else if let Some(expected) = step["rows"].as_object() {
        for (collection, expected) in expected {
            assert_eq!(&rows(replica, collection), expected);
        }
    } else if step["names"].is_array() {
        let names: Vec<String> = replica.shapes().expect("read").iter().map(|shape| shape.name.to_string()).collect();
        assert_eq!(json!(names), step["names"]);
    } else if step["standing"].is_object() {
        assert_eq!(status(replica), step["standing"]);
    } else {
        panic!("an unknown step: {step}");
    }
}

#[tokio::test]
async fn a_replica_does_what_every_client_does() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/replica");
    let mut ran = 0;
    for entry in fs::read_dir(folder).expect("the folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let file: Json = serde_json::from_str(&fs::read_to_string(&path).expect("read")).expect("JSON");
        for case in file["cases"].as_array().expect("cases") {
            let folder = tempfile::tempdir().expect("a folder");
            let home = ServerCredentials { url: "http://localhost".to_owned(), token: "a token".to_owned() };
            let mut replica = Replica::create(&folder.path().join("replica.db"), &home).expect("made");
            let collections = file["collections"].clone();
            let script =
                Script { collections, calls: Mutex::default(), batches: Mutex::default(), session: Mutex::default() };
            for (at, step) in case["steps"].as_array().expect("steps").iter().enumerate() {
                println!("{}: {}, step {at}", path.display(), case["name"]);
                take(&mut replica, &script, step).await;
            }
            ran += 1;
        }
    }
    assert!(ran > 0, "there are cases");
}
