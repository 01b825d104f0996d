//! One request for many recipients: its list of recipients, and their results in the response.

use std::collections::BTreeMap;

use ring::digest::{Context, SHA256};
use serde_json::Value;
use tocsin_model::problem::{Code, Problem};

use super::{
    options::{Body, HttpOptions},
    response::Response,
    template::JsonTemplate,
};
use crate::{channel::Outgoing, pending::PendingDelivery};

/// More than any service accepts at once.
const MOST: usize = 10_000;

/// The option `recipients`, compiled.
#[derive(Debug)]
pub(super) struct Sharing {
    each: JsonTemplate,
    results: Option<String>,
}

impl Sharing {
    /// Compiles the option and checks it against the others. `None`: each request is for one recipient.
    pub fn read(options: &HttpOptions, with: &BTreeMap<String, String>) -> Result<Option<Sharing>, Vec<Problem>> {
        let Some(given) = &options.recipients else { return Ok(None) };
        let mut problems = Vec::new();
        if !(1..=MOST).contains(&given.most) {
            problems.push(Problem::out_of_range("recipients.most", 1, MOST));
        }
        if options.url.is_none() {
            let problem = Problem::new(
                Code::MissingCounterpart,
                "recipients",
                "each device has a URL of its own, so none shares a request",
            );
            problems.push(problem.hint("give the `url` of the service"));
        }
        if !matches!(options.body, Some(Body::Json(_))) {
            let problem = Problem::new(Code::MissingCounterpart, "recipients", "the request does not say who they are");
            problems.push(problem.hint("give `body.json` with a text `{recipients}`, which the list replaces"));
        }
        if given.results.as_ref().is_some_and(|pointer| !pointer.is_empty() && !pointer.starts_with('/')) {
            let problem = Problem::new(Code::InvalidFormat, "recipients.results", "a place in JSON starts with `/`")
                .param("format", "json_pointer");
            problems.push(problem.hint("such as `/results`"));
        }
        match JsonTemplate::read(&given.each, with) {
            Ok(each) if each.has_recipients() => {
                problems.push(Problem::new(
                    Code::Required,
                    "recipients.each",
                    "needs the placeholder of one recipient, not `{recipients}`",
                ));
            }
            Ok(each) if problems.is_empty() => {
                return Ok(Some(Sharing { each, results: given.results.clone() }));
            }
            Ok(_) => {}
            Err((at, wrong)) => problems.push(Problem::syntax("template", format!("recipients.each{at}"), wrong)),
        }
        Err(problems)
    }

    /// Parts of the content in the list, besides the body itself.
    pub fn each(&self) -> &JsonTemplate {
        &self.each
    }

    /// The JSON list that replaces `{recipients}`.
    pub fn list<'o>(&self, recipients: impl Iterator<Item = &'o Outgoing>) -> String {
        let items: Vec<String> = recipients.map(|recipient| self.each.fill(recipient, "")).collect();
        format!("[{}]", items.join(","))
    }

    /// Id of a request to these recipients of one message. It is the same for the same recipients. A retry for the
    /// remaining ones has another id, so that the server does not ignore it as a duplicate.
    pub fn id(&self, message_id: &str, recipients: &[PendingDelivery]) -> String {
        let mut hash = Context::new(&SHA256);
        recipients.iter().for_each(|pending| hash.update(&pending.outgoing.id.ordinal.to_be_bytes()));
        format!("{message_id}.{}", hex::encode(&hash.finish().as_ref()[..8]))
    }

    /// Whether the response body contains results of recipients.
    pub fn reads_bodies(&self) -> bool {
        self.results.is_some()
    }

    /// Splits a response into one per recipient, if it has a result for each.
    pub fn split(&self, response: &Response, recipients: usize) -> Option<Vec<Response>> {
        let pointer = self.results.as_deref().filter(|_| (200..300).contains(&response.status))?;
        let mut body = response.json()?;
        let Value::Array(items) = body.pointer_mut(pointer)?.take() else { return None };
        let one =
            |item: Value| Response { body: item.to_string().into_bytes(), headers: Vec::new(), ..response.clone() };
        (items.len() == recipients).then(|| items.into_iter().map(one).collect())
    }
}
