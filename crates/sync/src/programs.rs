//! Programs of the operator's decide between two edits that meet. They are asked outside of all commits: an edit that needs one
//! is put back, asked about, and comes again with the answer, as long as what it meets says the same.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use serde_json::{Map, Value as Json};
use tocsin_model::{
    collection::{Process, Resolver},
    field::Fields,
    id::Name,
    replica::Edit,
    value::Value,
};

use crate::{
    Replicas,
    catalogue::{Collections, Ready},
};

/// How long programs may think about one block of edits, in all. What is not decided then stays as the server has it.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a block comes again because what it meets changed while programs thought.
const ROUNDS_MAX: u32 = 4;

/// Two edits that meet.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// The number of the edit of the device.
    pub n: u64,
    /// The collection.
    pub collection: Name,
    /// The row.
    pub row: String,
    /// The fields that the device sets; null if it removes the row.
    pub client: Json,
    /// What the row says.
    pub server: Json,
    /// What the fields of the device's edit were before.
    pub base: Json,
}

/// What a program says of two edits.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// What the server has stays.
    Server,
    /// What the device sends stays.
    Client,
    /// These fields say this, and the others what the server has.
    Set(Map<String, Json>),
}

/// Asks programs.
#[async_trait]
pub trait Arbiter: Send + Sync {
    /// What the program of a collection says; or why it says nothing.
    async fn ask(
        &self,
        application: &Name,
        collection: &Name,
        process: &Process,
        question: &Question,
    ) -> Result<Answer, String>;
}

/// Who asks programs; told once, at the start.
pub(crate) type Arbitration = OnceLock<Arc<dyn Arbiter>>;

/// What stays of two edits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Ruling {
    Server,
    Client,
    /// Fields by their places.
    Set(BTreeMap<usize, Value>),
}

/// What programs have ruled of the edits of a block: by the edit, and by what the server had.
#[derive(Clone, Default)]
pub(crate) struct Rulings {
    known: Arc<HashMap<(u64, String), Ruling>>,
    rounds: u32,
}

/// Where an edit that meets another gets its ruling. What is not known yet is noted.
pub(crate) struct Court {
    rulings: Rulings,
    open: RefCell<Vec<Question>>,
}

impl Court {
    pub(crate) fn new(rulings: Rulings) -> Court {
        Court { rulings, open: RefCell::default() }
    }

    /// What is still to be asked.
    pub(crate) fn open(self) -> Vec<Question> {
        self.open.into_inner()
    }

    pub(crate) fn ruling(&self, ready: &Ready, edit: &Edit, server: &Json) -> Ruling {
        if let Some(ruling) = self.rulings.known.get(&(edit.n, server.to_string())) {
            return ruling.clone();
        }
        if self.rulings.rounds < ROUNDS_MAX {
            self.open.borrow_mut().push(Question {
                n: edit.n,
                collection: ready.name.clone(),
                row: edit.id.clone(),
                client: edit.set.clone().map_or(Json::Null, Json::Object),
                server: server.clone(),
                base: Json::Object(edit.was.clone()),
            });
        }
        Ruling::Server
    }
}

impl Replicas {
    /// Who asks programs. It is told once, at the start.
    pub fn set_arbiter(&self, arbiter: Arc<dyn Arbiter>) {
        let _ = self.arbiter.set(arbiter);
    }

    /// Asks programs about edits that meet. `began`: when it was begun with their block. After a program failed it is not asked
    /// again for this block; what is not decided stays as the server has it.
    pub(crate) async fn ask_programs(
        &self,
        application: &Name,
        collections: &Collections,
        questions: Vec<Question>,
        rulings: &mut Rulings,
        began: Instant,
    ) {
        let (mut known, mut failed) = ((*rulings.known).clone(), Vec::new());
        for question in questions {
            let ruling = match collections.get(question.collection.as_str()) {
                Some(ready) if !failed.contains(&ready.number) && began.elapsed() < PATIENCE => {
                    self.ask_program(application, ready, &question).await.unwrap_or_else(|why| {
                        tracing::warn!(%application, collection = %ready.name, row = question.row, why, "a program did not decide; the server wins");
                        metrics::counter!("sync_program_failures_total").increment(1);
                        failed.push(ready.number);
                        Ruling::Server
                    })
                }
                _ => Ruling::Server,
            };
            known.insert((question.n, question.server.to_string()), ruling);
        }
        *rulings = Rulings { known: Arc::new(known), rounds: rulings.rounds + 1 };
    }

    async fn ask_program(&self, application: &Name, ready: &Ready, question: &Question) -> Result<Ruling, String> {
        let Resolver::Process(process) = &ready.definition.conflicts.resolver else { return Ok(Ruling::Server) };
        let arbiter = self.arbiter.get().ok_or("this server starts no programs")?;
        Ok(match arbiter.ask(application, &ready.name, process, question).await? {
            Answer::Server => Ruling::Server,
            Answer::Client => Ruling::Client,
            Answer::Set(set) => Ruling::Set(accepted(&ready.definition.fields, set)?),
        })
    }
}

fn accepted(fields: &Fields, set: Map<String, Json>) -> Result<BTreeMap<usize, Value>, String> {
    let accept = |(name, value): (String, Json)| {
        let at = fields.position(&name).ok_or_else(|| format!("it sets `{name}`, which is no field"))?;
        let value = fields[at].kind.accept(Value::from(value)).map_err(|why| format!("it sets `{name}`: {why}"))?;
        Ok((at, value))
    };
    set.into_iter().map(accept).collect()
}
