//! Rule state as the journal stores it.

use bytes::Bytes;
use tocsin_matching::{
    chronicle::store::{PREFIX, erase_page},
    rule::RuleSet,
};
use tocsin_model::{field::Damaged, id::Name, state::StatePage};
use tocsin_store::{
    error::StoreError,
    journal::{PersonNames, Step},
};

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

/// Removes the entries of chronicles that name a person from the journal.
pub(super) async fn erase_chronicles(
    flow: &Flow,
    name: &Name,
    rules: &RuleSet,
    names: &PersonNames,
) -> Result<(), StoreError> {
    let mut states = Vec::new();
    for page in read_rule_state(flow, name).await?.into_iter().filter(|page| page.name.starts_with(PREFIX)) {
        match erase_page(rules, &page, |value| names.is_in_value(value)) {
            Ok(erased) => states.extend(erased.map(|page| (name.clone(), page))),
            Err(Damaged) => {
                tracing::error!(application = %name, page = %page.name, "a damaged chronicle was not examined for an erasure")
            }
        }
    }
    if !states.is_empty() {
        flow.work_queue.commit(Step { states, ..Step::default() }).await?;
    }
    Ok(())
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
