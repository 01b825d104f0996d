//! The module graph of the crate: a file uses only files above it in the map of `lib.rs`, so there are no circles.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The code of a file without comments, texts and tests; and the names of its test modules.
fn code(text: &str) -> (String, BTreeSet<String>) {
    let (mut code, mut tests) = (String::new(), BTreeSet::new());
    let mut lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            code.push_str(line);
            code.push('\n');
            continue;
        }
        // An inline test module is the rest of the file; any other item ends with its line.
        let item = lines.next().unwrap_or_default().trim();
        match item.strip_prefix("mod ") {
            Some(name) if name.contains('{') => break,
            Some(name) => drop(tests.insert(name.trim_end_matches(';').to_owned())),
            None => {}
        }
    }
    let code = code.split('"').step_by(2).collect::<Vec<_>>().join("\"\"");
    (code, tests)
}

/// The modules that a path starts with: `a` of `a::B`, `a` and `c` of `{a::B, c}`.
fn first_names(path: &str) -> Vec<String> {
    let is_name = |character: char| character.is_alphanumeric() || character == '_';
    let Some(group) = path.strip_prefix('{') else {
        return vec![path.chars().take_while(|character| is_name(*character)).collect()];
    };
    let (mut names, mut depth, mut name, mut is_first) = (Vec::new(), 1, String::new(), true);
    for character in group.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => is_first = true,
            character if depth == 1 && is_first && is_name(character) => {
                name.push(character);
                continue;
            }
            _ => {}
        }
        if !name.is_empty() {
            names.push(std::mem::take(&mut name));
            is_first = character == ',';
        }
        if depth == 0 {
            break;
        }
    }
    names
}

/// The modules of the crate that a code uses.
fn used(code: &str) -> BTreeSet<String> {
    code.split("crate::").skip(1).flat_map(first_names).collect()
}

/// The modules in the order of the map.
fn declared(code: &str) -> Vec<String> {
    let declared = code.lines().filter_map(|line| {
        let line = line.trim();
        let line = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub ")).unwrap_or(line);
        line.strip_prefix("mod ")?.trim().strip_suffix(';').map(str::to_owned)
    });
    declared.collect()
}

/// A module's files, with those of its folder.
fn files(module: &str) -> Vec<PathBuf> {
    let file = sources().join(format!("{module}.rs"));
    let (_, tests) = code(&read(&file));
    let mut files = vec![file];
    if let Ok(folder) = fs::read_dir(sources().join(module)) {
        let found = folder.map(|entry| entry.expect("an entry").path());
        let is_test = |path: &PathBuf| path.file_stem().is_some_and(|name| tests.contains(&*name.to_string_lossy()));
        files.extend(found.filter(|path| path.extension().is_some_and(|ending| ending == "rs") && !is_test(path)));
    }
    files
}

#[test]
fn a_file_uses_only_files_above_it_in_the_map() {
    let (map, _) = code(&read(&sources().join("lib.rs")));
    let order = declared(&map);
    assert!(order.len() > 30, "{order:?}");
    let mut wrong = Vec::new();
    let mut arrows = 0;
    for (at, module) in order.iter().enumerate() {
        for file in files(module) {
            let shown = file.strip_prefix(sources()).expect("it is below").display().to_string();
            let (code, _) = code(&read(&file));
            if code.contains("super::") {
                wrong.push(format!("{shown} uses its parent; name the module with `crate::`"));
            }
            for name in used(&code).into_iter().filter(|name| name != module) {
                arrows += 1;
                match order.iter().position(|known| *known == name) {
                    Some(above) if above < at => {}
                    Some(_) => wrong.push(format!("{shown} uses `{name}`, which is below it")),
                    None => wrong.push(format!("{shown} uses `crate::{name}`, which is no module of the map")),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(arrows > 100, "{arrows} uses are too few: the files are not read");
}

#[test]
fn every_file_is_in_the_map() {
    let (map, tests) = code(&read(&sources().join("lib.rs")));
    let known: BTreeSet<String> = declared(&map).into_iter().chain(tests).chain(["lib".to_owned()]).collect();
    let files = fs::read_dir(sources()).expect("the sources").map(|entry| entry.expect("an entry").path());
    let names = files.filter(|path| path.is_file()).map(|path| path.file_stem().expect("a name").to_owned());
    let unknown: Vec<String> =
        names.map(|name| name.to_string_lossy().into_owned()).filter(|name| !known.contains(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn uses_are_found_in_every_form() {
    let check = |code: &str, expected: &[&str]| {
        assert_eq!(used(code).into_iter().collect::<Vec<_>>(), expected, "{code}");
    };
    check("use crate::core::Core;", &["core"]);
    check("use crate::{\n    alarm::Alarm,\n    flow::{self, Flow},\n    send,\n};", &["alarm", "flow", "send"]);
    check("pub use crate::{message::IncomingMessage, replies::ReplyStatus};", &["message", "replies"]);
    check("fn f(core: &crate::core::Core) -> crate::flow::Flow { }", &["core", "flow"]);
    let (code, tests) =
        code("// crate::a\nlet a = \"crate::b\";\n#[cfg(test)]\nmod model;\n#[cfg(test)]\nmod tests { crate::c }");
    assert!(used(&code).is_empty(), "{code}");
    assert_eq!(tests.into_iter().collect::<Vec<_>>(), ["model"]);
}
