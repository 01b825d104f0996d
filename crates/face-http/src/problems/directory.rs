//! Errors of the directory as problem details, with the LDAP result code (RFC 4511, appendix A).

use std::time::Duration;

use tocsin_directory::ldap_error::{Code, LdapError};
use tocsin_model::problem::{self, Problem};

use super::{
    ALREADY_EXISTS, DIRECTORY_DISABLED, ENTRY_HAS_CHILDREN, Failure, INTERNAL_CODE, INVALID_CONTENT, NOT_FOUND_CODE,
    OUTSIDE_RESOURCES, PRECONDITION_FAILED, UNAVAILABLE_CODE,
};

impl Failure {
    /// No directory is configured.
    pub(crate) fn no_directory() -> Failure {
        Failure::new(
            DIRECTORY_DISABLED,
            "no directory is configured; set `ldap.listen`, such as \"127.0.0.1:3890\", or `ldap.scim = true`",
        )
    }

    /// An error of the directory about this member of the request.
    pub(crate) fn of_directory(path: &str, error: LdapError) -> Failure {
        let LdapError { code, matched, message, .. } = error;
        let document = match code {
            Code::NoSuchObject => NOT_FOUND_CODE,
            Code::AssertionFailed => PRECONDITION_FAILED,
            Code::EntryAlreadyExists => ALREADY_EXISTS,
            Code::NotAllowedOnNonLeaf => ENTRY_HAS_CHILDREN,
            Code::InsufficientAccessRights => OUTSIDE_RESOURCES,
            Code::Busy | Code::Unavailable => UNAVAILABLE_CODE,
            Code::Other | Code::OperationsError => INTERNAL_CODE,
            _ => INVALID_CONTENT,
        };
        let kind = match code {
            Code::InvalidDnSyntax | Code::InvalidAttributeSyntax => problem::Code::InvalidFormat,
            Code::UndefinedAttributeType => problem::Code::UnknownMember,
            Code::AttributeOrValueExists => problem::Code::Duplicate,
            Code::AdminLimitExceeded | Code::TimeLimitExceeded => problem::Code::TooComplex,
            Code::ObjectClassViolation | Code::NamingViolation | Code::ObjectClassModsProhibited => {
                problem::Code::SchemaViolation
            }
            _ => problem::Code::Conflict,
        };
        let mut failure = Failure::new(document, message.clone()).with("ldap_result", code as u16);
        if document.word == INVALID_CONTENT.word {
            failure = failure.problems(vec![Problem::new(kind, path, message)]);
        }
        if document.word == UNAVAILABLE_CODE.word {
            failure = failure.retry_after(Duration::from_secs(1));
        }
        match matched.is_empty() {
            true => failure,
            false => failure.with("matched", matched),
        }
    }
}

impl From<LdapError> for Failure {
    fn from(error: LdapError) -> Failure {
        Failure::of_directory("", error)
    }
}
