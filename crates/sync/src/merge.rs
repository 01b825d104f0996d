//! Three-way merge of texts, word by word. Changes of both sides are kept; where both changed the same words, the words
//! of both appear, the server's first.

/// Maximum word pairs compared for one text; longer changes are not merged.
const PAIRS_MAX: u64 = 4_000_000;
/// Maximum word pairs compared for all texts of a block of edits: a few seconds of one processor.
pub(crate) const PAIRS_OF_BLOCK_MAX: u64 = 600_000_000;

/// Merges the changes of both sides. `None` if the changes are too long to compare, or exceed `pairs`, the remaining
/// work of the block.
pub(crate) fn merge(base: &str, server: &str, client: &str, pairs: &mut u64) -> Option<String> {
    if client == base || client == server {
        return Some(server.to_owned());
    }
    if server == base {
        return Some(client.to_owned());
    }
    let (base, server, client) = (words(base), words(server), words(client));
    let cost = Changes::cost(&base, &server).max(Changes::cost(&base, &client));
    if cost > PAIRS_MAX || 2 * cost > *pairs {
        return None;
    }
    *pairs -= 2 * cost;
    let (theirs, ours) = (Changes::of(&base, &server), Changes::of(&base, &client));
    let mut merged = String::new();
    for at in 0..=base.len() {
        let (before, after) = (&theirs.inserted[at], &ours.inserted[at]);
        merged.extend(before.iter().copied());
        merged.extend(after.iter().filter(|_| before != after).copied());
        if let Some(word) = base.get(at).filter(|_| theirs.keeps[at] && ours.keeps[at]) {
            merged.push_str(word);
        }
    }
    Some(merged)
}

/// Changes of an edit to a text.
struct Changes<'a> {
    /// Whether each word is kept.
    keeps: Vec<bool>,
    /// Words inserted before each word, and at the end.
    inserted: Vec<&'a [&'a str]>,
}

impl<'a> Changes<'a> {
    /// Word pairs to compare for an edit. Common prefixes and suffixes cost nothing.
    fn cost(base: &[&str], edited: &[&str]) -> u64 {
        let (front, back) = common_affixes(base, edited);
        (base.len() - front - back) as u64 * (edited.len() - front - back) as u64
    }

    fn of(base: &[&str], edited: &'a [&'a str]) -> Changes<'a> {
        let mut changes = Changes { keeps: vec![false; base.len()], inserted: vec![&[]; base.len() + 1] };
        let (front, back) = common_affixes(base, edited);
        let (base_end, edited_end) = (base.len() - back, edited.len() - back);
        let middle = common(&base[front..base_end], &edited[front..edited_end]);
        let places = (0..front)
            .map(Some)
            .chain(middle.into_iter().map(|there| there.map(|there| front + there)))
            .chain((edited_end..edited.len()).map(Some));
        // Replacement words precede the first word that they replace.
        let (mut gap, mut from) = (0, 0);
        for (at, there) in places.enumerate() {
            let Some(there) = there else { continue };
            changes.inserted[gap] = &edited[from..there];
            changes.keeps[at] = true;
            (gap, from) = (at + 1, there + 1);
        }
        changes.inserted[gap] = &edited[from..];
        changes
    }
}

/// Lengths of the common prefix and suffix, in words.
fn common_affixes(one: &[&str], other: &[&str]) -> (usize, usize) {
    let front = one.iter().zip(other).take_while(|(one, other)| one == other).count();
    let back =
        one[front..].iter().rev().zip(other[front..].iter().rev()).take_while(|(one, other)| one == other).count();
    (front, back)
}

/// Splits a text into words, with their trailing white space.
fn words(text: &str) -> Vec<&str> {
    text.split_inclusive(char::is_whitespace).collect()
}

/// Position of each word in another text, by the longest common subsequence.
fn common(base: &[&str], other: &[&str]) -> Vec<Option<usize>> {
    let width = other.len() + 1;
    let mut longest = vec![0_u32; (base.len() + 1) * width];
    for at in (0..base.len()).rev() {
        for there in (0..other.len()).rev() {
            longest[at * width + there] = if base[at] == other[there] {
                longest[(at + 1) * width + there + 1] + 1
            } else {
                longest[(at + 1) * width + there].max(longest[at * width + there + 1])
            };
        }
    }
    let mut found = vec![None; base.len()];
    let (mut at, mut there) = (0, 0);
    while at < base.len() && there < other.len() {
        if base[at] == other[there] {
            found[at] = Some(there);
            (at, there) = (at + 1, there + 1);
        } else if longest[(at + 1) * width + there] >= longest[at * width + there + 1] {
            at += 1;
        } else {
            there += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_both_sides_are_kept() {
        let check = |base, server, client, expected: &str| {
            let merged = merge(base, server, client, &mut 1_000);
            assert_eq!(merged.as_deref(), Some(expected), "{base} | {server} | {client}");
        };
        check("call ann today", "call bob today", "call ann tomorrow", "call bob tomorrow");
        check("call ann", "call ann", "call ann now", "call ann now");
        check("call ann", "call ann now", "call ann", "call ann now");
        check("one two three", "two three", "one two ", "two ");
        check("a b", "a x b", "a y b", "a x y b");
        check("", "left", "right", "leftright");
        check("a b c", "a B c", "a B c", "a B c");
    }

    #[test]
    fn a13_merge_work_is_bounded() {
        let text = |word: &str, count: usize| (0..count).map(|at| format!("{word}{at} ")).collect::<String>();
        let (base, server, client) = (text("a", 3_000), text("b", 3_000), text("c", 3_000));
        let mut unbounded = u64::MAX;
        assert_eq!(merge(&base, &server, &client, &mut unbounded), None);
        // A small change of a long text costs only the change.
        let (server, client) = (format!("first {base}"), format!("{base}last"));
        let mut pairs = 10;
        assert_eq!(merge(&base, &server, &client, &mut pairs), Some(format!("first {base}last")));
        assert_eq!(merge("a b", "x y", "v w", &mut 7), None);
    }
}
