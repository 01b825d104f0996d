//! Pages of lists that look at a bounded number of rows.

/// Most rows that one look for a page reads where no index answers the filter.
pub const LOOKS_MAX: usize = 10_000;

/// The result of a look for a page.
#[derive(Debug, Clone, PartialEq)]
pub struct Looked<T, K> {
    /// The rows that meet the filter, in the order of their keys.
    pub items: Vec<T>,
    /// The key behind which the next look goes on; `None`: there is no more.
    pub next: Option<K>,
}

impl<T, K> Looked<T, K> {
    /// A page of up to `limit` from one more than that. `reached` is the last row that was read, if the look ended there.
    pub(crate) fn cut(mut items: Vec<T>, limit: usize, reached: Option<K>, key: impl Fn(&T) -> K) -> Looked<T, K> {
        if items.len() <= limit {
            return Looked { items, next: reached };
        }
        items.truncate(limit);
        let next = items.last().map(key);
        Looked { items, next }
    }
}
