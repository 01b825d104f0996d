//! The module graph of a crate: which source file uses items of which other file.
//!
//! An edge follows each path of a file to the file that defines the item: `pub use` declarations on the way are
//! followed, and are no use of their own. Test code, other crates and method calls have no edges.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use proc_macro2::{Delimiter, Group, Spacing, TokenStream, TokenTree};

/// Path of a module or an item, from the root of the crate.
type ItemPath = Vec<String>;

/// Source files of a crate, each with the files that it uses.
#[derive(Debug, Default)]
pub struct ModuleGraph {
    uses: BTreeMap<String, BTreeSet<String>>,
}

impl ModuleGraph {
    /// Reads the folder `src` of a crate.
    ///
    /// # Panics
    /// A file cannot be read or is not Rust.
    pub fn read(sources: &Path) -> ModuleGraph {
        let (mut files, mut folders) = (Vec::new(), vec![sources.to_owned()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                    files.push((path.strip_prefix(sources).expect("below").display().to_string(), text));
                }
            }
        }
        ModuleGraph::of(files)
    }

    /// The graph of source files: path below `src`, and text.
    ///
    /// # Panics
    /// A file is not Rust.
    pub fn of<P: Into<String>, T: AsRef<str>>(files: impl IntoIterator<Item = (P, T)>) -> ModuleGraph {
        let mut modules = BTreeMap::new();
        let files: Vec<(String, T)> = files.into_iter().map(|(path, text)| (path.into(), text)).collect();
        let has_library = files.iter().any(|(path, _)| path == "lib.rs");
        // Beside a library, `main.rs` is the root of another crate.
        for (path, text) in files.into_iter().filter(|(path, _)| !(has_library && path == "main.rs")) {
            let tokens: TokenStream = text.as_ref().parse().unwrap_or_else(|error| panic!("{path}: {error}"));
            let mut reader = Reader { file: path.clone(), modules: &mut modules };
            reader.module(module_of(&path), tokens);
        }
        Modules(modules).graph()
    }

    /// The files, each with the files that it uses.
    pub fn uses(&self) -> &BTreeMap<String, BTreeSet<String>> {
        &self.uses
    }

    /// Groups of files that use each other, directly or through others of the group (strongly connected components
    /// of at least two files), the largest first.
    pub fn circles(&self) -> Vec<BTreeSet<String>> {
        let reachable: BTreeMap<&str, BTreeSet<&str>> =
            self.uses.keys().map(|file| (file.as_str(), self.reachable(file))).collect();
        let mut circles = BTreeSet::new();
        for (file, reached) in &reachable {
            let circle = reached.iter().filter(|other| reachable[*other].contains(file));
            let circle: BTreeSet<String> = circle.map(|other| (*other).to_owned()).collect();
            if circle.len() > 1 {
                circles.insert(circle);
            }
        }
        let mut circles: Vec<_> = circles.into_iter().collect();
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }

    /// The files that a file uses, directly or through others.
    fn reachable(&self, file: &str) -> BTreeSet<&str> {
        let (mut reached, mut open) = (BTreeSet::new(), vec![file]);
        while let Some(next) = open.pop() {
            for used in &self.uses[next] {
                if reached.insert(used.as_str()) {
                    open.push(used);
                }
            }
        }
        reached
    }
}

/// The module of a file: `a/b.rs` and `a/b/mod.rs` are `a::b`, `lib.rs` is the root.
fn module_of(path: &str) -> ItemPath {
    let mut parts: ItemPath = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| ["lib", "main", "mod"].contains(&last.as_str())) {
        parts.pop();
    }
    parts
}

/// A module, of a file or inline.
#[derive(Default)]
struct Module {
    file: String,
    /// Modules declared in it.
    children: BTreeSet<String>,
    /// Modules declared in it for tests.
    test_children: BTreeSet<String>,
    /// Items defined in it.
    items: BTreeSet<String>,
    imports: Vec<Import>,
    /// Qualified paths in its code.
    paths: Vec<ItemPath>,
    /// All names in its code, but not in its imports.
    names: BTreeSet<String>,
}

/// One name of a `use` declaration.
struct Import {
    /// Name in the importing module; `*` for all names of the path.
    name: String,
    path: ItemPath,
    is_public: bool,
}

/// Reads the modules of one file.
struct Reader<'a> {
    file: String,
    modules: &'a mut BTreeMap<ItemPath, Module>,
}

