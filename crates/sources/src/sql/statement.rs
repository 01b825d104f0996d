//! Statements of an operator, with one parameter.

use tocsin_model::problem::{Code, Problem};

/// The placeholder of the parameter in a statement.
pub(crate) const PARAMETER: &str = ":mark";

/// The problem of a query without the required parameter.
pub(crate) fn statement_problem(option: &str, statement: &str) -> Option<Problem> {
    let problem =
        Problem::new(Code::Required, option, format!("has no `{PARAMETER}`, so it would always return the same rows"));
    (pieces(statement).len() < 2)
        .then(|| problem.hint(format!("such as `SELECT ... WHERE id > {PARAMETER} ORDER BY id`")))
}

/// The pieces of a statement between its parameters. Texts, quoted names and comments contain no parameters, nor do
/// longer words.
fn pieces(statement: &str) -> Vec<&str> {
    let (mut pieces, mut from, mut at) = (Vec::new(), 0, 0);
    while let Some(first) = statement.as_bytes().get(at) {
        let rest = &statement[at..];
        let end = |of: &str| rest[1..].find(of).map_or(rest.len(), |found| 1 + found + of.len());
        at += match first {
            b'\'' => end("'"),
            b'"' => end("\""),
            b'`' => end("`"),
            b'-' if rest.starts_with("--") => end("\n"),
            b'/' if rest.starts_with("/*") => rest[2..].find("*/").map_or(rest.len(), |found| found + 4),
            b'$' => dollar_quoted(rest).unwrap_or(1),
            // A PostgreSQL cast, to a type of this name.
            b':' if rest.starts_with("::") => 2,
            b':' if rest.starts_with(PARAMETER) => {
                let is_longer = rest[PARAMETER.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
                if !is_longer {
                    pieces.push(&statement[from..at]);
                    from = at + PARAMETER.len();
                }
                PARAMETER.len()
            }
            _ => rest.chars().next().map_or(1, char::len_utf8),
        };
    }
    pieces.push(&statement[from..]);
    // Databases differ in the escaping of quotes, so if there is no other parameter, quoted ones count.
    if pieces.len() < 2 { statement.split(PARAMETER).collect() } else { pieces }
}

/// The length of the dollar-quoted text of PostgreSQL that `text` begins with: `$$…$$`, `$tag$…$tag$`.
fn dollar_quoted(text: &str) -> Option<usize> {
    let tag = text[1..].find(|c: char| !c.is_alphanumeric() && c != '_')? + 1;
    let delimiter = text.get(..=tag).filter(|delimiter| delimiter.ends_with('$'))?;
    let end = text[delimiter.len()..].find(delimiter)?;
    Some(end + 2 * delimiter.len())
}

/// Replaces each parameter by the placeholder of a database; returns their number.
pub(super) fn with_parameters(statement: &str, write: impl Fn(usize) -> String) -> (String, usize) {
    let mut pieces = pieces(statement).into_iter();
    let mut text = pieces.next().unwrap_or_default().to_owned();
    let mut count = 0;
    for piece in pieces {
        count += 1;
        text.push_str(&write(count));
        text.push_str(piece);
    }
    (text, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_use_the_placeholders_of_the_database() {
        let statement = "SELECT :mark, x FROM y WHERE id > :mark";
        assert_eq!(with_parameters(statement, |_| "$1".into()).0, "SELECT $1, x FROM y WHERE id > $1");
        assert_eq!(with_parameters(statement, |_| "?".into()), ("SELECT ?, x FROM y WHERE id > ?".into(), 2));
        let statement = "SELECT ':mark', \":mark\", é::mark, :marker -- :mark\n FROM y /* :mark */ WHERE id>:mark";
        let expected = "SELECT ':mark', \":mark\", é::mark, :marker -- :mark\n FROM y /* :mark */ WHERE id>$1";
        assert_eq!(with_parameters(statement, |_| "$1".into()), (expected.into(), 1));
        for kept in ["$$ :mark $$", "$a$ :mark $$ :mark $a$", "/*/ :mark */"] {
            let statement = format!("SELECT {kept} WHERE id > :mark AND price > $1");
            let expected = format!("SELECT {kept} WHERE id > ? AND price > $1");
            assert_eq!(with_parameters(&statement, |_| "?".into()), (expected, 1), "{kept}");
        }
        assert_eq!(with_parameters(r"WHERE x = '\'' AND id > :mark", |_| "?".into()).1, 1);
    }
}
