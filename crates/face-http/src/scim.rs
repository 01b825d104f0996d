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
mod answer; // responses in the media type of SCIM
mod error; // SCIM errors (RFC 7644, 3.12)
pub(crate) mod fuzzing; // parsers for fuzz targets
mod routes;

pub(crate) use routes::{failed, is_scim_path, no_method, no_route, refused, routes};
