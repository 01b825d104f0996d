//! Conflict resolver programs run outside of transactions, and once per conflict.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::{Value as Json, json};
use tocsin_model::{collection::Process, id::Name};
use tocsin_sync::{
    Replicas,
    programs::{ConflictResolver, EditConflict, ResolverAnswer},
    rows::RowChange,
};

use crate::fixture::{Phone, SyncFixture, name, notes, object};

/// Scripted answers of a program, and the conflicts it received.
struct Program {
    answers: Mutex<Vec<Result<ResolverAnswer, String>>>,
    asked: Mutex<Vec<EditConflict>>,
    /// Written by another client while the program runs.
    meanwhile: Mutex<Option<(Arc<Replicas>, Json)>>,
}

#[async_trait]
impl ConflictResolver for Program {
    async fn resolve(
        &self,
        _: &Name,
        _: &Name,
        process: &Process,
        question: &EditConflict,
    ) -> Result<ResolverAnswer, String> {
        assert_eq!(process.command, ["/bin/settle", "--fast"]);
        self.asked.lock().expect("not poisoned").push(question.clone());
        let meanwhile = self.meanwhile.lock().expect("not poisoned").take();
        if let Some((sync, row)) = meanwhile {
            let patch = RowChange::Patch(object(row));
            sync.change_row(&name("shop"), "notes", "a", patch, None).await.expect("changed");
        }
        let mut answers = self.answers.lock().expect("not poisoned");
        if answers.is_empty() { Err("it ended".to_owned()) } else { answers.remove(0) }
    }
}

fn set(fields: Json) -> Result<ResolverAnswer, String> {
    Ok(ResolverAnswer::Set(object(fields)))
}

/// Two phones of ann edit the text and the count of one note; the second edit conflicts with the first.
async fn conflict(
    answers: Vec<Result<ResolverAnswer, String>>,
    meanwhile: Option<Json>,
    second: &str,
) -> (Json, Vec<String>, Vec<EditConflict>) {
    let definition = notes("    conflicts: { resolver: { process: [/bin/settle, --fast], timeout: 1s } }\n");
    let fixture = SyncFixture::new(&definition).await;
    let program =
        Arc::new(Program { answers: Mutex::new(answers), asked: Mutex::default(), meanwhile: Mutex::default() });
    *program.meanwhile.lock().expect("not poisoned") = meanwhile.map(|row| (fixture.sync.clone(), row));
    fixture.sync.set_conflict_resolver(program.clone());
    fixture.subscriber("ann", json!({})).await;
    fixture.put("notes", "a", json!({"owner": "ann", "text": "tree", "count": 1})).await;
    let (mut one, mut two) = (Phone::new(&fixture, "ann").await, Phone::new(&fixture, "ann").await);
    one.sync(&fixture).await;
    two.sync(&fixture).await;
    one.run("UPDATE notes SET text = 'well'");
    two.run(second);
    one.sync(&fixture).await;
    two.sync(&fixture).await;
    assert_eq!(two.rows("notes"), fixture.rows("notes").await);
    let log = fixture.sync.conflicts(&name("shop"), None, None, 100).await.expect("listed");
    let log = log.iter().map(|met| format!("{} {}", met.conflict.resolver, met.conflict.winner)).collect();
    let asked = program.asked.lock().expect("not poisoned").clone();
    (fixture.row("notes", "a").await.unwrap_or(Json::Null), log, asked)
}

const PUMP: &str = "UPDATE notes SET text = 'pump', count = 2";

#[tokio::test]
async fn a_program_decides_what_stays() {
    for (answer, text, winner) in [
        (Ok(ResolverAnswer::Server), "well", "server"),
        (Ok(ResolverAnswer::Client), "pump", "client"),
        (set(json!({"text": "pump and well", "count": 2})), "pump and well", "both"),
        // Undecided fields keep the server's values.
        (Err("it is tired".to_owned()), "well", "server"),
        (set(json!({"text": 7})), "well", "server"),
        (set(json!({"txet": "pump"})), "well", "server"),
    ] {
        let (row, log, asked) = conflict(vec![answer], None, PUMP).await;
        // Fields that only the device changed get its values.
        assert_eq!((&row["text"], &row["count"]), (&json!(text), &json!(2)));
        assert_eq!(log, [format!("process {winner}")]);
        assert_eq!(asked.len(), 1);
        assert_eq!((&asked[0].client["text"], &asked[0].server["text"]), (&json!("pump"), &json!("well")));
        assert_eq!((&*asked[0].row, &asked[0].base["text"]), ("a", &json!("tree")));
    }
    let (row, ..) = conflict(vec![Ok(ResolverAnswer::Client)], None, "DELETE FROM notes").await;
    assert_eq!(row, Json::Null);
    let (row, _, asked) = conflict(vec![Ok(ResolverAnswer::Server)], None, "DELETE FROM notes").await;
    assert_eq!((&row["text"], &asked[0].client), (&json!("well"), &Json::Null));
}

#[tokio::test]
async fn a_program_runs_again_if_the_row_changed_meanwhile() {
    let answers = vec![Ok(ResolverAnswer::Client), set(json!({"text": "all three"}))];
    let (row, log, asked) = conflict(answers, Some(json!({"text": "lake"})), PUMP).await;
    assert_eq!((&row["text"], log.len()), (&json!("all three"), 1));
    assert_eq!(asked.iter().map(|question| question.server["text"].clone()).collect::<Vec<_>>(), ["well", "lake"]);
}

#[tokio::test]
async fn an_edit_without_a_conflict_needs_no_program() {
    let (row, log, asked) = conflict(Vec::new(), None, "UPDATE notes SET count = 2").await;
    assert_eq!((&row["text"], &row["count"]), (&json!("well"), &json!(2)));
    assert!(log.is_empty() && asked.is_empty());
}
