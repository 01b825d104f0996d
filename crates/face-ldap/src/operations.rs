//! What is done for each request.

mod bind; // who asks
mod search; // entries are found
mod compare; // does it have this value?
mod change; // add, modify, delete, rename
mod extended; // what is not among the operations

use std::time::Instant;

use futures_util::FutureExt;
pub(crate) use search::{Pages, Waiting};
use tocsin_directory::refusal::{Code, Refusal};

use crate::{
    connection::{Begun, Done, Line, Session},
    measure::{self, Operation},
    message::{self, Control, Extra, Message, Request, tag},
    serve::Server,
};

pub(crate) const PAGED_RESULTS: &str = "1.2.840.113556.1.4.319";
pub(crate) const MANAGE_DSA_IT: &str = "2.16.840.1.113730.3.4.2";
pub(crate) const WHO_AM_I: &str = "1.3.6.1.4.1.4203.1.11.3";
pub(crate) const MODIFY_PASSWORD: &str = "1.3.6.1.4.1.4203.1.11.1";

/// Controls that are known here.
pub(crate) const CONTROLS: &[&str] = &[PAGED_RESULTS, MANAGE_DSA_IT];
/// Extended operations that are known here.
pub(crate) const EXTENSIONS: &[&str] = &[WHO_AM_I, MODIFY_PASSWORD];

/// What an operation says in the end.
pub(crate) struct Answered {
    pub(crate) operation: Operation,
    pub(crate) tag: u8,
    pub(crate) id: u32,
    pub(crate) started: Instant,
}

impl Answered {
    fn new(message: &Message) -> Answered {
        let (operation, tag) = match &message.request {
            Request::Bind { .. } => (Operation::Bind, tag::BIND),
            Request::Search(_) | Request::Unbind | Request::Abandon(_) => (Operation::Search, tag::SEARCH_DONE),
            Request::Modify { .. } => (Operation::Modify, tag::MODIFY),
            Request::Add { .. } => (Operation::Add, tag::ADD),
            Request::Delete { .. } => (Operation::Delete, tag::DELETE),
            Request::Rename { .. } => (Operation::Rename, tag::RENAME),
            Request::Compare { .. } => (Operation::Compare, tag::COMPARE),
            Request::Extended { .. } => (Operation::Extended, tag::EXTENDED),
        };
        Answered { operation, tag, id: message.id, started: Instant::now() }
    }

    /// Writes the answer.
    pub(crate) fn write(&self, out: &mut Vec<u8>, result: Result<Code, &Refusal>, extra: &Extra) {
        let (code, matched, text) = match result {
            Ok(code) => (code, "", ""),
            Err(refusal) => (refusal.code, refusal.matched.as_str(), refusal.message.as_str()),
        };
        measure::done(self.operation, code, self.started);
        message::answer(out, self.id, self.tag, code, matched, text, extra);
    }

    /// The answer.
    pub(crate) fn answer(&self, result: Result<Code, Refusal>) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        self.write(&mut out, result.as_ref().map(|code| *code), &Extra::default());
        out
    }
}

/// Refuses a request without looking at it.
pub(crate) fn refuse(out: &mut Vec<u8>, message: &Message, refusal: &Refusal) {
    Answered::new(message).write(out, Err(refusal), &Extra::default());
}

/// Begins what a message asks for.
pub(crate) fn begin(server: &Server, session: &mut Session, message: Message, line: &Line, out: &mut Vec<u8>) -> Begun {
    let answered = Answered::new(&message);
    if let Err(refusal) = known(&message.controls) {
        answered.write(out, Err(&refusal), &Extra::default());
        return Begun::Answered;
    }
    let is_known = session.asker.manages || !session.asker.key.is_empty();
    match message.request {
        Request::Unbind => return Begun::Ends,
        Request::Abandon(_) => return Begun::Answered,
        Request::Bind { version, dn, proof } => return bind::begin(server, answered, version, dn, proof),
        Request::Extended { oid, value } => return extended::begin(server, session, answered, &oid, value, out),
        Request::Search(request) => {
            return search::begin(server, session, answered, request, &message.controls, line, out);
        }
        _ if !is_known => {
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
        request => async move { Done::Answer(answered.answer(change::run(directory, asker, request).await)) }.boxed(),
    })
}

/// Whether all controls that must be known are.
fn known(controls: &[Control]) -> Result<(), Refusal> {
    match controls.iter().find(|control| control.critical && !CONTROLS.contains(&control.oid.as_str())) {
        Some(control) => {
            let what = format!("the control {} is not known here, and critical", control.oid);
            Err(Refusal::new(Code::UnavailableCriticalExtension, what))
        }
        None => Ok(()),
    }
}
