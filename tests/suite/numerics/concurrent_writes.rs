//! Threads that write to tensors while others attend to them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use candle_attention::norm::Norm;
use candle_attention::sdpa::{SdpaOptions, attend_bshd};
use candle_attention::{AttentionConfig, AttentionMask, NormKind};
use candle_core::{DType, Device, Module, Tensor};

use crate::common::{Random, attend_ragged, random_layer};

const CPU: Device = Device::Cpu;
/// Far more than the work takes. A deadlock lasts for ever.
const WATCHDOG: Duration = Duration::from_secs(120);

/// Runs `read` `times` times while another thread writes to `tensor`.
fn while_writing(tensor: &Tensor, times: usize, read: impl Fn() + Send + 'static) {
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..2)
        .map(|_| {
            let (tensor, stop, zeros) = (tensor.clone(), stop.clone(), tensor.zeros_like().unwrap());
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    tensor.slice_set(&zeros, 0, 0).unwrap();
                }
            })
        })
        .collect();
    let (done, wait) = mpsc::channel();
    let reader = thread::spawn(move || {
        (0..times).for_each(|_| read());
        done.send(()).unwrap();
    });
    let finished = wait.recv_timeout(WATCHDOG);
    stop.store(true, Ordering::Relaxed);
    // Threads that wait for each other cannot be joined.
    finished.expect("a deadlock, or a panic of the reader");
    reader.join().unwrap();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
}

/// Queries, keys, values and the mask are views of one tensor, and so share one lock.
#[test]
fn attention_on_views_of_one_tensor_does_not_wait_for_a_writer_between_them() {
    let all = Tensor::zeros((1, 4, 10, 8), DType::F32, &CPU).unwrap();
    let part = |start: usize| all.narrow(2, start, 2).unwrap();
    let (q, k, v) = (part(0), part(2), part(4));
    let bias = all.narrow(2, 6, 4).unwrap().narrow(3, 0, 1).unwrap().squeeze(3).unwrap().unsqueeze(1).unwrap();
    let mask = AttentionMask::additive(&bias).unwrap(); // (1, 1, 4, 4)
    while_writing(&all, 20_000, move || {
        attend_bshd(&q, &k, &v, &SdpaOptions::new(&mask)).unwrap();
    });
}

#[test]
fn a_norm_and_a_layer_do_not_wait_for_a_writer_of_their_parameters() {
    let all = Tensor::zeros((2, 8), DType::F32, &CPU).unwrap();
    let [weight, bias] = [0, 1].map(|row| all.get(row).unwrap());
    let xs = Tensor::ones((3, 8), DType::F32, &CPU).unwrap();
    let norm = Norm::new(NormKind::Layer, weight, Some(bias), 1e-5).unwrap();
    while_writing(&all, 20_000, move || {
        norm.forward(&xs).unwrap();
    });
    let layer = random_layer(&AttentionConfig::new(8, 2), 0.3, &mut Random::new(1));
    let xs = Tensor::zeros((4, 8), DType::F32, &CPU).unwrap();
    let input = xs.clone();
    while_writing(&xs, 2_000, move || {
        attend_ragged(&layer, &input, &[3, 1], &AttentionMask::causal()).unwrap();
    });
}
