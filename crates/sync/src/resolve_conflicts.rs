//! Conflict resolution by operator programs, and merging of texts. Both run outside of transactions: an edit that needs
//! them is rolled back and applied again with the decision, as long as the conflicting row is unchanged.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Map, Value as Json};
use tocsin_model::{collection::Resolver, field::Fields, id::Name, value::Value};
use tocsin_store::error::StoreError;

use crate::{
    catalogue::{Collections, Ready},
    error::SyncError,
    merge,
    programs::{
        ConflictDecision, ConflictDecisions, ConflictResolver, EditConflict, PendingMerge, ResolverAnswer,
        UnresolvedConflicts,
    },
    replicas::Replicas,
};

/// Total time that programs have for one block of edits. Undecided conflicts go to the server.
const PROGRAMS_TIMEOUT: Duration = Duration::from_secs(30);

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
