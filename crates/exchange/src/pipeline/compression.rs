//! Bodies are packed and unpacked. What would grow beyond its bound is not unpacked any further.

use std::io::{self, Read, Write};

use flate2::{Compression as Level, read::MultiGzDecoder, write::GzEncoder};
use tocsin_model::exchange::Compression;

use super::Parcel;

const CONTENT_ENCODING: &str = "content-encoding";
/// The window of 8 MiB that RFC 9659 asks of whoever unpacks, and no larger one: it is memory.
const ZSTD_WINDOW_LOG: u32 = 23;
const ZSTD_LEVEL: i32 = 3;

/// How a body is unpacked.
pub(super) struct Unpack {
    /// `None`: as its header says.
    pub compression: Option<Compression>,
    pub bytes_max: usize,
}

impl Unpack {
    pub fn apply(&self, parcel: &mut Parcel) -> Result<(), String> {
        let said = parcel.headers.iter().find(|(name, _)| name == CONTENT_ENCODING).map(|(_, value)| value.trim());
        let compression = match (self.compression, said) {
            (Some(compression), _) => compression,
            (None, None | Some("" | "identity")) => return Ok(()),
            (None, Some(said)) => Compression::of(&said.to_ascii_lowercase())
                .ok_or_else(|| format!("the body is encoded as `{said}`, and only `gzip` and `zstd` are known"))?,
        };
        let body = self.unpack(compression, &parcel.body)?;
        parcel.body = body.into();
        parcel.headers.retain(|(name, _)| name != CONTENT_ENCODING);
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
            Ok(None) => Err(format!("the body is larger than {} bytes when it is unpacked", self.bytes_max)),
            Err(error) => Err(format!("the body is not {}: {error}", compression.word())),
        }
    }
}

/// All that can be read, or nothing if that is more than `most`.
fn take(reader: impl Read, most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    reader.take(most as u64 + 1).read_to_end(&mut body)?;
    Ok((body.len() <= most).then_some(body))
}

pub(super) fn pack(parcel: &mut Parcel, compression: Compression) -> Result<(), String> {
    let packed = match compression {
        Compression::Gzip => {
            let mut encoder = GzEncoder::new(Vec::with_capacity(parcel.body.len() / 4 + 64), Level::fast());
            encoder.write_all(&parcel.body).and_then(|()| encoder.finish())
        }
        Compression::Zstd => zstd::stream::encode_all(&*parcel.body, ZSTD_LEVEL),
    };
    parcel.body = packed.map_err(|error| format!("the body cannot be packed: {error}"))?.into();
    parcel.headers.retain(|(name, _)| name != CONTENT_ENCODING);
    parcel.headers.push((CONTENT_ENCODING.to_owned(), compression.word().to_owned()));
    Ok(())
}
