//! The names of an adapter's tensors: which part of the change of which module each of them is.

/// What PEFT puts before the names of the base model.
pub(super) const PREFIX: &str = "base_model.model.";

/// A part of the change of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// `A` of a linear layer, `(r, in)`.
    A,
    /// `B` of a linear layer, `(out, r)`.
    B,
    /// `A` of a table of embeddings, `(r, rows)`.
    EmbeddingA,
    /// `B` of a table of embeddings, `(width, r)`.
    EmbeddingB,
    /// The magnitude of each output, `(out)`.
    Magnitude,
}

/// How the name of each part ends.
const ENDS: [(&str, Part); 6] = [
    (".lora_A.weight", Part::A),
    (".lora_B.weight", Part::B),
    (".lora_embedding_A", Part::EmbeddingA),
    (".lora_embedding_B", Part::EmbeddingB),
    (".lora_magnitude_vector", Part::Magnitude),
    (".lora_magnitude_vector.weight", Part::Magnitude),
];

/// A tensor of an adapter.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// A part of the change of a module.
    Change(String, Part),
    /// A tensor that takes the place of the base model's of this name.
    Whole(String),
    /// One that this version does not know.
    Unknown,
}

impl Named {
    /// Reads a name of `adapter_model.safetensors`.
    pub(super) fn parse(name: &str) -> Self {
        let name = name.strip_prefix(PREFIX).unwrap_or(name);
        if let Some((module, part)) = ENDS.iter().find_map(|(end, part)| Some((name.strip_suffix(end)?, *part))) {
            return Self::Change(module.to_string(), part);
        }
        if name.contains("lora_") {
            return Self::Unknown;
        }
        // What PEFT wraps has its tensors one level deeper.
        Self::Whole(name.replace(".base_layer.", ".").replace(".modules_to_save.", "."))
    }
}

/// The name of a part as PEFT writes it.
pub(super) fn name_of(module: &str, part: Part) -> String {
    let end = ENDS.iter().find(|(_, of)| *of == part).map_or("", |(end, _)| end);
    format!("{PREFIX}{module}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_peft() {
        let query = || "encoder.layer.0.attention.self.query".to_string();
        for part in [Part::A, Part::B, Part::EmbeddingA, Part::EmbeddingB, Part::Magnitude] {
            assert_eq!(Named::parse(&name_of(&query(), part)), Named::Change(query(), part));
        }
        assert_eq!(Named::parse("x.lora_A.weight"), Named::Change("x".to_string(), Part::A));
        assert_eq!(
            Named::parse("base_model.model.x.lora_magnitude_vector.weight"),
            Named::Change("x".to_string(), Part::Magnitude)
        );
        for name in ["x.base_layer.bias", "x.modules_to_save.bias", "x.bias"] {
            assert_eq!(Named::parse(&format!("base_model.model.{name}")), Named::Whole("x.bias".to_string()));
        }
        for name in ["x.lora_B.bias", "x.lora_A.default.weight"] {
            assert_eq!(Named::parse(name), Named::Unknown);
        }
    }
}
