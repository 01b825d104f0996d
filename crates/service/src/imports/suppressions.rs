//! Import of suppressions.

use std::sync::Arc;

use tocsin_model::{
    problem::{Code, Problem},
    suppression::Suppression,
    time::Timestamp,
};
use tocsin_store::{error::StoreError, records::SuppressionStore};

use super::lines::{LineKind, ReadLine, Written, in_line, joined, unknown_column};
use crate::{
    Service, csv_cells,
    error::read_object,
    suppressions::{self, Draft, SuppressionLine},
};

/// Lines of suppressions.
pub(super) struct SuppressionLines {
    pub(super) origin: String,
    pub(super) now: Timestamp,
}

impl LineKind for SuppressionLines {
    type Item = Suppression;
    type Store = dyn SuppressionStore;

    fn facet(service: &Service) -> Arc<dyn SuppressionStore> {
        service.suppression_store.clone()
    }

    fn read_json(&self, line: &[u8]) -> Result<ReadLine<Suppression>, Vec<Problem>> {
        let line: SuppressionLine = read_object(line).map_err(|problem| vec![in_line(problem)])?;
        Ok((suppressions::check(line.into(), &self.origin, self.now)?, Vec::new()))
    }

    fn check_column(&self, name: &str, _exported: bool) -> Option<Problem> {
        let known = [
            "protocol",
            "application",
            "channel",
            "address",
            "subscriber",
            "device",
            "cause",
            "origin",
            "detail",
            "since",
            "expires_at",
        ];
        let passed_over = ["in_force", "bounces", "notification", "updated_at"];
        let fits = known.contains(&name) || passed_over.contains(&name);
        (!fits).then(|| unknown_column(name, known))
    }

    fn read_cells(&self, header: &[String], cells: &[String]) -> Result<ReadLine<Suppression>, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut draft = Draft::default();
        let mut time = |path: &str, cell: &str| {
            let wrong = |_| {
                problems.push(
                    Problem::new(Code::InvalidFormat, path, format!("`{cell}` is not a time of RFC 3339"))
                        .param("format", "timestamp")
                        .param("value", cell.to_string()),
                )
            };
            cell.parse::<Timestamp>().map_err(wrong).ok()
        };
        for (name, cell) in header.iter().map(String::as_str).zip(cells) {
            let cell = csv_cells::unguarded(cell);
            if cell.is_empty() {
                continue;
            }
            match name {
                "since" => draft.since = time(name, cell),
                "expires_at" => draft.expires_at = time(name, cell),
                _ => {
                    let text = Some(cell.to_owned());
                    match name {
                        "protocol" => draft.protocol = text,
                        "application" => draft.application = text,
                        "channel" => draft.channel = text,
                        "address" => draft.address = text,
                        "subscriber" => draft.subscriber = text,
                        "device" => draft.device = text,
                        "cause" => draft.cause = text,
                        "origin" => draft.origin = text,
                        "detail" => draft.detail = text,
                        _ => {}
                    }
                }
            }
        }
        Ok((joined(problems, suppressions::check(draft, &self.origin, self.now))?, Vec::new()))
    }

    async fn store(
        records: &dyn SuppressionStore,
        items: Vec<Suppression>,
        _now: Timestamp,
    ) -> Result<Vec<Written>, StoreError> {
        let count = items.len();
        records.put_suppressions(items).await?;
        Ok(std::iter::repeat_with(|| Ok(())).take(count).collect())
    }
}
