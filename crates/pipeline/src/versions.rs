//! Cache of compiled application versions: an old batch is read by the version that packed it.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tocsin_model::{
    definition::{self, Environment},
    id::Name,
};
use tocsin_store::{error::StoreError, records::ApplicationStore};

use crate::compile::Compiled;

/// Maximum number of cached versions, beside those in use elsewhere.
const KEPT: usize = 64;

/// Compiled versions by name and number.
pub struct Versions {
    application_store: Arc<dyn ApplicationStore>,
    environment: Environment,
    kept: Mutex<BTreeMap<(Name, u32), Arc<Compiled>>>,
}

impl Versions {
    pub(crate) fn new(application_store: Arc<dyn ApplicationStore>, environment: Environment) -> Self {
        Versions { application_store, environment, kept: Mutex::new(BTreeMap::new()) }
    }

    /// Returns a version; `None` if it does not exist or cannot be compiled any more (which is logged).
    ///
    /// # Errors
    /// The records fail.
    pub async fn get(&self, name: &Name, version: u32) -> Result<Option<Arc<Compiled>>, StoreError> {
        let key = (name.clone(), version);
        if let Some(compiled) = self.kept.lock().get(&key) {
            return Ok(Some(compiled.clone()));
        }
        let Some(stored) = self.application_store.application(name, Some(version)).await? else {
            return Ok(None);
        };
        let compiled = definition::read(&stored.text, &*self.environment)
            .and_then(|application| Compiled::new(application, version));
        match compiled {
            Ok(compiled) => {
                let compiled = Arc::new(compiled);
                self.insert(compiled.clone());
                Ok(Some(compiled))
            }
            Err(problems) => {
                for problem in problems {
                    tracing::error!(application = %name, version, %problem, "a stored definition cannot be compiled");
                }
                Ok(None)
            }
        }
    }

    /// Adds a version that was compiled elsewhere.
    pub(crate) fn insert(&self, compiled: Arc<Compiled>) {
        let mut kept = self.kept.lock();
        let newest = (compiled.application.name.clone(), compiled.version);
        kept.insert(newest.clone(), compiled);
        // Versions in use elsewhere cost nothing extra here, and compiling them for every batch would.
        while kept.len() > KEPT
            && let Some(unused) = kept.iter().find(|(key, held)| **key != newest && Arc::strong_count(held) == 1)
        {
            let unused = unused.0.clone();
            kept.remove(&unused);
        }
    }

    /// Environment in which definitions are read.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }
}
