//! Parses a safetensors header; errors name the faulty tensor.
//!
//! The safetensors crate buffers the whole header as a tree before it looks at it, which takes up to 25 times the size
//! of the file. This parser keeps one entry per tensor, checks all that the crate checks, and has limits of its own.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::path::Path;

use safetensors::Dtype;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::checkpoint::gguf::blocks::{Change, GgufTensor};
use crate::ensure;
use crate::error::{Error, Result, cut, cut_to};

pub(crate) use crate::io::MAX_HEADER_BYTES;

/// The most tensors of a file or an index. It bounds the memory that their entries take. The largest published models,
/// with hundreds of experts per layer, have some 300,000.
pub(crate) const MAX_TENSORS: usize = 1 << 20;

/// The longest name of a tensor, in bytes. Names are compared, joined and cut all the time; published names have up to
/// 200 bytes.
pub(crate) const MAX_NAME_BYTES: usize = 1024;

/// The most dimensions of a tensor. Published ones have up to 6.
pub(crate) const MAX_RANK: usize = 32;

/// The most entries of the metadata of a file. Published files have up to some hundred.
pub(crate) const MAX_METADATA_ENTRIES: usize = 1 << 16;

/// A tensor of a file: what its header states about it.
#[derive(Debug, Clone, serde::Deserialize)]
#[serde(expecting = "an object with dtype, shape and data_offsets")]
pub(crate) struct Entry {
    pub dtype: Dtype,
    #[serde(deserialize_with = "shape")]
    pub shape: Box<[usize]>,
    /// Where its data starts and ends, in bytes from the end of the header on.
    #[serde(rename = "data_offsets")]
    pub offsets: [u64; 2],
    /// How a GGUF file holds it, which is read as `dtype` and `shape` say; `None` in safetensors.
    #[serde(skip)]
    pub gguf: Option<Box<GgufTensor>>,
}

impl Entry {
    /// The name of its dtype, or of its type in a GGUF file.
    pub fn kind(&self) -> String {
        match &self.gguf {
            Some(gguf) => gguf.kind.name.to_string(),
            None => format!("{:?}", self.dtype),
        }
    }

    /// The length of its data in bytes.
    pub fn bytes(&self) -> u64 {
        self.offsets[1] - self.offsets[0]
    }

    /// Some of its rows as a tensor of their own; `None` if the file has its rows in another order.
    pub fn rows(&self, rows: &Range<usize>) -> Option<Self> {
        let all = self.shape.first().copied().filter(|all| rows.end <= *all && !rows.is_empty())?;
        let cut = |shape: &[usize]| [&[rows.len()], &shape[1..]].concat().into_boxed_slice();
        let gguf = match self.gguf.as_deref() {
            Some(GgufTensor { change: Some(Change::HeadRows(_)), .. }) => return None,
            Some(stored) if stored.shape != self.shape => return None,
            Some(stored) => Some(Box::new(GgufTensor { shape: cut(&stored.shape), ..stored.clone() })),
            None => None,
        };
        // All rows have as many bytes.
        let at = |row: usize| self.offsets[0] + self.bytes() / all as u64 * row as u64;
        Some(Self { dtype: self.dtype, shape: cut(&self.shape), offsets: [at(rows.start), at(rows.end)], gguf })
    }
}

/// The tensors of a file by name, or the files of an index, and the metadata if the object can have some. Names are
/// unique and short, and not too many. Most readers would take the last of several equal names.
pub(crate) struct Header<V = Entry, const HAS_METADATA: bool = true> {
    pub tensors: BTreeMap<String, V>,
    pub metadata: HashMap<String, String>,
}

/// Parses the header of a file whose data has `data` bytes, and checks it: every tensor has as many bytes as its shape
/// needs, and their data follow one another without overlaps and holes up to the end of the file.
pub(crate) fn parse(path: &Path, header: &[u8], data: u64) -> Result<Header> {
    let invalid = |what: String| Error::file(path, format!("not a valid safetensors file: {what}"));
    let text = std::str::from_utf8(header).map_err(|e| invalid(format!("its header is not UTF-8: {e}")))?;
    let header: Header = serde_json::from_str(text).map_err(|e| invalid(cut_to(&e.to_string(), 600)))?;
    let mut in_order: Vec<(&String, &Entry)> = header.tensors.iter().collect();
    in_order.sort_unstable_by_key(|(_, entry)| entry.offsets);
    let mut end = 0;
    for (name, entry) in in_order {
        check(entry, data, end).map_err(|what| invalid(format!("tensor `{}`: {what}", cut(name))))?;
        end = entry.offsets[1];
    }
    ensure!(end == data, invalid(format!("its tensors end at {end}, the file's data at {data}")));
    Ok(header)
}

