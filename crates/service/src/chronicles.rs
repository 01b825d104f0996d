//! Chronicles (per-key aggregates of events) of an application, and their current entries.
//!
//! Entries are read from the journal: they are the committed state, and reading does not block the matcher.

use std::{sync::Arc, time::Duration};

use tocsin_matching::{
    chronicle::{
        store::{ChronicleStore, PREFIX},
        view::ChronicleExplanation,
    },
    rule::RuleSet,
};
use tocsin_model::{
    id::Name,
    problem::{Code, Problem},
    state::StatePage,
    value::Value,
};

pub use tocsin_matching::chronicle::view::ChronicleEntry;

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    page::{Page, cursor},
};

/// Pages read from the journal at a time.
const PAGES: usize = 100;

/// A chronicle, and its size.
#[derive(Debug, Clone, PartialEq)]
pub struct ChronicleStatus {
    /// Definition.
    pub chronicle: ChronicleExplanation,
    /// Number of keys.
    pub keys: usize,
}

impl Service {
    /// Lists the chronicles of the running version of an application, by event class and name.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; the application is not running; another request is reading already.
    pub async fn chronicles(&self, caller: &Caller, application: &Name) -> Result<Vec<ChronicleStatus>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let rules = self.running(application)?.rules.clone();
        let _place = self.scan_permit()?;
        let book = self.chronicle_book(application, &rules).await?;
        let status = |chronicle: ChronicleExplanation| {
            let keys = book.keys_of(&chronicle.class, &chronicle.name);
            ChronicleStatus { chronicle, keys }
        };
        Ok(rules.chronicles().into_iter().map(status).collect())
    }

    /// Returns the current entries of a chronicle, or one entry. Keys whose window has ended are left out.
    ///
    /// # Errors
    /// As [`Service::chronicles`]; the chronicle does not exist; the key or the cursor is invalid.
    pub async fn chronicle_entries(
        &self,
        caller: &Caller,
        application: &Name,
        (class, chronicle): (&Name, &Name),
        key: Option<&str>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<ChronicleEntry>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let rules = self.running(application)?.rules.clone();
        if !rules.chronicles().iter().any(|found| found.class == *class && found.name == *chronicle) {
            return Err(ServiceError::Missing(format!("the chronicle `{chronicle}` of `{class}`")));
        }
        let key = key.map(|key| read_key(&rules, class, chronicle, key)).transpose()?;
        let after = after.map(packed_key).transpose()?;
        let _place = self.scan_permit()?;
        let book = self.chronicle_book(application, &rules).await?;
        let now = self.clock.now();
        if let Some(key) = key {
            let found = book.entry(&rules, class, chronicle, &key, now);
            return Ok(Page { items: found.into_iter().collect(), next: None });
        }
        let mut found = book.entries(&rules, class, chronicle, after.as_deref(), limit + 1, now);
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).map(|(key, _)| cursor(&hex::encode(key)));
        Ok(Page { items: found.into_iter().map(|(_, entry)| entry).collect(), next })
    }

    /// Each reader holds all entries in memory.
    pub(crate) fn scan_permit(&self) -> Result<tokio::sync::SemaphorePermit<'_>, ServiceError> {
        self.scan_permits.try_acquire().map_err(|_| ServiceError::TooMany {
            reason: "others look through what is stored already".to_owned(),
            retry_after: Duration::from_secs(2),
        })
    }

    /// Reads the chronicles of an application from the journal.
    pub(crate) async fn chronicle_book(
        &self,
        application: &Name,
        rules: &Arc<RuleSet>,
    ) -> Result<ChronicleStore, ServiceError> {
        let mut last = StatePage { name: PREFIX.into(), number: 0, body: bytes::Bytes::new() };
        let mut pages: Vec<StatePage> = Vec::new();
        loop {
            let found = self.rule_store.state_pages(application, Some(&last), PAGES).await?;
            let before = pages.len();
            pages.extend(found.into_iter().take_while(|page| page.name.starts_with(PREFIX)));
            match pages.last() {
                Some(page) if pages.len() == before + PAGES => {
                    last = StatePage { body: bytes::Bytes::new(), ..page.clone() };
                }
                _ => break,
            }
        }
        let mut book = ChronicleStore::new(rules.clone());
        book.restore(pages);
        Ok(book)
    }
}

/// A key, as a JSON object of its fields.
fn read_key(rules: &RuleSet, class: &Name, chronicle: &Name, key: &str) -> Result<Vec<u8>, ServiceError> {
    let wrong = |message: String| {
        let problem = Problem::new(Code::WrongType, "key", message);
        ServiceError::Invalid(vec![problem.hint("give its fields as a JSON object, such as `{\"symbol\": \"A\"}`")])
    };
    let values: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(key).map_err(|error| wrong(error.to_string()))?;
    let values = values.into_iter().map(|(name, value)| (name, Value::from(value)));
    rules.chronicle_key(class, chronicle, values).map_err(|problems| {
        let below = |problem: Problem| Problem { path: format!("key.{}", problem.path), ..problem };
        ServiceError::Invalid(problems.into_iter().map(below).collect())
    })
}

/// Unpacks the key in a cursor.
fn packed_key(given: &str) -> Result<Vec<u8>, ServiceError> {
    let wrong = || {
        ServiceError::from(
            Problem::new(Code::InvalidFormat, "after", "is not a cursor of this list").param("format", "cursor"),
        )
    };
    let text: String = crate::page::key_of(Some(given))?.ok_or_else(wrong)?;
    hex::decode(text).map_err(|_| wrong())
}
