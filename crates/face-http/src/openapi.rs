//! The description of the API in OpenAPI 3.1, made from the routes, and an explorer that needs no network.

use std::{borrow::Cow, sync::Arc, sync::LazyLock};

use axum::body::Bytes;
use utoipa::{
    Modify, OpenApi,
    openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
};
use utoipa_swagger_ui::Config;

use crate::routes;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tocsin",
        description = "Who is to be told what: applications, subscribers, subscriptions, events, and what became of them.\n\nEvery error is a problem of RFC 9457, whose `type` is the address of a page that explains it.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    modifiers(&Keys),
    security(("key" = [])),
    tags(
        (name = "applications", description = "What a deployment does: definitions, versioned"),
        (name = "events", description = "What happened"),
        (name = "subscribers", description = "Whom to tell, and at which devices"),
        (name = "subscriptions", description = "What they care about"),
        (name = "import and export", description = "Many of them, as streams of lines"),
        (name = "operations", description = "What became of it"),
        (name = "keys", description = "Who may do what"),
        (name = "health", description = "Whether it lives and serves; these need no key"),
    )
)]
struct Base;

struct Keys;

impl Modify for Keys {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let scheme =
            HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("An API key: `tocsin_<id>_<secret>`"));
        components.add_security_scheme("key", SecurityScheme::Http(scheme.build()));
    }
}

pub(crate) fn base() -> utoipa::openapi::OpenApi {
    Base::openapi()
}

/// The description of the API, as pretty JSON: what `/openapi.json` serves and `docs/reference/openapi.json` holds.
pub fn document() -> String {
    let (_, document) = routes::documented().split_for_parts();
    let mut text = document.to_pretty_json().expect("a description is always JSON");
    text.push('\n');
    text
}

pub(crate) fn text() -> Bytes {
    static TEXT: LazyLock<Bytes> = LazyLock::new(|| document().into());
    TEXT.clone()
}

/// The files of the explorer.
pub(crate) struct Explorer(Arc<Config<'static>>);

impl Explorer {
    pub(crate) fn new() -> Self {
        Explorer(Arc::new(Config::from("/openapi.json").try_it_out_enabled(true)))
    }

    /// A file by its name, with its media type.
    pub(crate) fn file(&self, name: &str) -> Option<(String, Bytes)> {
        let file = utoipa_swagger_ui::serve(name, self.0.clone()).ok()??;
        let bytes = match file.bytes {
            Cow::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
            Cow::Owned(bytes) => bytes.into(),
        };
        Some((file.content_type, bytes))
    }
}
