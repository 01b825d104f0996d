//! Decodes the record batches of a response: decompressed within bounds, without aborted transactions.

use std::{collections::HashSet, io::Read};

use anyhow::{Result, bail};
use bytes::{Buf, Bytes};
use kafka_protocol::{
    messages::fetch_response::AbortedTransaction,
    records::{Compression, Record, RecordBatchDecoder},
};

/// Longest decompressed batch.
const UNPACKED_BYTES_MAX: usize = 64 << 20;
/// The size of a batch header.
const HEAD_BYTES: usize = 61;
/// The shortest record.
const RECORD_BYTES_MIN: usize = 7;

/// The batches of one partition in a response.
#[derive(Debug, Default)]
pub(super) struct Batches {
    rest: Bytes,
    /// Aborted transactions: their producers and first offsets, in descending order.
    aborted: Vec<(i64, i64)>,
    /// Producers in such a transaction.
    aborting: HashSet<i64>,
}

/// A record batch.
#[derive(Debug)]
pub(super) struct Batch {
    /// The offset of its last record, also if that was compacted away.
    pub last: i64,
    /// The epoch of the leader that wrote it.
    pub epoch: i32,
    /// Records; or the permanent reason why it cannot be decoded.
    pub records: Result<Vec<Record>, String>,
}

/// The header of a batch.
struct BatchHeader {
    first: i64,
    last: i64,
    epoch: i32,
    version: i8,
    attributes: i16,
    producer: i64,
    count: i32,
}

impl BatchHeader {
    fn read(mut bytes: &[u8]) -> BatchHeader {
        let first = bytes.get_i64();
        bytes.advance(4);
        let epoch = bytes.get_i32();
        let version = bytes.get_i8();
        bytes.advance(4);
        let attributes = bytes.get_i16();
        let last = first + i64::from(bytes.get_i32());
        bytes.advance(16);
        let producer = bytes.get_i64();
        bytes.advance(6);
        BatchHeader { first, last, epoch, version, attributes, producer, count: bytes.get_i32() }
    }

    fn is_transactional(&self) -> bool {
        self.attributes & 0x10 != 0
    }

    fn is_control(&self) -> bool {
        self.attributes & 0x20 != 0
    }
}

impl Batches {
    pub fn new(records: Bytes, aborted: Vec<AbortedTransaction>) -> Batches {
        let mut aborted: Vec<_> = aborted.iter().map(|one| (one.producer_id.0, one.first_offset)).collect();
        aborted.sort_unstable_by_key(|(_, first)| std::cmp::Reverse(*first));
        Batches { rest: records, aborted, aborting: HashSet::new() }
    }

    /// The next batch. A truncated one at the end is ignored: it is fetched again.
    ///
    /// # Errors
    /// The response is damaged.
    pub fn next(&mut self) -> Result<Option<Batch>, String> {
        if self.rest.len() < 12 {
            return Ok(None);
        }
        let length = i32::from_be_bytes(self.rest[8..12].try_into().expect("four bytes"));
        let length = usize::try_from(length).map_err(|_| "a batch has a negative length".to_owned())? + 12;
        if self.rest.len() < length {
            return Ok(None);
        }
        if length < HEAD_BYTES {
            return Err(format!("a batch has only {length} bytes"));
        }
        let mut bytes = self.rest.split_to(length);
        let is_whole = is_whole(&bytes);
        let head = BatchHeader::read(&bytes);
        if head.version != 2 {
            // The first offset of an old message set is that of its last message.
            let records = Err(format!("messages of format {}, older than Kafka 0.11, are not read", head.version));
            return Ok(Some(Batch { last: head.first, epoch: -1, records }));
        }
        if head.last < head.first || head.count < 0 {
            return Err(format!("the head of the batch at offset {} is damaged", head.first));
        }
        while self.aborted.last().is_some_and(|(_, first)| *first <= head.last) {
            self.aborting.extend(self.aborted.pop().map(|(producer, _)| producer));
        }
        let batch = |records| Ok(Some(Batch { last: head.last, epoch: head.epoch, records }));
        if head.is_control() {
            let records = decode(&mut bytes, &head).map_err(|error| error.to_string())?;
            if records.iter().any(is_abort) {
                self.aborting.remove(&head.producer);
            }
            return batch(Ok(Vec::new()));
        }
        if head.is_transactional() && self.aborting.contains(&head.producer) {
            return batch(Ok(Vec::new()));
        }
        match decode(&mut bytes, &head) {
            Ok(records) => batch(Ok(records)),
            Err(error) if error.is::<TooLong>() => batch(Err(error.to_string())),
            // The checksum is valid, so it is as its producer wrote it, and this version can never decompress it.
            Err(error) if is_whole => batch(Err(format!("cannot be unpacked: {error}"))),
            Err(error) => Err(format!("the batch at offset {} is damaged: {error}", head.first)),
        }
    }
}

