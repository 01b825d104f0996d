//! SCIM errors (RFC 7644, 3.12).

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value as Json, json};
use tocsin_directory::ldap_error::{Code, LdapError};
use tocsin_service::ServiceError;

use super::answer::answer;
use crate::problems::Failure;

/// A request that was not done.
#[derive(Debug)]
pub(super) struct ScimError {
    pub(super) status: StatusCode,
    /// The `scimType`, if one fits.
    kind: Option<&'static str>,
    pub(super) detail: String,
}

impl ScimError {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> ScimError {
        ScimError { status, kind: None, detail: detail.into() }
    }

    /// 400 with its `scimType`.
    pub(super) fn bad(kind: &'static str, detail: impl Into<String>) -> ScimError {
        ScimError { status: StatusCode::BAD_REQUEST, kind: Some(kind), detail: detail.into() }
    }

    pub(super) fn missing(detail: impl Into<String>) -> ScimError {
        ScimError::new(StatusCode::NOT_FOUND, detail)
    }

    pub(super) fn body(&self) -> Json {
        let mut body = json!({
            "schemas": ["urn:ietf:params:scim:api:messages:2.0:Error"],
            "status": self.status.as_u16().to_string(),
            "detail": self.detail,
        });
        if let Some(kind) = self.kind {
            body["scimType"] = json!(kind);
        }
        body
    }
}

impl From<LdapError> for ScimError {
    fn from(refusal: LdapError) -> ScimError {
        let LdapError { code, message, .. } = refusal;
        let status = match code {
            Code::NoSuchObject => StatusCode::NOT_FOUND,
            Code::AssertionFailed => StatusCode::PRECONDITION_FAILED,
            Code::Busy | Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Code::InsufficientAccessRights => StatusCode::FORBIDDEN,
            Code::NotAllowedOnNonLeaf => StatusCode::CONFLICT,
            Code::EntryAlreadyExists => {
                return ScimError { status: StatusCode::CONFLICT, kind: Some("uniqueness"), detail: message };
            }
            Code::AdminLimitExceeded => return ScimError::bad("tooMany", message),
            Code::Other | Code::OperationsError => StatusCode::INTERNAL_SERVER_ERROR,
            _ => return ScimError::bad("invalidValue", message),
        };
        ScimError::new(status, message)
    }
}

impl From<Failure> for ScimError {
    fn from(failure: Failure) -> ScimError {
        // SCIM defines no 422: an invalid request is a 400 (RFC 7644, 3.12).
        match failure.summary() {
            (StatusCode::UNPROCESSABLE_ENTITY, detail) => ScimError::bad("invalidSyntax", detail),
            (status, detail) => ScimError::new(status, detail),
        }
    }
}

impl From<ServiceError> for ScimError {
    fn from(error: ServiceError) -> ScimError {
        Failure::from(error).into()
    }
}

impl IntoResponse for ScimError {
    fn into_response(self) -> Response {
        let mut response = answer(self.status, &self.body());
        let headers = response.headers_mut();
        match self.status {
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tocsin\""));
            }
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT => {
                // What is left of the body is not read.
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}
