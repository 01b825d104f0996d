//! What is done for each request.

mod bind; // who asks
mod search; // entries are found
mod sync; // and followed
mod compare; // does it have this value?
mod change; // add, modify, delete, rename
mod extended; // what is not among the operations

use std::{sync::Arc, time::Instant};

use futures_util::FutureExt;
pub(crate) use search::{Pages, Waiting};
use tocsin_directory::{
    policy::{Notice, change_first},
    refusal::{Code, Refusal},
};

use crate::{
    ber::Reader,
    connection::{Begun, Done, Line, Session},
    measure::{self, Operation},
    message::{self, Control, Extra, Message, Request, tag},
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

/// Controls that are known here.
pub(crate) const CONTROLS: &[&str] =
    &[PAGED_RESULTS, MANAGE_DSA_IT, ASSERTION, PRE_READ, POST_READ, SORT, SYNC_REQUEST, PASSWORD_POLICY];
/// Extended operations that are known here, beside StartTLS where there is a certificate.
pub(crate) const EXTENSIONS: &[&str] = &[WHO_AM_I, MODIFY_PASSWORD, CANCEL, REFRESH];

/// What an operation says in the end.
pub(crate) struct Answered {
    pub(crate) operation: Operation,
    pub(crate) tag: u8,
    pub(crate) id: u32,
    pub(crate) started: Instant,
    /// Whether it is told what there is to be told of a password.
    tells_policy: bool,
}

impl Answered {
    fn new(message: &Message) -> Answered {
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
        let tells_policy = message.controls.iter().any(|control| control.oid == PASSWORD_POLICY);
        Answered { operation, tag: tag_of(&message.request), id: message.id, started: Instant::now(), tells_policy }
    }

    /// Writes the answer.
    pub(crate) fn write(&self, out: &mut Vec<u8>, result: Result<Code, &Refusal>, extra: &Extra) {
        let (code, matched, text) = match result {
            Ok(code) => (code, "", ""),
            Err(refusal) => (refusal.code, refusal.matched.as_str(), refusal.message.as_str()),
        };
        measure::done(self.operation, code, self.started);
        let notice = match result {
            Ok(_) => extra.notice,
            Err(refusal) => refusal.fault.map(|fault| Notice { fault: Some(fault), warning: None }),
        };
        match notice.filter(|notice| self.tells_policy && *notice != Notice::default()) {
            Some(notice) => {
                let mut extra = extra.clone();
                extra.controls.push((PASSWORD_POLICY, message::notice(notice)));
                message::answer(out, self.id, self.tag, code, matched, text, &extra);
            }
            None => message::answer(out, self.id, self.tag, code, matched, text, extra),
        }
    }

    /// The answer.
    pub(crate) fn answer(&self, result: Result<Code, Refusal>) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        self.write(&mut out, result.as_ref().map(|code| *code), &Extra::default());
        out
    }
}

/// The tag of a request's answer.
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

/// The number of the request that a cancel operation names.
pub(crate) fn cancelled(value: Option<&[u8]>) -> Option<u32> {
    Reader(Reader(value?).expect(0x30).ok()?).count(0x02).ok()
}

/// Refuses a request without looking at it.
pub(crate) fn refuse(out: &mut Vec<u8>, message: &Message, refusal: &Refusal) {
    Answered::new(message).write(out, Err(refusal), &Extra::default());
}

/// Begins what a message asks for.
pub(crate) fn begin(
    server: &Arc<Server>,
    session: &mut Session,
    message: Message,
    line: &Line,
    out: &mut Vec<u8>,
) -> Begun {
    let answered = Answered::new(&message);
    if let Err(refusal) = known(&message) {
        answered.write(out, Err(&refusal), &Extra::default());
        return Begun::Answered;
    }
    if session.asker.must_change && !may_come_first(&message.request) {
        answered.write(out, Err(&change_first()), &Extra::default());
        return Begun::Answered;
    }
    match message.request {
        Request::Unbind => return Begun::Ends,
        Request::Abandon(_) => return Begun::Answered,
        Request::Bind { version, dn, proof } => {
            return bind::begin(server, session, answered, version, dn, proof);
        }
        Request::Extended { oid, .. } if oid == START_TLS => {
            return extended::start_tls(server, session, &answered, out);
        }
        Request::Extended { oid, value } => return extended::begin(server, session, answered, &oid, value, out),
        Request::Search(request) => {
            return search::begin(server, session, answered, request, &message.controls, line, out);
        }
        _ if !session.asker.is_known() => {
            let refusal = Refusal::new(Code::StrongerAuthRequired, "only whoever proved who they are may do this");
            answered.write(out, Err(&refusal), &Extra::default());
            return Begun::Answered;
        }
        _ => {}
    }
    let (directory, asker) = (server.directory.clone(), session.asker.clone());
    Begun::Runs(match message.request {
        Request::Compare { dn, attribute, value } => {
            compare::run(directory, asker, answered, dn, attribute, value).boxed()
        }
        request => {
            let wanted = match change::Wanted::read(&message.controls) {
                Ok(wanted) => wanted,
                Err(refusal) => {
                    answered.write(out, Err(&refusal), &Extra::default());
                    return Begun::Answered;
                }
            };
            let must_change = asker.must_change;
            async move {
                let (result, extra) = change::run(directory, asker, request, wanted).await;
                let mut out = Vec::with_capacity(64);
                answered.write(&mut out, result.as_ref().map(|code| *code), &extra);
                // Nothing but its own password could change.
                if must_change && result.is_ok() { Done::Freed(out) } else { Done::Answer(out) }
            }
            .boxed()
        }
    })
}

/// Whether a request is done for whoever has to change their password first.
fn may_come_first(request: &Request) -> bool {
    match request {
        Request::Bind { .. } | Request::Unbind | Request::Abandon(_) | Request::Modify { .. } => true,
        Request::Extended { oid, .. } => matches!(oid.as_str(), START_TLS | MODIFY_PASSWORD | WHO_AM_I),
        _ => false,
    }
}

/// Whether all controls that must be known are, for this request.
fn known(message: &Message) -> Result<(), Refusal> {
    let is_meant = |control: &Control| match (&message.request, control.oid.as_str()) {
        (Request::Search(_), oid) => matches!(oid, PAGED_RESULTS | SORT | SYNC_REQUEST | MANAGE_DSA_IT),
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
    match message.controls.iter().find(|control| control.critical && !is_meant(control)) {
        Some(control) => {
            let what = format!("the control {} is not known for this request, and critical", control.oid);
            Err(Refusal::new(Code::UnavailableCriticalExtension, what))
        }
        None => Ok(()),
    }
}