/// Whether the checksum of a batch is valid.
fn is_whole(batch: &[u8]) -> bool {
    let (Some(stored), Some(covered)) = (batch.get(17..21), batch.get(21..)) else { return false };
    stored == crc32c::crc32c(covered).to_be_bytes()
}

/// Whether this is the end of an aborted transaction.
fn is_abort(record: &Record) -> bool {
    record.key.as_ref().is_some_and(|key| key.len() >= 4 && key[2..4] == [0, 0])
}

fn decode(bytes: &mut Bytes, head: &BatchHeader) -> Result<Vec<Record>> {
    let unpack = |packed: &mut Bytes, compression: Compression| {
        let unpacked = unpack(packed, compression)?;
        // Memory for that many records is reserved before they are decoded.
        if head.count as usize > unpacked.len() / RECORD_BYTES_MIN {
            bail!("it promises {} messages in {} bytes", head.count, unpacked.len());
        }
        Ok(unpacked)
    };
    Ok(RecordBatchDecoder::decode_with_custom_compression(bytes, Some(unpack))?.records)
}

/// The error of a decompressed batch that is too long.
#[derive(Debug, thiserror::Error)]
#[error("its messages have more than {UNPACKED_BYTES_MAX} bytes when they are unpacked")]
struct TooLong;

fn unpack(packed: &mut Bytes, compression: Compression) -> Result<Bytes> {
    let packed = packed.split_to(packed.len());
    match compression {
        Compression::None => Ok(packed),
        Compression::Gzip => read(flate2::read::MultiGzDecoder::new(&packed[..])),
        Compression::Lz4 => read(lz4_flex::frame::FrameDecoder::new(&packed[..])),
        Compression::Zstd => read(zstd::stream::read::Decoder::new(&packed[..])?),
        Compression::Snappy => unsnap(&packed),
    }
}

fn read(text: impl Read) -> Result<Bytes> {
    let mut unpacked = Vec::new();
    text.take(UNPACKED_BYTES_MAX as u64 + 1).read_to_end(&mut unpacked)?;
    if unpacked.len() > UNPACKED_BYTES_MAX {
        return Err(TooLong.into());
    }
    Ok(unpacked.into())
}

/// Snappy is used raw, or in blocks as in the Java library.
fn unsnap(packed: &[u8]) -> Result<Bytes> {
    const JAVA: &[u8] = b"\x82SNAPPY\0";
    let Some(mut rest) = packed.strip_prefix(JAVA) else {
        let mut unpacked = Vec::new();
        unsnap_block(packed, &mut unpacked)?;
        return Ok(unpacked.into());
    };
    // Two version numbers, which are ignored.
    let Some(blocks) = rest.get(8..) else { bail!("the header of Snappy is cut off") };
    rest = blocks;
    let mut unpacked = Vec::new();
    while !rest.is_empty() {
        let Some((length, after)) = rest.split_at_checked(4) else { bail!("a block of Snappy is cut off") };
        let length = u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
        let Some((block, after)) = after.split_at_checked(length) else { bail!("a block of Snappy is cut off") };
        unsnap_block(block, &mut unpacked)?;
        rest = after;
    }
    Ok(unpacked.into())
}

