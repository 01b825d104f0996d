//! The files of the crate form no large circles: each can be read with those that it uses, and no others.

use std::path::Path;

use tocsin_testkit::ModuleGraph;

/// Most files that may use each other in a circle.
const CIRCLE_MAX: usize = 4;

#[test]
fn no_circle_has_more_than_four_files() {
    let graph = ModuleGraph::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(graph.uses().len() > 60, "{} files are too few: they are not read", graph.uses().len());
    let circles = graph.circles();
    let large: Vec<_> = circles.iter().filter(|circle| circle.len() > CIRCLE_MAX).collect();
    assert!(large.is_empty(), "{large:#?}");
}

#[test]
fn the_contract_uses_no_protocol_and_no_table() {
    let graph = ModuleGraph::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let used = &graph.uses()["channel.rs"];
    let above = used.iter().filter(|file| file.contains('/') || *file == "protocol.rs").collect::<Vec<_>>();
    assert!(above.is_empty(), "{above:?}");
    assert!(used.contains("networks.rs"), "{used:?}");
}
