//! Dispatch of requests to the operations.

mod bind; // bind (RFC 4511, 4.2)
mod search; // search (RFC 4511, 4.5)
mod sync; // content synchronization (RFC 4533)
mod compare; // compare (RFC 4511, 4.10)
mod change; // add, modify, delete and modify DN
mod extended; // extended operations

use std::sync::Arc;

use futures_util::FutureExt;
use tocsin_directory::{
    ldap_error::{Code, LdapError},
    policy::change_first,
};

use crate::{
    ber::Reader,
    message::{Control, Message, Request, ResponseExtras},
    oids::{
        ASSERTION, MANAGE_DSA_IT, MODIFY_PASSWORD, PAGED_RESULTS, PASSWORD_POLICY, POST_READ, PRE_READ, SORT,
        START_TLS, SYNC_REQUEST, WHO_AM_I,
    },
    response::ResponseBuilder,
    server::Server,
    session::{RequestResult, ResponseChannel, Session, StartedRequest},
};

pub(crate) use bind::is_anonymous;

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
            let (actor, address, action) = (session.actor(), session.address, change::action(&request));
            async move {
                let changing = change::run(directory.clone(), requester, request, controls);
                let (result, extra) = directory.audited(actor, address, action, changing).await;
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
