use tocsin_model::problem::Problem;

use super::{Item, Placed, Text, line_number, read_line};

/// One JSON value in a line; empty lines are passed over, and so is a byte order mark.
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
    type Item = Result<Placed, Problem>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut bytes = Vec::new();
        while !self.ended {
            self.line += 1;
            let line = line_number(self.line);
            match read_line(&mut self.text, &mut bytes, self.bytes_max) {
                Ok(true) => {}
                Ok(false) => break,
                Err(problem) => {
                    self.ended = true;
                    return Some(Err(Problem { line, ..problem }));
                }
            }
            let bare = if self.line == 1 { bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes) } else { &bytes };
            let bare = bare.trim_ascii();
            if !bare.is_empty() {
                return Some(Ok(Placed { line, item: Item::Json(bare.to_vec()) }));
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
        let expected = expected.map(|(line, text)| Placed { line: Some(line), item: Item::Json(text.into()) });
        assert_eq!(found, expected);
    }

    #[test]
    fn a_long_line_ends_the_text() {
        let layout = Layout { item_bytes_max: 5, ..layout(Format::Ndjson, "") };
        let found = of_text(&layout, b"[1]\n[1,2,3]\n[1]");
        assert_eq!(found.len(), 2);
        let problem = found[1].as_ref().expect_err("too long").to_string();
        assert_eq!(problem, "2: is longer than 5 bytes; `item_bytes_max` can be raised");
    }
}
