//! Final responses of operations.

use std::time::Instant;

use tocsin_directory::{
    ldap_error::{Code, LdapError},
    policy::Notice,
};

use crate::{
    measure::{self, Operation},
    message::{self, Message, Request, ResponseExtras, tag},
    oids::PASSWORD_POLICY,
};

/// Builder of the final response of an operation.
pub(crate) struct ResponseBuilder {
    pub(crate) operation: Operation,
    pub(crate) tag: u8,
    pub(crate) id: u32,
    pub(crate) started: Instant,
    /// Whether the client requested the password policy response control.
    sends_policy: bool,
}

impl ResponseBuilder {
    pub(crate) fn new(message: &Message) -> ResponseBuilder {
        let operation = match &message.request {
            Request::Bind { .. } => Operation::Bind,
            Request::Search(_) | Request::Unbind | Request::Abandon(_) => Operation::Search,
            Request::Modify { .. } => Operation::Modify,
            Request::Add { .. } => Operation::Add,
            Request::Delete { .. } => Operation::Delete,
            Request::Rename { .. } => Operation::Rename,
            Request::Compare { .. } => Operation::Compare,
            Request::Extended { .. } => Operation::Extended,
        };
        let sends_policy = message.controls.iter().any(|control| control.oid == PASSWORD_POLICY);
        ResponseBuilder {
            operation,
            tag: tag_of(&message.request),
            id: message.id,
            started: Instant::now(),
            sends_policy,
        }
    }

    /// Encodes the response.
    pub(crate) fn write(&self, out: &mut Vec<u8>, result: Result<Code, &LdapError>, extra: &ResponseExtras) {
        let (code, matched, text) = match result {
            Ok(code) => (code, "", ""),
            Err(refusal) => (refusal.code, refusal.matched.as_str(), refusal.message.as_str()),
        };
        measure::record(self.operation, code, self.started);
        let notice = match result {
            Ok(_) => extra.notice,
            Err(refusal) => refusal.fault.map(|fault| Notice { fault: Some(fault), warning: None }),
        };
        match notice.filter(|notice| self.sends_policy && *notice != Notice::default()) {
            Some(notice) => {
                let mut extra = extra.clone();
                extra.controls.push((PASSWORD_POLICY, message::notice(notice)));
                message::answer(out, self.id, self.tag, code, matched, text, &extra);
            }
            None => message::answer(out, self.id, self.tag, code, matched, text, extra),
        }
    }

    /// Builds the response.
    pub(crate) fn answer(&self, result: Result<Code, LdapError>) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        self.write(&mut out, result.as_ref().map(|code| *code), &ResponseExtras::default());
        out
    }
}

/// Response tag of a request.
pub(crate) fn tag_of(request: &Request) -> u8 {
    match request {
        Request::Bind { .. } => tag::BIND,
        Request::Search(_) | Request::Unbind | Request::Abandon(_) => tag::SEARCH_DONE,
        Request::Modify { .. } => tag::MODIFY,
        Request::Add { .. } => tag::ADD,
        Request::Delete { .. } => tag::DELETE,
        Request::Rename { .. } => tag::RENAME,
        Request::Compare { .. } => tag::COMPARE,
        Request::Extended { .. } => tag::EXTENDED,
    }
}
