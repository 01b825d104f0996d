//! Hosted pages: branding, and the titles of classes in the languages of their readers.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::Serialize;

use crate::id::Name;

/// Longest text of a page, in bytes.
pub const PAGE_TEXT_BYTES_MAX: usize = 2_000;

/// Branding of hosted pages. A setting of an application applies before that of the installation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Branding {
    /// Name of the sender, the heading of each page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// HTTPS address of a logo.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logo: Option<HttpsUrl>,
    /// Colour of buttons and links, such as `#0a6ebd`. Its contrast is corrected for each colour scheme.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accent: Option<Color>,
    /// Text at the end of each page, such as the postal address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub footer: Option<String>,
    /// HTTPS address of the imprint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imprint: Option<HttpsUrl>,
}

impl Branding {
    /// These settings, and those of `other` where there are none.
    pub fn or(&self, other: &Branding) -> Branding {
        Branding {
            name: self.name.clone().or_else(|| other.name.clone()),
            logo: self.logo.clone().or_else(|| other.logo.clone()),
            accent: self.accent.or(other.accent),
            footer: self.footer.clone().or_else(|| other.footer.clone()),
            imprint: self.imprint.clone().or_else(|| other.imprint.clone()),
        }
    }
}

/// Hosted pages of an application.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Pages {
    /// Branding.
    #[serde(flatten)]
    pub branding: Branding,
    /// Titles of notification classes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub notifications: BTreeMap<Name, ClassTexts>,
    /// Titles of subscription classes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub subscriptions: BTreeMap<Name, ClassTexts>,
}

impl Pages {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Pages::default()
    }
}

/// The texts of a class on hosted pages.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ClassTexts {
    /// Title.
    pub title: LocalizedText,
    /// Description.
    #[serde(skip_serializing_if = "LocalizedText::is_empty")]
    pub description: LocalizedText,
}

/// A text in one or more languages, by language tag. The text of the empty tag is for all other languages.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct LocalizedText(pub BTreeMap<String, String>);

impl LocalizedText {
    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text for a language tag, or for one of its prefixes, or for all languages, or the first.
    pub fn of(&self, tag: &str) -> Option<&str> {
        let mut shorter = tag;
        loop {
            if let Some((_, text)) = self.0.iter().find(|(known, _)| known.eq_ignore_ascii_case(shorter)) {
                return Some(text);
            }
            match shorter.rfind('-') {
                Some(at) => shorter = &shorter[..at],
                None => return self.0.get("").or_else(|| self.0.values().next()).map(String::as_str),
            }
        }
    }
}

/// A title made of a name: `strong_quakes` is `Strong quakes`.
pub fn title_of(name: &Name) -> String {
    let words = name.as_str().replace(['_', '-'], " ");
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// An absolute HTTPS URL with visible ASCII characters only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct HttpsUrl(String);

/// A text that is not an HTTPS URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("is not an HTTPS URL such as `https://example.org/logo.svg`")]
pub struct HttpsUrlError;

impl HttpsUrl {
    /// The URL.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its origin, such as `https://example.org`.
    pub fn origin(&self) -> &str {
        let host = &self.0["https://".len()..];
        &self.0[.."https://".len() + host.find(['/', '?', '#']).unwrap_or(host.len())]
    }
}

impl FromStr for HttpsUrl {
    type Err = HttpsUrlError;
    fn from_str(text: &str) -> Result<Self, HttpsUrlError> {
        let rest = text.strip_prefix("https://").ok_or(HttpsUrlError)?;
        let host = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
        let (name, port) = host.split_once(':').unwrap_or((host, "443"));
        let is_name =
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte));
        let is_safe = rest.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"'<>\\`{}|^;,".contains(&byte));
        if is_name && port.parse::<u16>().is_ok() && is_safe && text.len() <= PAGE_TEXT_BYTES_MAX {
            Ok(HttpsUrl(text.to_owned()))
        } else {
            Err(HttpsUrlError)
        }
    }
}

impl From<HttpsUrl> for String {
    fn from(url: HttpsUrl) -> String {
        url.0
    }
}

/// An sRGB colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct Color(pub [u8; 3]);

/// A text that is not a colour.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("is not a colour such as `#0a6ebd`")]
pub struct ColorError;

impl Color {
    /// Black.
    pub const BLACK: Color = Color([0; 3]);
    /// White.
    pub const WHITE: Color = Color([255; 3]);

