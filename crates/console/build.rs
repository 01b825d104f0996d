//! Embeds the built console: each file with its media type, its SHA-256, and its encodings.
//!
//! `TOCSIN_CONSOLE_DIST` names another folder than `console/dist` of the repository. A folder that is absent or has no
//! `index.html` is replaced by the placeholder page.

use std::{
    env,
    fmt::Write as _,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use brotli::enc::BrotliEncoderParams;
use sha2::{Digest, Sha256};

/// Largest size of all files before compression. A larger console is a mistake, such as a bundle with source maps.
const BYTES_MAX: usize = 8 << 20;

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    println!("cargo::rerun-if-env-changed=TOCSIN_CONSOLE_DIST");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/placeholder.html");
    let folder = env::var_os("TOCSIN_CONSOLE_DIST").map_or_else(|| root.join("../../console/dist"), PathBuf::from);
    // Cargo watches only what exists. A tree that cannot be written has no console to come.
    if !folder.exists() && folder.parent().is_some_and(Path::is_dir) {
        let _ = fs::create_dir(&folder);
    }
    if folder.exists() {
        println!("cargo::rerun-if-changed={}", folder.display());
    }
    let mut files = Vec::new();
    if folder.join("index.html").is_file() {
        read_folder(&folder, "", &mut files);
    }
    let is_placeholder = files.is_empty();
    if is_placeholder {
        files.push(("index.html".to_owned(), read(&root.join("src/placeholder.html"))));
    }
    files.sort();
    let bytes: usize = files.iter().map(|(_, content)| content.len()).sum();
    assert!(bytes <= BYTES_MAX, "the console has {bytes} bytes in {}: at most {BYTES_MAX}", folder.display());
    let mut code = String::from("/// The files, sorted by path.\npub static FILES: &[EmbeddedFile] = &[\n");
    for (at, (path, content)) in files.iter().enumerate() {
        embed(&mut code, &out, at, path, content);
    }
    let _ = write!(
        code,
        "];\n\n/// Whether the console was not built: its only file is a page that explains how to build it.\n\
         pub const IS_PLACEHOLDER: bool = {is_placeholder};\n"
    );
    fs::write(out.join("files.rs"), code).expect("OUT_DIR is writable");
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

/// Collects the files of a folder with their paths. Names that begin with a dot are no part of the console.
fn read_folder(folder: &Path, below: &str, files: &mut Vec<(String, Vec<u8>)>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("cannot read {}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("names of files are UTF-8").to_owned();
        if name.starts_with('.') {
            continue;
        }
        let below = format!("{below}{name}");
        if path.is_dir() {
            read_folder(&path, &format!("{below}/"), files);
        } else {
            files.push((below, read(&path)));
        }
    }
}

/// Writes the encodings of a file, and its entry in the table.
fn embed(code: &mut String, out: &Path, at: usize, path: &str, content: &[u8]) {
    let media_type = media_type(path);
    let (brotli, gzip) = (brotli(content), gzip(content));
    // Images and fonts are compressed already.
    let is_smaller = brotli.len() * 10 < content.len() * 9;
    let store = |extension: &str, bytes: &[u8], is_stored: bool| match is_stored {
        true => {
            let name = format!("{at}.{extension}");
            fs::write(out.join(&name), bytes).expect("OUT_DIR is writable");
            format!("Some(include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}\")))")
        }
        false => "None".to_owned(),
    };
    let _ = write!(
        code,
        "    EmbeddedFile {{\n        path: {path:?},\n        media_type: {media_type:?},\n        \
         sha256: \"{}\",\n        is_immutable: {},\n        identity: {},\n        brotli: {},\n        \
         gzip: {},\n    }},\n",
        hex::encode(Sha256::digest(content)),
        path.starts_with("assets/"),
        store("identity", content, !is_smaller),
        store("br", &brotli, is_smaller),
        store("gz", &gzip, is_smaller),
    );
}

fn brotli(mut content: &[u8]) -> Vec<u8> {
    let parameters = BrotliEncoderParams { quality: 11, size_hint: content.len(), ..BrotliEncoderParams::default() };
    let mut packed = Vec::new();
    brotli::BrotliCompress(&mut content, &mut packed, &parameters).expect("memory is written");
    packed
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(content).and_then(|()| encoder.finish()).expect("memory is written")
}

fn media_type(path: &str) -> &'static str {
    match path.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" => "application/json",
        "webmanifest" => "application/manifest+json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/vnd.microsoft.icon",
        "woff2" => "font/woff2",
        "txt" => "text/plain; charset=utf-8",
        _ => panic!("the file {path} of the console has no known media type: add it in crates/console/build.rs"),
    }
}
