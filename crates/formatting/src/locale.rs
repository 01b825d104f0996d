//! Language tags of BCP 47: the lookup fallback.

/// A locale and its fallbacks: `zh-hant-tw`, `zh-hant`, `zh` (RFC 4647, section 3.4).
pub fn truncations(locale: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(locale), |locale| {
        let shorter = locale.rsplit_once('-')?.0;
        // A single letter only introduces the next subtag, so it is removed as well.
        match shorter.rsplit_once('-') {
            Some((before, introducer)) if introducer.len() == 1 => Some(before),
            _ => Some(shorter),
        }
    })
}
