//! Transforms a body by an expression, a template, a stylesheet or a program.

use tocsin_connect::programs::change::{Changed, Changer};
use tocsin_formatting::document::{Document, DocumentFormatter};
use tocsin_matching::filter::jmespath::Query;
use tocsin_model::{
    charset::Syntax,
    exact_json::{self, Exact, Numbers},
    exchange::TransformLanguage,
    id::Name,
    media_type,
    problem::{Code, Problem},
    value::Value,
};

use crate::message::{CONTENT_ENCODING, PipelineMessage, decoded_body};

pub(super) struct Transformer {
    engine: Engine,
    content_type: String,
}

enum Engine {
    Jmespath(Query),
    Document(DocumentFormatter),
}

impl Transformer {
    pub fn compile(language: TransformLanguage, text: &str, content_type: &str) -> Result<Transformer, Problem> {
        if !media_type::is_valid(content_type) && !content_type.is_empty() {
            let problem = Problem::new(
                Code::InvalidFormat,
                "content_type",
                format!("`{}` is not a media type", content_type.escape_debug()),
            )
            .param("format", "media_type");
            return Err(problem.hint("give a type such as `text/plain; charset=utf-8`"));
        }
        let charset = media_type::parameter(content_type, "charset").unwrap_or_default();
        let is_json = media_type::is_json(content_type) || matches!(language, TransformLanguage::Jmespath);
        if is_json && !charset.is_empty() && !charset.eq_ignore_ascii_case("utf-8") {
            let problem = Problem::new(
                Code::Unsupported,
                "content_type",
                format!("names the charset `{charset}`, and JSON is in UTF-8 (RFC 8259, 8.1)"),
            );
            return Err(problem.hint("leave `charset` out"));
        }
        let (key, engine) = match language {
            TransformLanguage::Jmespath => ("jmespath", Query::compile(text).map(Engine::Jmespath)),
            TransformLanguage::Template => {
                ("template", DocumentFormatter::template(text, content_type).map(Engine::Document))
            }
            TransformLanguage::Xslt => {
                ("xslt", DocumentFormatter::stylesheet(text, content_type).map(Engine::Document))
            }
        };
        match engine {
            Ok(engine) => Ok(Transformer { engine, content_type: content_type.to_owned() }),
            Err(problem) => Err(Problem { path: key.to_owned(), ..problem }),
        }
    }

    pub fn apply(&self, message: &mut PipelineMessage) -> Result<(), String> {
        let (body, content_type) = match &self.engine {
            Engine::Jmespath(query) => {
                let text = decoded_body(message, Syntax::Json)?;
                (search(query, text.as_bytes())?.into(), self.content_type.clone())
            }
            Engine::Document(formatter) => {
                let document = Document {
                    body: &message.body,
                    content_type: &message.content_type,
                    properties: &message.properties,
                };
                let made = formatter.format(&document)?;
                (made.body, made.content_type)
            }
        };
        if media_type::is_json(&content_type)
            && let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(&body)
        {
            return Err(format!("the result is not JSON: {error}"));
        }
        message.body = body.into();
        message.content_type = content_type;
        // The result is not compressed, whatever encoding the input had.
        message.headers.retain(|(name, _)| name != CONTENT_ENCODING);
        Ok(())
    }
}

fn search(query: &Query, body: &[u8]) -> Result<String, String> {
    let broken = |error: &dyn std::fmt::Display| format!("the body is not JSON: {error}");
    let mut numbers = Numbers::default();
    let value = if exact_json::has_inexact_numbers(body) {
        let exact = Exact::read(body).map_err(|error| broken(&error))?;
        exact.value(&mut numbers).map_err(|error| broken(&error))?
    } else {
        Value::from(serde_json::from_slice::<serde_json::Value>(body).map_err(|error| broken(&error))?)
    };
    match query.search(&value) {
        Ok(Value::Null) => Err("the expression returns null".to_owned()),
        Ok(found) if numbers.is_empty() => Ok(serde_json::Value::from(found).to_string()),
        Ok(found) => {
            let mut text = String::new();
            numbers.write(&found, &mut text);
            Ok(text)
        }
        Err(error) => Err(format!("the expression fails: {error}")),
    }
}

/// Runs a program on a message and takes its result.
pub(super) async fn run(changer: &Changer, message: &mut PipelineMessage, id: &str) -> Result<(), String> {
    let properties = message.properties.iter().map(|(name, value)| (name.to_string(), value.clone().into()));
    let before = Changed {
        content_type: message.content_type.clone(),
        properties: properties.collect(),
        body: message.body.to_vec(),
    };
    let changed = changer.change(id, &before).await?;
    message.content_type = changed.content_type;
    message.body = changed.body.into();
    let named = changed.properties.into_iter().map(|(name, value)| match name.parse::<Name>() {
        Ok(name) => Ok((name, Value::from(value))),
        Err(_) => Err(format!("the program gives the property `{name}`, which is not a name")),
    });
    message.properties = named.collect::<Result<_, _>>()?;
    Ok(())
}
