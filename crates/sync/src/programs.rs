//! Conflict resolution by operator programs, and merging of texts. Both run outside of transactions: an edit that needs
//! them is rolled back and applied again with the decision, as long as the conflicting row is unchanged.

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

/// Total time that programs have for one block of edits. Undecided conflicts go to the server.
const PROGRAMS_TIMEOUT: Duration = Duration::from_secs(30);
/// Attempts to apply a block if rows change while programs run.
const ROUNDS_MAX: u32 = 4;

/// A conflict between an edit and a row.
#[derive(Debug, Clone, PartialEq)]
pub struct EditConflict {
    /// Number of the device's edit.
    pub n: u64,
    /// Collection.
    pub collection: Name,
    /// Row id.
    pub row: String,
    /// Fields that the device sets; null if it removes the row.
    pub client: Json,
    /// Current row of the server.
    pub server: Json,
    /// Field values before the device's edit.
    pub base: Json,
}

/// Answer of a resolver program.
#[derive(Debug, Clone, PartialEq)]
pub enum ResolverAnswer {
    /// The server wins.
    Server,
    /// The device wins.
    Client,
    /// These fields get these values; the others stay as on the server.
    Set(Map<String, Json>),
}

/// Runs conflict resolver programs.
#[async_trait]
pub trait ConflictResolver: Send + Sync {
    /// Runs the program of a collection; an error says why it did not decide.
    async fn resolve(
        &self,
        application: &Name,
        collection: &Name,
        process: &Process,
        question: &EditConflict,
    ) -> Result<ResolverAnswer, String>;
}

/// Resolver of this server, set once at start.
pub(crate) type ResolverSlot = OnceLock<Arc<dyn ConflictResolver>>;

/// Decision of a conflict.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ConflictDecision {
    Server,
    Client,
    /// Merged fields, by index.
    Set(BTreeMap<usize, Value>),
}

/// Number of an edit, with its batch.
type EditKey = (Option<String>, u64);

/// Decisions and merged texts for the edits of a block.
#[derive(Clone)]
pub(crate) struct ConflictDecisions {
    /// Decisions, by edit and server row.
    known: Arc<HashMap<(EditKey, String), ConflictDecision>>,
    /// Merged texts, by edit, field index and server text. `None`: the texts are not merged.
    merged: Arc<HashMap<(EditKey, usize, String), Option<String>>>,
    rounds: u32,
    /// Remaining work for merging the texts of the block.
    pairs: u64,
}

impl Default for ConflictDecisions {
    fn default() -> ConflictDecisions {
        ConflictDecisions { known: Arc::default(), merged: Arc::default(), rounds: 0, pairs: merge::PAIRS_OF_BLOCK_MAX }
    }
}

/// Two texts to merge.
pub(crate) struct PendingMerge {
    edit: EditKey,
    field: usize,
    base: String,
    server: String,
    client: String,
}

/// Work to do before the edits of a block can be applied.
#[derive(Default)]
pub(crate) struct UnresolvedConflicts {
    programs: Vec<(EditKey, EditConflict)>,
    merges: Vec<PendingMerge>,
}

impl UnresolvedConflicts {
    pub(crate) fn is_empty(&self) -> bool {
        self.programs.is_empty() && self.merges.is_empty()
    }
}

/// Looks up the decision for a conflict, and records those that are missing.
pub(crate) struct PendingConflicts {
    decisions: ConflictDecisions,
    open: RefCell<UnresolvedConflicts>,
}

impl PendingConflicts {
    pub(crate) fn new(decisions: ConflictDecisions) -> PendingConflicts {
        PendingConflicts { decisions, open: RefCell::default() }
    }

    /// The unresolved conflicts.
    pub(crate) fn open(self) -> UnresolvedConflicts {
        self.open.into_inner()
    }

    /// The merged text; `None` if the texts are not merged. While it is unknown, the server's text: the transaction is
    /// rolled back then.
    pub(crate) fn merge(&self, edit: &Edit, field: usize, base: &str, server: &str, client: &str) -> Option<String> {
        if client == base || client == server {
            return Some(server.to_owned());
        }
        if server == base {
            return Some(client.to_owned());
        }
        let key = ((edit.batch.clone(), edit.n), field, server.to_owned());
        if let Some(merged) = self.decisions.merged.get(&key) {
            return merged.clone();
        }
        if self.decisions.rounds >= ROUNDS_MAX {
            return None;
        }
        let (edit, field, server) = key;
        self.open.borrow_mut().merges.push(PendingMerge {
            edit,
            field,
            base: base.into(),
            server: server.clone(),
            client: client.into(),
        });
        Some(server)
    }

