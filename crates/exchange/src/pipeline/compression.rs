//! Compression and decompression of bodies, with a limit on the decompressed size.

use std::io::{self, Read, Write};

use flate2::{Compression as Level, read::MultiGzDecoder, write::GzEncoder};
use tocsin_model::exchange::Compression;

use crate::message::{CONTENT_ENCODING, PipelineMessage};

/// Window of 8 MiB, which RFC 9659 requires of decoders, and no larger one, to bound memory.
const ZSTD_WINDOW_LOG: u32 = 23;
const ZSTD_LEVEL: i32 = 3;

/// Decompression step.
pub(super) struct Unpack {
    /// `None`: by the `content-encoding` header.
    pub compression: Option<Compression>,
    pub bytes_max: usize,
}

impl Unpack {
    pub fn apply(&self, message: &mut PipelineMessage) -> Result<(), String> {
        let said = message.headers.iter().find(|(name, _)| name == CONTENT_ENCODING).map(|(_, value)| value.trim());
        let compression = match (self.compression, said) {
            (Some(compression), _) => compression,
            (None, None | Some("" | "identity")) => return Ok(()),
            (None, Some(said)) => Compression::of(&said.to_ascii_lowercase())
                .ok_or_else(|| format!("the body is encoded as `{said}`, and only `gzip` and `zstd` are known"))?,
        };
        let body = self.unpack(compression, &message.body)?;
        message.body = body.into();
        message.headers.retain(|(name, _)| name != CONTENT_ENCODING);
        Ok(())
    }

    fn unpack(&self, compression: Compression, packed: &[u8]) -> Result<Vec<u8>, String> {
        let read = match compression {
            Compression::Gzip => take(MultiGzDecoder::new(packed), self.bytes_max),
            Compression::Zstd => zstd::stream::read::Decoder::with_buffer(packed).and_then(|mut decoder| {
                decoder.window_log_max(ZSTD_WINDOW_LOG)?;
                take(decoder, self.bytes_max)
            }),
        };
        match read {
            Ok(Some(body)) => Ok(body),
            Ok(None) => Err(format!("the decompressed body is larger than {} bytes", self.bytes_max)),
            Err(error) => Err(format!("the body is not {}: {error}", compression.word())),
        }
    }
}

/// Reads to the end; `None` if that is more than `most` bytes.
fn take(reader: impl Read, most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    reader.take(most as u64 + 1).read_to_end(&mut body)?;
    Ok((body.len() <= most).then_some(body))
}

pub(super) fn pack(message: &mut PipelineMessage, compression: Compression) -> Result<(), String> {
    let packed = match compression {
        Compression::Gzip => {
            let mut encoder = GzEncoder::new(Vec::with_capacity(message.body.len() / 4 + 64), Level::fast());
            encoder.write_all(&message.body).and_then(|()| encoder.finish())
        }
        Compression::Zstd => zstd::stream::encode_all(&*message.body, ZSTD_LEVEL),
    };
    message.body = packed.map_err(|error| format!("the body cannot be compressed: {error}"))?.into();
    // A compressed body keeps its codings, in the order of their application (RFC 9110, 8.4).
    let before = message.headers.iter().filter(|(name, _)| name == CONTENT_ENCODING).map(|(_, value)| value.trim());
    let mut codings: Vec<&str> =
        before.filter(|value| !value.is_empty() && !value.eq_ignore_ascii_case("identity")).collect();
    codings.push(compression.word());
    let codings = codings.join(", ");
    message.headers.retain(|(name, _)| name != CONTENT_ENCODING);
    message.headers.push((CONTENT_ENCODING.to_owned(), codings));
    Ok(())
}
