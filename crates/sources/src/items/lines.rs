use std::io::BufRead as _;

use tocsin_model::problem::Problem;

use super::{
    item::{Item, PositionedItem},
    text::{LineError, Text, line_number, read_line, too_long, unreadable},
};

/// One JSON value per line; empty lines are skipped.
pub(super) struct Lines {
    text: Text,
    bytes_max: usize,
    line: u64,
    ended: bool,
}

impl Lines {
    pub fn new(text: Text, bytes_max: usize) -> Lines {
        Lines { text, bytes_max, line: 0, ended: false }
    }
}

impl Iterator for Lines {
    type Item = Result<PositionedItem, Problem>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut bytes = Vec::new();
        while !self.ended {
            self.line += 1;
            let line = line_number(self.line);
            match read_line(&mut self.text, &mut bytes, self.bytes_max) {
                Ok(true) => {}
                Ok(false) => break,
                Err(LineError::TooLong) => {
                    // The rest of the line is skipped, so that further lines can be read.
                    let text = std::mem::take(&mut bytes);
                    if let Err(error) = self.text.skip_until(b'\n') {
                        self.ended = true;
                        return Some(Err(Problem { line, ..unreadable(&error) }));
                    }
                    let problem = Problem { line, ..too_long(self.bytes_max) };
                    return Some(Ok(PositionedItem { line, item: Item::Unreadable { problem, text } }));
                }
                Err(LineError::Broken(problem)) => {
                    self.ended = true;
                    return Some(Err(Problem { line, ..problem }));
                }
            }
            let bare = bytes.trim_ascii();
            if !bare.is_empty() {
                return Some(Ok(PositionedItem { line, item: Item::Json(bare.to_vec()) }));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Format, Layout, layout, of_text};
    use super::*;

    #[test]
    fn lines_are_items() {
        let text = b"\xef\xbb\xbf{\"a\":1}\r\n\n  \n{\"a\":2}";
        let found: Vec<_> = of_text(&layout(Format::Ndjson, ""), text).into_iter().map(Result::unwrap).collect();
        let expected = [(1, "{\"a\":1}"), (4, "{\"a\":2}")];
        let expected = expected.map(|(line, text)| PositionedItem { line: Some(line), item: Item::Json(text.into()) });
        assert_eq!(found, expected);
    }

    #[test]
    fn d_a_long_line_is_an_item_that_cannot_be_read_and_others_follow() {
        let layout = Layout { item_bytes_max: 5, ..layout(Format::Ndjson, "") };
        let found = of_text(&layout, b"[1]\n[1,2,3]\n[1]");
        let Some(Ok(PositionedItem { item: Item::Unreadable { problem, .. }, .. })) = found.get(1) else {
            panic!("{found:?}");
        };
        assert_eq!(problem.to_string(), "2: is longer than 5 bytes; `item_bytes_max` can be raised");
        assert_eq!(found[2], Ok(PositionedItem { line: Some(3), item: Item::Json(b"[1]".to_vec()) }));
    }
}
