//! What is wrong with a program as options name it.

use std::collections::BTreeMap;

use tocsin_model::problem::Problem;

/// Everything that is wrong with a program as options name it: by its whole path, with arguments and variables. `example` is
/// one that would be right.
pub fn problems(command: &[String], environment: &BTreeMap<String, String>, example: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    match command.first() {
        None => problems.push(
            Problem::at("command", "the program is missing").hint(format!("give it and its arguments: `[{example}]`")),
        ),
        Some(program) if !program.starts_with('/') => {
            let example = example.split(',').next().unwrap_or(example);
            let text = format!("the program is given by its whole path, such as `{example}`");
            problems.push(Problem::at("command[0]", text));
        }
        Some(_) => {}
    }
    for (number, argument) in command.iter().enumerate() {
        if argument.contains('\0') {
            problems.push(Problem::at(format!("command[{number}]"), "an argument cannot hold a NUL"));
        }
    }
    for (name, value) in environment {
        let path = format!("environment.{name}");
        if name.is_empty() || name.contains(['=', '\0']) {
            problems.push(Problem::at(path, "this is not the name of a variable"));
        } else if value.contains('\0') {
            problems.push(Problem::at(path, "a variable cannot hold a NUL"));
        }
    }
    problems
}
