//! Conflicts that need a program of the operator or a merge of texts: their decisions, and those still missing.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock},
};

use async_trait::async_trait;
use serde_json::{Map, Value as Json};
use tocsin_model::{collection::Process, id::Name, replica::Edit, value::Value};

use crate::{catalogue::Ready, merge};

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
    pub(crate) known: Arc<HashMap<(EditKey, String), ConflictDecision>>,
    /// Merged texts, by edit, field index and server text. `None`: the texts are not merged.
    pub(crate) merged: Arc<HashMap<(EditKey, usize, String), Option<String>>>,
    pub(crate) rounds: u32,
    /// Remaining work for merging the texts of the block.
    pub(crate) pairs: u64,
}

impl Default for ConflictDecisions {
    fn default() -> ConflictDecisions {
        ConflictDecisions { known: Arc::default(), merged: Arc::default(), rounds: 0, pairs: merge::PAIRS_OF_BLOCK_MAX }
    }
}

/// Two texts to merge.
pub(crate) struct PendingMerge {
    pub(crate) edit: EditKey,
    pub(crate) field: usize,
    pub(crate) base: String,
    pub(crate) server: String,
    pub(crate) client: String,
}

/// Work to do before the edits of a block can be applied.
#[derive(Default)]
pub(crate) struct UnresolvedConflicts {
    pub(crate) programs: Vec<(EditKey, EditConflict)>,
    pub(crate) merges: Vec<PendingMerge>,
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
