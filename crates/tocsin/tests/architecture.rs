//! The walls of `ARCHITECTURE.md` as tests. Each has a list of permitted exceptions, with a reason; a list may only
//! shrink, so an entry without its exception fails too.

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use support::repository;
use tocsin_testkit::ModuleGraph;

/// A source file: its path in the repository, its product code and its test code, both without comments.
struct Source {
    path: String,
    product: String,
    test: String,
}

/// All source files below `crates`, sorted by path.
fn sources() -> Vec<Source> {
    let (root, mut sources, mut folders) = (repository(""), Vec::new(), vec![repository("crates")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push(Source::read(&root, &path));
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    // Files that another file declares for tests only.
    let declared: BTreeSet<String> = sources.iter().flat_map(Source::test_modules).collect();
    for source in sources.iter_mut().filter(|source| declared.contains(&source.path)) {
        source.test.insert_str(0, &std::mem::take(&mut source.product));
    }
    assert!(sources.len() > 500, "{} source files", sources.len());
    sources
}

impl Source {
    fn read(root: &Path, path: &PathBuf) -> Source {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let path = path.strip_prefix(root).expect("a file of the repository").display().to_string();
        let (product, test) = match is_test(&path) {
            true => (String::new(), code(&text)),
            false => divide(&code(&text)),
        };
        Source { path, product, test }
    }

    /// The files of the modules that this file declares with `#[cfg(test)]`.
    fn test_modules(&self) -> Vec<String> {
        let path = Path::new(&self.path);
        let folder = match path.file_stem().is_some_and(|stem| ["lib", "main", "mod"].iter().any(|name| stem == *name))
        {
            true => path.parent().expect("a file has a folder").to_owned(),
            false => path.with_extension(""),
        };
        let items = self.product.split("#[cfg(test)]\n").skip(1).filter_map(|rest| rest.lines().next());
        let names = items.filter_map(|item| item.trim().strip_suffix(';')?.rsplit_once("mod ").map(|(_, name)| name));
        let files = names.flat_map(|name| [folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")]);
        files.map(|file| file.display().to_string()).collect()
    }

    /// The folder of the crate.
    fn crate_name(&self) -> &str {
        self.path.split('/').nth(1).expect("below crates")
    }
}

/// Whether the whole file is for tests.
fn is_test(path: &str) -> bool {
    let part = |part: &str| matches!(part, "tests" | "tests.rs" | "testing.rs" | "testkit" | "test-peers" | "examples");
    path.split('/').any(part) || path.ends_with("_test.rs")
}

/// The code without comments; its lines keep their places.
fn code(text: &str) -> String {
    let line = |line: &str| match line.trim_start().starts_with("//") {
        true => "\n".to_owned(),
        // A comment behind code begins after a space, unlike the slashes of a URL.
        false => format!("{}\n", line.split(" // ").next().unwrap_or_default()),
    };
    text.lines().map(line).collect()
}

/// The product code and the inline test module of a file, which is its last item.
fn divide(code: &str) -> (String, String) {
    let module = code.match_indices("#[cfg(test)]\n").map(|(at, _)| at).find(|at| {
        let item = code[*at..].lines().nth(1).unwrap_or_default();
        item.contains("mod ") && item.ends_with('{')
    });
    let (product, test) = code.split_at(module.unwrap_or(code.len()));
    (product.to_owned(), test.to_owned())
}

/// Files with the number of their lines that contain one of these texts.
fn lines_with(sources: &[Source], texts: &[&str], part: impl Fn(&Source) -> &str) -> BTreeMap<String, usize> {
    let count = |source: &Source| {
        let lines = part(source).lines().filter(|line| texts.iter().any(|text| line.contains(text)));
        (source.path.clone(), lines.count())
    };
    sources.iter().map(count).filter(|(_, count)| *count > 0).collect()
}

/// Compares what was found with the permitted exceptions: file or folder, and the reason.
fn check(wall: &str, found: BTreeSet<String>, permitted: &[(&str, &str)]) {
    let permits = |place: &str, file: &str| file == place || file.starts_with(&format!("{place}/"));
    let new: Vec<&String> =
        found.iter().filter(|file| !permitted.iter().any(|(place, _)| permits(place, file))).collect();
    assert!(new.is_empty(), "{wall}; see ARCHITECTURE.md. Against it are: {new:#?}");
    let gone: Vec<&str> = permitted.iter().map(|(place, _)| *place).collect();
    let gone: Vec<&str> = gone.into_iter().filter(|place| !found.iter().any(|file| permits(place, file))).collect();
    assert!(gone.is_empty(), "{wall}: remove these from the list, they hold it now: {gone:?}");
}

/// As `check`, with the exact number of lines of each file.
fn check_counts(wall: &str, found: BTreeMap<String, usize>, permitted: &[(&str, usize, &str)]) {
    let expected: BTreeMap<String, usize> =
        permitted.iter().map(|(file, count, _)| ((*file).to_owned(), *count)).collect();
    let more: Vec<_> =
        found.iter().filter(|(file, count)| expected.get(*file).is_none_or(|most| *count > most)).collect();
    assert!(more.is_empty(), "{wall}. Against it are, with the number of lines: {more:#?}");
    let fewer: Vec<_> =
        expected.iter().filter(|(file, count)| found.get(*file).is_none_or(|found| found < *count)).collect();
    assert!(fewer.is_empty(), "{wall}: correct the list, these have fewer lines now: {fewer:#?}");
}

#[test]
fn sql_is_in_the_store() {
    let texts = [
        "rusqlite",
        "tokio_postgres",
        "mysql_async",
        "SELECT ",
        "INSERT INTO ",
        "DELETE FROM ",
        "CREATE TABLE ",
        "PRAGMA ",
    ];
    let permitted = [
        ("crates/store", "the tables of the server"),
        ("crates/replica", "the tables of a replica on a device"),
        ("crates/sources/src/sql", "databases of users"),
        ("crates/sources/src/outbox", "databases of users"),
        ("crates/bench/src/figures", "databases that benchmarks fill, and costly queries of rules"),
        ("crates/service/src/rules/measure.rs", "a query of a rule that finds nothing"),
        ("crates/tocsin/src/commands/doctor/folder.rs", "the integrity check without a running server"),
    ];
    let found = lines_with(&sources(), &texts, |source| &source.product);
    check("SQL and database drivers are in crates/store only", found.into_keys().collect(), &permitted);
}

#[test]
fn wire_types_are_in_the_faces() {
    let found = lines_with(&sources(), &["utoipa", "ToSchema"], |source| &source.product);
    let found = found.into_keys().filter(|file| !file.starts_with("crates/face-http/"));
    check("types with an OpenAPI schema are in crates/face-http only", found.collect(), &[]);
}

#[test]
fn model_and_matching_know_no_clock_and_do_no_io() {
    let texts = [
        "SystemTime::now",
        "Instant::now",
        "Timestamp::now",
        "Zoned::now",
        "std::fs",
        "std::net",
        "fs::read",
        "fs::write",
        "tokio::",
        "SystemClock",
    ];
    let within = ["model", "matching", "capacity", "feedback", "notifybc"];
    let found = lines_with(&sources(), &texts, |source| match within.contains(&source.crate_name()) {
        true => &source.product,
        false => "",
    });
    let wall =
        "tocsin-model, -matching, -capacity, -feedback and -notifybc read no clock and do no I/O; time is an argument";
    check(wall, found.into_keys().collect(), &[]);
}

/// The crates that each crate may use, by the table of `ARCHITECTURE.md`.
fn declared() -> BTreeMap<String, BTreeSet<String>> {
    let text = fs::read_to_string(repository("ARCHITECTURE.md")).expect("the map");
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix("| `tocsin")?.split(" | ").collect();
        let [name, _, uses] = cells[..] else { panic!("three columns: {line}") };
        let uses = uses.trim_end_matches('|').trim().split(", ").filter(|name| *name != "-");
        let name = name.trim_end_matches('`').trim_start_matches('-');
        let name = if name.is_empty() { "tocsin" } else { name };
        Some((name.to_owned(), uses.map(str::to_owned).collect()))
    });
    rows.collect()
}

/// The crates of this workspace in a section of a manifest.
fn used(manifest: &str, section: &str) -> BTreeSet<String> {
    let lines = manifest.lines().skip_while(|line| *line != format!("[{section}]")).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    let names = lines.filter_map(|line| line.strip_prefix("tocsin-")?.split([' ', '.', '=']).next());
    names.map(str::to_owned).collect()
}

#[test]
fn crates_use_the_crates_that_the_map_declares() {
    let declared = declared();
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(repository("crates")).expect("the crates") {
        let entry = entry.expect("an entry");
        let Ok(manifest) = fs::read_to_string(entry.path().join("Cargo.toml")) else { continue };
        let name = entry.file_name().into_string().expect("text");
        for helper in ["testkit", "test-peers"] {
            // A benchmark starts programs of others as tests do.
            let may_use = ["testkit", "test-peers"].contains(&&*name) || (&*name, helper) == ("bench", "test-peers");
            let is_used = used(&manifest, "dependencies").contains(helper);
            assert!(may_use || !is_used, "{name}: {helper} is for tests only");
        }
        found.insert(name, used(&manifest, "dependencies"));
    }
    for (name, uses) in &found {
        let declared = declared.get(name).unwrap_or_else(|| panic!("{name} is not in the table of ARCHITECTURE.md"));
        assert_eq!(uses, declared, "left: the dependencies of {name}; right: its row in ARCHITECTURE.md");
    }
    assert_eq!(declared.len(), found.len(), "the table of ARCHITECTURE.md has crates that do not exist");
}

#[test]
fn tests_do_not_sleep() {
    let simulated = "the clock is simulated: a sleep advances it";
    let kill = "a kill at a random time";
    let permitted = [
        ("crates/delivery/src/http/tests.rs", 1, simulated),
        ("crates/delivery/src/queue.rs", 3, simulated),
        ("crates/delivery/src/smtp/tests/access.rs", 1, simulated),
        ("crates/delivery/src/smtp/tests/failover.rs", 2, simulated),
        ("crates/delivery/src/smtp/tests/faults.rs", 1, simulated),
        ("crates/delivery/src/smtp/tests/pacing.rs", 2, simulated),
        ("crates/delivery/src/smtp/tests/scripted_server.rs", 1, simulated),
        ("crates/directory/tests/dynamic.rs", 5, simulated),
        ("crates/mail-in/src/tests.rs", 1, "a client that sends slowly"),
        ("crates/test-peers/src/wait.rs", 2, "the pause between two looks at a condition"),
        ("crates/pipeline/src/panics.rs", 2, simulated),
        ("crates/sync/src/admission.rs", 1, simulated),
        ("crates/testkit/src/scenario.rs", 1, simulated),
        ("crates/testkit/src/scripted_channels.rs", 1, simulated),
        ("crates/tocsin/tests/ldap_hostile.rs", 1, kill),
        ("crates/tocsin/tests/sources.rs", 2, kill),
        ("crates/tocsin/tests/sync.rs", 1, kill),
    ];
    let mut found = lines_with(&sources(), &["::sleep(", " sleep("], |source| &source.test);
    found.retain(|path, _| !path.ends_with("tests/architecture.rs"));
    check_counts("tests wait for a condition (tocsin_test_peers::until) or advance the clock", found, &permitted);
}

/// Files that may use each other in a circle.
const CIRCLE_FILES_MAX: usize = 4;

#[test]
fn circles_of_files_are_small() {
    let mut wrong = Vec::new();
    for entry in fs::read_dir(repository("crates")).expect("the crates") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let graph = ModuleGraph::read(&path.join("src"));
        assert!(graph.uses().len() > 3 || graph.circles().is_empty(), "{name} is read");
        if let Some(largest) = graph.circles().into_iter().next().filter(|circle| circle.len() > CIRCLE_FILES_MAX) {
            wrong.push(format!("{name}: a circle of {} files: {largest:?}", largest.len()));
        }
    }
    assert!(wrong.is_empty(), "at most {CIRCLE_FILES_MAX} files use each other in a circle:\n{}", wrong.join("\n"));
}

/// The number of statements that pick a free port and release it: another process may get it before its server.
fn picked_ports(code: &str) -> usize {
    let statements = code.split(';').filter(|statement| {
        let binds = statement.find("TcpListener::bind(");
        binds.is_some_and(|at| statement[at..].contains("local_addr()") && statement[at..].contains(".port()"))
    });
    statements.count() + code.matches("fn free_port").count()
}

#[test]
fn ports_are_reserved_or_listened_at() {
    let sources = sources();
    let found = sources.iter().filter(|source| picked_ports(&source.product) + picked_ports(&source.test) > 0);
    let found = found.map(|source| source.path.clone()).filter(|path| !path.ends_with("tests/architecture.rs"));
    check("a server listens at port 0, or gets a tocsin_test_peers::reserved_port", found.collect(), &[]);
    let picks = "let port = TcpListener::bind(\"127.0.0.1:0\").expect(\"a\")\n.local_addr().expect(\"an\").port();";
    let keeps = "let socket = TcpListener::bind(\"127.0.0.1:0\").expect(\"a\"); let port = socket.local_addr().expect(\"an\").port();";
    assert_eq!((picked_ports(picks), picked_ports(keeps)), (1, 0));
}

#[test]
fn a_file_is_divided_into_product_and_test() {
    let text = "fn a() {} // SELECT 1\n/// SELECT 2\nconst URL: &str = \"http://a\";\n#[cfg(test)]\nmod tests {\n    sleep(1);\n}\n";
    let (product, test) = divide(&code(text));
    assert_eq!(product, "fn a() {}\n\nconst URL: &str = \"http://a\";\n");
    assert_eq!(test, "#[cfg(test)]\nmod tests {\n    sleep(1);\n}\n");
    assert!(is_test("crates/sources/src/sql/tests.rs") && is_test("crates/tocsin/tests/sync.rs"));
    assert!(!is_test("crates/bench/src/test_receiver.rs") && is_test("crates/store/src/migration_crash_test.rs"));
}

#[test]
#[should_panic(expected = "remove these from the list, they hold it now: [\"b.rs\"]")]
fn a_list_of_exceptions_may_only_shrink() {
    check("a wall", BTreeSet::from(["a.rs".to_owned()]), &[("a.rs", "needed"), ("b.rs", "not needed")]);
}

#[test]
#[should_panic(expected = "Against it are: [\n    \"c.rs\",\n]")]
fn a_new_exception_fails() {
    check("a wall", BTreeSet::from(["a.rs".to_owned(), "c.rs".to_owned()]), &[("a.rs", "needed")]);
}

/// The modules that `lib.rs` of a crate declares, in its order, without those for tests.
fn declared_modules(krate: &str) -> Vec<String> {
    let map = Source::read(&repository(""), &repository(&format!("crates/{krate}/src/lib.rs"))).product;
    let name = |line: &str| {
        let line = line.trim();
        let line = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub ")).unwrap_or(line);
        line.strip_prefix("mod ")?.trim().strip_suffix(';').map(str::to_owned)
    };
    map.lines().filter_map(name).collect()
}

#[test]
fn a_file_uses_only_files_above_it_in_the_map() {
    for (krate, modules, arrows) in [
        ("exchange", 30, 100),
        ("sources", 20, 60),
        ("connect", 10, 5),
        ("matching", 30, 100),
        ("sync", 20, 50),
        ("store", 10, 50),
        ("feedback", 12, 30),
    ] {
        check_order(krate, modules, arrows);
    }
}

/// Checks that each file of a crate uses only files of modules above its own in `lib.rs`. The crate has at least so
/// many modules and uses.
fn check_order(krate: &str, modules_min: usize, arrows_min: usize) {
    let order = declared_modules(krate);
    assert!(order.len() > modules_min, "{krate}: {order:?}");
    let module = |file: &str| file.split('/').next().unwrap_or_default().trim_end_matches(".rs").to_owned();
    let place = |file: &str| order.iter().position(|known| *known == module(file));
    let (mut wrong, mut arrows) = (Vec::new(), 0);
    let graph = ModuleGraph::read(&repository(&format!("crates/{krate}/src")));
    for (file, used) in graph.uses().iter().filter(|(file, _)| *file != "lib.rs") {
        let Some(at) = place(file) else {
            wrong.push(format!("{krate}: {file} is not in the map"));
            continue;
        };
        for other in used.iter().filter(|other| module(other) != module(file)) {
            arrows += 1;
            if place(other).is_none_or(|above| above >= at) {
                wrong.push(format!("{krate}: {file} uses {other}, which is not above it in the map"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(arrows > arrows_min, "{krate}: {arrows} uses are too few: the files are not read");
}

#[test]
fn the_contract_of_channels_uses_no_protocol_and_no_table() {
    let graph = ModuleGraph::read(&repository("crates/delivery/src"));
    assert!(graph.uses().len() > 60, "{} files are too few: they are not read", graph.uses().len());
    let used = &graph.uses()["channel.rs"];
    let above = used.iter().filter(|file| file.contains('/') || *file == "protocol.rs").collect::<Vec<_>>();
    assert!(above.is_empty(), "{above:?}");
    assert!(used.contains("token_signer.rs"), "{used:?}");
}
