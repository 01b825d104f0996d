//! Errors of directory requests, with the result codes of RFC 4511.

use tocsin_store::error::StoreError;

/// LDAP result codes in use, with their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "their names are those of RFC 4511, appendix A")]
#[repr(u16)]
pub enum Code {
    Success = 0,
    OperationsError = 1,
    ProtocolError = 2,
    TimeLimitExceeded = 3,
    SizeLimitExceeded = 4,
    CompareFalse = 5,
    CompareTrue = 6,
    AuthMethodNotSupported = 7,
    StrongerAuthRequired = 8,
    AdminLimitExceeded = 11,
    UnavailableCriticalExtension = 12,
    ConfidentialityRequired = 13,
    SaslBindInProgress = 14,
    NoSuchAttribute = 16,
    UndefinedAttributeType = 17,
    InappropriateMatching = 18,
    ConstraintViolation = 19,
    AttributeOrValueExists = 20,
    InvalidAttributeSyntax = 21,
    NoSuchObject = 32,
    InvalidDnSyntax = 34,
    InappropriateAuthentication = 48,
    InvalidCredentials = 49,
    InsufficientAccessRights = 50,
    Busy = 51,
    Unavailable = 52,
    UnwillingToPerform = 53,
    NamingViolation = 64,
    ObjectClassViolation = 65,
    NotAllowedOnNonLeaf = 66,
    NotAllowedOnRdn = 67,
    EntryAlreadyExists = 68,
    ObjectClassModsProhibited = 69,
    Other = 80,
    Canceled = 118,
    NoSuchOperation = 119,
    TooLate = 120,
    CannotCancel = 121,
    AssertionFailed = 122,
    SyncRefreshRequired = 4096,
}

/// Password policy error, sent to clients that request the policy control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "their names are those of the draft")]
#[repr(u8)]
pub enum Fault {
    PasswordExpired = 0,
    AccountLocked = 1,
    ChangeAfterReset = 2,
    PasswordModNotAllowed = 3,
    MustSupplyOldPassword = 4,
    InsufficientPasswordQuality = 5,
    PasswordTooShort = 6,
    PasswordTooYoung = 7,
    PasswordInHistory = 8,
}

/// Error of a directory request. The request changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LdapError {
    /// Result code.
    pub code: Code,
    /// Name of the nearest existing ancestor, if the entry does not exist (`matchedDN`).
    pub matched: String,
    /// Diagnostic message.
    pub message: String,
    /// Password policy error, for clients that asked for the policy control.
    pub fault: Option<Fault>,
}

impl LdapError {
    /// Creates an error.
    pub fn new(code: Code, message: impl Into<String>) -> LdapError {
        LdapError { code, matched: String::new(), message: message.into(), fault: None }
    }
}

impl From<StoreError> for LdapError {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::Taken(_) => Code::EntryAlreadyExists,
            StoreError::Missing(_) => Code::NoSuchObject,
            StoreError::Changed(_) => Code::Busy,
            StoreError::Full(_) | StoreError::Unavailable(_) => Code::Unavailable,
            StoreError::Fenced(_) | StoreError::Damaged(_) => Code::Other,
        };
        match code {
            Code::Unavailable => tracing::warn!(%error, "the directory's store is unavailable"),
            Code::Other => tracing::error!(%error, "the directory's store failed"),
            _ => {}
        }
        LdapError::new(
            code,
            if code == Code::Other {
                "internal error; see the log of the server".to_owned()
            } else {
                error.to_string()
            },
        )
    }
}
