//! Fields of a submitted form (`application/x-www-form-urlencoded`).

use axum::{
    body::Body,
    http::{HeaderMap, header},
};
use url::form_urlencoded;

use crate::{app::App, problems::Failure, request::take_body};

/// Largest form, in bytes.
const FORM_BYTES_MAX: usize = 256 * 1024;
/// Most fields of a form.
const FIELDS_MAX: usize = 10_000;

/// The fields in the order of the form.
#[derive(Debug, Default)]
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    /// Reads the form of a request. A body of another type has no fields.
    ///
    /// # Errors
    /// The body is too large or broke off.
    pub(super) async fn read(app: &App, headers: &HeaderMap, body: Body) -> Result<Form, Failure> {
        let body = take_body(app, headers, body, FORM_BYTES_MAX).await?;
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        match kind.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
            true => Ok(Form::parse(&body.bytes)),
            false => Ok(Form::default()),
        }
    }

    pub(super) fn parse(bytes: &[u8]) -> Form {
        let fields = form_urlencoded::parse(bytes).take(FIELDS_MAX);
        Form(fields.map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
    }

    /// The first value of a field.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The values of a field, in order.
    pub(super) fn values<'f>(&'f self, name: &'f str) -> impl Iterator<Item = &'f str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}
