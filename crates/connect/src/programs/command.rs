//! Checks a program in options.

use std::collections::BTreeMap;

use tocsin_model::problem::{Code, Problem};

/// Environment variables that change the code or settings of a program (loaders, interpreters). A trailing `*` makes
/// the name a prefix.
const REFUSED_VARIABLES: [&str; 44] = [
    "PATH",
    "IFS",
    "ENV",
    "BASH_*",
    "SHELLOPTS",
    "BASHOPTS",
    "PS4",
    "CDPATH",
    "ZDOTDIR",
    "FPATH",
    "LD_*",
    "DYLD_*",
    "_RLD*",
    "LIBPATH",
    "SHLIB_PATH",
    "GLIBC_TUNABLES",
    "MALLOC_*",
    "GCONV_PATH",
    "LOCPATH",
    "NLSPATH",
    "HOSTALIASES",
    "RESOLV_*",
    "PYTHON*",
    "PERL*",
    "RUBY*",
    "GEM_*",
    "BUNDLE_*",
    "NODE_*",
    "NPM_*",
    "PHP*",
    "LUA_*",
    "JAVA_*",
    "_JAVA_*",
    "JDK_*",
    "CLASSPATH",
    "DOTNET_*",
    "CORECLR_*",
    "COR_*",
    "GIT_*",
    "OPENSSL_*",
    "SSLKEYLOGFILE",
    "TCL*",
    "XDG_*",
    "EDITOR",
];

/// Every problem of a program: its absolute path, its arguments and variables. `example` is a valid command.
pub fn problems(command: &[String], environment: &BTreeMap<String, String>, example: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    match command.first() {
        None => problems.push(
            Problem::new(Code::Required, "command", "the program is missing")
                .hint(format!("give it and its arguments: `[{example}]`")),
        ),
        Some(program) if !program.starts_with('/') => {
            let example = example.split(',').next().unwrap_or(example);
            let text = format!("the program is given by its whole path, such as `{example}`");
            problems.push(Problem::new(Code::InvalidFormat, "command[0]", text).param("format", "path"));
        }
        Some(_) => {}
    }
    for (number, argument) in command.iter().enumerate() {
        if argument.contains('\0') {
            problems.push(Problem::new(
                Code::InvalidCharacters,
                format!("command[{number}]"),
                "an argument cannot hold a NUL",
            ));
        }
    }
    for (name, value) in environment {
        let path = format!("environment.{name}");
        if name.is_empty() || name.contains(['=', '\0']) {
            problems.push(
                Problem::new(Code::InvalidFormat, path, "this is not the name of a variable")
                    .param("format", "variable_name"),
            );
        } else if is_refused(name) {
            let text = format!("`{name}` can have the program run other code, so a definition cannot set it");
            problems.push(
                Problem::new(Code::NotAllowed, path, text).hint("set it in a program of your own that starts this one"),
            );
        } else if value.contains('\0') {
            problems.push(Problem::new(Code::InvalidCharacters, path, "a variable cannot hold a NUL"));
        }
    }
    problems
}

/// Whether a definition must not set a variable: any holder of a key could choose the code that an allowed program
/// runs.
fn is_refused(name: &str) -> bool {
    REFUSED_VARIABLES.iter().any(|refused| match refused.strip_suffix('*') {
        Some(start) => name.get(..start.len()).is_some_and(|found| found.eq_ignore_ascii_case(start)),
        None => name.eq_ignore_ascii_case(refused),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_choose_the_code_of_a_program_are_refused() {
        let command = ["/usr/local/bin/send-sms".to_owned()];
        let problems_of = |name: &str| {
            let environment = BTreeMap::from([(name.to_owned(), "/srv/data".to_owned())]);
            problems(&command, &environment, "/usr/local/bin/send-sms")
        };
        for name in ["LD_PRELOAD", "ld_preload", "PYTHONPATH", "BASH_ENV", "PERL5OPT", "NODE_OPTIONS", "PATH", "IFS"] {
            let problems = problems_of(name);
            assert_eq!(problems.len(), 1, "{name}");
            assert_eq!(problems[0].path, format!("environment.{name}"));
        }
        for name in ["SMS_ACCOUNT", "COLOUR", "LANG", "TZ", "PATHWAY", "OLD_LD", "ü"] {
            assert!(problems_of(name).is_empty(), "{name}");
        }
    }
}
