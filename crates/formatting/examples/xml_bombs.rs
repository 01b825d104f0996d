//! Measures the time until XML bombs are rejected.
//!
//! `cargo run --release -p tocsin-formatting --example xml_bombs`
//!
//! Exits with an error if one of them takes 50 ms or more.

use std::{
    collections::BTreeMap,
    process::ExitCode,
    time::{Duration, Instant},
};

use tocsin_formatting::{Formatter, KnownVariables};
use tocsin_model::application::{ContentTemplates, TemplateEngine, TemplateParts, TemplateText};

/// Limit of the time for each.
const LONGEST: Duration = Duration::from_millis(50);

fn main() -> ExitCode {
    if let Some(code) = tocsin_formatting::worker::serve_if_requested() {
        return code;
    }
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/xml-bombs");
    let mut bombs: Vec<_> = std::fs::read_dir(folder).expect("the folder of bombs").flatten().collect();
    bombs.sort_by_key(std::fs::DirEntry::file_name);
    let mut worst = Duration::ZERO;
    for bomb in &bombs {
        let text = std::fs::read_to_string(bomb.path()).expect("a bomb");
        let html = Some(TemplateText { engine: TemplateEngine::Xslt, text });
        let parts = TemplateParts { html, ..TemplateParts::default() };
        let all =
            ContentTemplates { engine: TemplateEngine::Xslt, templates: BTreeMap::from([(String::new(), parts)]) };
        let start = Instant::now();
        let refused = Formatter::compile("bomb", &all, &KnownVariables::default());
        let took = start.elapsed();
        let problem = refused.expect_err("a bomb")[0].to_string();
        let name = bomb.file_name();
        println!("{:24} {:>8.3} ms  {problem}", name.to_string_lossy(), took.as_secs_f64() * 1_000.0);
        worst = worst.max(took);
    }
    println!("\nthe longest of {} took {:.3} ms", bombs.len(), worst.as_secs_f64() * 1_000.0);
    if worst < LONGEST { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
