//! Options of pacing: limits and warm-up by mailbox provider.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_connect::options::Wait;
use tocsin_model::{
    application::Rate,
    problem::{Code, Problem, closest},
};

use super::mailbox_providers::{Grouping, known_names};
use crate::flow::{
    provider_pace::PaceLimits,
    providers::{OTHER, ProviderSettings},
    warm_up::WarmUpPlan,
};

/// Mails under way to each provider, if not given.
const CONCURRENCY: u32 = 10;
/// Most providers with settings of their own: each has its own label in metrics.
const PROVIDERS_MAX: usize = 50;

/// Pacing by mailbox provider.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PacingOptions {
    /// Grouping of recipients.
    pub by: Grouping,
    /// Highest rate of recipients for each provider. Default: no limit.
    pub rate: Option<RateOptions>,
    /// Most mails under way to each provider. Default: 10.
    #[schemars(range(min = 1, max = 1000))]
    pub concurrency: Option<u32>,
    /// Warm-up plan of each provider. Default: none.
    pub warm_up: Option<WarmUpOptions>,
    /// Settings of single providers: a name such as `google`, `outlook` or `yahoo`, the organizational domain of mail
    /// exchangers, or `other` for the warm-up of all others together.
    pub providers: BTreeMap<String, ProviderOptions>,
    /// Address and port of the name server for MX records: `192.0.2.53:53`. Default: the resolver of the system.
    pub name_server: Option<String>,
}

/// A rate.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateOptions {
    /// Number of recipients.
    #[schemars(range(min = 1))]
    pub messages: u32,
    /// Time span.
    pub per: Wait,
}

/// A warm-up plan: most recipients of each provider on a day, which ends at midnight UTC.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WarmUpOptions {
    /// Recipients on the first day.
    #[schemars(range(min = 1))]
    pub start: u64,
    /// Factor after a day that used at least half of its limit.
    #[schemars(range(min = 1.05, max = 10.0))]
    pub growth: f64,
    /// The plan ends when the limit of a day reaches this number.
    #[schemars(range(min = 1))]
    pub until: u64,
}

impl Default for WarmUpOptions {
    fn default() -> Self {
        WarmUpOptions { start: 200, growth: 1.5, until: 100_000 }
    }
}

/// Settings of one provider. Those that are not given are the channel's.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProviderOptions {
    /// Highest rate of recipients.
    pub rate: Option<RateOptions>,
    /// Most mails under way.
    #[schemars(range(min = 1, max = 1000))]
    pub concurrency: Option<u32>,
    /// Warm-up plan.
    pub warm_up: Option<WarmUpOptions>,
    /// Whether the sender is known to this provider, so that no warm-up applies.
    pub warmed_up: bool,
}

impl PacingOptions {
    /// Every problem. Paths are relative: `rate.messages`.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = limit_problems("", self.rate, self.concurrency, self.warm_up);
        for (name, provider) in &self.providers {
            let path = format!("providers.{name}");
            if !is_provider(name) {
                let message = format!("`{name}` is not a mailbox provider");
                let problem = Problem::new(Code::UnknownValue, &*path, message);
                problems.push(match closest(name, known_names().chain([OTHER])) {
                    Some(word) => problem.hint(format!("did you mean `{word}`?")),
                    None => problem.hint("give a name of the guide, or the domain of mail exchangers, in lower case"),
                });
            }
            if provider.warmed_up && provider.warm_up.is_some() {
                let message = "a sender that is known needs no warm-up";
                let problem = Problem::new(Code::ConflictingMembers, format!("{path}.warmed_up"), message);
                problems.push(problem.hint("leave one of them out"));
            }
            let ProviderOptions { rate, concurrency, warm_up, .. } = *provider;
            problems.extend(limit_problems(&format!("{path}."), rate, concurrency, warm_up));
        }
        if self.providers.len() > PROVIDERS_MAX {
            let problem = Problem::new(Code::TooMany, "providers", "these are too many providers");
            problems.push(problem.param("limit", PROVIDERS_MAX as u64).hint("50 at most"));
        }
        if self.name_server.as_ref().is_some_and(|text| text.parse::<SocketAddr>().is_err()) {
            let problem = Problem::new(Code::InvalidFormat, "name_server", "this is not an address with a port");
            problems.push(problem.hint("such as `192.0.2.53:53` or `[2001:db8::53]:53`"));
        }
        problems
    }

    /// The name server; the options must be free of problems.
    pub fn name_server(&self) -> Option<SocketAddr> {
        self.name_server.as_ref()?.parse().ok()
    }

    /// The settings of all providers.
    pub(super) fn settings(&self) -> ProviderSettings {
        let limits = |rate: Option<RateOptions>, concurrency: Option<u32>| PaceLimits {
            rate: rate.or(self.rate).map(RateOptions::rate),
            concurrency: concurrency.or(self.concurrency).unwrap_or(CONCURRENCY) as usize,
        };
        let plan =
            |warm_up: WarmUpOptions| WarmUpPlan { start: warm_up.start, growth: warm_up.growth, until: warm_up.until };
        let known: Vec<Arc<str>> = match self.by {
            Grouping::Provider => known_names().map(Arc::from).collect(),
            Grouping::Domain => Vec::new(),
        };
        let own = self.providers.keys().filter(|name| *name != OTHER && !known.iter().any(|known| **known == ***name));
        let own: Vec<Arc<str>> = own.map(|name| Arc::from(name.as_str())).collect();
        let each = |(name, provider): (&String, &ProviderOptions)| {
            let warm_up = provider.warm_up.or(self.warm_up).filter(|_| !provider.warmed_up);
            let name: Arc<str> = Arc::from(name.as_str());
            ((name.clone(), limits(provider.rate, provider.concurrency)), (name, warm_up.map(plan)))
        };
        let (limits_of, plans) = self.providers.iter().map(each).unzip();
        ProviderSettings {
            named: known.into_iter().chain(own).collect(),
            limits: limits_of,
            limits_default: limits(None, None),
            plans,
            plan_default: self.warm_up.map(plan),
        }
    }
}

