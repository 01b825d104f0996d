//! Bounded scans: pages of filtered lists that read a limited number of rows each.

/// Maximum number of rows that one page reads where no index answers the filter.
pub const SCANNED_ROWS_MAX: usize = 10_000;

/// One page of a bounded scan.
#[derive(Debug, Clone, PartialEq)]
pub struct ScanPage<T, K> {
    /// Rows that satisfy the filter, in key order.
    pub items: Vec<T>,
    /// Key after which the next page continues; `None` at the end of the list.
    pub next: Option<K>,
}

impl<T, K> ScanPage<T, K> {
    /// Makes a page of up to `limit` items from up to `limit + 1`. `reached` is the last row read if the scan stopped
    /// at its bound.
    pub(crate) fn cut(mut items: Vec<T>, limit: usize, reached: Option<K>, key: impl Fn(&T) -> K) -> ScanPage<T, K> {
        if items.len() <= limit {
            return ScanPage { items, next: reached };
        }
        items.truncate(limit);
        let next = items.last().map(key);
        ScanPage { items, next }
    }
}
