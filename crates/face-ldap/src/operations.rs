//! Dispatch of requests to the operations.

mod bind; // bind (RFC 4511, 4.2)
mod search; // search (RFC 4511, 4.5)
mod sync; // content synchronization (RFC 4533)
mod compare; // compare (RFC 4511, 4.10)
mod change; // add, modify, delete and modify DN
mod extended; // extended operations

use std::{sync::Arc, time::Instant};

pub(crate) use bind::is_anonymous;
use futures_util::FutureExt;
pub(crate) use search::{PagedSearches, WaitingPage};
use tocsin_directory::{
    ldap_error::{Code, LdapError},
    policy::{Notice, change_first},
};

use crate::{
    ber::Reader,
    connection::{RequestResult, ResponseChannel, Session, StartedRequest},
    measure::{self, Operation},
    message::{self, Control, Message, Request, ResponseExtras, tag},
    serve::Server,
};

pub(crate) const PAGED_RESULTS: &str = "1.2.840.113556.1.4.319";
pub(crate) const MANAGE_DSA_IT: &str = "2.16.840.1.113730.3.4.2";
pub(crate) const WHO_AM_I: &str = "1.3.6.1.4.1.4203.1.11.3";
pub(crate) const REFRESH: &str = "1.3.6.1.4.1.1466.101.119.1";
pub(crate) const MODIFY_PASSWORD: &str = "1.3.6.1.4.1.4203.1.11.1";

pub(crate) const ASSERTION: &str = "1.3.6.1.1.12";
pub(crate) const PRE_READ: &str = "1.3.6.1.1.13.1";
pub(crate) const POST_READ: &str = "1.3.6.1.1.13.2";
pub(crate) const SORT: &str = "1.2.840.113556.1.4.473";
pub(crate) const SYNC_REQUEST: &str = "1.3.6.1.4.1.4203.1.9.1.1";
pub(crate) const SYNC_STATE: &str = "1.3.6.1.4.1.4203.1.9.1.2";
pub(crate) const SYNC_DONE: &str = "1.3.6.1.4.1.4203.1.9.1.3";
pub(crate) const SYNC_INFO: &str = "1.3.6.1.4.1.4203.1.9.1.4";
pub(crate) const SORTED: &str = "1.2.840.113556.1.4.474";
pub(crate) const CANCEL: &str = "1.3.6.1.1.8";
pub(crate) const START_TLS: &str = "1.3.6.1.4.1.1466.20037";

pub(crate) const PASSWORD_POLICY: &str = "1.3.6.1.4.1.42.2.27.8.5.1";

/// Supported controls.
pub(crate) const CONTROLS: &[&str] =
    &[PAGED_RESULTS, MANAGE_DSA_IT, ASSERTION, PRE_READ, POST_READ, SORT, SYNC_REQUEST, PASSWORD_POLICY];
