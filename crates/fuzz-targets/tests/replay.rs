//! Runs each fuzz target with its corpus and with some mutations of each input. Seeds depend only on the input.

use std::{fs, path::Path};

use fastrand::Rng;
use tocsin_fuzz_targets::TARGETS;

/// Number of mutations for each input.
const CHANGES: usize = 20;

fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs: Vec<_> = entries
        .map(|entry| {
            let path = entry.expect("a file").path();
            (path.display().to_string(), fs::read(&path).expect("a file that can be read"))
        })
        .collect();
    inputs.sort();
    inputs
}

#[test]
fn every_target_has_a_corpus_and_passes_it() {
    for target in TARGETS {
        let inputs = inputs(target.name);
        assert!(inputs.len() >= 3, "{} has {} inputs", target.name, inputs.len());
        for (path, input) in inputs {
            println!("{path}"); // shown where the target panics
            (target.run)(&input);
        }
    }
}

#[test]
fn every_target_passes_mutations_of_its_corpus() {
    for target in TARGETS {
        for (number, (path, input)) in inputs(target.name).into_iter().enumerate() {
            for change in 0..CHANGES {
                let seed = (number * CHANGES + change) as u64;
                println!("{path}, seed {seed}");
                (target.run)(&changed(input.clone(), &mut Rng::with_seed(seed)));
            }
        }
    }
}

/// An input with a few bytes replaced, removed, repeated or cut off.
fn changed(mut input: Vec<u8>, random: &mut Rng) -> Vec<u8> {
    for _ in 0..random.usize(1..=4) {
        let at = random.usize(0..=input.len());
        match random.u8(0..5) {
            0 => input.truncate(at),
            1 => input.insert(at, random.u8(..)),
            2 if at < input.len() => input[at] = random.u8(..),
            3 if at < input.len() => drop(input.remove(at)),
            _ => {
                let end = (at + random.usize(0..=16)).min(input.len());
                let piece = input[at..end].to_vec();
                let place = random.usize(0..=input.len());
                input.splice(place..place, piece);
            }
        }
    }
    input
}

#[test]
fn every_corpus_has_a_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for entry in fs::read_dir(&folder).expect("the folder of the corpora") {
        let name = entry.expect("a folder").file_name();
        assert!(TARGETS.iter().any(|target| *target.name == *name), "{name:?} has inputs and no target");
    }
}
