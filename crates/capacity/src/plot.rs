//! SVG charts: curves and bars that inherit the colours of their page.

use std::fmt::Write;

use tocsin_model::markup::escape;

/// A curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Name in the legend.
    pub name: String,
    /// The points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// An axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// The title, with the unit.
    pub title: String,
    /// The scale of its values.
    pub scale: Scale,
}

/// The scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Linear.
    Linear,
    /// Logarithmic, base ten.
    Logarithmic,
    /// Seconds of the day, shown as hours.
    Clock,
}

const WIDTH: f64 = 440.0;
const HEIGHT: f64 = 264.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 10.0;
/// Top margin of charts with a title and an axis title.
const TOP: f64 = 40.0;
/// Top margin of bar charts, which have a title only.
const BARS_TOP: f64 = 26.0;
const BOTTOM: f64 = 34.0;

/// A line chart with a legend.
pub fn curves(title: &str, x: &Axis, y: &Axis, curves: &[Curve]) -> String {
    let all = || curves.iter().flat_map(|curve| &curve.points);
    let across = Range::of(x.scale, all().map(|point| point.0));
    let up = Range::of(y.scale, all().map(|point| point.1).chain((y.scale == Scale::Linear).then_some(0.0)));
    let mut svg = frame(title, x, y, &across, &up);
    for (number, curve) in curves.iter().enumerate() {
        let points: Vec<String> = curve
            .points
            .iter()
            .filter(|(at, value)| at.is_finite() && value.is_finite())
            .map(|(at, value)| {
                format!("{:.1},{:.1}", across.place(*at, LEFT, WIDTH - RIGHT), up.place(*value, HEIGHT - BOTTOM, TOP))
            })
            .collect();
        let series = number % 5;
        let _ = write!(svg, "<polyline class=\"s{series}\" points=\"{}\"/>", points.join(" "));
        if curve.points.len() <= 40 {
            for point in &points {
                let (left, top) = point.split_once(',').unwrap_or_default();
                let _ = write!(svg, "<circle class=\"s{series}\" cx=\"{left}\" cy=\"{top}\" r=\"2.5\"/>");
            }
        }
        if curves.len() > 1 {
            let top = TOP + 12.0 + 14.0 * number as f64;
            let _ = write!(
                svg,
                "<text class=\"s{series} legend\" x=\"{}\" y=\"{top}\">{}</text>",
                LEFT + 8.0,
                escape(&curve.name)
            );
        }
    }
    svg.push_str("</svg>");
    svg
}

/// A bar chart; each bar can have a mark, for example a limit. The longest bar has the full width.
pub fn bars(title: &str, unit: &str, bars: &[(String, f64, Option<f64>)]) -> String {
    let most = bars.iter().flat_map(|(_, value, mark)| [Some(*value), *mark]).flatten().fold(0.0, f64::max).max(1e-12);
    let height = BARS_TOP + 34.0 * bars.len() as f64 + 8.0;
    let mut svg = opened(title, height);
    for (number, (name, value, mark)) in bars.iter().enumerate() {
        let top = BARS_TOP + 34.0 * number as f64 + 12.0;
        let long = |value: f64| (WIDTH - 2.0 * RIGHT) * (value.max(0.0) / most);
        let _ = write!(
            svg,
            "<text x=\"{RIGHT}\" y=\"{top}\">{}</text><text class=\"end\" x=\"{}\" y=\"{top}\">{} {}</text>\
             <rect class=\"s0\" x=\"{RIGHT}\" y=\"{}\" width=\"{:.1}\" height=\"10\"/>",
            escape(name),
            WIDTH - RIGHT,
            short(*value),
            escape(unit),
            top + 5.0,
            long(*value)
        );
        if let Some(mark) = mark {
            let at = RIGHT + long(*mark);
            let _ = write!(
                svg,
                "<line class=\"mark\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{}\" y2=\"{}\"/>",
                top + 2.0,
                top + 18.0
            );
        }
    }
    svg.push_str("</svg>");
    svg
}

fn opened(title: &str, height: f64) -> String {
    let title = escape(title);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\
         <text class=\"title\" x=\"{RIGHT}\" y=\"15\">{title}</text>"
    )
}