impl Reader<'_> {
    fn module(&mut self, path: ItemPath, tokens: TokenStream) {
        let mut module = Module { file: self.file.clone(), ..Module::default() };
        self.items(&path, &mut module, tokens, true);
        self.modules.insert(path, module);
    }

    /// Reads a stream of tokens. `is_top`: they are items of the module.
    fn items(&mut self, path: &ItemPath, module: &mut Module, tokens: TokenStream, is_top: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let (mut at, mut is_public) = (0, false);
        while at < tokens.len() {
            if is_test_attribute(&tokens[at..]) {
                let end = at + 2 + item_length(&tokens[at + 2..]);
                if let Some(name) = declared_module(&tokens[at + 2..end]) {
                    module.test_children.insert(name);
                }
                at = end;
                continue;
            }
            match &tokens[at] {
                TokenTree::Ident(name) if name == "use" => {
                    let end = at + tokens[at..].iter().take_while(|token| !is_punct(token, ';')).count();
                    imports(&tokens[at + 1..end], Vec::new(), is_public, &mut module.imports);
                    (at, is_public) = (end, false);
                }
                TokenTree::Ident(name) if name == "mod" && is_top => {
                    let Some(child) = tokens.get(at + 1).map(ToString::to_string) else { break };
                    if let Some(TokenTree::Group(body)) = tokens.get(at + 2) {
                        self.module([path.as_slice(), std::slice::from_ref(&child)].concat(), body.stream());
                    }
                    module.children.insert(child);
                    (at, is_public) = (at + 3, false);
                }
                TokenTree::Ident(name) => {
                    let name = name.to_string();
                    is_public |= name == "pub";
                    if is_top && let (true, Some(TokenTree::Ident(item))) = (defines(&name), tokens.get(at + 1)) {
                        module.items.insert(item.to_string());
                    }
                    if is_top && let (true, Some(item)) = (name == "macro_rules", tokens.get(at + 2)) {
                        module.items.insert(item.to_string());
                    }
                    let (segments, length) = path_at(&tokens[at..]);
                    module.names.extend(segments.iter().cloned());
                    if segments.len() > 1 {
                        module.paths.push(segments);
                    }
                    at += length;
                }
                TokenTree::Group(group) => {
                    // `pub(crate)` is public too; any other group ends an item.
                    is_public &= group.delimiter() == Delimiter::Parenthesis;
                    self.items(path, module, group.stream(), false);
                    at += 1;
                }
                TokenTree::Punct(punct) => {
                    is_public &= punct.as_char() != ';';
                    at += 1;
                }
                TokenTree::Literal(literal) => {
                    // Attributes of derive macros name functions as text.
                    let text = literal.to_string();
                    let text = text.trim_matches('"');
                    if ["crate::", "super::", "self::"].iter().any(|start| text.starts_with(start)) {
                        module.paths.push(text.split("::").map(str::to_owned).collect());
                    }
                    at += 1;
                }
            }
        }
    }
}

fn is_punct(token: &TokenTree, requested: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == requested)
}

/// Whether the tokens begin with `::`.
fn is_separator(tokens: &[TokenTree]) -> bool {
    let is_joint = |punct: &TokenTree| matches!(punct, TokenTree::Punct(punct) if punct.spacing() == Spacing::Joint);
    matches!(tokens, [first, second, ..] if is_punct(first, ':') && is_joint(first) && is_punct(second, ':'))
}

/// The path at the start of the tokens, without its type parameters, and the number of its tokens.
fn path_at(tokens: &[TokenTree]) -> (ItemPath, usize) {
    let (mut segments, mut at) = (Vec::new(), 0);
    while let Some(TokenTree::Ident(name)) = tokens.get(at) {
        segments.push(name.to_string());
        at += 1;
        match is_separator(&tokens[at..]) {
            true if matches!(tokens.get(at + 2), Some(TokenTree::Ident(_))) => at += 2,
            true => return (segments, at + 2),
            false => break,
        }
    }
    (segments, at)
}

/// Whether a keyword begins the definition of a named item.
fn defines(keyword: &str) -> bool {
    matches!(keyword, "struct" | "enum" | "union" | "trait" | "type" | "fn" | "const" | "static")
}

/// Whether the tokens begin with `#[cfg(test)]`.
fn is_test_attribute(tokens: &[TokenTree]) -> bool {
    let [hash, TokenTree::Group(attribute), ..] = tokens else { return false };
    let text = || attribute.stream().to_string().replace(' ', "");
    is_punct(hash, '#') && attribute.delimiter() == Delimiter::Bracket && text() == "cfg(test)"
}

/// Number of tokens of an item: to its semicolon or its body.
fn item_length(tokens: &[TokenTree]) -> usize {
    let is_body = |group: &Group| group.delimiter() == Delimiter::Brace;
    let ends = |token: &TokenTree| is_punct(token, ';') || matches!(token, TokenTree::Group(group) if is_body(group));
    let is_use = tokens.iter().take(4).any(|token| matches!(token, TokenTree::Ident(name) if name == "use"));
    let end = tokens.iter().position(|token| if is_use { is_punct(token, ';') } else { ends(token) });
    end.map_or(tokens.len(), |end| end + 1)
}