    /// Contrast ratio of two colours (WCAG 2.2), from 1 to 21.
    pub fn contrast(self, other: Color) -> f64 {
        let (one, other) = (self.luminance(), other.luminance());
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    /// The colour nearest to this one, on the way to black or white, that has a contrast of at least `ratio` with each
    /// of these backgrounds.
    pub fn readable_on(self, backgrounds: &[Color], ratio: f64) -> Color {
        let dark = backgrounds.iter().all(|back| back.contrast(Color::WHITE) > back.contrast(Color::BLACK));
        let end = if dark { Color::WHITE } else { Color::BLACK };
        let mixed = |step: u16| {
            let part = |at: usize| {
                let (from, to) = (u16::from(self.0[at]), u16::from(end.0[at]));
                ((from * (100 - step) + to * step) / 100) as u8
            };
            Color([part(0), part(1), part(2)])
        };
        let found = (0..=100).map(mixed).find(|color| backgrounds.iter().all(|back| color.contrast(*back) >= ratio));
        found.unwrap_or(end)
    }

    /// Black or white, the one with the higher contrast.
    pub fn ink(self) -> Color {
        if self.contrast(Color::WHITE) >= self.contrast(Color::BLACK) { Color::WHITE } else { Color::BLACK }
    }

    fn luminance(self) -> f64 {
        let linear = |part: u8| {
            let part = f64::from(part) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        };
        let [red, green, blue] = self.0.map(linear);
        0.2126 * red + 0.7152 * green + 0.0722 * blue
    }
}

impl fmt::Display for Color {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [red, green, blue] = self.0;
        write!(f, "#{red:02x}{green:02x}{blue:02x}")
    }
}

impl FromStr for Color {
    type Err = ColorError;
    fn from_str(text: &str) -> Result<Self, ColorError> {
        let digits = text.strip_prefix('#').ok_or(ColorError)?;
        let digits = match digits.len() {
            3 => digits.chars().flat_map(|digit| [digit, digit]).collect(),
            _ => digits.to_owned(),
        };
        let mut parts = [0; 3];
        hex::decode_to_slice(digits, &mut parts).map_err(|_| ColorError)?;
        Ok(Color(parts))
    }
}

impl From<Color> for String {
    fn from(color: Color) -> String {
        color.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_the_nearest_language_is_used() {
        let text = |entries: &[(&str, &str)]| {
            LocalizedText(entries.iter().map(|(tag, text)| ((*tag).to_owned(), (*text).to_owned())).collect())
        };
        let quakes = text(&[("", "Quakes"), ("de", "Beben"), ("de-AT", "Erdbeben")]);
        for (tag, expected) in [("de-at", "Erdbeben"), ("de-CH", "Beben"), ("de", "Beben"), ("fr", "Quakes")] {
            assert_eq!(quakes.of(tag), Some(expected), "{tag}");
        }
        assert_eq!(text(&[("de", "Beben")]).of("fr"), Some("Beben"));
        assert_eq!(text(&[]).of("fr"), None);
        assert_eq!(title_of(&"strong_quakes".parse().expect("a name")), "Strong quakes");
    }

    #[test]
    fn only_urls_that_fit_a_policy_are_accepted() {
        let url: HttpsUrl = "https://cdn.example.org:8443/logo.svg?v=2".parse().expect("a URL");
        assert_eq!(url.origin(), "https://cdn.example.org:8443");
        for wrong in [
            "http://example.org/logo.svg",
            "https://",
            "https:///x",
            "https://example.org/a b",
            "https://example.org/\"><script>",
            "https://example.org;script-src *",
            "https://a.example,https://b.example",
            "https://user@example.org/",
            "javascript:alert(1)",
        ] {
            assert!(wrong.parse::<HttpsUrl>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_accent_becomes_readable() {
        let color = |text: &str| text.parse::<Color>().expect(text);
        assert_eq!(color("#abc"), color("#aabbcc"));
        assert!((Color::WHITE.contrast(Color::BLACK) - 21.0).abs() < 1e-9);
        assert_eq!(color("#0a6ebd").readable_on(&[Color::WHITE], 4.5), color("#0a6ebd"), "it is readable already");
        let (light, dark) = ([Color::WHITE, color("#f6f7f9")], [color("#12161c"), color("#1a2029")]);
        for accent in ["#000", "#fff", "#ff0", "#f00", "#0a0", "#00f", "#777", "#0a6ebd"].map(color) {
            for backgrounds in [light, dark] {
                let shown = accent.readable_on(&backgrounds, 4.5);
                assert!(backgrounds.iter().all(|back| shown.contrast(*back) >= 4.5), "{accent}: {shown}");
            }
            assert!(accent.contrast(accent.ink()) >= 4.5, "{accent}");
        }
        for wrong in ["red", "#12345", "#gggggg", "0a6ebd", "#0a6ebd;}"] {
            assert!(wrong.parse::<Color>().is_err(), "{wrong}");
        }
    }
}
