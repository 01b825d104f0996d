//! SCIM 2.0 (RFC 7643, 7644): users and groups for provisioning clients, over the entries of the directory.

mod schema; // schemas of users and groups (RFC 7643)
mod body; // parsing of resource bodies
mod filter; // filter expressions (RFC 7644, 3.4.2.2)
mod patch; // PATCH operations (RFC 7644, 3.5.2)
mod selection; // selection of returned attributes (RFC 7644, 3.9)
mod user; // mapping between subscriber entries and users
mod group; // groups and their members
mod service; // create, read, change and delete resources
mod list; // queries with pages
mod bulk; // bulk operations (RFC 7644, 3.7)
mod error; // SCIM errors (RFC 7644, 3.12)
pub(crate) mod fuzzing; // parsers for fuzz targets
mod routes;

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
pub(crate) use routes::{failed, is_scim_path, no_method, no_route, refused, routes};
use serde_json::{Value as Json, json};
use tocsin_directory::Directory;

use self::{
    error::ScimError,
    schema::{RESOURCES, ResourceType},
};
use crate::request::SINGLE_BYTES_MAX;

/// SCIM over a directory.
#[derive(Clone)]
pub struct ScimOptions {
    /// The entries.
    pub directory: Directory,
    /// The address under which clients reach the face, such as `https://tocsin.example`; without it, the `Host` of the request.
    pub public_url: Option<String>,
}

/// An answer in the media type of SCIM.
fn answer(status: StatusCode, body: &Json) -> Response {
    let kind = HeaderValue::from_static("application/scim+json");
    (status, [(header::CONTENT_TYPE, kind)], body.to_string()).into_response()
}

/// The kind of resources at an address.
fn resource_type(endpoint: &str) -> Result<&'static ResourceType, ScimError> {
    if endpoint == "Me" {
        return Err(ScimError::new(
            StatusCode::NOT_IMPLEMENTED,
            "API keys belong to no user, so `Me` is not supported",
        ));
    }
    let found = RESOURCES.iter().find(|kind| kind.endpoint == endpoint);
    found
        .copied()
        .ok_or_else(|| ScimError::missing(format!("nothing is at `/{endpoint}`; there are /Users and /Groups")))
}

/// The service provider configuration.
fn service_provider_config(base: &str) -> Json {
    let supported = json!({"supported": true});
    json!({
        "schemas": ["urn:ietf:params:scim:schemas:core:2.0:ServiceProviderConfig"],
        "patch": supported, "sort": supported, "etag": supported, "changePassword": supported,
        "bulk": {"supported": true, "maxOperations": bulk::OPERATIONS_MAX, "maxPayloadSize": SINGLE_BYTES_MAX},
        "filter": {"supported": true, "maxResults": list::PAGE_MAX},
        "authenticationSchemes": [{
            "type": "oauthbearertoken", "name": "API key", "primary": true,
            "description": "`Authorization: Bearer` and a key with the scope subscribers:read or subscribers:write",
        }],
        "meta": {"resourceType": "ServiceProviderConfig", "location": format!("{base}/ServiceProviderConfig")},
    })
}
