//! Hosted pages: HTML for subscribers, without scripts and cookies, in the language of the reader.
//!
//! A page is a template in `templates/` with its texts in each catalog of `catalogs/`. Signed links authorize; each form
//! has a signed token, and a change is answered by a redirect (303).

mod catalogs; // texts by language, and the choice of a language
pub(crate) mod hosted; // templates, texts and branding of an installation
pub(crate) mod layout; // layout and headers of a page
mod form; // fields of a submitted form
mod preference_form; // the form of the preference page, as shown and as submitted
pub(crate) mod preferences; // the preference page
pub(crate) mod confirm; // the confirmation page of a request for consent
pub(crate) mod unsubscribe; // the unsubscribe page

/// Whether the errors of a route are pages too: browsers of subscribers open it.
pub(crate) fn is_page(route: &str) -> bool {
    matches!(route, "/confirm/{token}" | "/p/{token}" | "/unsubscribe/{token}")
}

#[cfg(test)]
mod tests;
