//! Rule state as the journal stores it.

use bytes::Bytes;
use tocsin_model::{id::Name, state::StatePage};
use tocsin_store::{error::StoreError, journal::Step};

use crate::Flow;

/// Pages of rule state read from the journal at a time.
const STATE_PAGES: usize = 1_000;

/// Reads the stored state of all rules of an application.
pub(super) async fn read_rule_state(flow: &Flow, name: &Name) -> Result<Vec<StatePage>, StoreError> {
    let mut pages: Vec<StatePage> = Vec::new();
    loop {
        let more = flow.rule_store.state_pages(name, pages.last(), STATE_PAGES).await?;
        let is_last = more.len() < STATE_PAGES;
        pages.extend(more);
        if is_last {
            return Ok(pages);
        }
    }
}

/// Removes the stored rule state of a removed application.
pub(crate) async fn remove_rule_state(flow: &Flow, name: &Name) -> Result<(), StoreError> {
    loop {
        let pages = flow.rule_store.state_pages(name, None, STATE_PAGES).await?;
        if pages.is_empty() {
            return Ok(());
        }
        let none = |page: StatePage| (name.clone(), StatePage { body: Bytes::new(), ..page });
        flow.work_queue.commit(Step { states: pages.into_iter().map(none).collect(), ..Step::default() }).await?;
    }
}