fn frame(title: &str, x: &Axis, y: &Axis, across: &Range, up: &Range) -> String {
    let mut svg = opened(title, HEIGHT);
    for tick in up.ticks() {
        let top = up.place(tick, HEIGHT - BOTTOM, TOP);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{top:.1}\" y2=\"{top:.1}\"/>\
             <text class=\"end\" x=\"{}\" y=\"{:.1}\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 5.0,
            top + 4.0,
            up.label(tick)
        );
    }
    for tick in across.ticks() {
        let left = across.place(tick, LEFT, WIDTH - RIGHT);
        let _ = write!(
            svg,
            "<text class=\"middle\" x=\"{left:.1}\" y=\"{}\">{}</text>",
            HEIGHT - BOTTOM + 14.0,
            across.label(tick)
        );
    }
    let _ = write!(
        svg,
        "<text class=\"middle dim\" x=\"{}\" y=\"{}\">{}</text><text class=\"dim\" x=\"{RIGHT}\" y=\"30\">{}</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 5.0,
        escape(&x.title),
        escape(&y.title)
    );
    svg
}

struct Range {
    scale: Scale,
    least: f64,
    most: f64,
}

impl Range {
    fn of(scale: Scale, values: impl Iterator<Item = f64>) -> Range {
        let usable = |value: &f64| value.is_finite() && (scale != Scale::Logarithmic || *value > 0.0);
        let (least, most) = values
            .filter(usable)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)));
        match scale {
            _ if least > most => Range { scale, least: 0.0, most: 1.0 },
            Scale::Clock => Range { scale, least: 0.0, most: 86_400.0 },
            Scale::Logarithmic => Range {
                scale,
                least: least.log10().floor(),
                most: most.log10().ceil().max(least.log10().floor() + 1.0),
            },
            Scale::Linear if most - least < 1e-12 => {
                Range { scale, least: least.min(0.0), most: most.max(least.min(0.0) + 1.0) }
            }
            Scale::Linear => Range { scale, least, most },
        }
    }

    fn place(&self, value: f64, from: f64, to: f64) -> f64 {
        let value = if self.scale == Scale::Logarithmic { value.max(1e-12).log10() } else { value };
        let part = ((value - self.least) / (self.most - self.least)).clamp(0.0, 1.0);
        from + (to - from) * part
    }

    fn ticks(&self) -> Vec<f64> {
        let steps = |step: f64| {
            let first = (self.least / step).ceil() as i64;
            let last = (self.most / step + 1e-9).floor() as i64;
            (first..=last).map(move |number| number as f64 * step).collect::<Vec<f64>>()
        };
        match self.scale {
            Scale::Clock => steps(14_400.0),
            Scale::Logarithmic => steps(((self.most - self.least) / 6.0).ceil().max(1.0))
                .into_iter()
                .map(|power| 10_f64.powf(power))
                .collect(),
            Scale::Linear => {
                let rough = (self.most - self.least) / 4.0;
                let power = 10_f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power).into_iter().find(|step| *step >= rough);
                steps(step.unwrap_or(rough))
            }
        }
    }

    fn label(&self, value: f64) -> String {
        match self.scale {
            Scale::Clock => format!("{:02}:00", (value / 3_600.0) as u32),
            _ => short(value),
        }
    }
}

/// Formats a number in few characters: `1.2k`, `35M`, `0.004`.
pub fn short(value: f64) -> String {
    let size = value.abs();
    let digits = |value: f64, unit: &str| {
        let text = if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") };
        format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text))
    };
    match size {
        0.0 => "0".to_owned(),
        _ if size >= 1e9 => digits(value / 1e9, "G"),
        _ if size >= 1e6 => digits(value / 1e6, "M"),
        _ if size >= 1e4 => digits(value / 1e3, "k"),
        _ if size >= 10.0 => digits(value, ""),
        _ if size >= 0.0001 => {
            let text = format!("{value:.4}");
            let significant = if size >= 1.0 { format!("{value:.2}") } else { text };
            significant.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        _ => format!("{value:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let check = |value: f64, expected: &str| assert_eq!(short(value), expected);
        check(0.0, "0");
        check(0.0042, "0.0042");
        check(0.5, "0.5");
        check(2.71234, "2.71");
        check(42.0, "42");
        check(1_234.5, "1234");
        check(360_000.0, "360k");
        check(20_000_000.0, "20M");
    }

    #[test]
    fn charts_stay_inside_their_frame_and_are_valid() {
        let axis = |title: &str, scale| Axis { title: title.to_owned(), scale };
        let curve = Curve { name: "<script>".to_owned(), points: vec![(1.0, 0.0), (10.0, f64::NAN), (1e6, 5e9)] };
        let svg = curves("a & b", &axis("x", Scale::Logarithmic), &axis("y", Scale::Linear), &[curve.clone(), curve]);
        assert!(svg.contains("a &amp; b") && svg.contains("&lt;script&gt;") && !svg.contains("<script"), "{svg}");
        let none = curves("none", &axis("x", Scale::Clock), &axis("y", Scale::Linear), &[]);
        assert!(none.ends_with("</svg>") && !none.contains("NaN"), "{none}");
    }
}
