//! Topic filters of MQTT 5 (section 4.7): matching and coverage.

use crate::seen_items::hash;

/// A subscription to a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subscription {
    /// The filter as configured, with `$share/GROUP/` if it is shared.
    pub filter: String,
    /// The subscription identifier, the same after a restart.
    pub id: usize,
}

impl Subscription {
    /// Subscriptions to these filters, without those covered by another one: a broker may send a message once for each.
    pub fn of(filters: &[String]) -> Vec<Subscription> {
        let is_covered = |(at, filter): (usize, &String)| {
            let others = filters.iter().enumerate().filter(|(other, _)| *other != at);
            // Of duplicates the first is kept.
            others.into_iter().any(|(other, wider)| match wider == filter {
                true => other < at,
                false => !is_shared(filter) && !is_shared(wider) && covers(wider, filter),
            })
        };
        let own = filters.iter().enumerate().filter(|(at, filter)| !is_covered((*at, filter)));
        own.map(|(_, filter)| Subscription { filter: filter.clone(), id: id_of(filter) }).collect()
    }

    /// Whether it is a shared subscription.
    pub fn is_shared(&self) -> bool {
        is_shared(&self.filter)
    }

    /// Whether it matches a topic.
    pub fn matches(&self, topic: &str) -> bool {
        matches(bare(&self.filter), topic)
    }
}

/// An identifier from 1 to 268,435,455, derived from the filter.
fn id_of(filter: &str) -> usize {
    let digits = hash(&[filter.as_bytes()]);
    usize::from_str_radix(&digits[..7], 16).unwrap_or_default().max(1)
}

fn is_shared(filter: &str) -> bool {
    filter.starts_with("$share/")
}

/// The filter without its share group.
fn bare(filter: &str) -> &str {
    match filter.strip_prefix("$share/") {
        Some(rest) => rest.split_once('/').map_or("", |(_, filter)| filter),
        None => filter,
    }
}

fn matches(filter: &str, topic: &str) -> bool {
    // Wildcards do not match topics of the server itself (`$`).
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let (mut filter, mut topic) = (filter.split('/'), topic.split('/'));
    loop {
        match (filter.next(), topic.next()) {
            (Some("#"), _) | (None, None) => return true,
            (Some("+"), Some(_)) => {}
            (Some(requested), Some(level)) if requested == level => {}
            _ => return false,
        }
    }
}

/// Whether the wider filter matches all topics of the other one.
fn covers(wider: &str, filter: &str) -> bool {
    if filter.starts_with('$') && wider.starts_with(['+', '#']) {
        return false;
    }
    let (mut wider, mut filter) = (wider.split('/'), filter.split('/'));
    loop {
        match (wider.next(), filter.next()) {
            (Some("#"), _) | (None, None) => return true,
            (Some("+"), Some(level)) if level != "#" => {}
            (Some(requested), Some(level)) if requested == level => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d_filters_match_topics_as_in_the_standard() {
        for (filter, topic) in [
            ("a/b", "a/b"),
            ("a/#", "a"),
            ("a/#", "a/b/c"),
            ("#", "/a"),
            ("+", "a"),
            ("+/+", "/a"),
            ("/+", "/a"),
            ("a/+/c", "a//c"),
            ("$SYS/#", "$SYS/broker"),
        ] {
            assert!(matches(filter, topic), "{filter} {topic}");
        }
        for (filter, topic) in
            [("a/b", "a"), ("a/+", "a"), ("a/+", "a/b/c"), ("+", "/a"), ("#", "$SYS/x"), ("+/x", "$SYS/x"), ("a", "A")]
        {
            assert!(!matches(filter, topic), "{filter} {topic}");
        }
    }

    #[test]
    fn d_covered_filters_are_left_out() {
        let check = |given: &[&str], expected: &[&str]| {
            let given: Vec<String> = given.iter().map(|filter| (*filter).to_owned()).collect();
            let own = Subscription::of(&given);
            assert_eq!(own.iter().map(|one| one.filter.as_str()).collect::<Vec<_>>(), expected);
        };
        check(&["a/b", "a/#", "a/+"], &["a/#"]);
        check(&["a", "a", "b"], &["a", "b"]);
        check(&["a/+", "+/b"], &["a/+", "+/b"]);
        check(&["a/+", "a/#"], &["a/#"]);
        check(&["a/+/c", "a/#", "#", "$SYS/#"], &["#", "$SYS/#"]);
        check(&["$share/g/a/#", "a/b", "a/#"], &["$share/g/a/#", "a/#"]);
        check(&["a/#", "a"], &["a/#"]);
    }
}
