//! Pagination by cursor. A page that is not full may have a next one: each request examines a bounded number of rows.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use tocsin_model::problem::{Code, Problem};

use tocsin_store::bounded_scan::ScanPage;

use crate::error::ServiceError;

/// A page of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// Items, in the list's order.
    pub items: Vec<T>,
    /// Cursor for `after` of the next page; `None` at the end.
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// Builds a page of up to `limit` items from a list with one more, which shows whether there is a next page.
    pub fn cut(mut items: Vec<T>, limit: usize, key: impl Fn(&T) -> String) -> Page<T> {
        let next = if items.len() > limit {
            items.truncate(limit);
            items.last().map(|last| cursor(&key(last)))
        } else {
            None
        };
        Page { items, next }
    }

    /// Builds a page from the result of a scan.
    pub(crate) fn of<K: ToString>(found: ScanPage<T, K>) -> Page<T> {
        Page { items: found.items, next: found.next.map(|key| cursor(&key.to_string())) }
    }

    /// Cuts a page out of a whole list, which is sorted by `key`; without a limit, the rest of the list.
    ///
    /// # Errors
    /// The cursor or the limit is invalid.
    pub fn of_whole(
        mut items: Vec<T>,
        after: Option<&str>,
        limit: Option<usize>,
        key: impl Fn(&T) -> String,
    ) -> Result<Page<T>, ServiceError> {
        let limit = match limit {
            Some(_) => self::limit(limit)?,
            None => usize::MAX,
        };
        items.sort_by_cached_key(&key);
        if let Some(after) = key_of::<String>(after)? {
            items.retain(|item| key(item) > after);
        }
        Ok(Page::cut(items, limit, key))
    }

    /// Converts the items of a page.
    pub fn map<U>(self, change: impl FnMut(T) -> U) -> Page<U> {
        Page { items: self.items.into_iter().map(change).collect(), next: self.next }
    }
}

/// Maximum page size.
pub const LIMIT_MAX: usize = 1_000;

/// Checks a page size.
///
/// # Errors
/// It is 0 or more than [`LIMIT_MAX`].
pub fn limit(requested: Option<usize>) -> Result<usize, ServiceError> {
    match requested {
        None => Ok(100),
        Some(limit @ 1..=LIMIT_MAX) => Ok(limit),
        Some(_) => Err(ServiceError::from(Problem::out_of_range("limit", 1, LIMIT_MAX))),
    }
}

/// Encodes a key as a cursor.
pub(crate) fn cursor(key: &str) -> String {
    URL_SAFE_NO_PAD.encode(key)
}

/// Decodes the key of a cursor.
///
/// # Errors
/// It is not a valid cursor.
pub fn key_of<T: std::str::FromStr>(cursor: Option<&str>) -> Result<Option<T>, ServiceError> {
    let Some(cursor) = cursor else { return Ok(None) };
    URL_SAFE_NO_PAD
        .decode(cursor)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .and_then(|key| key.parse().ok())
        .map(Some)
        .ok_or_else(|| {
            ServiceError::from(
                Problem::new(Code::InvalidFormat, "after", "is not a cursor that a page of this list gave")
                    .param("format", "cursor"),
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_whole_list_follow_each_other() {
        let list = || vec!["c", "a", "b"];
        let page = |after: Option<&str>, limit| Page::of_whole(list(), after, limit, |text| text.to_string());
        assert_eq!(page(None, None).expect("all").items, ["a", "b", "c"]);
        let first = page(None, Some(2)).expect("a page");
        assert_eq!(first.items, ["a", "b"]);
        let last = page(first.next.as_deref(), Some(2)).expect("a page");
        assert_eq!((last.items, last.next), (vec!["c"], None));
        assert!(page(None, Some(0)).is_err());
        assert!(page(Some("?"), None).is_err());
    }
}
