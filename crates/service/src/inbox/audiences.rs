//! Cache of segment filters for broadcasts.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tocsin_model::{
    id::{ChangeSequence, Name},
    ldap::LdapFilter,
};

/// Number of segments whose filters are cached.
const CACHED_MAX: usize = 1_000;

/// Cache of segment filters for broadcasts, each valid at one change sequence.
#[derive(Default)]
pub(crate) struct Audiences(Mutex<HashMap<Name, Audience>>);

/// The change sequence at which a segment was read, and its filter, if the segment exists.
type Audience = (ChangeSequence, Option<Arc<LdapFilter>>);

impl Audiences {
    /// The cached filter, if it was read at this change sequence; the inner `None`: the segment does not exist.
    pub(super) fn find(&self, segment: &Name, at: ChangeSequence) -> Option<Option<Arc<LdapFilter>>> {
        let cached = self.0.lock();
        cached.get(segment).filter(|(read_at, _)| *read_at == at).map(|(_, filter)| filter.clone())
    }

    /// Caches a filter. A full cache is emptied first.
    pub(super) fn insert(&self, segment: Name, at: ChangeSequence, filter: Option<Arc<LdapFilter>>) {
        let mut cached = self.0.lock();
        if cached.len() >= CACHED_MAX {
            cached.clear();
        }
        cached.insert(segment, (at, filter));
    }
}