/// Checks the entry of the tensor whose data comes after `before` bytes, of `data` bytes of all.
fn check(entry: &Entry, data: u64, before: u64) -> std::result::Result<(), String> {
    let Entry { dtype, shape, offsets: [from, to], .. } = entry;
    // Sizes whose product overflows are no shape, even if one of them is zero.
    let sizes = shape.iter().map(|size| *size.max(&1) as u64);
    let Some(bits) = sizes.chain([dtype.bitsize() as u64]).try_fold(1, u64::checked_mul) else {
        return Err(format!("shape {shape:?} is larger than any memory"));
    };
    let bits = if shape.contains(&0) { 0 } else { bits };
    ensure!(*to <= data, format!("its data ends at {to}, the file's at {data}"));
    if to.checked_sub(*from).and_then(|bytes| bytes.checked_mul(8)) != Some(bits) {
        return Err(format!("its data goes from {from} to {to}, but {dtype:?} {shape:?} has {bits} bits"));
    }
    ensure!(*from == before, format!("its data starts at offset {from}, that before it ends at {before}"));
    Ok(())
}

/// Reads the value of the key `name` and adds it to `all`.
fn add<'de, V: Deserialize<'de>, A: MapAccess<'de>>(
    all: &mut BTreeMap<String, V>,
    name: String,
    entries: &mut A,
) -> std::result::Result<(), A::Error> {
    let shown = cut(&name);
    if name.len() > MAX_NAME_BYTES {
        let length = name.len();
        let what = format!("the name of tensor `{shown}` has {length} bytes, expected at most {MAX_NAME_BYTES}");
        return Err(A::Error::custom(what));
    }
    ensure!(all.len() != MAX_TENSORS, A::Error::custom(format!("more than {MAX_TENSORS} tensors")));
    let value =
        entries.next_value().map_err(|e| A::Error::custom(format!("tensor `{shown}`: {}", cut(&e.to_string()))))?;
    match all.insert(name, value) {
        Some(_) => Err(A::Error::custom(format!("tensor `{shown}` is listed twice"))),
        None => Ok(()),
    }
}

impl<'de, V: Deserialize<'de>, const HAS_METADATA: bool> Deserialize<'de> for Header<V, HAS_METADATA> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Entries<V, const HAS_METADATA: bool>(std::marker::PhantomData<V>);

        impl<'de, V: Deserialize<'de>, const HAS_METADATA: bool> Visitor<'de> for Entries<V, HAS_METADATA> {
            type Value = Header<V, HAS_METADATA>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> std::result::Result<Self::Value, A::Error> {
                const METADATA: &str = "__metadata__";
                let (mut tensors, mut metadata) = (BTreeMap::new(), None);
                while let Some(name) = entries.next_key::<String>()? {
                    if !HAS_METADATA || name != METADATA {
                        add(&mut tensors, name, &mut entries)?;
                    } else if metadata.replace(entries.next_value::<Option<Metadata>>()?).is_some() {
                        return Err(A::Error::duplicate_field(METADATA));
                    }
                }
                let metadata = metadata.flatten().map(|Metadata(entries)| entries).unwrap_or_default();
                Ok(Header { tensors, metadata })
            }
        }

        deserializer.deserialize_map(Entries::<V, HAS_METADATA>(std::marker::PhantomData))
    }
}

/// The metadata of a file.
struct Metadata(HashMap<String, String>);

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> std::result::Result<Metadata, A::Error> {
                let mut all = HashMap::new();
                while let Some((key, value)) = entries.next_entry::<String, String>()? {
                    all.insert(key, value);
                    if all.len() > MAX_METADATA_ENTRIES {
                        return Err(A::Error::custom(format!("more than {MAX_METADATA_ENTRIES} entries of metadata")));
                    }
                }
                Ok(Metadata(all))
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

/// Reads a shape of at most [`MAX_RANK`] dimensions.
fn shape<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Box<[usize]>, D::Error> {
    deserializer.deserialize_seq(Shape)
}

struct Shape;

impl<'de> Visitor<'de> for Shape {
    type Value = Box<[usize]>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of sizes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sizes: A) -> std::result::Result<Box<[usize]>, A::Error> {
        let mut shape = Vec::new();
        while let Some(size) = sizes.next_element()? {
            if shape.len() == MAX_RANK {
                return Err(A::Error::custom(format!("its shape has more than {MAX_RANK} dimensions")));
            }
            shape.push(size);
        }
        Ok(shape.into())
    }
}
