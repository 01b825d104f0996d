//! Files embedded in the binary, and the choice of their encoding (RFC 9110, 12.5.3). No I/O.

/// A file with its encodings. At least one of them is there.
#[derive(Debug)]
pub struct EmbeddedFile {
    /// Path below the root of the files, such as `assets/index-1a2b3c.js`.
    pub path: &'static str,
    /// Media type.
    pub media_type: &'static str,
    /// SHA-256 of the content, in hexadecimal.
    pub sha256: &'static str,
    /// Whether the name contains a hash of the content, so that the content never changes.
    pub is_immutable: bool,
    /// The content itself; absent where a compressed form is much smaller.
    pub identity: Option<&'static [u8]>,
    /// The content in brotli (RFC 7932).
    pub brotli: Option<&'static [u8]>,
    /// The content in gzip (RFC 1952).
    pub gzip: Option<&'static [u8]>,
}

/// Content coding of a representation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// Brotli.
    Brotli,
    /// Gzip.
    Gzip,
    /// None.
    Identity,
}

impl Coding {
    /// The token of `Content-Encoding`; none for the identity.
    pub fn token(self) -> Option<&'static str> {
        match self {
            Coding::Brotli => Some("br"),
            Coding::Gzip => Some("gzip"),
            Coding::Identity => None,
        }
    }

    /// The coding with the highest weight in `Accept-Encoding`; of equal ones the smallest representation. Without the
    /// field, and where everything is excluded, it is the identity (RFC 9110, 12.5.3).
    pub fn accepted(accept_encoding: Option<&str>) -> Coding {
        let Some(accepts) = accept_encoding else { return Coding::Identity };
        let weight = |names: &[&str]| {
            let find = |name: &str| accepts.split(',').find_map(|item| weight_of(item, name));
            names.iter().find_map(|name| find(name))
        };
        let any = weight(&["*"]);
        let weights = [
            (Coding::Brotli, weight(&["br"]).or(any).unwrap_or(0)),
            (Coding::Gzip, weight(&["gzip", "x-gzip"]).or(any).unwrap_or(0)),
            // It is accepted unless excluded, and preferred only if named.
            (Coding::Identity, weight(&["identity"]).unwrap_or(1)),
        ];
        let best = weights.iter().map(|(_, weight)| *weight).max().unwrap_or(0);
        let chosen = weights.iter().find(|(_, weight)| *weight == best && best > 0);
        chosen.map_or(Coding::Identity, |(coding, _)| *coding)
    }
}

/// The weight of an item in thousandths, if it names this coding.
fn weight_of(item: &str, name: &str) -> Option<u32> {
    let mut parts = item.split(';').map(str::trim);
    if !parts.next()?.eq_ignore_ascii_case(name) {
        return None;
    }
    let value = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    let value = value.map_or(Some(1.0), |value| value.parse::<f32>().ok().filter(|value| (0.0..=1.0).contains(value)));
    // A weight that is no weight is none.
    Some(value.map_or(0, |value| (value * 1_000.0).round() as u32))
}

/// A file by its path. The files are sorted by path.
pub fn find(files: &'static [EmbeddedFile], path: &str) -> Option<&'static EmbeddedFile> {
    files.binary_search_by(|file| file.path.cmp(path)).ok().map(|at| &files[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coding_is_the_accepted_one_with_the_highest_weight() {
        for (accepts, expected) in [
            (None, Coding::Identity),
            (Some(""), Coding::Identity),
            (Some("gzip, deflate, br, zstd"), Coding::Brotli),
            (Some("gzip, deflate"), Coding::Gzip),
            (Some("x-gzip"), Coding::Gzip),
            (Some("GZIP;q=0.5, br;q=0.4"), Coding::Gzip),
            (Some("br;q=0, gzip;q=0"), Coding::Identity),
            (Some("br;q=0, *"), Coding::Gzip),
            (Some("*;q=0.1"), Coding::Brotli),
            (Some("*;q=0"), Coding::Identity),
            (Some("gzip;q=0.5, identity"), Coding::Identity),
            (Some("identity;q=0, gzip;q=0.001"), Coding::Gzip),
            (Some("br;q=9, gzip"), Coding::Gzip),
            (Some("zstd, brotli"), Coding::Identity),
        ] {
            assert_eq!(Coding::accepted(accepts), expected, "{accepts:?}");
        }
    }

    #[test]
    fn a_file_is_found_by_its_whole_path() {
        const fn file(path: &'static str) -> EmbeddedFile {
            EmbeddedFile {
                path,
                media_type: "text/plain",
                sha256: "",
                is_immutable: false,
                identity: Some(b"x"),
                brotli: None,
                gzip: None,
            }
        }
        static FILES: [EmbeddedFile; 3] = [file("assets/a.js"), file("icon.svg"), file("index.html")];
        let found = |path| find(&FILES, path).map(|file| file.path);
        assert_eq!(
            ["index.html", "assets/a.js", "assets", ""].map(found),
            [Some("index.html"), Some("assets/a.js"), None, None]
        );
    }
}
