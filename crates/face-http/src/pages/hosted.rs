//! Templates, texts and branding of the hosted pages of an installation.

use std::{path::Path, sync::LazyLock};

use minijinja::{AutoEscape, Environment, UndefinedBehavior};
use tocsin_model::pages::Branding;
use tocsin_pace::rate_limit::{KeyedRateLimiter, RateLimit};

use super::catalogs::Catalogs;

/// Most changes a second, in the long run, through one link.
const CHANGES_PER_SECOND: u32 = 1;
/// Changes through one link that may follow each other at once, in seconds of the rate.
const BURST_SECONDS: u32 = 30;

/// The templates by name. Each page extends `layout.html`.
#[rustfmt::skip]
const TEMPLATES: &[(&str, &str)] = &[
    ("confirm.html", include_str!("templates/confirm.html")),
    ("layout.html", include_str!("templates/layout.html")),
    ("message.html", include_str!("templates/message.html")),
    ("preferences.html", include_str!("templates/preferences.html")),
    ("unsubscribe.html", include_str!("templates/unsubscribe.html")),
];

/// The compiled templates.
pub(super) static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    for (name, source) in TEMPLATES {
        environment.add_template(name, source).expect("a test compiles every template");
    }
    environment
});

/// The hosted pages of an installation: branding, languages, and rates of changes.
pub struct HostedPages {
    pub(super) branding: Branding,
    pub(super) catalogs: Catalogs,
    changes: KeyedRateLimiter<String>,
}

impl Default for HostedPages {
    fn default() -> Self {
        HostedPages::of(Branding::default(), Catalogs::built_in())
    }
}

impl std::fmt::Debug for HostedPages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostedPages").field("branding", &self.branding).finish_non_exhaustive()
    }
}

impl HostedPages {
    /// Pages with this branding, in the built-in languages and those of a folder.
    ///
    /// # Errors
    /// The folder or one of its files cannot be used; the text says why.
    pub fn load(branding: Branding, languages: Option<&Path>) -> Result<HostedPages, String> {
        let catalogs = match languages {
            Some(folder) => Catalogs::with_folder(folder)?,
            None => Catalogs::built_in(),
        };
        Ok(HostedPages::of(branding, catalogs))
    }

    fn of(branding: Branding, catalogs: Catalogs) -> HostedPages {
        let limit = RateLimit::new(CHANGES_PER_SECOND, BURST_SECONDS).expect("the rate is not zero");
        HostedPages { branding, catalogs, changes: KeyedRateLimiter::new(limit) }
    }

    /// Counts a change through a link.
    ///
    /// # Errors
    /// The time to wait: there were too many.
    pub(crate) fn count_change(&self, link: &str) -> Result<(), std::time::Duration> {
        self.changes.count(link.to_owned()).map(drop).inspect_err(|_| {
            metrics::counter!("tocsin_http_rate_limited_total", "by" => "link").increment(1);
        })
    }
}
