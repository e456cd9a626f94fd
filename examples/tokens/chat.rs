//! The texts of a decoder: its files, its tokenizer and chat template, and the choice of a token by its scores.

use candle_attention::checkpoint::Checkpoint;
use candle_attention_cli::shared::{Result, about};
use candle_attention_text::{ModelFiles, locate_model};
use serde_json::{Value, json};
use tokenizers::Tokenizer;

use super::Config;

/// The files of a decoder: of a folder, of a GGUF file, or of an id on the hub.
pub struct Files {
    pub config: Config,
    pub weights: Checkpoint,
    pub tokenizer: Tokenizer,
    /// The tokens that end a text.
    pub ends: Vec<u32>,
    template: Option<String>,
    settings: Value,
}

impl Files {
    pub fn open(model: &str) -> Result<Self> {
        let path = locate_model(model, None, true)?;
        let is_gguf = path.extension().is_some_and(|end| end == "gguf");
        let gguf = is_gguf.then(|| ModelFiles::from_gguf(&path)).transpose()?;
        let read = |name: &str| match &gguf {
            Some(files) => files.get(name).map(<[u8]>::to_vec),
            None => std::fs::read(path.join(name)).ok(),
        };
        let optional = |name: &str| -> Result<Value> {
            let parsed = read(name).map(|bytes| serde_json::from_slice(&bytes)).transpose();
            Ok(parsed.map_err(|error| about(&path.join(name), error))?.unwrap_or_default())
        };
        let needed = |name: &str| match optional(name)? {
            Value::Null => Err(about(&path.join(name), "no such file").into()),
            value => Result::Ok(value),
        };
        let config = Config::new(path.join("config.json"), needed("config.json")?);
        let settings = optional("tokenizer_config.json")?;
        let tokenizer: Tokenizer = serde_json::from_value(needed("tokenizer.json")?)?;
        let generation = optional("generation_config.json")?;
        let ids = [&config.json["eos_token_id"], &generation["eos_token_id"]];
        let ids = ids.into_iter().flat_map(|ids| ids.as_array().cloned().unwrap_or_else(|| vec![ids.clone()]));
        let end = text_of(&settings["eos_token"]).as_str().and_then(|end| tokenizer.token_to_id(end));
        let ends = ids.filter_map(|id| Some(id.as_u64()? as u32)).chain(end).collect();
        let template = read("chat_template.jinja").and_then(|bytes| String::from_utf8(bytes).ok());
        let template = template.or_else(|| settings["chat_template"].as_str().map(str::to_string));
        let weights = match gguf.as_ref().and_then(ModelFiles::weights) {
            Some(weights) => weights.clone(),
            None => Checkpoint::open(&path)?,
        };
        Ok(Self { config, weights, tokenizer, ends, template, settings })
    }

    /// The ids of a prompt: of a message in a chat, or, with `raw` or without a template, of the prompt as it is.
    pub fn ids(&self, prompt: &str, system: Option<&str>, raw: bool) -> Result<Vec<u32>> {
        let template = self.template.as_deref().filter(|_| !raw);
        let text = template.map(|template| self.render(template, prompt, system)).transpose()?;
        let encoding = self.tokenizer.encode(text.as_deref().unwrap_or(prompt), text.is_none());
        let ids = encoding.map_err(|error| error.to_string())?.get_ids().to_vec();
        if ids.is_empty() { Err("a prompt without a token".into()) } else { Ok(ids) }
    }

    fn render(&self, template: &str, prompt: &str, system: Option<&str>) -> Result<String> {
        let system = system.into_iter().map(|text| json!({"role": "system", "content": text}));
        let messages: Value = system.chain([json!({"role": "user", "content": prompt})]).collect();
        let [start, end] = ["bos_token", "eos_token"].map(|key| text_of(&self.settings[key]));
        let values = json!({"messages": messages, "add_generation_prompt": true, "bos_token": start, "eos_token": end});
        let rendered = minijinja::Environment::new().render_str(template, values);
        Ok(rendered.map_err(|error| format!("the chat template: {error}; --raw continues the prompt without it"))?)
    }

    /// The text of some tokens.
    pub fn text(&self, ids: &[u32]) -> Result<String> {
        Ok(self.tokenizer.decode(ids, true).map_err(|error| error.to_string())?)
    }
}

/// The text of a special token, which stands alone or in a set.
fn text_of(token: &Value) -> &Value {
    token.get("content").unwrap_or(token)
}

/// How a token is chosen.
#[derive(clap::Args)]
pub struct Sampling {
    /// 0 takes the likeliest token; the higher, the likelier are others
    #[arg(long, default_value_t = 0.0, value_parser = at_least_0)]
    temperature: f32,
    /// Choose among the likeliest tokens that have this probability together
    #[arg(long, default_value_t = 1.0, value_parser = at_least_0)]
    top_p: f32,
    /// The same seed makes the same choices
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn at_least_0(text: &str) -> std::result::Result<f32, &'static str> {
    text.parse().ok().filter(|number: &f32| number.is_finite() && *number >= 0.0).ok_or("expected a number from 0")
}

impl Sampling {
    /// A token by its scores: the likeliest, or one of the likeliest by chance.
    pub fn choose(&mut self, scores: &[f32]) -> u32 {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        // Of equal scores the first counts, as `argmax` has it.
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        if self.temperature == 0.0 {
            return order[0] as u32;
        }
        let weight = |i: &usize| ((scores[*i] - scores[order[0]]) / self.temperature).exp();
        let mut weights: Vec<f32> = order.iter().map(weight).collect();
        let (most, mut sum) = (weights.iter().sum::<f32>() * self.top_p, 0.0);
        let is_within = |weight: &&f32| {
            let before = sum;
            sum += **weight;
            before < most
        };
        weights.truncate(weights.iter().take_while(is_within).count().max(1));
        let mut rest = self.uniform() * weights.iter().sum::<f32>();
        let is_chosen = |weight: &f32| {
            rest -= weight;
            rest < 0.0
        };
        order[weights.iter().position(is_chosen).unwrap_or(weights.len() - 1)] as u32
    }

    /// A number from 0 to 1: the upper bits of SplitMix64 (Steele 2014).
    fn uniform(&mut self) -> f32 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.seed ^ (self.seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 40) as f32 / (1 << 24) as f32
    }
}
