//! Freezing, ragged sharing, LoRA and memory of layers, alone and in whole encoders of the text package.

mod debug;
mod frozen_models;
mod lora;
mod lora_tasks;
mod lora_training;
mod memory;
mod ragged_models;
mod sources;
