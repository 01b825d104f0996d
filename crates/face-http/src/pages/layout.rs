//! Layout and headers of a hosted page.

use std::{sync::Arc, time::Duration};

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use minijinja::{
    Error, ErrorKind, Value, context,
    value::{Kwargs, merge_maps},
};
use ring::digest;
use tocsin_model::{
    id::Name,
    pages::{Branding, ClassTexts, Color},
    time::Timestamp,
};
use tocsin_service::ServiceError;

use super::{
    catalogs::Catalog,
    hosted::{ENVIRONMENT, HostedPages},
};
use crate::{app::App, problems::Failure};

const STYLE: &str = include_str!("style.css");
/// Colour of buttons and links without branding.
const ACCENT: Color = Color([0x0b, 0x5c, 0xad]);
/// Backgrounds of text in `style.css`, for light and dark screens.
const LIGHT: [Color; 2] = [Color::WHITE, Color([0xf5, 0xf6, 0xf8])];
const DARK: [Color; 2] = [Color([0x1b, 0x20, 0x29]), Color([0x11, 0x15, 0x1b])];
/// Contrast of text (WCAG 2.2, 1.4.3).
const TEXT_CONTRAST: f64 = 4.5;

const ROBOTS: HeaderName = HeaderName::from_static("x-robots-tag");

/// A page for one request: its language and its branding.
pub(crate) struct Page {
    catalog: Arc<Catalog>,
    branding: Branding,
}

impl Page {
    /// A page in the language of the reader (`Accept-Language`), with the branding of an application, or of the
    /// installation.
    pub(crate) fn of(app: &App, headers: &HeaderMap, application: Option<&Name>) -> Page {
        let own = application.and_then(|name| app.service.application_branding(name)).unwrap_or_default();
        Page::with(&app.pages, headers, &own)
    }

    pub(super) fn with(pages: &HostedPages, headers: &HeaderMap, own: &Branding) -> Page {
        let accepted: Vec<&str> =
            headers.get_all(header::ACCEPT_LANGUAGE).iter().filter_map(|value| value.to_str().ok()).collect();
        Page { catalog: pages.catalogs.choose(&accepted.join(",")), branding: own.or(&pages.branding) }
    }

    /// A text in the language of the page.
    pub(crate) fn text(&self, key: &str, values: &[(&str, &str)]) -> String {
        self.catalog.text(key, |name| values.iter().find(|(known, _)| *known == name).map(|(_, value)| *value))
    }

    /// Whether there is a text.
    pub(crate) fn has_text(&self, key: &str) -> bool {
        self.catalog.has(key)
    }

    /// The title of a class, and its description.
    pub(crate) fn titles(&self, texts: &ClassTexts, title: &str, description: Option<&str>) -> (String, String) {
        let tag = &self.catalog.tag;
        let title = texts.title.of(tag).unwrap_or(title).to_owned();
        (title, texts.description.of(tag).or(description).unwrap_or_default().to_owned())
    }

    /// A date in words, in a time zone.
    pub(crate) fn date(&self, at: Timestamp, zone: Option<&str>) -> String {
        let zone = tocsin_model::hours::zone_of(zone);
        let Some(date) = at.in_zone(&zone) else { return at.to_string() };
        let month = self.text(&format!("month.{}", date.month()), &[]);
        let (day, year) = (date.day().to_string(), date.year().to_string());
        let time = format!("{:02}:{:02}", date.hour(), date.minute());
        self.text("date.long", &[("day", &day), ("month", &month), ("year", &year), ("time", &time)])
    }

