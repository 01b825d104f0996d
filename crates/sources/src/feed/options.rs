use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_connect::options::Options;
use tocsin_model::{
    field::Fields,
    problem::{Code, Problem},
};

use super::entry::MEMBERS;
use crate::{description::SourceOptions, fetch::FetchOptions, mapping::Mapping};

/// Options of a source of the kind `feed`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["url"]))]
pub struct FeedOptions {
    /// Address and time of polling.
    #[serde(flatten)]
    pub fetch: FetchOptions,
    /// Member for each field of the event class: `id`, `title`, `link`, `summary`, `content`, `author`, `published`,
    /// `updated`, `categories`, and `change`, which is `new` or `updated`. Default: the names of the fields.
    pub fields: BTreeMap<String, String>,
    /// Whether a changed item is an event again.
    pub updates: bool,
    /// The members of an item that determine whether it has changed.
    pub version: Vec<String>,
    /// Time zone of dates without one, such as `Europe/Vienna`. Without it they are left out: a date without a zone is
    /// not a certain time.
    pub time_zone: Option<String>,
    /// Number of polls for which an item removed from the feed is remembered, so that it is not new when it returns.
    pub retention: u32,
}

impl Default for FeedOptions {
    fn default() -> Self {
        FeedOptions {
            fetch: FetchOptions::default(),
            fields: BTreeMap::new(),
            updates: false,
            version: vec!["published".to_owned(), "updated".to_owned()],
            time_zone: None,
            retention: 1,
        }
    }
}

impl Options for FeedOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = self.fetch.problems();
        if let Some(zone) = self.time_zone.as_deref().filter(|zone| jiff::tz::TimeZone::get(zone).is_err()) {
            let problem = Problem::unknown_time_zone("time_zone", zone.escape_debug());
            problems.push(problem.hint("use a name of the IANA database, such as `Europe/Vienna`"));
        }
        for (at, member) in self.version.iter().enumerate() {
            if !MEMBERS.contains(&member.as_str()) {
                let problem = Problem::new(
                    Code::UnknownValue,
                    format!("version[{at}]"),
                    format!("`{member}` is not a member of items"),
                )
                .param("value", member.to_string());
                problems.push(problem.hint(format!("its members are {}", MEMBERS.join(", "))));
            }
        }
        problems
    }
}

impl SourceOptions for FeedOptions {
    fn mapping_problems(&self, fields: &Fields) -> Vec<Problem> {
        Mapping::problems(fields, &self.fields)
    }
}
