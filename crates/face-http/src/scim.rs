//! SCIM 2.0 (RFC 7643, 7644): users and groups for provisioning clients, over the entries of the directory.

mod schema; // what users and groups have
mod body; // a body becomes a resource
mod filter; // which resources are meant
mod patch; // parts of one change
mod selection; // what of it is told
mod user; // a subscriber's entry as a user, and back
mod group; // a group, and its members
mod desk; // resources made, read, changed, removed
mod list; // many of them, page by page
mod bulk; // many changes in one request
mod trouble; // what went wrong
pub(crate) mod fuzzing; // parsers for fuzz targets
mod routes;

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
pub(crate) use routes::{failed, is_here, no_method, no_route, refused, routes};
use serde_json::{Value as Json, json};
use tocsin_directory::Directory;

use self::{
    schema::{RESOURCES, ResourceType},
    trouble::Trouble,
};
use crate::request::SINGLE_BYTES_MAX;

/// SCIM over a directory.
#[derive(Clone)]
pub struct ScimOptions {
    /// The entries.
    pub directory: Directory,
    /// The address under which clients reach the face, such as `https://tocsin.example`; without it, what they ask for.
    pub public_url: Option<String>,
}

/// An answer in the media type of SCIM.
fn answer(status: StatusCode, body: &Json) -> Response {
    let kind = HeaderValue::from_static("application/scim+json");
    (status, [(header::CONTENT_TYPE, kind)], body.to_string()).into_response()
}

/// The kind of resources at an address.
fn resource_type(endpoint: &str) -> Result<&'static ResourceType, Trouble> {
    if endpoint == "Me" {
        return Err(Trouble::new(StatusCode::NOT_IMPLEMENTED, "a key is nobody's own: there is no `Me`"));
    }
    let found = RESOURCES.iter().find(|kind| kind.endpoint == endpoint);
    found.copied().ok_or_else(|| Trouble::missing(format!("nothing is at `/{endpoint}`; there are /Users and /Groups")))
}

/// What the service can do.
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
