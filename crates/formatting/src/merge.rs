//! Texts with the tokens of NotifyBC: `{unsubscription_url}`, `{notification::title}`.
//!
//! The tokens are filled from fields of these names, if the classes have them:
//!
//! | of | field | token |
//! |---|---|---|
//! | event | `service`, `http_host`, `rest_api_root` | `{service_name}`, `{http_host}`, `{rest_api_root}` |
//! | event | `data` | `{notification::path}`, `{path}` |
//! | subscription | `id`, `code` | `{subscription_id}`, `{unsubscription_code}`, and the links |
//! | subscription | `confirmation` | `{subscription_confirmation_code}`, `{subscription_confirmation_url}` |
//! | subscription | `data` | `{subscription::path}`, `{path}` |

use serde_json::Value as Json;
use tocsin_model::{field::Fields, value::Value};
use tocsin_notifybc::{
    merge::{self, Context, Part, Static, Template},
    record::Document,
};

use crate::scope::{RootsUsed, Scope};

/// A parsed text, or a JSON document with such texts.
#[derive(Debug)]
pub(crate) struct MergeTemplate {
    source: Source,
    uses_own_data: bool,
    uses_confirmation: bool,
}

#[derive(Debug)]
enum Source {
    Text(Template),
    Json(Tree),
}

/// A JSON document whose texts have tokens.
#[derive(Debug)]
enum Tree {
    Text(Template),
    List(Vec<Tree>),
    Object(Vec<(String, Tree)>),
    Other(Json),
}

impl Tree {
    fn parse(value: Json) -> Tree {
        match value {
            Json::String(text) => Tree::Text(Template::parse(&text)),
            Json::Array(items) => Tree::List(items.into_iter().map(Tree::parse).collect()),
            Json::Object(members) => {
                Tree::Object(members.into_iter().map(|(name, value)| (name, Tree::parse(value))).collect())
            }
            other => Tree::Other(other),
        }
    }

    fn render(&self, context: &Context<'_>) -> Json {
        match self {
            Tree::Text(template) => template.render(context).into(),
            Tree::List(items) => items.iter().map(|item| item.render(context)).collect(),
            Tree::Object(members) => {
                Json::Object(members.iter().map(|(name, value)| (name.clone(), value.render(context))).collect())
            }
            Tree::Other(other) => other.clone(),
        }
    }

    fn templates<'t>(&'t self, found: &mut Vec<&'t Template>) {
        match self {
            Tree::Text(template) => found.push(template),
            Tree::List(items) => items.iter().for_each(|item| item.templates(found)),
            Tree::Object(members) => members.iter().for_each(|(_, value)| value.templates(found)),
            Tree::Other(_) => {}
        }
    }
}

impl Source {
    fn templates(&self) -> Vec<&Template> {
        let mut found = Vec::new();
        match self {
            Source::Text(template) => found.push(template),
            Source::Json(tree) => tree.templates(&mut found),
        }
        found
    }
}

/// A notification as a record, with the base of its links.
#[derive(Debug)]
pub(crate) struct MergedNotification {
    record: Document,
    http_host: String,
    rest_api_root: String,
}

impl MergedNotification {
    /// The fields of an event.
    pub fn new(fields: &Fields, row: &[Value]) -> MergedNotification {
        let of = |name: &str| value(fields, row, name).cloned().map(Json::from);
        let names = [("service", "serviceName"), ("data", "data")];
        MergedNotification {
            record: names.into_iter().filter_map(|(name, property)| Some((property.to_owned(), of(name)?))).collect(),
            http_host: text(fields, row, "http_host").unwrap_or_default().to_owned(),
            rest_api_root: text(fields, row, "rest_api_root").unwrap_or_default().to_owned(),
        }
    }
}

impl MergeTemplate {
    /// Parses a text; every text is one.
    pub fn text(source: &str) -> MergeTemplate {
        MergeTemplate::new(Source::Text(Template::parse(source)))
    }

    /// Parses a JSON document. Its texts have tokens; names of members have none.
    ///
    /// # Errors
    /// It is not JSON.
    pub fn json(source: &str) -> Result<MergeTemplate, serde_json::Error> {
        Ok(MergeTemplate::new(Source::Json(Tree::parse(serde_json::from_str(source)?))))
    }

    fn new(source: Source) -> MergeTemplate {
        let is_own = |part: &Part| matches!(part, Part::Dynamic { scope, .. } if *scope != merge::Scope::Notification);
        let uses_own_data = source.templates().iter().any(|template| template.parts.iter().any(is_own));
        let is_confirmation =
            |part: &Part| matches!(part, Part::Static(Static::ConfirmationCode | Static::ConfirmationUrl));
        let uses_confirmation = source.templates().iter().any(|template| template.parts.iter().any(is_confirmation));
        MergeTemplate { source, uses_own_data, uses_confirmation }
    }

    /// The variables that it reads.
    pub fn uses(&self) -> RootsUsed {
        let is_personal = |template: &&Template| !template.is_independent_of_subscription();
        RootsUsed { event: true, sub: self.source.templates().iter().any(is_personal), ..RootsUsed::default() }
    }

    /// The text for a recipient.
    pub fn apply(&self, scope: &Scope<'_>) -> String {
        let notification = scope.event.merged();
        let (fields, row) = scope.subscription;
        let mut subscription = Document::new();
        let mut put = |name: &str, property: &str| {
            if let Some(value) = value(fields, row, name) {
                subscription.insert(property.to_owned(), value.clone().into());
            }
        };
        [("id", "id"), ("code", "unsubscriptionCode"), ("service", "serviceName")]
            .into_iter()
            .for_each(|(name, property)| put(name, property));
        if self.uses_own_data {
            put("data", "data");
        }
        if self.uses_confirmation
            && let Some(code) = text(fields, row, "confirmation")
        {
            subscription.insert("confirmationRequest".to_owned(), serde_json::json!({"confirmationCode": code}));
        }
        let context = Context {
            subscription: Some(&subscription).filter(|record| !record.is_empty()),
            notification: Some(&notification.record),
            http_host: &notification.http_host,
            rest_api_root: &notification.rest_api_root,
            ignores_subscription_data: false,
        };
        match &self.source {
            Source::Text(template) => template.render(&context),
            Source::Json(tree) => tree.render(&context).to_string(),
        }
    }
}

fn value<'a>(fields: &Fields, row: &'a [Value], name: &str) -> Option<&'a Value> {
    fields.position(name).and_then(|at| row.get(at)).filter(|value| !value.is_null())
}

fn text<'a>(fields: &Fields, row: &'a [Value], name: &str) -> Option<&'a str> {
    value(fields, row, name)?.as_text()
}
