//! The embedded files are those of the folder, in every encoding.

use std::io::Read;

use sha2::{Digest, Sha256};
use tocsin_http_server::embedded::find;

use super::*;

#[test]
fn every_encoding_of_a_file_is_its_content() {
    assert!(!FILES.is_empty() && FILES.is_sorted_by_key(|file| file.path));
    for file in FILES {
        let mut contents: Vec<Vec<u8>> = file.identity.map(<[u8]>::to_vec).into_iter().collect();
        if let Some(mut packed) = file.brotli {
            let mut content = Vec::new();
            brotli::BrotliDecompress(&mut packed, &mut content).expect("brotli");
            contents.push(content);
        }
        if let Some(packed) = file.gzip {
            let mut content = Vec::new();
            flate2::read::GzDecoder::new(packed).read_to_end(&mut content).expect("gzip");
            contents.push(content);
        }
        // Either the identity, or both compressed forms.
        assert_eq!(contents.len(), if file.identity.is_some() { 1 } else { 2 }, "{}", file.path);
        for content in contents {
            assert_eq!(hex::encode(Sha256::digest(content)), file.sha256, "{}", file.path);
        }
        assert_eq!(file.is_immutable, file.path.starts_with("assets/"), "{}", file.path);
    }
}

#[test]
fn there_is_a_page_to_begin_with_and_no_file_of_the_build_itself() {
    let index = find(FILES, "index.html").expect("the first page");
    assert_eq!((index.media_type, index.is_immutable), ("text/html; charset=utf-8", false));
    assert!(FILES.iter().all(|file| !file.path.starts_with('.') && !file.path.ends_with(".map")));
    assert_eq!(IS_PLACEHOLDER, FILES.len() == 1);
}
