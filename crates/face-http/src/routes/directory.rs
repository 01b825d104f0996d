//! The directory: entries, schema, access rules, import and export. The operations are those of LDAP and SCIM.

mod client; // the caller and its identity in the directory
mod entries; // entries
mod rules; // schema and access rules
mod transfer; // import and export as LDIF

use std::sync::Arc;

use utoipa_axum::router::OpenApiRouter;

use crate::app::App;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().merge(entries::routes()).merge(rules::routes()).merge(transfer::routes())
}
