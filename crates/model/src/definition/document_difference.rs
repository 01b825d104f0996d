//! Difference of two documents by their paths, for definitions of any kind.
//!
//! Values are not shown, because they may be secrets.

use super::{
    difference::{Difference, DifferenceKind},
    document::{Kind, Node, join, parse},
};

/// Depth of the paths of changed values.
const DEPTH_MAX: usize = 4;
/// Depth of the paths of what is added or removed: a section and a name in it.
const PART_DEPTH: usize = 2;

/// Parts that `new` adds, changes or removes, in the order of `new`; removed ones follow their section. A text that
/// cannot be parsed counts as empty.
pub fn document_difference(old: &str, new: &str) -> Vec<Difference> {
    let [old, new] = [old, new].map(|text| parse(text, &mut Vec::new()));
    let mut found = Vec::new();
    differ(old.as_ref(), new.as_ref(), "", 0, &mut found);
    found
}

fn differ(old: Option<&Node>, new: Option<&Node>, path: &str, depth: usize, found: &mut Vec<Difference>) {
    let [old, new] = [old, new].map(|node| node.filter(|node| node.kind != Kind::Null));
    let is_map = |node: Option<&Node>| node.is_none_or(|node| matches!(node.kind, Kind::Map(_)));
    let deepest = if old.is_some() && new.is_some() { DEPTH_MAX } else { PART_DEPTH };
    let both_maps = is_map(old) && is_map(new);
    if depth < deepest && both_maps && (depth == 0 || has_entries(old) || has_entries(new)) {
        for entry in new.map_or(&[][..], Node::entries) {
            let before = old.and_then(|old| old.get(&entry.key));
            differ(before, Some(&entry.value), &join(path, &entry.key), depth + 1, found);
        }
        for entry in old.map_or(&[][..], Node::entries) {
            // A key without a value was compared above.
            if !new.map_or(&[][..], Node::entries).iter().any(|other| other.key == entry.key) {
                differ(Some(&entry.value), None, &join(path, &entry.key), depth + 1, found);
            }
        }
        return;
    }
    let kind = match (old, new) {
        (None, None) => return,
        (None, Some(_)) => DifferenceKind::Added,
        (Some(_), None) => DifferenceKind::Removed,
        (Some(old), Some(new)) if old.value() == new.value() => return,
        (Some(_), Some(_)) => DifferenceKind::Changed,
    };
    found.push(Difference { kind, path: path.to_owned(), sentence: String::new(), drops: None });
}

fn has_entries(node: Option<&Node>) -> bool {
    node.is_some_and(|node| !node.entries().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(old: &str, new: &str, expected: &[&str]) {
        let shown = |found: Difference| {
            let mark = match found.kind {
                DifferenceKind::Added => '+',
                DifferenceKind::Changed => '~',
                DifferenceKind::Removed => '-',
            };
            format!("{mark} {}", found.path)
        };
        let found: Vec<String> = document_difference(old, new).into_iter().map(shown).collect();
        assert_eq!(found, expected, "{old:?} {new:?}");
    }

    #[test]
    fn parts_that_are_added_changed_and_removed_have_paths() {
        let old = "exchange: shop
receive: { orders: { mode: request, wait: 20s } }
send: { erp: { protocol: http, options: { url: 'http://a', headers: { x: y } } }, audit: { protocol: file } }
";
        check("", old, &["+ exchange", "+ receive.orders", "+ send.erp", "+ send.audit"]);
        check(old, "", &["- exchange", "- receive.orders", "- send.erp", "- send.audit"]);
        check(old, &format!("# a comment\n{old}"), &[]);
        let new = "exchange: shop
receive: { orders: { mode: request, wait: 30s }, returns: {} }
send: { erp: { protocol: http, options: { url: 'http://b', headers: { x: z } } } }
routes: { all: { to: erp } }
";
        let expected = [
            "~ receive.orders.wait",
            "+ receive.returns",
            "~ send.erp.options.url",
            "~ send.erp.options.headers",
            "- send.audit",
            "+ routes.all",
        ];
        check(old, new, &expected);
        check("a: { b: 1 }", "a: [1]", &["~ a"]);
        check("a: { b: 1 }", "a: { b: }\nc:", &["- a.b"]);
        check("a: [", "a: 1", &["+ a"]);
    }
}