/// Supported extended operations, besides StartTLS if there is a certificate.
pub(crate) const EXTENSIONS: &[&str] = &[WHO_AM_I, MODIFY_PASSWORD, CANCEL, REFRESH];

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
    fn new(message: &Message) -> ResponseBuilder {
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
fn tag_of(request: &Request) -> u8 {
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

/// Message id that a cancel operation names.
pub(crate) fn cancelled(value: Option<&[u8]>) -> Option<u32> {
    Reader(Reader(value?).expect(0x30).ok()?).count(0x02).ok()
}

/// Rejects a request without processing it.
pub(crate) fn refuse(out: &mut Vec<u8>, message: &Message, refusal: &LdapError) {
    ResponseBuilder::new(message).write(out, Err(refusal), &ResponseExtras::default());
}

/// Starts the operation of a message.
pub(crate) fn begin(
    server: &Arc<Server>,
    session: &mut Session,
    message: Message,
    channel: &ResponseChannel,
    out: &mut Vec<u8>,
) -> StartedRequest {
    let answered = ResponseBuilder::new(&message);
    if let Err(refusal) = known(&message) {
        answered.write(out, Err(&refusal), &ResponseExtras::default());
        return StartedRequest::Answered;
    }
    if session.requester.must_change && !is_allowed_before_password_change(&message.request) {
        answered.write(out, Err(&change_first()), &ResponseExtras::default());
        return StartedRequest::Answered;
    }
    match message.request {
        Request::Unbind => return StartedRequest::Ends,
        Request::Abandon(_) => return StartedRequest::Answered,
        Request::Bind { version, dn, proof } => {
            return bind::begin(server, session, answered, version, dn, proof);
        }
        Request::Extended { oid, .. } if oid == START_TLS => {
            return extended::start_tls(server, session, &answered, out);
        }
        Request::Extended { oid, value } => return extended::begin(server, session, answered, &oid, value, out),
        Request::Search(request) => {
            return search::begin(server, session, answered, request, &message.controls, channel, out);
        }
        _ if !session.requester.is_known() => {
            let refusal = LdapError::new(Code::StrongerAuthRequired, "this operation requires a bind");
            answered.write(out, Err(&refusal), &ResponseExtras::default());
            return StartedRequest::Answered;
        }
        _ => {}
    }
    let (directory, requester) = (server.directory.clone(), session.requester.clone());
    let controls = match change::UpdateControls::read(&message.controls) {
        Ok(controls) => controls,
        Err(refusal) => {
            answered.write(out, Err(&refusal), &ResponseExtras::default());
            return StartedRequest::Answered;
        }
    };
    StartedRequest::Runs(match message.request {
        Request::Compare { dn, attribute, value } => {
            compare::run(directory, requester, answered, dn, (attribute, value), controls.terms.assertion).boxed()
        }
        request => {
            let must_change = requester.must_change;
            async move {
                let (result, extra) = change::run(directory, requester, request, controls).await;
                let mut out = Vec::with_capacity(64);
                answered.write(&mut out, result.as_ref().map(|code| *code), &extra);
                // The only possible change was that of its own password.
                if must_change && result.is_ok() {
                    RequestResult::PasswordChanged(out)
                } else {
                    RequestResult::Answer(out)
                }
            }
            .boxed()
        }
    })
}

/// Whether a request is allowed before a required password change.
fn is_allowed_before_password_change(request: &Request) -> bool {
    match request {
        Request::Bind { .. } | Request::Unbind | Request::Abandon(_) | Request::Modify { .. } => true,
        Request::Extended { oid, .. } => matches!(oid.as_str(), START_TLS | MODIFY_PASSWORD | WHO_AM_I),
        _ => false,
    }
}

/// Rejects a request with an unsupported critical control.
fn known(message: &Message) -> Result<(), LdapError> {
    let is_selected = |control: &Control| match (&message.request, control.oid.as_str()) {
        (Request::Search(_), oid) => matches!(oid, PAGED_RESULTS | SORT | SYNC_REQUEST | ASSERTION | MANAGE_DSA_IT),
        (Request::Compare { .. }, oid) => matches!(oid, ASSERTION | MANAGE_DSA_IT),
        (Request::Delete { .. }, oid) => matches!(oid, ASSERTION | PRE_READ | MANAGE_DSA_IT),
        (Request::Bind { .. }, oid) => matches!(oid, PASSWORD_POLICY | MANAGE_DSA_IT),
        (Request::Extended { oid, .. }, PASSWORD_POLICY) => oid == MODIFY_PASSWORD,
        (Request::Add { .. }, oid) => matches!(oid, POST_READ | PASSWORD_POLICY | MANAGE_DSA_IT),
        (Request::Modify { .. }, PASSWORD_POLICY) => true,
        (Request::Modify { .. } | Request::Rename { .. }, oid) => {
            matches!(oid, ASSERTION | PRE_READ | POST_READ | MANAGE_DSA_IT)
        }
        (_, oid) => oid == MANAGE_DSA_IT,
    };
    // Controls of an unbind are ignored, since it has no response (RFC 4511, 4.1.11).
    if matches!(message.request, Request::Unbind) {
        return Ok(());
    }
    match message.controls.iter().find(|control| control.critical && !is_selected(control)) {
        Some(control) => {
            let what = format!("the control {} is critical and not supported for this request", control.oid);
            Err(LdapError::new(Code::UnavailableCriticalExtension, what))
        }
        None => Ok(()),
    }
}
