//! Layers as the models of published families run them.

mod config_kinds;
mod family_keys;
mod family_layouts;
mod model_types;
mod published_layers;
pub mod right_or_refused;
mod seed_systems;
mod silent_configs;
