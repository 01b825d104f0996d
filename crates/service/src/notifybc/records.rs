//! Configurations and bounce records: create, list, change, remove. Only super-admins call these operations.

use tocsin_notifybc::{
    query::{Filter, Where},
    record::{self, Collection, Document},
};

use super::{Notifybc, NotifybcError, RequestContext};

impl Notifybc {
    /// Creates a record.
    ///
    /// # Errors
    /// The body is invalid, or its unique key is in use.
    pub async fn create_record(
        &self,
        context: &RequestContext,
        collection: Collection,
        body: Document,
    ) -> Result<Document, NotifybcError> {
        let body = self.with_feed_host(context, collection, body);
        let (id, author) = (self.new_id().to_string(), Self::author(context));
        let document = record::create(collection, &id, body, self.now(), Some(&author))?;
        self.insert(collection, &document).await?;
        Ok(document)
    }

    /// Records of a filter.
    ///
    /// # Errors
    /// The store is unavailable, or the answer is too large.
    pub async fn find_records(&self, collection: Collection, filter: Filter) -> Result<Vec<Document>, NotifybcError> {
        self.list(collection, filter, Where::default(), |document| document).await
    }

    /// Number of records of a condition.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn count_records(&self, collection: Collection, condition: Where) -> Result<u64, NotifybcError> {
        self.count(collection, condition).await
    }

    /// A record.
    ///
    /// # Errors
    /// It does not exist.
    pub async fn record(&self, collection: Collection, id: &str) -> Result<Document, NotifybcError> {
        Ok(self.require(collection, id).await?.document)
    }

    /// Changes properties of a record.
    ///
    /// # Errors
    /// It does not exist, or a value is invalid.
    pub async fn patch_record(
        &self,
        context: &RequestContext,
        collection: Collection,
        id: &str,
        changes: Document,
    ) -> Result<(), NotifybcError> {
        let (now, author) = (self.now(), Self::author(context));
        let change =
            |document: &Document| Ok(record::patch(collection, document, changes.clone(), now, Some(&author))?);
        self.change(collection, id, change).await.map(|_| ())
    }

    /// Changes properties of all records of a condition. Returns their number.
    ///
    /// # Errors
    /// A value is invalid; then records before it may have changed.
    pub async fn patch_records(
        &self,
        context: &RequestContext,
        collection: Collection,
        condition: Where,
        changes: Document,
    ) -> Result<u64, NotifybcError> {
        let mut count = 0;
        for document in self.find(collection, condition).await? {
            let id = record::text(&document, "id").unwrap_or_default();
            match self.patch_record(context, collection, id, changes.clone()).await {
                Ok(()) => count += 1,
                // Removed at the same time.
                Err(NotifybcError::Missing) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    /// Replaces a record by a body.
    ///
    /// # Errors
    /// It does not exist, or the body is invalid.
    pub async fn put_record(
        &self,
        context: &RequestContext,
        collection: Collection,
        id: &str,
        body: Document,
    ) -> Result<(), NotifybcError> {
        let body = self.with_feed_host(context, collection, body);
        let (now, author) = (self.now(), Self::author(context));
        let change = |document: &Document| Ok(record::replace(collection, document, body.clone(), now, Some(&author))?);
        self.change(collection, id, change).await.map(|_| ())
    }

    /// Removes a record.
    ///
    /// # Errors
    /// It does not exist.
    pub async fn delete_record(&self, collection: Collection, id: &str) -> Result<(), NotifybcError> {
        match self.remove(collection, vec![id.to_owned()]).await? {
            0 => Err(NotifybcError::Missing),
            _ => Ok(()),
        }
    }
}