impl RateOptions {
    fn rate(self) -> Rate {
        Rate { messages: self.messages, per: self.per.0 }
    }
}

/// A name of the table, `other`, or a domain.
fn is_provider(name: &str) -> bool {
    let is_domain = name.contains('.')
        && name.len() <= 253
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte));
    is_domain || name == OTHER || known_names().any(|known| known == name)
}

fn limit_problems(
    path: &str,
    rate: Option<RateOptions>,
    concurrency: Option<u32>,
    warm_up: Option<WarmUpOptions>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut report = |key: &str, message: &str, hint: &str| {
        problems.push(Problem::new(Code::OutOfRange, format!("{path}{key}"), message).hint(hint));
    };
    if rate.is_some_and(|rate| rate.messages == 0) {
        report("rate.messages", "a rate has at least one recipient", "leave the rate out for no limit");
    }
    if concurrency.is_some_and(|concurrency| !(1..=1000).contains(&concurrency)) {
        report("concurrency", "from 1 to 1000 mails are under way", "leave it out for 10");
    }
    if let Some(WarmUpOptions { start, growth, until }) = warm_up {
        if start == 0 {
            report("warm_up.start", "the first day has at least one recipient", "leave it out for 200");
        }
        if !(1.05..=10.0).contains(&growth) {
            report("warm_up.growth", "the factor is from 1.05 to 10", "leave it out for 1.5");
        }
        if until <= start {
            report("warm_up.until", "the plan ends above its start", "leave it out for 100000");
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn options(given: Value) -> PacingOptions {
        serde_json::from_value(given).expect("options")
    }

    fn check(given: Value, expected: &[&str]) {
        let shown: Vec<String> = options(given).problems().iter().map(ToString::to_string).collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn problems_have_their_path() {
        check(json!({}), &[]);
        check(
            json!({
                "rate": { "messages": 20, "per": "1s" }, "warm_up": {}, "name_server": "[::1]:53",
                "providers": { "google": { "concurrency": 2 }, "mx.example.org": { "warmed_up": true }, "other": {} },
            }),
            &[],
        );
        check(
            json!({
                "rate": { "messages": 0, "per": "1s" }, "concurrency": 0, "name_server": "localhost",
                "warm_up": { "start": 0, "growth": 1.0, "until": 0 },
                "providers": { "gogle": {}, "Example.org": {}, "yahoo": { "warmed_up": true, "warm_up": {} } },
            }),
            &[
                "rate.messages: a rate has at least one recipient; leave the rate out for no limit",
                "concurrency: from 1 to 1000 mails are under way; leave it out for 10",
                "warm_up.start: the first day has at least one recipient; leave it out for 200",
                "warm_up.growth: the factor is from 1.05 to 10; leave it out for 1.5",
                "warm_up.until: the plan ends above its start; leave it out for 100000",
                "providers.Example.org: `Example.org` is not a mailbox provider; give a name of the guide, or the domain \
                 of mail exchangers, in lower case",
                "providers.gogle: `gogle` is not a mailbox provider; did you mean `google`?",
                "providers.yahoo.warmed_up: a sender that is known needs no warm-up; leave one of them out",
                "name_server: this is not an address with a port; such as `192.0.2.53:53` or `[2001:db8::53]:53`",
            ],
        );
    }

    #[test]
    fn settings_of_a_provider_replace_those_of_the_channel() {
        let settings = options(json!({
            "rate": { "messages": 20, "per": "1s" },
            "warm_up": { "start": 100 },
            "providers": {
                "google": { "concurrency": 2, "warmed_up": true },
                "own.example": { "rate": { "messages": 1, "per": "1m" } },
            },
        }))
        .settings();
        let rate = |messages, seconds| Rate { messages, per: std::time::Duration::from_secs(seconds) };
        assert_eq!(settings.limits["google"], PaceLimits { rate: Some(rate(20, 1)), concurrency: 2 });
        assert_eq!(settings.limits["own.example"], PaceLimits { rate: Some(rate(1, 60)), concurrency: 10 });
        assert_eq!((settings.plans["google"], settings.plans["own.example"]), (None, settings.plan_default));
        assert_eq!(settings.plan_default.map(|plan| plan.start), Some(100));
        assert_eq!(&*settings.label("own.example"), "own.example");
        assert_eq!((&*settings.label("yahoo"), &*settings.label("small.example")), ("yahoo", OTHER));
    }
}