/// The name of a module that an item declares.
fn declared_module(item: &[TokenTree]) -> Option<String> {
    let at = item.iter().position(|token| matches!(token, TokenTree::Ident(name) if name == "mod"))?;
    item.get(at + 1).map(ToString::to_string)
}

/// Reads the tree of a `use` declaration.
fn imports(tokens: &[TokenTree], mut path: ItemPath, is_public: bool, imports_of: &mut Vec<Import>) {
    let mut rest = tokens;
    if is_separator(rest) {
        // Another crate.
        return;
    }
    loop {
        match rest {
            [TokenTree::Ident(name), after @ ..] if is_separator(after) => {
                path.push(name.to_string());
                rest = &after[2..];
            }
            [TokenTree::Group(group)] => {
                let all: Vec<TokenTree> = group.stream().into_iter().collect();
                for part in all.split(|token| is_punct(token, ',')).filter(|part| !part.is_empty()) {
                    imports(part, path.clone(), is_public, imports_of);
                }
                return;
            }
            [TokenTree::Ident(name), after @ ..] => {
                let own = name.to_string();
                if own != "self" || path.is_empty() {
                    path.push(own);
                }
                let name = match after {
                    [_, alias] => alias.to_string(),
                    _ => path.last().cloned().unwrap_or_default(),
                };
                imports_of.push(Import { name, path, is_public });
                return;
            }
            [star, ..] if is_punct(star, '*') => {
                imports_of.push(Import { name: "*".to_owned(), path, is_public });
                return;
            }
            _ => return,
        }
    }
}

/// All modules of a crate.
struct Modules(BTreeMap<ItemPath, Module>);

impl Modules {
    fn graph(&self) -> ModuleGraph {
        let mut graph = ModuleGraph::default();
        for (path, module) in self.0.iter().filter(|(path, _)| !self.is_for_tests(path)) {
            let uses = graph.uses.entry(module.file.clone()).or_default();
            // A declaration that only publishes a name does not use it.
            let is_used = |import: &&Import| !import.is_public || module.names.contains(&import.name);
            let imported = module.imports.iter().filter(is_used).map(|import| &import.path);
            let found = imported.chain(&module.paths).filter_map(|used| self.file_of(path, used));
            uses.extend(found.filter(|file| *file != module.file));
        }
        let files: BTreeSet<String> = graph.uses.keys().cloned().collect();
        graph.uses.values_mut().for_each(|uses| uses.retain(|file| files.contains(file)));
        graph
    }

    /// Whether a module or one above it is declared for tests.
    fn is_for_tests(&self, path: &[String]) -> bool {
        (0..path.len())
            .any(|above| self.0.get(&path[..above]).is_some_and(|module| module.test_children.contains(&path[above])))
    }

    /// The file that defines what a path in a module names; `None`: another crate, a local name or a method.
    fn file_of(&self, module: &[String], path: &[String]) -> Option<String> {
        self.find(module, path, 0)
    }

