//! Audit context of the operations of directory clients.

use std::{net::IpAddr, sync::Arc};

use tocsin_store::audit::{ChangeContext, scope};

use crate::directory::Directory;

impl Directory {
    /// Runs an operation of a client. Its changes are in the audit log, with this actor.
    pub fn audited<F: Future>(
        &self,
        actor: String,
        address: IpAddr,
        action: &'static str,
        operation: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let clock = self.clock.clone();
        let context = ChangeContext::new(actor, action, Arc::new(move || clock()));
        scope(Arc::new(context.at_address(Some(address.to_string()))), operation)
    }
}
