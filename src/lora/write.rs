//! Writing an adapter as a folder that PEFT reads.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::Tensor;
use serde_json::{Value, json};

use crate::error::Result;
use crate::io::{write_file, write_new_folder, write_tensors};
use crate::lora::adapter::{CONFIG, LoraAdapter, WEIGHTS};
use crate::lora::config::{LoraBias, LoraConfig, TargetModules};
use crate::lora::names::{PREFIX, Part, name_of};

impl LoraAdapter {
    /// Writes a new folder with `adapter_config.json` and `adapter_model.safetensors`, which PEFT's
    /// `PeftModel.from_pretrained` and [`open`](Self::open) read. The folder gets its name when it is complete.
    ///
    /// # Errors
    /// A folder that exists, or that cannot be written.
    pub fn write(&self, folder: impl AsRef<Path>) -> Result<()> {
        // PEFT reads a tensor of a module that it wraps one level deeper, and ignores it elsewhere.
        let name_of_whole = |name: &str| match name.rsplit_once('.') {
            Some((module, parameter)) if self.changes.contains_key(module) => {
                format!("{PREFIX}{module}.base_layer.{parameter}")
            }
            _ => format!("{PREFIX}{name}"),
        };
        let whole = self.whole.iter().map(|(name, tensor)| (name_of_whole(name), tensor.clone()));
        let mut tensors: BTreeMap<String, Tensor> = whole.collect();
        for (module, change) in &self.changes {
            // Tables of embeddings have their width as the outputs, under names of their own.
            let [a, b] = match self.embeddings.contains(module) {
                true => [Part::EmbeddingA, Part::EmbeddingB],
                false => [Part::A, Part::B],
            };
            let parts = [(a, Some(&change.a)), (b, Some(&change.b)), (Part::Magnitude, change.magnitude.as_ref())];
            let parts =
                parts.into_iter().filter_map(|(part, tensor)| Some((name_of(module, part), tensor?.contiguous())));
            for (name, tensor) in parts {
                tensors.insert(name, tensor?);
            }
        }
        let config = format!("{:#}\n", self.config.to_json());
        let metadata = [("format".to_string(), "pt".to_string())].into();
        write_new_folder(folder.as_ref(), |new| {
            write_file(&new.join(CONFIG), config)?;
            write_tensors(&new.join(WEIGHTS), tensors, metadata)
        })
    }
}

impl LoraConfig {
    /// The keys of an `adapter_config.json`.
    pub fn to_json(&self) -> Value {
        let modules = |modules: &TargetModules| match modules {
            TargetModules::Names(names) => json!(names),
            TargetModules::Pattern(pattern) => json!(pattern),
        };
        let list = |items: Value| if items.as_array().is_none_or(Vec::is_empty) { Value::Null } else { items };
        json!({
            "peft_type": "LORA",
            "task_type": self.task_type,
            "base_model_name_or_path": self.base_model_name_or_path,
            "inference_mode": true,
            "r": self.r,
            "lora_alpha": self.lora_alpha,
            "lora_dropout": 0.0,
            "init_lora_weights": true,
            "use_rslora": self.use_rslora,
            "use_dora": self.use_dora,
            "fan_in_fan_out": self.fan_in_fan_out,
            "bias": match self.bias {
                LoraBias::None => "none",
                LoraBias::All => "all",
                LoraBias::LoraOnly => "lora_only",
            },
            "target_modules": modules(&self.target_modules),
            "exclude_modules": self.exclude_modules.as_ref().map(modules),
            "modules_to_save": list(json!(self.modules_to_save)),
            "rank_pattern": self.rank_pattern,
            "alpha_pattern": self.alpha_pattern,
            "layers_to_transform": list(json!(self.layers_to_transform)),
            "layers_pattern": list(json!(self.layers_pattern)),
        })
    }
}
