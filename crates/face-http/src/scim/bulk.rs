//! Bulk operations (RFC 7644, 3.7). Each operation is its own commit and has its own result.

use std::collections::{HashMap, HashSet};

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::{
    error::ScimError,
    schema::{ResourceType, resource_type},
    service::{Change, ScimService, Tag, tag},
};

/// Most operations of one request.
pub(super) const OPERATIONS_MAX: usize = 1_000;

/// A bulk request.
#[derive(Debug, Deserialize)]
pub(super) struct Bulk {
    #[serde(rename = "failOnErrors")]
    fail_on_errors: Option<usize>,
    #[serde(rename = "Operations")]
    operations: Vec<Operation>,
}

#[derive(Debug, Clone, Deserialize)]
struct Operation {
    method: String,
    path: String,
    #[serde(rename = "bulkId")]
    bulk_id: Option<String>,
    version: Option<String>,
    #[serde(default)]
    data: Json,
}

/// Ids that were made, by what the client called them.
type Made = HashMap<String, String>;

/// Result of a bulk operation.
struct BulkResult {
    status: StatusCode,
    location: Option<String>,
    version: Option<String>,
    id: Option<String>,
}

impl Bulk {
    /// Refuses two operations of one `bulkId`: references to it would mean either.
    fn unique(&self) -> Result<(), ScimError> {
        let mut names = HashSet::new();
        let mut given = self.operations.iter().filter_map(|operation| operation.bulk_id.as_deref());
        match given.find(|name| !names.insert(*name)) {
            Some(twice) => {
                let what = format!("two operations have the bulkId `{twice}`; each has its own (RFC 7644, 3.7)");
                Err(ScimError::bad("invalidValue", what))
            }
            None => Ok(()),
        }
    }
}

impl ScimService {
    /// Runs the operations in order; one that refers to a resource created by a later one is run after that.
    pub(super) async fn bulk(&self, bulk: Bulk) -> Result<Json, ScimError> {
        if bulk.operations.len() > OPERATIONS_MAX {
            let what = format!("at most {OPERATIONS_MAX} operations fit in one request");
            return Err(ScimError::new(StatusCode::PAYLOAD_TOO_LARGE, what));
        }
        bulk.unique()?;
        let errors_max = bulk.fail_on_errors.unwrap_or(usize::MAX).max(1);
        let (mut made, mut answers, mut errors) = (Made::new(), Vec::new(), 0);
        let mut open = bulk.operations;
        while !open.is_empty() && errors < errors_max {
            let at = open.iter().position(|operation| !operation.waits(&made, &open));
            // The remaining operations refer to each other in a circle: each is refused.
            let mut operation = open.remove(at.unwrap_or(0));
            let done = match operation.resolve(&made) {
                Ok(()) => self.operate(&operation).await,
                Err(error) => Err(error),
            };
            errors += usize::from(done.is_err());
            if let (Ok(BulkResult { id: Some(id), .. }), Some(name)) = (&done, &operation.bulk_id) {
                made.insert(name.clone(), id.clone());
            }
            answers.push(operation.answer(done));
        }
        Ok(json!({"schemas": ["urn:ietf:params:scim:api:messages:2.0:BulkResponse"], "Operations": answers}))
    }

