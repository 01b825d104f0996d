//! Reads a feed once, without a source: for callers with schedules and histories of their own.

use jiff::tz::TimeZone;
use serde_json::{Map, Value};
use url::Url;

use super::entry::{FeedContext, entries};
use crate::{
    fetch::{Fetch, FetchOptions, Fetched, Validators},
    source::{Context, SourceError, SourceOutput, SourceSettings},
};

/// Name of the reader where a source has its own.
const NAME: &str = "feed-reader";

/// Reads feeds from the networks that the server's configuration permits.
#[derive(Clone)]
pub struct FeedReader {
    context: Context,
}

impl FeedReader {
    /// A reader in an environment.
    pub fn new(context: Context) -> FeedReader {
        FeedReader { context }
    }

    /// The items of a feed, in its order: `id, title, link, summary, content, author, published, updated, categories`,
    /// those that an item has. An item that cannot be read is left out. Redirects are not followed.
    ///
    /// # Errors
    /// The address is not permitted, the status is not 200, or the body is no feed.
    pub async fn read(&self, url: &str) -> Result<Vec<Map<String, Value>>, SourceError> {
        let options = FetchOptions { url: url.to_owned(), ..FetchOptions::default() };
        let name: tocsin_model::id::Name = NAME.parse().expect("it is a name");
        let settings = SourceSettings {
            application: name.clone(),
            name,
            remote_name: NAME.to_owned(),
            output: SourceOutput::Messages { bytes_max: options.page_bytes_max },
            options: Map::new(),
            context: self.context.clone(),
        };
        let fetch = Fetch::new(&options, &settings).map_err(|problems| {
            let first = problems.into_iter().next().map(|problem| problem.to_string());
            SourceError::new(format!("the feed {url} cannot be fetched"), first.unwrap_or_default())
        })?;
        let (body, charset) = match fetch.fetch(&Validators::default()).await? {
            Fetched::Page { body, charset, .. } => (body, charset),
            Fetched::Unchanged => return Err(SourceError::of(format!("{url} answers without content"))),
        };
        // A date without a time zone is in UTC.
        let context = FeedContext { url: Url::parse(url).ok(), zone: Some(TimeZone::UTC) };
        let entries = entries(&body, charset.as_deref(), &context);
        let entries = entries.map_err(|problem| SourceError::new("the feed cannot be read", problem))?;
        Ok(entries.into_iter().flatten().map(|entry| entry.members).collect())
    }
}
