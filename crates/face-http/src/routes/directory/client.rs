//! The caller of a directory route, with its authorization identity in the directory.

use std::sync::Arc;

use axum::{extract::FromRequestParts, http::request::Parts};
use tocsin_directory::{Directory, access::AuthzId};
use tocsin_service::{Caller, Scope, resources::Resource};

use crate::{app::App, problems::Failure, request::Authorized};

/// An authenticated caller, and the directory.
pub(super) struct DirectoryClient {
    pub(super) caller: Caller,
    pub(super) directory: Directory,
    /// The identity of an operator: access rules are bypassed, as over LDAP and SCIM. A limited key acts below its
    /// containers only.
    pub(super) requester: AuthzId,
}

impl FromRequestParts<Arc<App>> for DirectoryClient {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Failure> {
        let Authorized(caller) = Authorized::from_request_parts(parts, app).await?;
        let directory = app.entries.clone().ok_or_else(Failure::no_directory)?;
        let container = |resource: &Resource| match resource {
            Resource::Container(name) => Some(name.clone()),
            _ => None,
        };
        let within: Vec<String> = caller.resources().iter().filter_map(container).collect();
        if caller.is_limited() && within.is_empty() {
            return Err(caller.limited("it has no container of the directory").into());
        }
        let dn = caller.key().to_owned();
        let requester = AuthzId { manages: !caller.is_limited(), dn, within, ..AuthzId::default() };
        Ok(DirectoryClient { caller, directory, requester })
    }
}

impl DirectoryClient {
    /// The client, if its caller may read entries.
    pub(super) fn reading(self) -> Result<DirectoryClient, Failure> {
        self.caller.needs(Scope::SubscribersRead)?;
        Ok(self)
    }

    /// The client, if its caller may change entries.
    pub(super) fn writing(self) -> Result<DirectoryClient, Failure> {
        self.caller.needs(Scope::SubscribersWrite)?;
        Ok(self)
    }
}
