//! Programs of the operator decide between two edits that meet, and texts of both are merged. Both are done outside of all
//! commits: an edit that needs it is put back, and comes again with the answer, as long as what it meets says the same.

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

use tocsin_store::error::StoreError;

use crate::{
    Replicas, SyncError,
    catalogue::{Collections, Ready},
    merge,
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

/// The number of an edit, with its batch.
type EditKey = (Option<String>, u64);

/// The decisions of programs about the edits of a block, and the texts that were merged for them.
#[derive(Clone)]
pub(crate) struct Rulings {
    /// By the edit, and by what the server had.
    known: Arc<HashMap<(EditKey, String), Ruling>>,
    /// By the edit, the place of its field, and the text that the server had. `None`: the texts are not merged.
    merged: Arc<HashMap<(EditKey, usize, String), Option<String>>>,
    rounds: u32,
    /// Work that is left for merging the texts of the block.
    pairs: u64,
}

impl Default for Rulings {
    fn default() -> Rulings {
        Rulings { known: Arc::default(), merged: Arc::default(), rounds: 0, pairs: merge::PAIRS_OF_BLOCK_MAX }
    }
}

/// Two texts that are to be merged.
pub(crate) struct OpenMerge {
    edit: EditKey,
    field: usize,
    base: String,
    server: String,
    client: String,
}

/// The work that has to be done before the edits of a block can be taken in.
#[derive(Default)]
pub(crate) struct OpenQuestions {
    programs: Vec<(EditKey, Question)>,
    merges: Vec<OpenMerge>,
}

impl OpenQuestions {
    pub(crate) fn is_empty(&self) -> bool {
        self.programs.is_empty() && self.merges.is_empty()
    }
}

/// Where an edit that meets another gets its ruling. What is not known yet is noted.
pub(crate) struct Court {
    rulings: Rulings,
    open: RefCell<OpenQuestions>,
}

impl Court {
    pub(crate) fn new(rulings: Rulings) -> Court {
        Court { rulings, open: RefCell::default() }
    }

    /// What is still to be asked.
    pub(crate) fn open(self) -> OpenQuestions {
        self.open.into_inner()
    }

    /// The text with the changes of both sides; `None` if they are not merged. While that is not known, what the server has: the
    /// commit is put back then.
    pub(crate) fn merge(&self, edit: &Edit, field: usize, base: &str, server: &str, client: &str) -> Option<String> {
        if client == base || client == server {
            return Some(server.to_owned());
        }
        if server == base {
            return Some(client.to_owned());
        }
        let key = ((edit.batch.clone(), edit.n), field, server.to_owned());
        if let Some(merged) = self.rulings.merged.get(&key) {
            return merged.clone();
        }
        if self.rulings.rounds >= ROUNDS_MAX {
            return None;
        }
        let (edit, field, server) = key;
        self.open.borrow_mut().merges.push(OpenMerge {
            edit,
            field,
            base: base.into(),
            server: server.clone(),
            client: client.into(),
        });
        Some(server)
    }

    pub(crate) fn ruling(&self, ready: &Ready, edit: &Edit, server: &Json) -> Ruling {
        let key = ((edit.batch.clone(), edit.n), server.to_string());
        if let Some(ruling) = self.rulings.known.get(&key) {
            return ruling.clone();
        }
        if self.rulings.rounds < ROUNDS_MAX {
            let question = Question {
                n: edit.n,
                collection: ready.name.clone(),
                row: edit.id.clone(),
                client: edit.set.clone().map_or(Json::Null, Json::Object),
                server: server.clone(),
                base: Json::Object(edit.was.clone()),
            };
            self.open.borrow_mut().programs.push((key.0, question));
        }
        Ruling::Server
    }
}

impl Replicas {
    /// Who asks programs. It is told once, at the start.
    pub fn set_arbiter(&self, arbiter: Arc<dyn Arbiter>) {
        let _ = self.arbiter.set(arbiter);
    }

    /// Asks programs about edits that meet, and merges texts. `began`: when it was begun with their block. After a program failed
    /// it is not asked again for this block; what is not decided stays as the server has it.
    ///
    /// # Errors
    /// Texts cannot be merged because the server stops.
    pub(crate) async fn settle_questions(
        &self,
        application: &Name,
        collections: &Collections,
        questions: OpenQuestions,
        rulings: &mut Rulings,
        began: Instant,
    ) -> Result<(), SyncError> {
        let OpenQuestions { programs, merges } = questions;
        if !merges.is_empty() {
            self.merge_texts(merges, rulings).await?;
        }
        let (mut known, mut failed) = ((*rulings.known).clone(), Vec::new());
        for (edit, question) in programs {
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
            known.insert((edit, question.server.to_string()), ruling);
        }
        (rulings.known, rulings.rounds) = (Arc::new(known), rulings.rounds + 1);
        Ok(())
    }

    /// Merges texts on a thread of their own, for few blocks at a time and within the bound of the block.
    async fn merge_texts(&self, merges: Vec<OpenMerge>, rulings: &mut Rulings) -> Result<(), SyncError> {
        let _seat = self.mergers.acquire().await.expect("the semaphore is never closed");
        let (before, mut pairs) = (rulings.merged.clone(), rulings.pairs);
        let work = move || {
            let mut merged = (*before).clone();
            for OpenMerge { edit, field, base, server, client } in merges {
                let text = merge::merge(&base, &server, &client, &mut pairs);
                if text.is_none() {
                    metrics::counter!("sync_merges_refused_total").increment(1);
                }
                merged.insert((edit, field, server), text);
            }
            (merged, pairs)
        };
        let done = tokio::task::spawn_blocking(work).await;
        let (merged, pairs) =
            done.map_err(|error| StoreError::unavailable(format!("texts were not merged: {error}")))?;
        (rulings.merged, rulings.pairs) = (Arc::new(merged), pairs);
        Ok(())
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