    pub(crate) fn decision(&self, ready: &Ready, edit: &Edit, server: &Json) -> ConflictDecision {
        let key = ((edit.batch.clone(), edit.n), server.to_string());
        if let Some(decision) = self.decisions.known.get(&key) {
            return decision.clone();
        }
        if self.decisions.rounds < ROUNDS_MAX {
            let question = EditConflict {
                n: edit.n,
                collection: ready.name.clone(),
                row: edit.id.clone(),
                client: edit.set.clone().map_or(Json::Null, Json::Object),
                server: server.clone(),
                base: Json::Object(edit.was.clone()),
            };
            self.open.borrow_mut().programs.push((key.0, question));
        }
        ConflictDecision::Server
    }
}

impl Replicas {
    /// Sets the conflict resolver, once at start.
    pub fn set_conflict_resolver(&self, resolver: Arc<dyn ConflictResolver>) {
        let _ = self.resolver.set(resolver);
    }

    /// Runs resolver programs for conflicts, and merges texts. `began`: when the block was started. A program that
    /// failed is not run again for this block; its undecided conflicts go to the server.
    ///
    /// # Errors
    /// Texts cannot be merged because the server is stopping.
    pub(crate) async fn resolve_conflicts(
        &self,
        application: &Name,
        collections: &Collections,
        questions: UnresolvedConflicts,
        decisions: &mut ConflictDecisions,
        began: Instant,
    ) -> Result<(), SyncError> {
        let UnresolvedConflicts { programs, merges } = questions;
        if !merges.is_empty() {
            self.merge_texts(merges, decisions).await?;
        }
        let (mut known, mut failed) = ((*decisions.known).clone(), Vec::new());
        for (edit, question) in programs {
            let decision = match collections.get(question.collection.as_str()) {
                Some(ready) if !failed.contains(&ready.number) && began.elapsed() < PROGRAMS_TIMEOUT => {
                    self.run_resolver(application, ready, &question).await.unwrap_or_else(|why| {
                        tracing::warn!(%application, collection = %ready.name, row = question.row, why, "a program did not decide; the server wins");
                        metrics::counter!("tocsin_sync_program_failures_total").increment(1);
                        failed.push(ready.number);
                        ConflictDecision::Server
                    })
                }
                _ => ConflictDecision::Server,
            };
            known.insert((edit, question.server.to_string()), decision);
        }
        (decisions.known, decisions.rounds) = (Arc::new(known), decisions.rounds + 1);
        Ok(())
    }

    /// Merges texts on a blocking thread, within the limits of concurrency and of the block.
    async fn merge_texts(&self, merges: Vec<PendingMerge>, decisions: &mut ConflictDecisions) -> Result<(), SyncError> {
        let _permit = self.mergers.acquire().await.expect("the semaphore is never closed");
        let (before, mut pairs) = (decisions.merged.clone(), decisions.pairs);
        let work = move || {
            let mut merged = (*before).clone();
            for PendingMerge { edit, field, base, server, client } in merges {
                let text = merge::merge(&base, &server, &client, &mut pairs);
                if text.is_none() {
                    metrics::counter!("tocsin_sync_merges_refused_total").increment(1);
                }
                merged.insert((edit, field, server), text);
            }
            (merged, pairs)
        };
        let done = tokio::task::spawn_blocking(work).await;
        let (merged, pairs) =
            done.map_err(|error| StoreError::unavailable(format!("texts were not merged: {error}")))?;
        (decisions.merged, decisions.pairs) = (Arc::new(merged), pairs);
        Ok(())
    }

    async fn run_resolver(
        &self,
        application: &Name,
        ready: &Ready,
        question: &EditConflict,
    ) -> Result<ConflictDecision, String> {
        let Resolver::Process(process) = &ready.definition.conflicts.resolver else {
            return Ok(ConflictDecision::Server);
        };
        let resolver = self.resolver.get().ok_or("this server has no resolver programs")?;
        Ok(match resolver.resolve(application, &ready.name, process, question).await? {
            ResolverAnswer::Server => ConflictDecision::Server,
            ResolverAnswer::Client => ConflictDecision::Client,
            ResolverAnswer::Set(set) => ConflictDecision::Set(accepted(&ready.definition.fields, set)?),
        })
    }
}

fn accepted(fields: &Fields, set: Map<String, Json>) -> Result<BTreeMap<usize, Value>, String> {
    let accept = |(name, value): (String, Json)| {
        let at = fields.position(&name).ok_or_else(|| format!("it sets `{name}`, which is not a field"))?;
        let value = fields[at].kind.accept(Value::from(value)).map_err(|why| format!("it sets `{name}`: {why}"))?;
        Ok((at, value))
    };
    set.into_iter().map(accept).collect()
}
