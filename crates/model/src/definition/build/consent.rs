//! Double opt-in of subscription classes.

use crate::{
    consent::{ConsentPolicy, NOTE_BYTES_MAX, SkipWay, TEXT_BYTES_MAX},
    definition::{
        build::{
            builder::Builder,
            nodes::{duration, integer, text},
        },
        document::{Kind, Node, join},
    },
    problem::{Code, Problem},
};

impl Builder<'_> {
    /// The policy of a subscription class, if it asks for consent.
    pub(super) fn consent(&mut self, class: &Node, path: &str) -> Option<ConsentPolicy> {
        let node = class.get("consent")?;
        let path = join(path, "consent");
        let default = ConsentPolicy::default();
        let policy = ConsentPolicy {
            expires_after: duration(node, "expires_after").unwrap_or(default.expires_after),
            resend_after: duration(node, "resend_after").unwrap_or(default.resend_after),
            attempts: integer(node, "attempts").unwrap_or(default.attempts),
            messages_per_day: integer(node, "messages_per_day").unwrap_or(default.messages_per_day),
            text: text(node, "text"),
            version: text(node, "version"),
            skip: node.get("skip").map_or(default.skip, skip_ways),
        };
        if policy.resend_after > policy.expires_after {
            let message = "is longer than `expires_after`: a request could never be sent again";
            let at = node.get("resend_after").unwrap_or(node);
            self.problems.push(
                at.problem(Code::ConflictingMembers, &join(&path, "resend_after"), message)
                    .hint("give a time below the lifetime of a request"),
            );
        }
        for (key, given, limit) in
            [("text", &policy.text, TEXT_BYTES_MAX), ("version", &policy.version, NOTE_BYTES_MAX)]
        {
            let bytes = given.as_ref().map_or(0, String::len);
            if bytes > limit {
                let at = node.get(key).unwrap_or(node);
                self.problems.push(Problem::too_long(join(&path, key), bytes, limit).position(at.line, at.column));
            }
        }
        Some(policy)
    }
}

/// The distinct ways of a list.
fn skip_ways(list: &Node) -> Vec<SkipWay> {
    let Kind::List(items) = &list.kind else { return Vec::new() };
    let mut ways = Vec::new();
    for way in items.iter().filter_map(|item| item.text()?.parse().ok()) {
        if !ways.contains(&way) {
            ways.push(way);
        }
    }
    ways
}
