//! Compiles the C bindings and links libxslt, which pkg-config finds on the system.

fn main() {
    println!("cargo::rerun-if-changed=src/xslt/bindings.c");
    println!("cargo::rerun-if-changed=src/xslt/schema.c");
    println!("cargo::rerun-if-changed=src/worker/confine.c");
    let found = pkg_config::Config::new().atleast_version("1.1.34").cargo_metadata(false).probe("libxslt");
    let library = found.unwrap_or_else(|error| {
        panic!(
            "libxslt is needed to build Tocsin, and pkg-config does not find it.\n\
             On Debian or Ubuntu: apt-get install --no-install-recommends libxslt1-dev pkg-config gcc\n\
             On Fedora: dnf install libxslt-devel pkgconf gcc; on Alpine: apk add libxslt-dev pkgconf gcc musl-dev\n\
             `make setup` does it as well. What pkg-config said: {error}"
        )
    });
    cc::Build::new()
        .file("src/xslt/bindings.c")
        .file("src/xslt/schema.c")
        .file("src/worker/confine.c")
        .includes(&library.include_paths)
        .flag_if_supported("-std=gnu11")
        .warnings(true)
        .compile("tocsin_xslt_shim");
    for path in &library.link_paths {
        println!("cargo::rustc-link-search=native={}", path.display());
    }
    // After the C that calls them.
    for name in &library.libs {
        println!("cargo::rustc-link-lib={name}");
    }
}
