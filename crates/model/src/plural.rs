//! Number agreement in English sentences.

/// The singular form for 1, else the plural form: `plural(2, "message waits", "messages wait")`.
pub fn plural<'a>(count: u64, one: &'a str, many: &'a str) -> &'a str {
    if count == 1 { one } else { many }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_is_singular() {
        assert_eq!([0, 1, 2].map(|count| plural(count, "batch", "batches")), ["batches", "batch", "batches"]);
    }
}
