//! Reads the header of a GGUF file. Nothing in it is trusted: each length is compared with what is left of the file
//! before anything is allocated, and each tensor with the place that its type and shape need.

use std::collections::{BTreeMap, HashMap};

use crate::checkpoint::gguf::blocks::{self, GgufTensor};
use crate::checkpoint::gguf::names::rename;
use crate::checkpoint::gguf::value::{GgufMetadata, GgufValue};
use crate::checkpoint::header::{Entry, MAX_HEADER_BYTES, MAX_METADATA_ENTRIES, MAX_NAME_BYTES, MAX_TENSORS};
use crate::checkpoint::shard::Shard;
use crate::ensure;
use crate::error::{Error, Result, cut};

/// The first bytes of a file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";

/// The versions that are read. Version 1, with 32-bit lengths, was in use for a month of 2023.
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=3;

/// Data starts at multiples of this, unless the metadata states another alignment.
const DEFAULT_ALIGNMENT: u64 = 32;

/// The most dimensions of a tensor, as in ggml.
const MAX_RANK: u32 = 4;

/// The most arrays inside of one another.
const MAX_DEPTH: usize = 4;

/// The longest part of the header that is read at once, in bytes.
const PART: usize = 1 << 16;

/// The content of a header.
pub(crate) struct GgufHeader {
    pub tensors: BTreeMap<String, Entry>,
    /// The scalars of the metadata as texts.
    pub texts: HashMap<String, String>,
    pub gguf: Gguf,
    /// Where the data starts.
    pub start: u64,
}

/// The metadata of a file, and what it shows about its tensors.
pub(crate) struct Gguf {
    pub metadata: GgufMetadata,
    /// The rows of tensors by llama.cpp's names: of those outside of blocks, and in the first one.
    pub rows: BTreeMap<String, usize>,
    /// A tensor that its architecture does not have here.
    pub unlisted: Option<String>,
}

/// Reads the header of a file of `length` bytes that starts with [`MAGIC`].
pub(crate) fn read(shard: &Shard, length: u64) -> Result<GgufHeader> {
    let mut reader = Reader { shard, length, at: 4, part: Vec::new(), part_at: 0 };
    let version = u32::from_le_bytes(reader.take("the version")?);
    if version.swap_bytes() <= *VERSIONS.end() && version > 0xffff {
        return Err(reader.invalid("it is in big-endian order, expected little-endian"));
    }
    ensure!(VERSIONS.contains(&version), reader.invalid(&format!("it has version {version}, expected 2 or 3")));
    let tensors = reader.count("tensors", MAX_TENSORS, 24)?;
    let values = reader.count("values of metadata", MAX_METADATA_ENTRIES, 13)?;
    let mut metadata = GgufMetadata::default();
    for _ in 0..values {
        let key = reader.name("a key of the metadata")?;
        let kind = u32::from_le_bytes(reader.take(&key)?);
        let value = reader.value(&key, kind, 0)?;
        if metadata.values.insert(key.clone(), value).is_some() {
            return Err(reader.invalid(&format!("metadata `{}` is listed twice", cut(&key))));
        }
    }
    let count = |key: &str| metadata.count(key).map_err(|e| reader.invalid(&e.to_string()));
    let parts = count("split.count")?.unwrap_or(1);
    if parts > 1 {
        return Err(reader.invalid(&format!("it is one of {parts} parts of a model, which llama-gguf-split merges")));
    }
    let alignment = match count("general.alignment")? {
        None => DEFAULT_ALIGNMENT,
        Some(stated) if stated.is_power_of_two() && stated <= 1 << 20 => stated as u64,
        Some(stated) => return Err(reader.invalid(&format!("its alignment is {stated}, expected a power of two"))),
    };
    let mut listed = BTreeMap::new();
    for _ in 0..tensors {
        let (name, entry) = reader.tensor(alignment)?;
        ensure!(!listed.contains_key(&name), reader.invalid(&format!("tensor `{}` is listed twice", cut(&name))));
        listed.insert(name, entry);
    }
    let start = reader.at.next_multiple_of(alignment);
    check_places(&listed, length.saturating_sub(start)).map_err(|what| reader.invalid(&what))?;
    let scalar = |value: &GgufValue| match value {
        GgufValue::Bool(_) | GgufValue::Integer(_) | GgufValue::Float(_) | GgufValue::Text(_) => {
            Some(value.to_string())
        }
        _ => None,
    };
    let texts = metadata.iter().filter_map(|(key, value)| Some((key.to_string(), scalar(value)?))).collect();
    let rows = listed.iter().filter(|(name, _)| !name.starts_with("blk.") || name.starts_with("blk.0."));
    let rows = rows.map(|(name, entry)| (name.clone(), entry.shape.first().copied().unwrap_or(1))).collect();
    let (tensors, unlisted) = rename(listed, &metadata).map_err(|e| Error::file(shard.path(), e))?;
    Ok(GgufHeader { tensors, texts, gguf: Gguf { metadata, rows, unlisted }, start })
}