    async fn operate(&self, operation: &Operation) -> Result<BulkResult, ScimError> {
        let mut parts = operation.path.trim_matches('/').splitn(2, '/');
        let kind = resource_type(parts.next().unwrap_or_default())?;
        let expected = operation.version.as_deref().map(Tag::read);
        let method = operation.method.to_ascii_uppercase();
        match (method.as_str(), parts.next()) {
            ("POST", None) => {
                let entry = self.create(kind, &operation.data).await?;
                Ok(self.done(StatusCode::CREATED, kind, &entry))
            }
            ("PUT", Some(id)) => {
                let whole = Change::Whole(super::body::resource(&operation.data, kind)?);
                let entry = self.change(kind, id, &whole, expected.as_ref()).await?;
                Ok(self.done(StatusCode::OK, kind, &entry))
            }
            ("PATCH", Some(id)) => {
                let parts = Change::Parts(super::patch::read(&operation.data, kind)?);
                let entry = self.change(kind, id, &parts, expected.as_ref()).await?;
                Ok(self.done(StatusCode::OK, kind, &entry))
            }
            ("DELETE", Some(id)) => {
                self.remove(kind, id, expected.as_ref()).await?;
                let location = Some(format!("{}/{}/{id}", self.base, kind.endpoint));
                Ok(BulkResult { status: StatusCode::NO_CONTENT, location, version: None, id: None })
            }
            _ => Err(ScimError::bad(
                "invalidSyntax",
                "an operation is POST of a kind, such as /Users, or PUT, PATCH or DELETE of one, such as /Users/{id}",
            )),
        }
    }

    fn done(&self, status: StatusCode, kind: &ResourceType, entry: &tocsin_directory::entry::Entry) -> BulkResult {
        BulkResult {
            status,
            location: Some(self.location(kind, entry)),
            version: Some(tag(entry)),
            id: Some(entry.uuid()),
        }
    }
}

impl Operation {
    /// Whether it refers to what another one is still to make.
    fn waits(&self, made: &Made, open: &[Operation]) -> bool {
        let mut names = Vec::new();
        references(&self.data, &mut names);
        names.extend(self.path.split('/').filter_map(|part| part.strip_prefix("bulkId:")));
        let is_open = |name: &&str| open.iter().any(|other| other.bulk_id.as_deref() == Some(*name));
        names.iter().any(|name| !made.contains_key(*name) && is_open(name))
    }

    /// Replaces `bulkId` references by the ids of the created resources.
    fn resolve(&mut self, made: &Made) -> Result<(), ScimError> {
        fn replace(value: &mut Json, made: &Made) -> Result<(), ScimError> {
            match value {
                Json::String(text) => {
                    if let Some(name) = text.strip_prefix("bulkId:") {
                        *text = known(name, made)?.clone();
                    }
                    Ok(())
                }
                Json::Array(values) => values.iter_mut().try_for_each(|value| replace(value, made)),
                Json::Object(members) => members.values_mut().try_for_each(|value| replace(value, made)),
                _ => Ok(()),
            }
        }
        let parts = self.path.split('/').map(|part| match part.strip_prefix("bulkId:") {
            Some(name) => known(name, made).cloned(),
            None => Ok(part.to_owned()),
        });
        self.path = parts.collect::<Result<Vec<_>, _>>()?.join("/");
        replace(&mut self.data, made)
    }

    fn answer(self, done: Result<BulkResult, ScimError>) -> Json {
        let mut answer = json!({"method": self.method});
        if let Some(id) = self.bulk_id {
            answer["bulkId"] = id.into();
        }
        match done {
            Ok(done) => {
                answer["status"] = done.status.as_u16().to_string().into();
                answer["location"] = done.location.into();
                if let Some(version) = done.version {
                    answer["version"] = version.into();
                }
            }
            Err(error) => {
                answer["status"] = error.status.as_u16().to_string().into();
                answer["response"] = error.body();
            }
        }
        answer
    }
}

fn known<'a>(name: &str, made: &'a Made) -> Result<&'a String, ScimError> {
    let what = || format!("nothing was made under the bulkId `{name}`, or it is needed before it can be made");
    made.get(name).ok_or_else(|| ScimError::new(StatusCode::CONFLICT, what()))
}

/// Collects the client's temporary ids within a value.
fn references<'a>(value: &'a Json, names: &mut Vec<&'a str>) {
    match value {
        Json::String(text) => names.extend(text.strip_prefix("bulkId:")),
        Json::Array(values) => values.iter().for_each(|value| references(value, names)),
        Json::Object(members) => members.values().for_each(|value| references(value, names)),
        _ => {}
    }
}
