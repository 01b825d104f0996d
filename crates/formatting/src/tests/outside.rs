//! Detects access to files and the network from templates, stylesheets and documents.

const EMPTY_SHEET: &str =
    "<xsl:stylesheet version=\"1.0\" xmlns:xsl=\"http://www.w3.org/1999/XSL/Transform\"></xsl:stylesheet>";

/// A folder and a port for use in stylesheets and documents. The kernel reports opened files of the folder, and
/// connections to the port.
pub(crate) struct ExternalProbe {
    folder: tempfile::TempDir,
    watch: std::os::fd::OwnedFd,
    port: std::net::TcpListener,
}

impl ExternalProbe {
    pub(crate) fn new() -> ExternalProbe {
        use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["secret.xml", "style.xsl"] {
            std::fs::write(folder.path().join(name), EMPTY_SHEET).expect("written");
        }
        let watch = init(CreateFlags::NONBLOCK).expect("the kernel watches");
        add_watch(&watch, folder.path(), WatchFlags::OPEN | WatchFlags::CREATE | WatchFlags::ACCESS).expect("a watch");
        let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        port.set_nonblocking(true).expect("it does not wait");
        ExternalProbe { folder, watch, port }
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("a path").to_owned()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.port.local_addr().expect("an address"))
    }

    /// The XML bombs by name, with their targets replaced by the folder and port of this probe.
    pub(crate) fn bombs(&self) -> Vec<(String, String)> {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/xml-bombs");
        let (file, url) = (format!("file://{}", self.file("secret.xml")), self.url());
        let bomb = |entry: std::fs::DirEntry| {
            let text = std::fs::read_to_string(entry.path()).expect("a bomb");
            let text = text.replace("file:///PATH/TO/xmltestdata/simple.xml", &file);
            let text = text.replace("http://www.w3schools.com", &url).replace("http://www.w3.org/TR", &url);
            (entry.file_name().to_string_lossy().into_owned(), text.replace("https://example.invalid", &url))
        };
        let bombs: Vec<_> = std::fs::read_dir(folder).expect("the folder of bombs").flatten().map(bomb).collect();
        assert_eq!(bombs.len(), 13);
        bombs
    }

    /// Accesses since the last call.
    pub(crate) fn touched(&self) -> Vec<String> {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = rustix::fs::inotify::Reader::new(&self.watch, &mut buffer);
        let mut touched = Vec::new();
        while let Ok(event) = reader.next() {
            touched.push(event.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()));
        }
        while let Ok((_, from)) = self.port.accept() {
            touched.push(from.ip().to_string());
        }
        touched.dedup();
        touched
    }
}
