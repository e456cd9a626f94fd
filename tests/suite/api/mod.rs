//! The API as its users type it.

mod call_inputs;
mod candle_functions;
mod composed_models;
mod composing;
mod first_tries;
mod fixtures;
mod layer;
mod manifest;
mod plans;
mod projections;
