//! What is kept of events, for people: the chronicles of an application, and what they say of a key now.
//!
//! It is read from the journal, so it is what is committed, and whoever looks does not hold up the matcher.

use std::sync::Arc;

use tocsin_matching::{
    chronicle::book::{ChronicleBook, PREFIX},
    rule::RuleSet,
};
use tocsin_model::{id::Name, state::StatePage};

use crate::{Service, error::ServiceError};

/// Pages read from the journal at a time.
const PAGES: usize = 100;

impl Service {
    /// What the journal has of the chronicles of an application.
    pub(crate) async fn chronicle_book(
        &self,
        application: &Name,
        rules: &Arc<RuleSet>,
    ) -> Result<ChronicleBook, ServiceError> {
        let mut last = StatePage { name: PREFIX.into(), number: 0, body: bytes::Bytes::new() };
        let mut pages = Vec::new();
        loop {
            let found = self.journal.state_pages(application, Some(&last), PAGES).await?;
            let is_last = found.len() < PAGES;
            let mut of_chronicles = found.into_iter().take_while(|page| page.name.starts_with(PREFIX)).peekable();
            if of_chronicles.peek().is_none() {
                break;
            }
            pages.extend(of_chronicles);
            if let (false, Some(page)) = (is_last, pages.last()) {
                last = StatePage { body: bytes::Bytes::new(), ..page.clone() };
            } else {
                break;
            }
        }
        let mut book = ChronicleBook::new(rules.clone());
        book.restore(pages);
        Ok(book)
    }
}
