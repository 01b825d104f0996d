//! Derived applications of broadcasts, compiled and cached.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tocsin_matching::rule::RuleSet;
use tocsin_model::{
    broadcast::{BroadcastApplication, BroadcastDraft, broadcast_class, in_draft},
    field::Row,
    id::{BroadcastId, Name},
    notification::NotificationHead,
    problem::Problem,
};

use super::sender_filter::SenderFilter;
use crate::compile::Compiled;

/// Most broadcasts whose compiled form is kept, beside those in use elsewhere.
const KEPT: usize = 16;

/// A broadcast, ready to be matched and formatted.
pub struct CompiledBroadcast {
    /// Its draft.
    pub draft: BroadcastDraft,
    /// The derived application: one event class, one rule, one notification class.
    pub compiled: Arc<Compiled>,
    /// Its event, a row of the event class.
    pub event: Row,
    /// Whether the filters of subscriptions apply.
    pub takes_filters: bool,
    /// The sender's filter over the parameters of subscriptions.
    pub(super) sender_filter: Option<SenderFilter>,
}

impl CompiledBroadcast {
    /// Compiles a draft under a version of its application.
    ///
    /// # Errors
    /// Every problem, with its path in the draft.
    pub fn new(draft: BroadcastDraft, of: &Compiled, id: BroadcastId) -> Result<CompiledBroadcast, Vec<Problem>> {
        let BroadcastApplication { application, event, takes_filters } = draft.application(&of.application, id)?;
        let class = application.subscriptions.values().next().expect("a broadcast has one subscription class");
        let sender_filter = draft.subscription_filter.as_ref();
        let sender_filter =
            sender_filter.map(|filter| SenderFilter::compile(filter, class, &application)).transpose()?;
        let in_draft = |found: Vec<Problem>| found.into_iter().map(in_draft).collect::<Vec<Problem>>();
        let compiled = Compiled::new(application, of.version).map_err(in_draft)?;
        Ok(CompiledBroadcast { draft, compiled: Arc::new(compiled), event, takes_filters, sender_filter })
    }

    /// Its rule set.
    pub fn rules(&self) -> &Arc<RuleSet> {
        &self.compiled.rules
    }

    /// Its subscription class.
    pub fn subscription_class(&self) -> &Name {
        self.compiled.application.subscriptions.keys().next().expect("a broadcast has one subscription class")
    }
}

/// Compiled broadcasts by number. A broadcast keeps the version of its first event.
#[derive(Default)]
pub(crate) struct BroadcastVersions(Mutex<BTreeMap<BroadcastId, Arc<CompiledBroadcast>>>);

impl BroadcastVersions {
    pub(super) fn find(&self, id: BroadcastId, version: u32) -> Option<Arc<CompiledBroadcast>> {
        self.0.lock().get(&id).filter(|found| found.compiled.version == version).cloned()
    }

    pub(super) fn insert(&self, id: BroadcastId, compiled: &Arc<CompiledBroadcast>) {
        let mut kept = self.0.lock();
        kept.insert(id, compiled.clone());
        while kept.len() > KEPT
            && let Some(unused) = kept.iter().find(|(key, held)| **key != id && Arc::strong_count(held) == 1)
        {
            let unused = *unused.0;
            kept.remove(&unused);
        }
    }
}

/// The broadcast to which the notifications of a batch belong.
pub(crate) fn broadcast_of(head: &NotificationHead) -> Option<BroadcastId> {
    head.rule.as_str().parse().ok().filter(|_| head.event_class == broadcast_class())
}
