//! Basic authentication (RFC 7617) of a channel's requests.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use http::HeaderValue;
use tocsin_model::problem::{Code, Problem};

use super::{options::HttpOptions, template::Template};

/// Value of `Authorization` for basic authentication.
pub(super) fn credentials(
    options: &HttpOptions,
    with: &BTreeMap<String, String>,
) -> Result<Option<HeaderValue>, Problem> {
    let fill = |path: &str, text: &Option<String>| match text {
        None => Ok(None),
        Some(text) => match Template::read(text, with) {
            Ok(template) => match template.constant() {
                Some(text) => Ok(Some(text.to_owned())),
                None => Err(Problem::new(Code::Insecure, path, "a message cannot choose it")),
            },
            // Braces are common in passwords, so they are not placeholders here.
            Err(_) => Ok(Some(text.clone())),
        },
    };
    match (fill("username", &options.username)?, fill("password", &options.password)?) {
        (None, None) => Ok(None),
        (Some(_), None) => {
            let problem = Problem::new(Code::MissingCounterpart, "password", "a user name needs a password");
            Err(problem.hint("take it from the environment: `${API_PASSWORD}`"))
        }
        (None, Some(_)) => Err(Problem::new(Code::MissingCounterpart, "username", "a password needs a user name")),
        (Some(name), Some(_)) if name.contains(':') => {
            let problem = Problem::new(
                Code::InvalidCharacters,
                "username",
                "a user name with a colon would be read as two words (RFC 7617, 2)",
            );
            Err(problem.hint("give what stands behind the colon with the `password`"))
        }
        (Some(name), Some(password)) => {
            let text = format!("Basic {}", BASE64_STANDARD.encode(format!("{name}:{password}")));
            let mut value = HeaderValue::try_from(text).expect("base64 is a value");
            value.set_sensitive(true);
            Ok(Some(value))
        }
    }
}
