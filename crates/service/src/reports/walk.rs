//! Pages of lists, newest first, and their cursors.

use std::{
    fmt::{self, Display, Formatter},
    str::FromStr,
};

use tocsin_model::id::IdError;

use super::request::SCANNED_MAX;
use crate::error::ServiceError;

/// A cursor in two parts: `12.300`. A report may page two lists at once, or a list and the rows within an item. The
/// part of a list that has ended is `-`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReportCursor(pub(super) Option<u64>, pub(super) Option<u64>);

impl ReportCursor {
    /// Encodes the cursor; `None` if both lists have ended.
    pub(super) fn next(self) -> Option<String> {
        (self.0.is_some() || self.1.is_some()).then(|| self.to_string())
    }
}

impl Display for ReportCursor {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let part = |part: Option<u64>| part.map_or_else(|| "-".to_owned(), |part| part.to_string());
        write!(f, "{}.{}", part(self.0), part(self.1))
    }
}

impl FromStr for ReportCursor {
    type Err = IdError;

    fn from_str(text: &str) -> Result<ReportCursor, IdError> {
        let wrong = || IdError { text: text.to_owned(), expected: "the `next` of an answer" };
        let part = |part: &str| match part {
            "-" => Ok(None),
            // Stores use signed numbers.
            digits => digits.parse().ok().filter(|number| *number < i64::MAX as u64).map(Some).ok_or_else(wrong),
        };
        let (first, second) = text.split_once('.').ok_or_else(wrong)?;
        Ok(ReportCursor(part(first)?, part(second)?))
    }
}

/// Rows read at a time.
pub(super) const PAGE: usize = 1_000;

/// Decision of a list about a row.
pub(super) enum RowSelection {
    /// It is listed.
    Selected,
    /// It is skipped.
    Other,
    /// It and all later rows are older than the requested period.
    TooOld,
}

impl RowSelection {
    /// Decides by age and filter.
    pub(super) fn of(is_too_old: bool, is_selected: bool) -> RowSelection {
        match (is_too_old, is_selected) {
            (true, _) => RowSelection::TooOld,
            (false, true) => RowSelection::Selected,
            (false, false) => RowSelection::Other,
        }
    }
}

/// Rows of a page, with the cursor of the next one.
pub(super) struct ListPage<T> {
    pub(super) items: Vec<T>,
    pub(super) next: Option<String>,
}

/// Scans backwards from an id, in pages of [`PAGE`], until `limit` rows are found, [`SCANNED_MAX`] are
/// examined, or there are no more.
///
/// # Errors
/// The errors of reading a page.
pub(super) async fn walk<Id, Item, Page>(
    mut before: Option<Id>,
    limit: usize,
    mut page: impl FnMut(Option<Id>) -> Page,
    select: impl Fn(&Item) -> (Id, RowSelection),
) -> Result<ListPage<Item>, ServiceError>
where
    Id: Copy + Display,
    Page: Future<Output = Result<Vec<Item>, ServiceError>>,
{
    let (mut items, mut looked_through) = (Vec::new(), 0);
    loop {
        let found = page(before).await?;
        let is_last = found.len() < PAGE;
        for item in found {
            let (id, selection) = select(&item);
            if matches!(selection, RowSelection::TooOld) {
                return Ok(ListPage { items, next: None });
            }
            if items.len() == limit || looked_through == SCANNED_MAX {
                return Ok(ListPage { items, next: before.map(|before| before.to_string()) });
            }
            (before, looked_through) = (Some(id), looked_through + 1);
            if matches!(selection, RowSelection::Selected) {
                items.push(item);
            }
        }
        if is_last {
            return Ok(ListPage { items, next: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists numbers from 1 to `count`, each its own time, that are at least `from` and divisible by a divisor.
    async fn found(
        count: u64,
        before: Option<u64>,
        limit: usize,
        from: u64,
        divisor: u64,
    ) -> (Vec<u64>, Option<String>) {
        let page = |before: Option<u64>| {
            let newest = before.map_or(count, |before| before - 1);
            std::future::ready(Ok((1..=newest).rev().take(PAGE).collect()))
        };
        let select = |item: &u64| (*item, RowSelection::of(*item < from, item.is_multiple_of(divisor)));
        let found = walk(before, limit, page, select).await.expect("found");
        (found.items, found.next)
    }

    #[tokio::test]
    async fn pages_follow_each_other_without_gap_or_repetition() {
        assert_eq!(found(0, None, 5, 0, 1).await, (vec![], None));
        assert_eq!(found(3, None, 3, 0, 1).await, (vec![3, 2, 1], None));
        assert_eq!(found(3, None, 2, 0, 1).await, (vec![3, 2], Some("2".into())));
        assert_eq!(found(3, Some(2), 2, 0, 1).await, (vec![1], None));
        assert_eq!(found(9, None, 5, 8, 1).await, (vec![9, 8], None), "what is too old ends it");
        let (mut all, mut before) = (Vec::new(), None);
        loop {
            let (items, next) = found(2_500, before, 7, 0, 3).await;
            all.extend(items);
            let Some(next) = next else { break };
            before = Some(next.parse().expect("a number"));
        }
        assert_eq!(all, (1..=2_500).rev().filter(|n| n % 3 == 0).collect::<Vec<_>>());
    }

    #[test]
    fn b12_cursors_of_two_parts_are_read_as_they_are_written() {
        for places in [ReportCursor(Some(1), Some(2)), ReportCursor(None, Some(0)), ReportCursor(Some(7), None)] {
            assert_eq!(places.to_string().parse(), Ok(places));
        }
        assert_eq!(ReportCursor(None, None).next(), None);
        for wrong in ["", "7", ".", "1.", "1.x", "-1.2", "9223372036854775807.0", "1.2.3"] {
            assert!(wrong.parse::<ReportCursor>().is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_scan_examines_a_bounded_number_of_rows() {
        let (items, next) = found(25_000, None, 7, 0, 24_000).await;
        assert_eq!((items, next), (vec![24_000], Some("15001".into())));
        assert_eq!(found(25_000, Some(15_001), 7, 0, 24_000).await, (vec![], Some("5001".into())));
    }
}