/// Checks that each tensor ends in the file, and starts after the one before it.
fn check_places(tensors: &BTreeMap<String, Entry>, data: u64) -> std::result::Result<(), String> {
    let mut in_order: Vec<(&String, &Entry)> = tensors.iter().collect();
    in_order.sort_unstable_by_key(|(_, entry)| entry.offsets);
    let mut before = 0;
    for (name, Entry { offsets: [from, to], .. }) in in_order {
        let name = cut(name);
        ensure!(*to <= data, format!("tensor `{name}`: its data ends at {to}, the file's at {data}"));
        if *from < before {
            return Err(format!("tensor `{name}`: its data starts at offset {from}, that before it ends at {before}"));
        }
        before = *to;
    }
    Ok(())
}

/// A position in a header.
struct Reader<'a> {
    shard: &'a Shard,
    /// The length of the file in bytes.
    length: u64,
    /// The next byte.
    at: u64,
    /// A part of the file, and where it starts.
    part: Vec<u8>,
    part_at: u64,
}

impl Reader<'_> {
    fn invalid(&self, what: &str) -> Error {
        Error::file(self.shard.path(), format!("not a valid GGUF file: {what}"))
    }

    /// The bytes up to the end of the file, or up to where no header ends.
    fn left(&self) -> u64 {
        self.length.min(MAX_HEADER_BYTES).saturating_sub(self.at)
    }

    /// Fills `into` with the next bytes.
    fn fill(&mut self, into: &mut [u8], what: &str) -> Result<()> {
        if into.len() as u64 > self.left() {
            let found = if self.length > MAX_HEADER_BYTES {
                format!("its header has more than {MAX_HEADER_BYTES} bytes")
            } else {
                "the file".to_string()
            };
            return Err(self.invalid(&format!("{found} ends within {}", cut(what))));
        }
        if into.len() > PART {
            self.shard.read_bytes(self.at, into, &what)?;
        } else {
            let from = self.at.wrapping_sub(self.part_at) as usize;
            if self.at < self.part_at || self.part.len() < from.saturating_add(into.len()) {
                self.part.resize(self.left().min(PART as u64) as usize, 0);
                self.shard.read_bytes(self.at, &mut self.part, &what)?;
                self.part_at = self.at;
            }
            let from = (self.at - self.part_at) as usize;
            into.copy_from_slice(&self.part[from..from + into.len()]);
        }
        self.at += into.len() as u64;
        Ok(())
    }

    fn take<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    /// A number of things of which each takes at least `least` bytes of the header.
    fn count(&mut self, what: &str, most: usize, least: u64) -> Result<usize> {
        let count = u64::from_le_bytes(self.take(what)?);
        ensure!(count <= most as u64, self.invalid(&format!("it states {count} {what}, expected at most {most}")));
        if count.saturating_mul(least) > self.left() {
            let left = self.left();
            return Err(self.invalid(&format!("it states {count} {what}, which do not fit in the {left} bytes left")));
        }
        Ok(count as usize)
    }

    fn text(&mut self, what: &str) -> Result<String> {
        let length = self.count(&format!("bytes of text in {what}"), MAX_HEADER_BYTES as usize, 1)?;
        let mut bytes = vec![0; length];
        self.fill(&mut bytes, what)?;
        String::from_utf8(bytes).map_err(|e| self.invalid(&format!("{} is not UTF-8: {}", cut(what), e.utf8_error())))
    }

    /// A key or the name of a tensor.
    fn name(&mut self, what: &str) -> Result<String> {
        let name = self.text(what)?;
        match name.len() {
            0 => Err(self.invalid(&format!("{what} is empty"))),
            length if length > MAX_NAME_BYTES => {
                let name = cut(&name);
                Err(self.invalid(&format!("{what}, `{name}`, has {length} bytes, expected at most {MAX_NAME_BYTES}")))
            }
            _ => Ok(name),
        }
    }

    /// A value of the type `kind` of the metadata `key`.
    fn value(&mut self, key: &str, kind: u32, depth: usize) -> Result<GgufValue> {
        Ok(match kind {
            0 => GgufValue::Integer(u8::from_le_bytes(self.take(key)?).into()),
            1 => GgufValue::Integer(i8::from_le_bytes(self.take(key)?).into()),
            2..=5 | 10 | 11 => GgufValue::Integer(self.integer(key, kind)?),
            6 | 12 => GgufValue::Float(self.float(key, kind)?),
            7 => match self.take(key)? {
                [0] => GgufValue::Bool(false),
                [1] => GgufValue::Bool(true),
                [other] => return Err(self.invalid(&format!("metadata `{}` is {other}, expected 0 or 1", cut(key)))),
            },
            8 => GgufValue::Text(self.text(key)?),
            9 => self.array(key, depth)?,
            other => return Err(self.invalid(&format!("metadata `{}` has the unknown type {other}", cut(key)))),
        })
    }

    fn integer(&mut self, key: &str, kind: u32) -> Result<i64> {
        Ok(match kind {
            2 => u16::from_le_bytes(self.take(key)?).into(),
            3 => i16::from_le_bytes(self.take(key)?).into(),
            4 => u32::from_le_bytes(self.take(key)?).into(),
            5 => i32::from_le_bytes(self.take(key)?).into(),
            10 => {
                let number = u64::from_le_bytes(self.take(key)?);
                let too_large = |_| self.invalid(&format!("metadata `{}` is {number}, beyond 63 bits", cut(key)));
                i64::try_from(number).map_err(too_large)?
            }
            _ => i64::from_le_bytes(self.take(key)?),
        })
    }

    fn float(&mut self, key: &str, kind: u32) -> Result<f64> {
        Ok(match kind {
            6 => {
                let number = f32::from_le_bytes(self.take(key)?);
                number.to_string().parse().unwrap_or(number.into())
            }
            _ => f64::from_le_bytes(self.take(key)?),
        })
    }

    fn array(&mut self, key: &str, depth: usize) -> Result<GgufValue> {
        let kind = u32::from_le_bytes(self.take(key)?);
        let least = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => 12,
            other => return Err(self.invalid(&format!("metadata `{}` has the unknown type {other}", cut(key)))),
        };
        let count = self.count(&format!("values in metadata `{}`", cut(key)), MAX_HEADER_BYTES as usize, least)?;
        Ok(match kind {
            0 | 1 | 7 => {
                let mut bytes = vec![0; count];
                self.fill(&mut bytes, key)?;
                GgufValue::Bytes(bytes)
            }
            6 | 12 => GgufValue::Floats((0..count).map(|_| self.float(key, kind)).collect::<Result<_>>()?),
            8 => GgufValue::Texts((0..count).map(|_| self.text(key)).collect::<Result<_>>()?),
            9 if depth == MAX_DEPTH => {
                return Err(self.invalid(&format!("metadata `{}` nests more than {MAX_DEPTH} arrays", cut(key))));
            }
            9 => {
                for _ in 0..count {
                    self.array(key, depth + 1)?;
                }
                GgufValue::Nested
            }
            _ => GgufValue::Integers((0..count).map(|_| self.integer(key, kind)).collect::<Result<_>>()?),
        })
    }

    /// The name and the entry of a tensor.
    fn tensor(&mut self, alignment: u64) -> Result<(String, Entry)> {
        let name = self.name("the name of a tensor")?;
        let wrong = |what: String| format!("tensor `{}`: {what}", cut(&name));
        let rank = u32::from_le_bytes(self.take(&name)?);
        ensure!(rank <= MAX_RANK, self.invalid(&wrong(format!("{rank} dimensions, expected at most {MAX_RANK}"))));
        let mut shape = Vec::with_capacity(rank as usize);
        for _ in 0..rank {
            let size = u64::from_le_bytes(self.take(&name)?);
            let size = usize::try_from(size).map_err(|_| self.invalid(&wrong(format!("a dimension of {size}"))))?;
            shape.push(size);
        }
        // The first dimension of the file is the innermost.
        shape.reverse();
        let kind = u32::from_le_bytes(self.take(&name)?);
        let from = u64::from_le_bytes(self.take(&name)?);
        if !from.is_multiple_of(alignment) {
            return Err(self.invalid(&wrong(format!("its data starts at {from}, expected a multiple of {alignment}"))));
        }
        let Some(kind) = blocks::type_of(kind) else {
            return Err(self.invalid(&wrong(format!("the unknown type {kind}"))));
        };
        let bytes = kind.bytes(&shape).map_err(|what| self.invalid(&wrong(what)))?;
        let Some(to) = from.checked_add(bytes) else {
            return Err(self.invalid(&wrong(format!("its data starts at {from}"))));
        };
        let shape: Box<[usize]> = shape.into();
        let stored = GgufTensor { kind, shape: shape.clone(), change: None };
        Ok((name, Entry { dtype: kind.dtype(), shape, offsets: [from, to], gguf: Some(Box::new(stored)) }))
    }
}
