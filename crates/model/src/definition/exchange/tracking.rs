//! Tracking: which message bodies are stored for inspection.

use super::{
    super::{
        build::{duration, integer},
        document::{Kind, Node, join},
        language::{DAY, optional, seconds},
        shape::{Shape, percent},
    },
    Builder,
};
use crate::{
    exchange::{JsonPath, TrackPoint, Tracking},
    problem::Code,
};

const REDACTED_MAX: usize = 64;

pub(super) static TRACKING: Shape = Shape::Object(&[
    optional(
        "bodies",
        &POINTS,
        "Points at which bodies are stored: `received` before the steps of a receive port; `sent` at each attempt; \
         `replied`, the peer's reply; `returned`, the reply to the caller. None if not given.",
    ),
    optional("sample", &Shape::Percent, "Sampling rate of messages; `100%` if not given."),
    optional(
        "redact",
        &PATHS,
        "JSONPaths of values that are removed before a body is stored. A body that is not JSON is then not stored.",
    ),
    optional(
        "body_bytes",
        &Shape::Integer { least: 1, most: 4 << 20 },
        "Length that a body is cut to; 65536 if not given.",
    ),
    optional(
        "kept",
        &Shape::Duration { least: seconds(60), most: seconds(366 * DAY) },
        "Retention, independent of the message; 3d if not given.",
    ),
]);
static POINTS: Shape = Shape::List { of: &Shape::Choice(&["received", "sent", "replied", "returned"]), most: 4 };
static PATHS: Shape = Shape::List { of: &Shape::Text, most: REDACTED_MAX };

impl Builder<'_> {
    /// Tracking at a node. It inherits from `base`; its own settings and exclusions override that.
    pub(super) fn tracking(&mut self, node: &Node, path: &str, base: &Tracking, points: &[TrackPoint]) -> Tracking {
        let Some(node) = node.get("tracking") else { return base.clone() };
        let path = join(path, "tracking");
        let mut redact = base.redact.clone();
        redact.extend(self.paths(node, &path));
        Tracking {
            points: self.points(node, &path, points).unwrap_or_else(|| base.points.clone()),
            sample_percent: node.get("sample").and_then(percent).unwrap_or(base.sample_percent),
            redact,
            body_bytes_max: integer(node, "body_bytes").unwrap_or(base.body_bytes_max),
            kept: duration(node, "kept").unwrap_or(base.kept),
        }
    }

    fn points(&mut self, node: &Node, path: &str, here: &[TrackPoint]) -> Option<Vec<TrackPoint>> {
        let given = node.get("bodies")?;
        let Kind::List(items) = &given.kind else { return None };
        let mut points = Vec::new();
        for item in items {
            let Some(point) = item.text().and_then(|word| word.parse::<TrackPoint>().ok()) else { continue };
            if !here.contains(&point) {
                let problem = item.problem(
                    Code::NotApplicable,
                    &join(path, "bodies"),
                    format!("`{}` is not a tracking point of such a port", point.word()),
                );
                let words: Vec<String> = here.iter().map(|point| format!("`{}`", point.word())).collect();
                self.problems.push(problem.hint(format!("give {}", words.join(" or "))));
            } else if !points.contains(&point) {
                points.push(point);
            }
        }
        Some(points)
    }

    fn paths(&mut self, node: &Node, path: &str) -> Vec<JsonPath> {
        let Some(Kind::List(items)) = node.get("redact").map(|given| &given.kind) else { return Vec::new() };
        let mut paths = Vec::new();
        for item in items {
            match item.text().map(str::parse::<JsonPath>) {
                Some(Ok(found)) => paths.push(found),
                Some(Err(error)) => {
                    let problem = item
                        .problem(Code::InvalidFormat, &join(path, "redact"), error.to_string())
                        .param("format", "json_path");
                    self.problems.push(problem.hint("give a JSONPath such as `$.card.number`"));
                }
                None => {}
            }
        }
        paths
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::read_exchange;

    fn definition(whole: &str, port: &str) -> String {
        format!(
            "exchange: e\nproperties: {{ order: {{ json: $.order, search: true }} }}\n{whole}\nreceive: {{ intake: {{ mode: \
             request, {port} }} }}\nsend: {{ out: {{ mode: request, protocol: http }} }}\nroutes: {{ rest: {{ when: \
             'true', to: out }} }}\n"
        )
    }

    #[test]
    fn port_tracking_overrides_that_of_the_exchange() {
        let whole = "tracking: { bodies: [received, sent], redact: [$.card], sample: 5%, kept: 1d }";
        let port = "tracking: { bodies: [returned], redact: ['$.pin'] }";
        let exchange = read_exchange(&definition(whole, port), &|_| None).expect("good");
        let (intake, out) = (exchange.receive.values().next(), exchange.send.values().next());
        let (intake, out) = (&intake.expect("one").tracking, &out.expect("one").tracking);
        assert_eq!(
            (&intake.points[..], intake.sample_percent, intake.redact.len()),
            (&[TrackPoint::Returned][..], 5, 2)
        );
        assert_eq!((out.points.len(), out.redact.len(), out.kept), (2, 1, seconds(DAY)));
        assert!(exchange.properties[0].search);
    }

    #[test]
    fn invalid_tracking_is_reported() {
        for (whole, port, message) in [
            ("tracking: { bodies: [all] }", "", "tracking.bodies"),
            ("tracking: { redact: [card] }", "", "is not a path to one value"),
            (
                "",
                "tracking: { bodies: [sent] }",
                "`sent` is not a tracking point of such a port; give `received` or `returned`",
            ),
            ("tracking: { sample: 120% }", "", "is not a percentage"),
        ] {
            let problems = read_exchange(&definition(whole, port), &|_| None).expect_err(whole);
            assert!(problems.len() == 1 && problems[0].to_string().contains(message), "{whole} {port}: {problems:?}");
        }
    }
}
