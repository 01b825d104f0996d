//! Finds the version under which a broadcast is matched and formatted.

use std::sync::Arc;

use tocsin_model::{
    broadcast::BroadcastDraft,
    id::{BroadcastId, Name},
    notification::NotificationHead,
    problem::{Code, Problem},
};
use tocsin_store::{error::StoreError, journal::Broadcasts};

use super::versions::{CompiledBroadcast, broadcast_of};
use crate::{Flow, compile::Compiled};

impl Flow {
    /// Returns a broadcast under a version of its application. The inner error says why there is none.
    pub async fn compiled_broadcast(
        &self,
        id: BroadcastId,
        application: &Name,
        version: u32,
    ) -> Result<Result<Arc<CompiledBroadcast>, Vec<Problem>>, StoreError> {
        if let Some(found) = self.broadcast_versions.find(id, version) {
            return Ok(Ok(found));
        }
        let problem = |text: String| Ok(Err(vec![Problem::new(Code::UnknownReference, "", text)]));
        let store: &dyn Broadcasts = &*self.broadcast_store;
        let Some(stored) = store.broadcast(id).await? else {
            return problem(format!("the broadcast {id} does not exist"));
        };
        let Some(of) = self.versions.get(application, version).await? else {
            return problem(format!("version {version} of `{application}` cannot be compiled; see `tocsin check`"));
        };
        let draft: BroadcastDraft = match serde_json::from_str(&stored.draft) {
            Ok(draft) => draft,
            Err(error) => return problem(format!("the draft of the broadcast {id} cannot be read: {error}")),
        };
        Ok(CompiledBroadcast::new(draft, &of, id).map(|compiled| {
            let compiled = Arc::new(compiled);
            self.broadcast_versions.insert(id, &compiled);
            compiled
        }))
    }

    /// Returns the version under which notifications are formatted, and their broadcast if they have one. `None`: it
    /// cannot be compiled any more.
    pub async fn version_of(
        &self,
        head: &NotificationHead,
    ) -> Result<Option<(Arc<Compiled>, Option<Arc<CompiledBroadcast>>)>, StoreError> {
        match broadcast_of(head) {
            None => Ok(self.versions.get(&head.application, head.version).await?.map(|compiled| (compiled, None))),
            Some(id) => match self.compiled_broadcast(id, &head.application, head.version).await? {
                Ok(broadcast) => Ok(Some((broadcast.compiled.clone(), Some(broadcast)))),
                Err(problems) => {
                    for problem in problems {
                        tracing::error!(broadcast = %id, %problem, "a stored broadcast cannot be compiled");
                    }
                    Ok(None)
                }
            },
        }
    }
}