fn unsnap_block(block: &[u8], unpacked: &mut Vec<u8>) -> Result<()> {
    let length = snap::raw::decompress_len(block)?;
    if unpacked.len() + length > UNPACKED_BYTES_MAX {
        return Err(TooLong.into());
    }
    unpacked.append(&mut snap::raw::Decoder::new().decompress_vec(block)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use bytes::BytesMut;
    use kafka_protocol::{
        messages::ProducerId,
        records::{NO_PARTITION_LEADER_EPOCH, RecordBatchEncoder, RecordEncodeOptions, TimestampType},
    };

    use super::*;

    fn record(offset: i64, producer_id: i64, value: &str) -> Record {
        Record {
            transactional: producer_id >= 0,
            control: false,
            delete_horizon: false,
            partition_leader_epoch: NO_PARTITION_LEADER_EPOCH,
            producer_id,
            producer_epoch: 0,
            sequence: offset as i32,
            timestamp_type: TimestampType::Creation,
            offset,
            timestamp: 1_000,
            key: None,
            value: Some(Bytes::copy_from_slice(value.as_bytes())),
            headers: Default::default(),
        }
    }

    /// The end of a transaction.
    fn end(offset: i64, producer: i64, committed: bool) -> Record {
        let key = Bytes::copy_from_slice(&[0, 0, 0, u8::from(committed)]);
        Record { control: true, key: Some(key), ..record(offset, producer, "") }
    }

    fn pack(records: &[Record], compression: Compression, by: impl Fn(&[u8]) -> Vec<u8>) -> Bytes {
        let mut buffer = BytesMut::new();
        let compressor = |records: &mut BytesMut, into: &mut BytesMut, _| -> Result<()> {
            into.extend_from_slice(&by(records));
            Ok(())
        };
        let options = RecordEncodeOptions { version: 2, compression };
        RecordBatchEncoder::encode_with_custom_compression(&mut buffer, records, &options, Some(compressor))
            .expect("packed");
        buffer.freeze()
    }

    fn plain(records: &[Record]) -> Bytes {
        pack(records, Compression::None, <[u8]>::to_vec)
    }

    fn shown(bytes: Bytes, aborted: &[(i64, i64)]) -> String {
        let aborted = aborted.iter().map(|(producer, first)| {
            AbortedTransaction::default().with_producer_id(ProducerId(*producer)).with_first_offset(*first)
        });
        let mut batches = Batches::new(bytes, aborted.collect());
        let mut shown = Vec::new();
        loop {
            match batches.next() {
                Ok(None) => return shown.join(" "),
                Err(error) => return error,
                Ok(Some(batch)) => shown.push(match batch.records {
                    Ok(records) => {
                        let values =
                            records.iter().map(|record| String::from_utf8_lossy(record.value.as_ref().expect("one")));
                        format!("{}:{}", batch.last, values.collect::<Vec<_>>().join(","))
                    }
                    Err(error) => format!("{}:{error}", batch.last),
                }),
            }
        }
    }

    #[test]
    fn every_compression_is_decompressed() {
        let records: Vec<Record> = (0..3).map(|at| record(at, -1, &format!("m{at}"))).collect();
        let zstd = |bytes: &[u8]| zstd::encode_all(bytes, 1).expect("packed");
        let snappy = |bytes: &[u8]| snap::raw::Encoder::new().compress_vec(bytes).expect("packed");
        let java = |bytes: &[u8]| {
            let mut packed = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01".to_vec();
            for block in bytes.chunks(5) {
                let block = snappy(block);
                packed.extend_from_slice(&(block.len() as u32).to_be_bytes());
                packed.extend_from_slice(&block);
            }
            packed
        };
        let gzip = |bytes: &[u8]| {
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), Default::default());
            packer.write_all(bytes).expect("packed");
            packer.finish().expect("packed")
        };
        let lz4 = |bytes: &[u8]| {
            let mut packer = lz4_flex::frame::FrameEncoder::new(Vec::new());
            packer.write_all(bytes).expect("packed");
            packer.finish().expect("packed")
        };
        assert_eq!(shown(plain(&records), &[]), "2:m0,m1,m2");
        assert_eq!(shown(pack(&records, Compression::Zstd, zstd), &[]), "2:m0,m1,m2");
        assert_eq!(shown(pack(&records, Compression::Snappy, snappy), &[]), "2:m0,m1,m2");
        assert_eq!(shown(pack(&records, Compression::Snappy, java), &[]), "2:m0,m1,m2");
        assert_eq!(shown(pack(&records, Compression::Gzip, gzip), &[]), "2:m0,m1,m2");
        assert_eq!(shown(pack(&records, Compression::Lz4, lz4), &[]), "2:m0,m1,m2");
    }

    #[test]
    fn d_a_truncated_header_or_length_of_java_snappy_is_an_error() {
        let mut packed = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01".to_vec();
        assert!(unsnap(&packed).expect("no block").is_empty());
        assert!(unsnap(&packed[..12]).is_err(), "the header is cut off");
        packed.extend_from_slice(&[0, 0, 0]);
        assert!(unsnap(&packed).is_err(), "a length is cut off");
    }

    #[test]
    fn decompression_bombs_are_skipped() {
        let bomb =
            |_: &[u8]| zstd::encode_all(std::io::repeat(0).take(UNPACKED_BYTES_MAX as u64 + 1), 1).expect("packed");
        let mut bytes = BytesMut::from(&pack(&[record(0, -1, "a"), record(1, -1, "b")], Compression::Zstd, bomb)[..]);
        bytes.extend_from_slice(&plain(&[record(2, -1, "c")]));
        let expected = format!("1:its messages have more than {UNPACKED_BYTES_MAX} bytes when they are unpacked 2:c");
        assert_eq!(shown(bytes.freeze(), &[]), expected);
    }

    #[test]
    fn damage_is_reported_and_truncated_batches_are_fetched_again() {
        let whole = plain(&[record(0, -1, "a")]);
        let mut two = BytesMut::from(&whole[..]);
        two.extend_from_slice(&whole[..whole.len() - 1]);
        assert_eq!(shown(two.freeze(), &[]), "0:a");
        let mut damaged = whole.to_vec();
        *damaged.last_mut().expect("a byte") ^= 1;
        assert!(shown(damaged.into(), &[]).starts_with("the batch at offset 0 is damaged: "));
        // More messages than possible, with a valid checksum.
        let many = pack(&vec![record(0, -1, "a"); 40], Compression::None, |bytes| bytes[..9].to_vec());
        assert_eq!(shown(many, &[]), "0:cannot be unpacked: it promises 40 messages in 9 bytes");
        for length in 0..whole.len() {
            assert_eq!(shown(whole.slice(..length), &[]), "", "{length}");
        }
    }

    #[test]
    fn d_a_batch_that_cannot_be_decompressed_is_rejected_and_others_continue() {
        let mut unknown = plain(&[record(0, -1, "a")]).to_vec();
        // The compression is in the last three bits of the attributes, which the checksum covers.
        unknown[22] |= 7;
        let sum = crc32c::crc32c(&unknown[21..]);
        unknown[17..21].copy_from_slice(&sum.to_be_bytes());
        unknown.extend_from_slice(&plain(&[record(1, -1, "b")]));
        let shown = shown(unknown.into(), &[]);
        assert!(shown.starts_with("0:cannot be unpacked: ") && shown.ends_with(" 1:b"), "{shown}");
    }

    #[test]
    fn aborted_transactions_are_left_out() {
        let mut bytes = BytesMut::new();
        for batch in [
            vec![record(0, 7, "kept")],
            vec![record(1, 8, "gone")],
            vec![end(2, 8, false)],
            vec![record(3, 8, "again")],
            vec![end(4, 7, true)],
            vec![record(5, 7, "gone")],
            vec![record(6, -1, "bare")],
            vec![end(7, 7, false)],
            vec![end(8, 8, true)],
        ] {
            bytes.extend_from_slice(&plain(&batch));
        }
        assert_eq!(shown(bytes.freeze(), &[(7, 5), (8, 1)]), "0:kept 1: 2: 3:again 4: 5: 6:bare 7: 8:");
    }
}