    fn find(&self, module: &[String], path: &[String], depth: usize) -> Option<String> {
        // Imports that lead to themselves end here.
        if depth > 16 {
            return None;
        }
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => self.find_below(&[], rest, depth),
            "self" => self.find_below(module, rest, depth),
            "super" => {
                let above = &module[..module.len().checked_sub(1)?];
                match rest.first().is_some_and(|next| next == "super") {
                    true => self.find(above, rest, depth + 1),
                    false => self.find_below(above, rest, depth),
                }
            }
            _ => self.find_below(module, path, depth).filter(|_| self.has_name(module, first, depth)),
        }
    }

    /// The file that defines what a path names that starts in a module.
    fn find_below(&self, module: &[String], path: &[String], depth: usize) -> Option<String> {
        let found = self.0.get(module)?;
        let Some((name, rest)) = path.split_first() else { return Some(found.file.clone()) };
        let child = [module, std::slice::from_ref(name)].concat();
        if found.children.contains(name) && self.0.contains_key(&child) {
            return self.find_below(&child, rest, depth);
        }
        if !found.items.contains(name) {
            if let Some(import) = found.imports.iter().find(|import| import.name == *name && import.path != path) {
                return self.find(module, &[import.path.as_slice(), rest].concat(), depth + 1);
            }
            for import in found.imports.iter().filter(|import| import.name == "*") {
                let inner = [import.path.as_slice(), path].concat();
                let all = self.module_at(module, &import.path);
                if all.is_some_and(|all| self.has_name(&all, name, depth + 1)) {
                    return self.find(module, &inner, depth + 1);
                }
            }
        }
        Some(found.file.clone())
    }

    /// The module that a path names.
    fn module_at(&self, module: &[String], path: &[String]) -> Option<ItemPath> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => Vec::new(),
            "self" => module.to_vec(),
            "super" => module[..module.len().checked_sub(1)?].to_vec(),
            child => [module, &[child.to_owned()]].concat(),
        };
        let all = [start.as_slice(), rest].concat();
        self.0.contains_key(&all).then_some(all)
    }

    /// Whether a module defines, declares or imports a name.
    fn has_name(&self, module: &[String], name: &str, depth: usize) -> bool {
        let Some(found) = self.0.get(module).filter(|_| depth <= 16) else { return false };
        let is_all = |import: &&Import| import.name == "*";
        found.items.contains(name)
            || found.children.contains(name)
            || found.imports.iter().any(|import| import.name == name)
            || found.imports.iter().filter(is_all).any(|import| {
                self.module_at(module, &import.path).is_some_and(|all| self.has_name(&all, name, depth + 1))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], expected: &[(&str, &[&str])]) {
        let graph = ModuleGraph::of(files.iter().copied());
        let uses = graph.uses.iter().filter(|(_, uses)| !uses.is_empty());
        let uses: Vec<(&str, Vec<&str>)> =
            uses.map(|(file, uses)| (file.as_str(), uses.iter().map(String::as_str).collect())).collect();
        let expected: Vec<(&str, Vec<&str>)> = expected.iter().map(|(file, uses)| (*file, uses.to_vec())).collect();
        assert_eq!(uses, expected);
    }

    #[test]
    fn every_form_of_a_path_is_a_use() {
        check(
            &[
                ("lib.rs", "mod a; mod b; mod c;"),
                ("a.rs", "use crate::{b::{self, One}, c::inner::Two as Other}; fn f() { b::go::<u8>(); }"),
                ("b.rs", "pub struct One; pub fn go() { super::c::stay(); }"),
                ("c.rs", "pub mod inner; pub fn stay() {} // crate::a::f()"),
                ("c/inner.rs", "pub struct Two; #[serde(with = \"crate::b\")] struct Three(self::Two);"),
            ],
            &[("a.rs", &["b.rs", "c/inner.rs"]), ("b.rs", &["c.rs"]), ("c/inner.rs", &["b.rs"])],
        );
    }

    #[test]
    fn a_published_name_leads_to_the_file_that_defines_it() {
        check(
            &[
                ("lib.rs", "mod a; pub mod b; pub use a::Public; use std::sync::Arc;"),
                ("a.rs", "pub struct Public; use super::Arc;"),
                ("b.rs", "mod inner; pub use inner::*; pub(crate) use inner::Own; fn f(_: Own) {}"),
                ("b/inner.rs", "pub struct Own; pub fn all() {} use crate::Public;"),
                ("c.rs", "fn g() { crate::b::all(); std::mem::take(); }"),
            ],
            &[("b.rs", &["b/inner.rs"]), ("b/inner.rs", &["a.rs"]), ("c.rs", &["b/inner.rs"])],
        );
    }

    #[test]
    fn tests_are_no_uses() {
        check(
            &[
                ("lib.rs", "mod a; mod b; #[cfg(test)] mod checks;"),
                ("a.rs", "#[cfg(test)] use crate::b::{B, C}; #[cfg(test)] mod tests { use crate::b::B; }"),
                ("b.rs", "#[cfg(test)]\nmod tests;\npub struct B(crate::a::A);"),
                ("b/tests.rs", "use crate::a::A;"),
                ("checks.rs", "use crate::a::A;"),
            ],
            &[("b.rs", &["a.rs"])],
        );
    }

    #[test]
    fn a_program_beside_a_library_does_not_replace_its_root() {
        check(
            &[
                ("lib.rs", "mod a; mod b;"),
                ("main.rs", "fn main() { name_of_the_library::run(); }"),
                ("a.rs", "use super::b::B;"),
                ("b.rs", "pub struct B; fn f() { crate::a::go(); }"),
            ],
            &[("a.rs", &["b.rs"]), ("b.rs", &["a.rs"])],
        );
    }

    #[test]
    fn circles_are_found_through_several_files() {
        let file = |name: &str| format!("use crate::{name}::X; pub struct X;");
        let files = [("a.rs", file("b")), ("b.rs", file("c")), ("c.rs", file("a")), ("d.rs", file("a"))];
        let all = ("lib.rs", "mod a; mod b; mod c; mod d;".to_owned());
        let graph = ModuleGraph::of(files.into_iter().chain([all]));
        let circle: BTreeSet<String> = ["a.rs", "b.rs", "c.rs"].map(str::to_owned).into();
        assert_eq!(graph.circles(), [circle]);
    }
}