    /// The response with a page: `template` with its variables.
    pub(crate) fn response(&self, status: StatusCode, template: &str, variables: Value) -> Response {
        let style = self.style();
        let catalog = self.catalog.clone();
        let text = Value::from_function(move |key: &str, values: Kwargs| -> Result<String, Error> {
            if !catalog.has(key) {
                return Err(Error::new(ErrorKind::InvalidOperation, format!("there is no text `{key}`")));
            }
            let names: Vec<String> = values.args().map(str::to_owned).collect();
            let mut given = Vec::with_capacity(names.len());
            for name in names {
                let value: Value = values.get(&name)?;
                given.push((name, value.to_string()));
            }
            Ok(catalog.text(key, |name| given.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())))
        });
        let Branding { name, logo, footer, imprint, .. } = &self.branding;
        let shared = context! {
            text => text,
            language => self.catalog.tag.clone(),
            style => Value::from_safe_string(style.clone()),
            brand => context! {
                name => name.clone().unwrap_or_else(|| self.text("layout.name", &[])),
                logo => logo.as_ref().map(|logo| logo.as_str()),
                footer => footer.as_ref().map(|footer| footer.lines().map(str::to_owned).collect::<Vec<_>>()),
                imprint => imprint.as_ref().map(|imprint| imprint.as_str()),
            },
        };
        let rendered =
            ENVIRONMENT.get_template(template).and_then(|template| template.render(merge_maps([variables, shared])));
        match rendered {
            Ok(html) => {
                let mut response = (status, html).into_response();
                for (name, value) in self.headers(&style) {
                    response.headers_mut().insert(name, value);
                }
                response
            }
            Err(error) => {
                tracing::error!(template, %error, "a hosted page cannot be rendered");
                Failure::internal().into_response()
            }
        }
    }

    /// The page with one message.
    pub(crate) fn message(&self, status: StatusCode, title: &str, text: &str) -> Response {
        let (title, text) = (self.text(title, &[]), self.text(text, &[]));
        self.response(status, "message.html", context! { title, message => text })
    }

    /// The page for a link that is invalid or has expired.
    pub(crate) fn unknown_link(&self) -> Response {
        self.message(StatusCode::NOT_FOUND, "unknown.title", "unknown.text")
    }

    /// The page for too many changes.
    pub(crate) fn too_many(&self, wait: Duration) -> Response {
        let mut response = self.message(StatusCode::TOO_MANY_REQUESTS, "busy.title", "busy.text");
        let seconds = wait.as_secs_f64().ceil().max(1.0) as u64;
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        response
    }

    /// The page for an error.
    pub(crate) fn failed(&self, error: ServiceError) -> Response {
        match error {
            ServiceError::Missing(_) => self.unknown_link(),
            ServiceError::RateLimited { retry_after, .. } => self.too_many(retry_after),
            error => self.refused(error.into()),
        }
    }

    /// The page for a request that is refused.
    pub(crate) fn refused(&self, failure: Failure) -> Response {
        let failure = failure.into_response();
        let mut response = self.message(failure.status(), "failed.title", "failed.text");
        if let Some(after) = failure.headers().get(header::RETRY_AFTER) {
            response.headers_mut().insert(header::RETRY_AFTER, after.clone());
        }
        response
    }

    /// The redirect after a change (303), so that a reload changes nothing.
    pub(crate) fn see_other(&self, location: &str) -> Response {
        let Ok(location) = HeaderValue::try_from(location) else { return self.unknown_link() };
        let mut response = StatusCode::SEE_OTHER.into_response();
        for (name, value) in self.headers("") {
            response.headers_mut().insert(name, value);
        }
        response.headers_mut().insert(header::LOCATION, location);
        response
    }

    fn headers(&self, style: &str) -> Vec<(HeaderName, HeaderValue)> {
        let fixed = HeaderValue::from_static;
        let digest = BASE64_STANDARD.encode(digest::digest(&digest::SHA256, style.as_bytes()));
        let logo = self.branding.logo.as_ref().map_or(String::new(), |logo| format!(" {}", logo.origin()));
        let policy = format!(
            "default-src 'none'; style-src 'sha256-{digest}'; img-src data:{logo}; form-action 'self'; \
             base-uri 'none'; frame-ancestors 'none'"
        );
        let mut headers = vec![
            (header::CONTENT_TYPE, fixed("text/html; charset=utf-8")),
            (header::CACHE_CONTROL, fixed("no-store")),
            // The address of the page is the permission.
            (header::REFERRER_POLICY, fixed("no-referrer")),
            (ROBOTS, fixed("noindex, nofollow, noarchive")),
            (header::VARY, fixed("accept-language")),
        ];
        for (name, value) in
            [(header::CONTENT_SECURITY_POLICY, policy), (header::CONTENT_LANGUAGE, self.catalog.tag.clone())]
        {
            let value = HeaderValue::try_from(value).expect("digests, origins and language tags are a header value");
            headers.push((name, value));
        }
        headers
    }

    /// The style sheet with the accent, corrected for the contrast of each colour scheme.
    fn style(&self) -> String {
        let accent = self.branding.accent.unwrap_or(ACCENT);
        let [light, dark] = [LIGHT, DARK].map(|backgrounds| accent.readable_on(&backgrounds, TEXT_CONTRAST));
        let colors = |color: Color| format!("--accent:{color};--on-accent:{}", color.ink());
        format!(":root{{{}}}@media (prefers-color-scheme:dark){{:root{{{}}}}}\n{STYLE}", colors(light), colors(dark))
    }
}
