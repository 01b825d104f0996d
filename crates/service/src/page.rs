//! Lists in portions: a page holds some things and the cursor behind them. One that is not full may have a next one: no page looks
//! at more than a bounded number of rows.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use tocsin_store::look::Looked;

use crate::error::ServiceError;

/// Some things of a list, and where to go on.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// The things, in the list's order.
    pub items: Vec<T>,
    /// Give this as `after` for the next page; `None` at the end.
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// A page of up to `limit` things from one more than that, which shows whether there is a next page.
    pub fn cut(mut items: Vec<T>, limit: usize, key: impl Fn(&T) -> String) -> Page<T> {
        let next = if items.len() > limit {
            items.truncate(limit);
            items.last().map(|last| cursor(&key(last)))
        } else {
            None
        };
        Page { items, next }
    }

    /// A page of what a look has found.
    pub(crate) fn of<K: ToString>(found: Looked<T, K>) -> Page<T> {
        Page { items: found.items, next: found.next.map(|key| cursor(&key.to_string())) }
    }

    /// The same page of other things.
    pub fn map<U>(self, change: impl FnMut(T) -> U) -> Page<U> {
        Page { items: self.items.into_iter().map(change).collect(), next: self.next }
    }
}

/// Most things on a page.
pub const LIMIT_MAX: usize = 1_000;

/// A page's size, checked.
///
/// # Errors
/// It is 0 or more than [`LIMIT_MAX`].
pub fn limit(wanted: Option<usize>) -> Result<usize, ServiceError> {
    match wanted {
        None => Ok(100),
        Some(limit @ 1..=LIMIT_MAX) => Ok(limit),
        Some(_) => Err(ServiceError::invalid("limit", format!("should be from 1 to {LIMIT_MAX}"))),
    }
}

/// The cursor behind a key.
pub(crate) fn cursor(key: &str) -> String {
    URL_SAFE_NO_PAD.encode(key)
}

/// The key that a cursor stands for.
///
/// # Errors
/// It is none that a page gave.
pub fn key_of<T: std::str::FromStr>(cursor: Option<&str>) -> Result<Option<T>, ServiceError> {
    let Some(cursor) = cursor else { return Ok(None) };
    URL_SAFE_NO_PAD
        .decode(cursor)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .and_then(|key| key.parse().ok())
        .map(Some)
        .ok_or_else(|| ServiceError::invalid("after", "is not a cursor that a page of this list gave"))
}
