use std::{ops::RangeInclusive, time::Duration};

use serde_json::Value;
use tocsin_model::{
    http_date,
    problem::{Code, Problem},
    receipt::{Disposition, Reason, ReasonKind},
    time::Timestamp,
};

use super::{
    options::{AnswerRule, Meaning},
    response::{Load, Response, Verdict, by_status, words},
};

/// Classification rules of a channel: its own rules in order, then the status.
#[derive(Debug, Default)]
pub(super) struct Answers(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    status: Option<RangeInclusive<u16>>,
    json: Option<String>,
    is: Vec<String>,
    contains: Option<String>,
    means: Meaning,
    retry_after: Option<String>,
    reply: Option<String>,
}

impl Answers {
    /// Compiles the rules; returns every problem in them.
    pub fn read(given: &[AnswerRule]) -> Result<Answers, Vec<Problem>> {
        let mut problems = Vec::new();
        if given.len() > 64 {
            problems.push(Problem::new(Code::TooMany, "answers", "these are more than 64 rules").param("limit", 64));
        }
        let rules = given.iter().enumerate().map(|(number, rule)| {
            let at = |key: &str| format!("answers[{number}].{key}");
            for (key, pointer) in [("json", &rule.json), ("retry_after", &rule.retry_after), ("reply", &rule.reply)] {
                if pointer.as_ref().is_some_and(|pointer| !pointer.is_empty() && !pointer.starts_with('/')) {
                    let problem = Problem::new(Code::InvalidFormat, at(key), "a place in JSON starts with `/`")
                        .param("format", "json_pointer");
                    problems.push(problem.hint("such as `/messages/0/status`"));
                }
            }
            if !rule.is.is_empty() && rule.json.is_none() {
                problems.push(
                    Problem::new(Code::MissingCounterpart, at("is"), "of what?").hint("give the place with `json`"),
                );
            }
            let status = rule.status.as_deref().map(statuses);
            if status == Some(None) {
                let problem = Problem::new(Code::InvalidFormat, at("status"), "this is not a status")
                    .param("format", "http_status");
                problems.push(problem.hint("give `200`, `2xx` or `400-499`"));
            }
            Rule {
                status: status.flatten(),
                json: rule.json.clone(),
                is: rule.is.clone(),
                contains: rule.contains.clone(),
                means: rule.means,
                retry_after: rule.retry_after.clone(),
                reply: rule.reply.clone(),
            }
        });
        let rules = rules.collect();
        if problems.is_empty() { Ok(Answers(rules)) } else { Err(problems) }
    }

    /// Whether a rule reads the body.
    pub fn read_bodies(&self) -> bool {
        self.0.iter().any(|rule| rule.json.is_some() || rule.contains.is_some())
    }

    /// Whether the missing part of a body could change the verdict.
    fn are_undecided(&self, response: &Response) -> bool {
        let mut rules = self
            .0
            .iter()
            .filter(|rule| rule.status.as_ref().is_none_or(|statuses| statuses.contains(&response.status)));
        rules.next().is_some_and(|first| match (&first.json, &first.contains) {
            (Some(_), _) => true,
            (None, Some(text)) => !String::from_utf8_lossy(&response.body).contains(text.as_str()),
            (None, None) => false,
        })
    }

    /// Classifies a response; `Retry-After` is respected up to `most`.
    pub fn classify(&self, response: &Response, now: Timestamp, most: Duration) -> Verdict {
        let retry_delay = response.retry_delay(now, most);
        if self.0.is_empty() {
            return by_status(response, retry_delay);
        }
        if response.cut && self.are_undecided(response) {
            return response.undecided(retry_delay);
        }
        let json = response.json();
        let at = |pointer: &str| json.as_ref().and_then(|json| json.pointer(pointer)).filter(|value| !value.is_null());
        let fits = |rule: &&Rule| {
            rule.status.as_ref().is_none_or(|statuses| statuses.contains(&response.status))
                && rule.json.as_deref().is_none_or(|pointer| {
                    at(pointer).is_some_and(|found| rule.is.is_empty() || rule.is.contains(&plain(found)))
                })
                && rule.contains.as_deref().is_none_or(|text| String::from_utf8_lossy(&response.body).contains(text))
        };
        let Some(rule) = self.0.iter().find(fits) else { return by_status(response, retry_delay) };
        let said = rule.reply.as_deref().and_then(at).map(|found| response.first_words(plain(found).as_bytes()));
        let words = match said {
            Some(said) if !said.is_empty() => format!("{} {said}", response.status),
            _ => words(response),
        };
        let retry_delay = retry_delay.or_else(|| {
            let retry_delay = plain(rule.retry_after.as_deref().and_then(at)?);
            http_date::retry_after([retry_delay.as_str()], now, most)
        });
        let reason = |kind| Reason::new(kind, words.clone());
        let disposition = match rule.means {
            Meaning::Delivered => Disposition::Delivered { reply: words },
            Meaning::Refused => Disposition::Refused { reason: reason(ReasonKind::Answer) },
            Meaning::Gone => Disposition::Refused { reason: reason(ReasonKind::Gone) },
            Meaning::Retry | Meaning::Slower => {
                Disposition::Deferred { reason: reason(ReasonKind::Answer), retry_after: retry_delay }
            }
            Meaning::Misconfigured => {
                Disposition::Deferred { reason: reason(ReasonKind::Authentication), retry_after: retry_delay }
            }
        };
        let less = rule.means == Meaning::Slower || (rule.means == Meaning::Retry && retry_delay.is_some());
        Verdict { disposition, load: if less { Load::Less } else { Load::Fine } }
    }
}

/// A JSON value as text; strings without quotes.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A range of statuses: `200`, `2xx` or `400-499`.
fn statuses(text: &str) -> Option<RangeInclusive<u16>> {
    let one = |text: &str| text.trim().parse::<u16>().ok().filter(|status| (100..=599).contains(status));
    if let Some(hundred) = text.strip_suffix("xx") {
        let hundred = hundred.parse::<u16>().ok().filter(|hundred| (1..=5).contains(hundred))?;
        return Some(hundred * 100..=hundred * 100 + 99);
    }
    match text.split_once('-') {
        Some((from, to)) => Some(one(from)?..=one(to)?).filter(|range| !range.is_empty()),
        None => one(text).map(|status| status..=status),
    }
}
