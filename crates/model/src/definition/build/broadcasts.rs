//! Names that broadcasts reserve.

use crate::{
    broadcast::broadcast_source,
    definition::{
        build::builder::Builder,
        document::{Node, join},
        shape::shown,
    },
    id::BroadcastId,
    problem::{Code, Problem},
};

impl Builder<'_> {
    /// Checks that no rule has the name of a broadcast's rule, and no source that of the source of broadcasts.
    pub(super) fn check_broadcast_names(&mut self) {
        let entries = |section: &str| self.root.get(section).map_or(&[][..], Node::entries).iter();
        let source = broadcast_source();
        let rules = entries("rules").filter(|entry| entry.key.parse::<BroadcastId>().is_ok());
        let rules = rules.map(|entry| ("rules", entry, "has the form of the rules of broadcasts"));
        let sources = entries("sources").filter(|entry| entry.key == source.as_str());
        let sources = sources.map(|entry| ("sources", entry, "is the source of broadcasts"));
        let found: Vec<Problem> = rules
            .chain(sources)
            .map(|(section, entry, message)| {
                let problem = Problem::new(Code::ReservedName, join(section, &shown(&entry.key)), message);
                problem.hint("choose another name").position(entry.line, entry.column)
            })
            .collect();
        self.problems.extend(found);
    }
}
